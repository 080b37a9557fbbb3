"""What this broker tells of the cluster: its picture, as the controller last published it.

The picture is also what the broker acts on, so what it tells clients and what it does are the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from hightide.core.metadata.image import MetadataImage, Topic
from hightide.core.partition.state import NOBODY
from hightide.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker as clients are told of it."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


class MetadataCache:
    """The picture, as handlers ask for it."""

    def __init__(self, cluster_id: str, picture: MetadataImage, own_rack: str | None) -> None:
        self.cluster_id = cluster_id
        self.controller_id = NOBODY
        self._picture = picture
        self._own_rack = own_rack

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._picture)

    def __len__(self) -> int:
        return len(self._picture)

    @property
    def racks(self) -> dict[int, str | None]:
        """The brokers that are alive, and where they stand.  Whoever asks this one is answered, so
        it is among them."""
        found = {each.broker_id: each.rack for each in self._picture.brokers.values()}
        return {**found, self._picture.broker_id: self._own_rack}

    @property
    def broker_ids(self) -> list[int]:
        """The brokers that are alive."""
        return sorted(self.racks)

    def get(self, name: str) -> Topic | None:
        return self._picture.topic(name)

    def get_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._picture.topic_by_id(topic_id)

    def refusal(self, topic: Topic | None, partition: int) -> ErrorCode:
        """Why a partition that is not led here cannot be used here."""
        if topic is not None and partition in topic.partitions:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def names(self) -> list[str]:
        return sorted(topic.name for topic in self._picture)
