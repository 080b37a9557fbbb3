"""Metadata of topics: brokers, partitions, leaders and replicas.

Every client requests Metadata first, and again after errors. From version 10 on topics have ids
besides names, and from version 12 on a request may have the id alone. DescribeTopicPartitions
returns the same for administrators, page by page.
"""

from __future__ import annotations

import uuid

from hightide.wire.types import NO_UUID, field, i16, i32, message, part


@part
class MetadataRequestTopic:
    topic_id: uuid.UUID = field(since=10, ignorable=True, default=NO_UUID)
    name: str | None = field(nullable=10)


@message(key=3, versions=(0, 13), flexible=9)
class MetadataRequest:
    """Request some topics, or all of them if `topics` is null (empty in version 0)."""

    topics: list[MetadataRequestTopic] | None = field(nullable=1)
    allow_auto_topic_creation: bool = field(since=4, default=True)
    include_cluster_authorized_operations: bool = field(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = field(since=8, default=False)


@part
class MetadataResponseBroker:
    node_id: i32
    host: str
    port: i32
    rack: str | None = field(since=1, ignorable=True, default=None)


@part
class MetadataResponsePartition:
    error_code: i16 = 0
    partition_index: i32
    leader_id: i32
    leader_epoch: i32 = field(since=7, ignorable=True, default=-1)
    replica_nodes: list[i32]
    isr_nodes: list[i32]
    offline_replicas: list[i32] = field(since=5, ignorable=True, default=[])


@part
class MetadataResponseTopic:
    error_code: i16 = 0
    name: str | None = field(nullable=12)
    topic_id: uuid.UUID = field(since=10, ignorable=True, default=NO_UUID)
    is_internal: bool = field(since=1, ignorable=True, default=False)
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: i32 = field(since=8, default=-(2**31))


@message(key=3, versions=(0, 13), flexible=9)
class MetadataResponse:
    """The brokers, and for each topic its partitions with leader, replicas and ISR."""

    throttle_time_ms: i32 = field(since=3, ignorable=True, default=0)
    brokers: list[MetadataResponseBroker]
    cluster_id: str | None = field(since=2, ignorable=True, default=None)
    controller_id: i32 = field(since=1, ignorable=True, default=-1)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: i32 = field(since=8, until=10, default=-(2**31))
    error_code: i16 = field(since=13, ignorable=True, default=0)


@part
class TopicRequest:
    name: str


@part
class Cursor:
    topic_name: str
    partition_index: i32


@message(key=75, versions=(0, 0), flexible=0)
class DescribeTopicPartitionsRequest:
    """Request the partitions of topics, from the cursor on."""

    topics: list[TopicRequest]
    response_partition_limit: i32 = 2000
    cursor: Cursor | None = None


@part
class DescribeTopicPartitionsResponsePartition:
    error_code: i16 = 0
    partition_index: i32
    leader_id: i32
    leader_epoch: i32 = -1
    replica_nodes: list[i32]
    isr_nodes: list[i32]
    eligible_leader_replicas: list[i32] | None = None
    last_known_elr: list[i32] | None = None
    offline_replicas: list[i32]


@part
class DescribeTopicPartitionsResponseTopic:
    error_code: i16 = 0
    name: str | None
    topic_id: uuid.UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: i32 = -(2**31)


@message(key=75, versions=(0, 0), flexible=0)
class DescribeTopicPartitionsResponse:
    """One page of partitions, and the cursor of the next page."""

    throttle_time_ms: i32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = None
