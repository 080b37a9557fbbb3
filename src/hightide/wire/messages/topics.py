"""Create and delete topics, add partitions, and delete records."""

from __future__ import annotations

import uuid

from hightide.wire.types import NO_UUID, field, i8, i16, i32, i64, message, part


@part
class CreatableReplicaAssignment:
    partition_index: i32
    broker_ids: list[i32]


@part
class CreatableTopicConfig:
    name: str
    value: str | None


@part
class CreatableTopic:
    name: str
    num_partitions: i32
    replication_factor: i16
    assignments: list[CreatableReplicaAssignment]
    configs: list[CreatableTopicConfig]


@message(key=19, versions=(2, 7), flexible=5)
class CreateTopicsRequest:
    """Create topics by number of partitions or by explicit assignment."""

    topics: list[CreatableTopic]
    timeout_ms: i32 = 60000
    validate_only: bool = False


@part
class CreatableTopicConfigs:
    name: str
    value: str | None
    read_only: bool
    config_source: i8 = -1
    is_sensitive: bool


@part
class CreatableTopicResult:
    name: str
    topic_id: uuid.UUID = field(since=7, ignorable=True, default=NO_UUID)
    error_code: i16 = 0
    error_message: str | None = None
    topic_config_error_code: i16 = field(since=5, tag=0, ignorable=True, default=0)
    num_partitions: i32 = field(since=5, ignorable=True, default=-1)
    replication_factor: i16 = field(since=5, ignorable=True, default=-1)
    configs: list[CreatableTopicConfigs] | None = field(since=5, ignorable=True, default=[])


@message(key=19, versions=(2, 7), flexible=5)
class CreateTopicsResponse:
    """The result for each topic, with its settings."""

    throttle_time_ms: i32 = 0
    topics: list[CreatableTopicResult]


@part
class DeleteTopicState:
    name: str | None = None
    topic_id: uuid.UUID


@message(key=20, versions=(1, 6), flexible=4)
class DeleteTopicsRequest:
    """Delete topics by name; from version 6 on also by id."""

    topics: list[DeleteTopicState] = field(since=6, default=[])
    topic_names: list[str] = field(until=5, ignorable=True, default=[])
    timeout_ms: i32


@part
class DeletableTopicResult:
    name: str | None = field(nullable=6)
    topic_id: uuid.UUID = field(since=6, ignorable=True, default=NO_UUID)
    error_code: i16 = 0
    error_message: str | None = field(since=5, ignorable=True, default=None)


@message(key=20, versions=(1, 6), flexible=4)
class DeleteTopicsResponse:
    """The result for each topic."""

    throttle_time_ms: i32 = 0
    responses: list[DeletableTopicResult]


@part
class CreatePartitionsAssignment:
    broker_ids: list[i32]


@part
class CreatePartitionsTopic:
    name: str
    count: i32
    assignments: list[CreatePartitionsAssignment] | None


@message(key=37, versions=(0, 3), flexible=2)
class CreatePartitionsRequest:
    """Add partitions to topics."""

    topics: list[CreatePartitionsTopic]
    timeout_ms: i32
    validate_only: bool


@part
class CreatePartitionsTopicResult:
    name: str
    error_code: i16 = 0
    error_message: str | None = None


@message(key=37, versions=(0, 3), flexible=2)
class CreatePartitionsResponse:
    """The result for each topic."""

    throttle_time_ms: i32 = 0
    results: list[CreatePartitionsTopicResult]


@part
class DeleteRecordsPartition:
    partition_index: i32
    offset: i64


@part
class DeleteRecordsTopic:
    name: str
    partitions: list[DeleteRecordsPartition]


@message(key=21, versions=(0, 2), flexible=2)
class DeleteRecordsRequest:
    """Delete the records of partitions before an offset."""

    topics: list[DeleteRecordsTopic]
    timeout_ms: i32


@part
class DeleteRecordsPartitionResult:
    partition_index: i32
    low_watermark: i64
    error_code: i16 = 0


@part
class DeleteRecordsTopicResult:
    name: str
    partitions: list[DeleteRecordsPartitionResult]


@message(key=21, versions=(0, 2), flexible=2)
class DeleteRecordsResponse:
    """The log start offset of each partition."""

    throttle_time_ms: i32 = 0
    topics: list[DeleteRecordsTopicResult]
