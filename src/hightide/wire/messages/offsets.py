"""Offsets: of a log, of leader epochs, and the committed offsets of groups.

ListOffsets finds offsets by timestamp, or the first and last offset of a log. OffsetForLeaderEpoch
returns the end offset of an epoch, which shows a follower or consumer where its log diverges.
OffsetCommit, OffsetFetch and OffsetDelete manage the committed offsets of groups.
"""

from __future__ import annotations

from hightide.wire.types import field, i8, i16, i32, i64, message, part


@part
class ListOffsetsPartition:
    partition_index: i32
    current_leader_epoch: i32 = field(since=4, ignorable=True, default=-1)
    timestamp: i64


@part
class ListOffsetsTopic:
    name: str
    partitions: list[ListOffsetsPartition]


@message(key=2, versions=(1, 11), flexible=6)
class ListOffsetsRequest:
    """Request the offset at a timestamp, or the earliest, latest or another special offset."""

    replica_id: i32
    isolation_level: i8 = field(since=2, default=0)
    topics: list[ListOffsetsTopic]
    timeout_ms: i32 = field(since=10, ignorable=True, default=0)


@part
class ListOffsetsPartitionResponse:
    partition_index: i32
    error_code: i16 = 0
    timestamp: i64 = -1
    offset: i64 = -1
    leader_epoch: i32 = field(since=4, default=-1)


@part
class ListOffsetsTopicResponse:
    name: str
    partitions: list[ListOffsetsPartitionResponse]


@message(key=2, versions=(1, 11), flexible=6)
class ListOffsetsResponse:
    """The offset for each partition; -1 if there is none."""

    throttle_time_ms: i32 = field(since=2, ignorable=True, default=0)
    topics: list[ListOffsetsTopicResponse]


@part
class OffsetForLeaderPartition:
    partition: i32
    current_leader_epoch: i32 = -1
    leader_epoch: i32


@part
class OffsetForLeaderTopic:
    topic: str
    partitions: list[OffsetForLeaderPartition]


@message(key=23, versions=(2, 4), flexible=4)
class OffsetForLeaderEpochRequest:
    """Request the end offsets of leader epochs."""

    replica_id: i32 = field(since=3, ignorable=True, default=-2)
    topics: list[OffsetForLeaderTopic]


@part
class EpochEndOffset:
    error_code: i16 = 0
    partition: i32
    leader_epoch: i32 = -1
    end_offset: i64 = -1


@part
class OffsetForLeaderTopicResult:
    topic: str
    partitions: list[EpochEndOffset]


@message(key=23, versions=(2, 4), flexible=4)
class OffsetForLeaderEpochResponse:
    """The end offset of each epoch, or of the largest epoch before it."""

    throttle_time_ms: i32 = 0
    topics: list[OffsetForLeaderTopicResult]


@part
class OffsetCommitRequestPartition:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = field(since=6, ignorable=True, default=-1)
    committed_metadata: str | None


@part
class OffsetCommitRequestTopic:
    name: str
    partitions: list[OffsetCommitRequestPartition]


@message(key=8, versions=(2, 9), flexible=8)
class OffsetCommitRequest:
    """Commit offsets of a group."""

    group_id: str
    generation_id_or_member_epoch: i32 = -1
    member_id: str
    group_instance_id: str | None = field(since=7, default=None)
    retention_time_ms: i64 = field(until=4, ignorable=True, default=-1)
    topics: list[OffsetCommitRequestTopic]


@part
class OffsetCommitResponsePartition:
    partition_index: i32
    error_code: i16 = 0


@part
class OffsetCommitResponseTopic:
    name: str
    partitions: list[OffsetCommitResponsePartition]


@message(key=8, versions=(2, 9), flexible=8)
class OffsetCommitResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = field(since=3, ignorable=True, default=0)
    topics: list[OffsetCommitResponseTopic]


@part
class OffsetFetchRequestTopic:
    name: str
    partition_indexes: list[i32]


@part
class OffsetFetchRequestTopics:
    name: str
    partition_indexes: list[i32]


@part
class OffsetFetchRequestGroup:
    group_id: str
    member_id: str | None = field(since=9, ignorable=True, default=None)
    member_epoch: i32 = field(since=9, ignorable=True, default=-1)
    topics: list[OffsetFetchRequestTopics] | None


@message(key=9, versions=(1, 9), flexible=6)
class OffsetFetchRequest:
    """Request the committed offsets of a group; of several groups from version 8 on."""

    group_id: str = field(until=7, default="")
    topics: list[OffsetFetchRequestTopic] | None = field(until=7, nullable=2, default=[])
    groups: list[OffsetFetchRequestGroup] = field(since=8, default=[])
    require_stable: bool = field(since=7, default=False)


@part
class OffsetFetchResponsePartition:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = field(since=5, ignorable=True, default=-1)
    metadata: str | None
    error_code: i16 = 0


@part
class OffsetFetchResponseTopic:
    name: str
    partitions: list[OffsetFetchResponsePartition]


@part
class OffsetFetchResponsePartitions:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = -1
    metadata: str | None
    error_code: i16 = 0


@part
class OffsetFetchResponseTopics:
    name: str
    partitions: list[OffsetFetchResponsePartitions]


@part
class OffsetFetchResponseGroup:
    group_id: str
    topics: list[OffsetFetchResponseTopics]
    error_code: i16 = 0


@message(key=9, versions=(1, 9), flexible=6)
class OffsetFetchResponse:
    """The committed offsets; -1 if a group has none."""

    throttle_time_ms: i32 = field(since=3, ignorable=True, default=0)
    topics: list[OffsetFetchResponseTopic] = field(until=7, default=[])
    error_code: i16 = field(since=2, until=7, ignorable=True, default=0)
    groups: list[OffsetFetchResponseGroup] = field(since=8, default=[])


@part
class OffsetDeleteRequestPartition:
    partition_index: i32


@part
class OffsetDeleteRequestTopic:
    name: str
    partitions: list[OffsetDeleteRequestPartition]


@message(key=47, versions=(0, 0))
class OffsetDeleteRequest:
    """Delete the committed offsets of a group for some partitions."""

    group_id: str
    topics: list[OffsetDeleteRequestTopic]


@part
class OffsetDeleteResponsePartition:
    partition_index: i32
    error_code: i16 = 0


@part
class OffsetDeleteResponseTopic:
    name: str
    partitions: list[OffsetDeleteResponsePartition]


@message(key=47, versions=(0, 0))
class OffsetDeleteResponse:
    """The result for each partition."""

    error_code: i16 = 0
    throttle_time_ms: i32 = 0
    topics: list[OffsetDeleteResponseTopic]
