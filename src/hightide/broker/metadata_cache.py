"""The cluster's metadata as handlers read it: the state that the controller last published.

The broker acts on the same `MetadataImage`, so its responses agree with what it does.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from hightide.core.metadata.image import MetadataImage, Topic
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker as it appears in responses."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


class MetadataCache:
    """Lookups in the metadata image."""

    def __init__(self, cluster_id: str, image: MetadataImage, own_rack: str | None) -> None:
        self.cluster_id = cluster_id
        self.controller_id = NO_BROKER
        self._image = image
        self._own_rack = own_rack

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._image)

    def __len__(self) -> int:
        return len(self._image)

    @property
    def racks(self) -> dict[int, str | None]:
        """The live brokers and their racks.  This broker is alive, since it serves the request."""
        racks = {broker.broker_id: broker.rack for broker in self._image.brokers.values()}
        return {**racks, self._image.broker_id: self._own_rack}

    @property
    def broker_ids(self) -> list[int]:
        """The ids of the live brokers."""
        return sorted(self.racks)

    def get(self, name: str) -> Topic | None:
        return self._image.topic(name)

    def get_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._image.topic_by_id(topic_id)

    def refusal(self, topic: Topic | None, partition: int) -> ErrorCode:
        """The error for a partition that this broker does not lead."""
        if topic is not None and partition in topic.partitions:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def names(self) -> list[str]:
        return sorted(topic.name for topic in self._image)
