"""What this broker knows of the cluster: topics, their partitions, and the brokers.

It is a picture of the coordination tree, kept in memory because every client asks for it.  The tree
is the truth: a change is written there first and shown here after.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from hightide.core.topics import INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker as clients are told of it."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True)
class Partition:
    """One partition's state; AR is `replicas`, ISR is `isr`."""

    index: int
    replicas: list[int]
    leader: int
    leader_epoch: int
    isr: list[int]


@dataclass(slots=True)
class Topic:
    """A topic, its partitions in order, and the settings that are its own."""

    name: str
    topic_id: uuid.UUID
    partitions: list[Partition]
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)


class Metadata:
    """The picture."""

    def __init__(self, cluster_id: str, broker_id: int) -> None:
        self.cluster_id = cluster_id
        self.controller_id = broker_id
        self.broker_ids = [broker_id]
        self._topics: dict[str, Topic] = {}
        self._names: dict[bytes, str] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        name = self._names.get(topic_id.bytes)
        return None if name is None else self._topics[name]

    def knows_id(self, topic_id: bytes) -> bool:
        return topic_id in self._names

    def names(self) -> list[str]:
        return sorted(self._topics)

    def put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._names[topic.topic_id.bytes] = topic.name

    def remove(self, name: str) -> None:
        topic = self._topics.pop(name)
        del self._names[topic.topic_id.bytes]
