"""What brokers and the controller tell each other about partitions and who holds them.

    leader ── AlterPartition ──▶ controller      these replicas shall be the ISR
    broker ── ControlledShutdown ──▶ controller  let others lead before I stop
    controller ── PublishState ──▶ broker        this is the cluster, act on it

The first two are Kafka's.  PublishState is ours and stands for three of Kafka's requests
(LeaderAndIsr, UpdateMetadata, StopReplica), which together say the same and can contradict each
other: a broker that has one picture derives from it what it leads, what it follows and what it
tells clients.  ApiVersions tells none of these: only brokers send them.
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
    """A leader's proposal of who is in sync; from version 3 on with each one's broker epoch."""

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
    """What the controller has decided, partition by partition."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    topics: list[AlterPartitionResponseTopic]


@message(key=7, versions=(2, 3), flexible=3)
class ControlledShutdownRequest:
    """Asks the controller to have others lead what this broker leads, because it will stop."""

    broker_id: i32
    broker_epoch: i64 = -1


@part
class RemainingPartition:
    topic_name: str
    partition_index: i32


@message(key=7, versions=(2, 3), flexible=3)
class ControlledShutdownResponse:
    """Which partitions the broker still leads."""

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
    """What nearly every partition has the default of is tagged, so that it is seldom sent."""

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
    """The life in which the leader was elected; in another one it does not lead."""


@part
class PublishedTopic:
    name: str
    topic_id: uuid.UUID
    partitions: list[PublishedPartition]


@message(key=30001, versions=(0, 0), flexible=0)
class PublishStateRequest:
    """The cluster as the controller has it: all live brokers, and the partitions that changed.

    `broker_epoch` is that of the receiver.  `sequence` grows with every message of a controller, so
    that one that was overtaken on another connection, or sent twice, is known for what it is.  With
    `is_full` all partitions are there, and what is missing is gone.
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
    """STALE_CONTROLLER_EPOCH and STALE_BROKER_EPOCH mean that nothing of it was taken."""

    error_code: i16 = 0
