"""Brokers, topics, partitions, configs and offsets."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from hightide.wire.errors import ErrorCode

Partition = tuple[str, int]
"""A topic's name and a partition's index."""


class ResourceType(IntEnum):
    """The kind of resource that a config belongs to, numbered as in DescribeConfigs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16


class ConfigSource(IntEnum):
    """Where a config value comes from, numbered as in DescribeConfigs."""

    UNKNOWN = -1
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7

    @classmethod
    def _missing_(cls, _value: object) -> ConfigSource:
        return cls.UNKNOWN


class ConfigType(IntEnum):
    """The type of a config value, numbered as in DescribeConfigs."""

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
    """The negative timestamps that ListOffsets gives a special meaning."""

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
        return max((len(partition.replicas) for partition in self.partitions), default=0)


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
    """An offset and the timestamp of its record; both are -1 if there is no such record."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The log start offset and the end offset of a partition."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """A replica in a log directory; a future one is being moved to that directory."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker; None where the broker does not report it."""

    broker: int
    log_dir: str
    error: ErrorCode | None
    total_bytes: int | None
    usable_bytes: int | None
    replicas: list[ReplicaSize]


@dataclass(frozen=True, slots=True)
class LogDirs:
    """The log directories of a cluster, and why some brokers did not report theirs."""

    directories: list[LogDir]
    silent: Mapping[int, str]


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Group partitions by topic, as requests name them."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """An open connection of a broker; names are what the client says about itself."""

    broker: int
    number: int
    """Counts the connections of the broker from 1 at each start."""
    client_id: str
    software: str
    version: str
    address: str
    port: int
    listener: str
    connected_ms: int
    idle_ms: int
    requests: int
    last_api: str | None
    peer_broker: int | None
    """The broker that the other side has proved to be."""


@dataclass(frozen=True, slots=True)
class ClientConnections:
    connections: list[ClientConnection]
    open_connections: Mapping[int, int]
    """How many connections each broker has open."""
    foreign: list[int]
    """Brokers that do not list their connections: they are not Hightide's."""
    silent: Mapping[int, str]
    """Brokers that did not answer, and why."""
