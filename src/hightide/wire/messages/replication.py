"""Requests between brokers and the controller about partitions and their replicas.

    leader ── AlterPartition ──▶ controller      propose a new ISR
    broker ── ControlledShutdown ──▶ controller  move leadership away before the broker stops
    broker ── ReportFailures ──▶ controller      the replicas that the broker cannot serve
    controller ── PublishState ──▶ broker        the state of the cluster, to be applied
    controller ── ReplicaLogInfo ──▶ broker      how far do logs without a leader reach?

The first two are Kafka's. PublishState replaces three of Kafka's requests (LeaderAndIsr,
UpdateMetadata, StopReplica), which together say the same but can contradict each other. From one
image of the cluster a broker derives which partitions it leads and follows, and the metadata for
clients. ApiVersions lists none of these: only brokers send them.
"""

from __future__ import annotations

import uuid

from hightide.wire.types import field, i8, i16, i32, i64, message, part


@part
class BrokerState:
    broker_id: i32
    broker_epoch: i64 = -1


@part
class AlterPartitionRequestPartition:
    partition_index: i32
    leader_epoch: i32
    new_isr: list[i32] = field(until=2, default=[])
    new_isr_with_epochs: list[BrokerState] = field(since=3, default=[])
    leader_recovery_state: i8 = 0
    partition_epoch: i32


@part
class AlterPartitionRequestTopic:
    topic_id: uuid.UUID
    partitions: list[AlterPartitionRequestPartition]


@message(key=56, versions=(2, 3), flexible=0)
class AlterPartitionRequest:
    """The ISR that a leader proposes; from version 3 on with the broker epochs."""

    broker_id: i32
    broker_epoch: i64 = -1
    topics: list[AlterPartitionRequestTopic]


@part
class AlterPartitionResponsePartition:
    partition_index: i32
    error_code: i16 = 0
    leader_id: i32
    leader_epoch: i32
    isr: list[i32]
    leader_recovery_state: i8 = 0
    partition_epoch: i32


@part
class AlterPartitionResponseTopic:
    topic_id: uuid.UUID
    partitions: list[AlterPartitionResponsePartition]


@message(key=56, versions=(2, 3), flexible=0)
class AlterPartitionResponse:
    """The partition states that the controller decided."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    topics: list[AlterPartitionResponseTopic]


@message(key=7, versions=(2, 3), flexible=3)
class ControlledShutdownRequest:
    """Ask the controller to move all leaderships away from a broker that is about to stop."""

    broker_id: i32
    broker_epoch: i64 = -1


@part
class RemainingPartition:
    topic_name: str
    partition_index: i32


@message(key=7, versions=(2, 3), flexible=3)
class ControlledShutdownResponse:
    """The partitions of which the broker is still leader."""

    error_code: i16 = 0
    remaining_partitions: list[RemainingPartition]


@part
class PublishedEndpoint:
    listener: str
    host: str
    port: i32
    security_protocol: str


@part
class PublishedBroker:
    broker_id: i32
    broker_epoch: i64
    rack: str | None = None
    endpoints: list[PublishedEndpoint]
    is_shutting_down: bool = False


@part
class PublishedPartition:
    """Fields that usually have their default are tagged, so they are rarely sent."""

    partition_index: i32
    replicas: list[i32]
    leader: i32
    leader_epoch: i32
    isr: list[i32]
    partition_epoch: i32
    elr: list[i32] = field(tag=0, default=[])
    last_known_leader: i32 = field(tag=1, default=-1)
    adding: list[i32] = field(tag=2, default=[])
    removing: list[i32] = field(tag=3, default=[])
    is_recovering: bool = field(tag=4, default=False)
    recovery_epoch: i32 = field(tag=5, default=-1)
    leader_broker_epoch: i64 = field(tag=6, default=-1)
    """The broker epoch in which the leader was elected. In another one it is not the leader."""
    last_known_elr: list[i32] = field(tag=7, default=[])


@part
class PublishedTopic:
    name: str
    topic_id: uuid.UUID
    partitions: list[PublishedPartition]


@message(key=30001, versions=(0, 0), flexible=0)
class PublishStateRequest:
    """The cluster state of the controller: all live brokers, and the partitions that changed.

    `broker_epoch` is that of the receiver. `sequence` grows with every message of a controller, so
    a broker recognises messages that are out of order or repeated. With `is_full` the message has
    all partitions, and others do not exist.
    """

    controller_id: i32
    controller_epoch: i32
    broker_epoch: i64
    sequence: i64
    is_full: bool
    brokers: list[PublishedBroker]
    topics: list[PublishedTopic]
    removed_topics: list[uuid.UUID] = field(default=[])


@message(key=30001, versions=(0, 0), flexible=0)
class PublishStateResponse:
    """With STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH the broker applied nothing."""

    error_code: i16 = 0


@part
class FailedPartition:
    partition_index: i32
    kind: i8
    """A `FailureKind`."""


@part
class FailedTopic:
    topic_id: uuid.UUID
    partitions: list[FailedPartition]


@message(key=30005, versions=(0, 0), flexible=0)
class ReportFailuresRequest:
    """All replicas of a broker that have failed. Those that it does not name work."""

    broker_id: i32
    broker_epoch: i64
    topics: list[FailedTopic]


@message(key=30005, versions=(0, 0), flexible=0)
class ReportFailuresResponse:
    """STALE_BROKER_EPOCH, NOT_CONTROLLER: the broker reports again."""

    error_code: i16 = 0


@part
class LogInfoRequestTopic:
    topic_id: uuid.UUID
    partitions: list[i32]


@message(key=30006, versions=(0, 0), flexible=0)
class ReplicaLogInfoRequest:
    """Ask how far the logs of partitions reach that have no leader (KIP-966)."""

    topics: list[LogInfoRequestTopic]


@part
class PartitionLogInfo:
    partition_index: i32
    error_code: i16 = 0
    leader_epoch: i32 = -1
    """The leader epoch in which the broker knows of no leader."""
    last_epoch: i32 = -1
    end_offset: i64 = -1


@part
class LogInfoResponseTopic:
    topic_id: uuid.UUID
    partitions: list[PartitionLogInfo]


@message(key=30006, versions=(0, 0), flexible=0)
class ReplicaLogInfoResponse:
    """NOT_LEADER_OR_FOLLOWER: the broker has not heard yet that there is no leader.
    KAFKA_STORAGE_ERROR: it cannot read the log.
    """

    error_code: i16 = 0
    broker_epoch: i64
    topics: list[LogInfoResponseTopic]
