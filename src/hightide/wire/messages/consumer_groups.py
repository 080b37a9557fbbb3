"""Groups of the consumer protocol (KIP-848): the coordinator assigns the partitions.

Each heartbeat of a member has the changes since the last one: its subscription, and the partitions
that it owns. The response has the partitions that it is to own.
"""

from __future__ import annotations

import uuid

from hightide.wire.types import field, i8, i16, i32, message, part


@part
class OwnedTopicPartitions:
    topic_id: uuid.UUID
    partitions: list[i32]


@message(key=68, versions=(0, 1), flexible=0)
class ConsumerGroupHeartbeatRequest:
    """Join with epoch 0, leave with -1, otherwise keep the session. Null means no change."""

    group_id: str
    member_id: str
    member_epoch: i32
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: i32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = field(since=1, nullable=1, default=None)
    server_assignor: str | None = None
    topic_partitions: list[OwnedTopicPartitions] | None = None


@part
class HeartbeatAssignment:
    topic_partitions: list[OwnedTopicPartitions]


@message(key=68, versions=(0, 1), flexible=0)
class ConsumerGroupHeartbeatResponse:
    """The member epoch, and the new assignment if it has changed."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: i32 = 0
    heartbeat_interval_ms: i32 = 0
    assignment: HeartbeatAssignment | None = None


@message(key=69, versions=(0, 1), flexible=0)
class ConsumerGroupDescribeRequest:
    """Request the members of groups and their assignments."""

    group_ids: list[str]
    include_authorized_operations: bool


@part
class DescribedTopicPartitions:
    topic_id: uuid.UUID
    topic_name: str
    partitions: list[i32]


@part
class DescribedAssignment:
    topic_partitions: list[DescribedTopicPartitions]


@part
class DescribedConsumer:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: i32
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None = None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: i8 = field(since=1, ignorable=True, default=-1)


@part
class DescribedConsumerGroup:
    error_code: i16 = 0
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: i32
    assignment_epoch: i32
    assignor_name: str
    members: list[DescribedConsumer]
    authorized_operations: i32 = -(2**31)


@message(key=69, versions=(0, 1), flexible=0)
class ConsumerGroupDescribeResponse:
    """State, epochs and members of each group."""

    throttle_time_ms: i32 = 0
    groups: list[DescribedConsumerGroup]
