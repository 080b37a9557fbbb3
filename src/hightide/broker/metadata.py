"""What this broker knows of the cluster: topics, their partitions, and the brokers.

It is a picture of the coordination tree, kept in memory because every client asks for it.  The tree
is the truth: a change is written there first and shown here after.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from hightide.coordination.znodes import BrokerRegistration
from hightide.core.topics import INTERNAL_TOPICS
from hightide.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker as clients are told of it."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker that is registered now; the epoch tells its lives apart."""

    broker_id: int
    epoch: int
    registration: BrokerRegistration

    def address(self, listener: str) -> BrokerAddress | None:
        """Where clients of a listener reach it; None if it has no such listener."""
        for endpoint in self.registration.endpoints:
            if endpoint.listener == listener:
                rack = self.registration.rack
                return BrokerAddress(self.broker_id, endpoint.host, endpoint.port, rack)
        return None


@dataclass(slots=True)
class Partition:
    """One partition's state; AR is `replicas`, ISR is `isr`.

    The partition epoch is the version of the znode that the state was read from.
    """

    index: int
    replicas: list[int]
    leader: int
    leader_epoch: int
    isr: list[int]
    partition_epoch: int = 0


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
        self.controller_id = -1
        self.brokers: dict[int, LiveBroker] = {}
        self._broker_id = broker_id
        self._topics: dict[str, Topic] = {}
        self._names: dict[bytes, str] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def broker_ids(self) -> list[int]:
        """The brokers that are alive.  Whoever asks this one is answered, so it is among them."""
        return sorted({self._broker_id, *self.brokers})

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def get_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        name = self._names.get(topic_id.bytes)
        return None if name is None else self._topics[name]

    def knows_id(self, topic_id: bytes) -> bool:
        return topic_id in self._names

    def refusal(self, topic: Topic | None, partition: int) -> ErrorCode:
        """Why a partition that is not led here cannot be used here."""
        if topic is not None and 0 <= partition < len(topic.partitions):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def names(self) -> list[str]:
        return sorted(self._topics)

    def put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._names[topic.topic_id.bytes] = topic.name

    def remove(self, name: str) -> None:
        topic = self._topics.pop(name)
        del self._names[topic.topic_id.bytes]
