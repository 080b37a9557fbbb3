"""What an admin client learns of a cluster, as plain values.

They hide which request and version an answer came from; callers see Kafka's nouns only.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import IntEnum


class ResourceType(IntEnum):
    """What a configuration belongs to."""

    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    """Where a configuration value comes from."""

    UNKNOWN = -1
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6

    @classmethod
    def _missing_(cls, _value: object) -> ConfigSource:
        return cls.UNKNOWN


class ConfigType(IntEnum):
    """How a configuration value is to be read."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9

    @classmethod
    def _missing_(cls, _value: object) -> ConfigType:
        return cls.UNKNOWN


class Timestamp(IntEnum):
    """The times that ListOffsets gives a meaning of its own."""

    LATEST = -1
    EARLIEST = -2
    MAX = -3


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str | None
    controller: int
    nodes: list[Node]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: list[PartitionDescription]

    @property
    def replication_factor(self) -> int:
        return max((len(each.replicas) for each in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool
    sensitive: bool
    documentation: str | None


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """An offset and the timestamp of its record; both -1 where there is no such record."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    broker: int
    log_dir: str
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way to other brokers: all who hold it meanwhile, who comes, who goes."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.removing)
