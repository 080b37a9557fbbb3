"""Fetch: reads of consumers and of followers.

From version 7 on a fetch may be incremental: the fetch session has the partitions, and a request
only the changes. From version 13 on a topic is identified by its id.
"""

from __future__ import annotations

import uuid

from hightide.wire.types import NO_UUID, Records, field, i8, i16, i32, i64, message, part


@part
class ReplicaState:
    replica_id: i32 = -1
    replica_epoch: i64 = -1


@part
class FetchPartition:
    partition: i32
    current_leader_epoch: i32 = field(since=9, ignorable=True, default=-1)
    fetch_offset: i64
    last_fetched_epoch: i32 = field(since=12, default=-1)
    log_start_offset: i64 = field(since=5, ignorable=True, default=-1)
    partition_max_bytes: i32
    replica_directory_id: uuid.UUID = field(since=17, tag=0, ignorable=True, default=NO_UUID)


@part
class FetchTopic:
    topic: str = field(until=12, ignorable=True, default="")
    topic_id: uuid.UUID = field(since=13, ignorable=True, default=NO_UUID)
    partitions: list[FetchPartition]


@part
class ForgottenTopic:
    topic: str = field(until=12, ignorable=True, default="")
    topic_id: uuid.UUID = field(since=13, ignorable=True, default=NO_UUID)
    partitions: list[i32]


@message(key=1, versions=(4, 17), flexible=12)
class FetchRequest:
    """Request records from given offsets, and wait up to a maximum time for enough bytes."""

    cluster_id: str | None = field(since=12, tag=0, ignorable=True, default=None)
    replica_id: i32 = field(until=14, default=-1)
    replica_state: ReplicaState | None = field(since=15, tag=1, default=None)
    max_wait_ms: i32
    min_bytes: i32
    max_bytes: i32 = 0x7FFFFFFF
    isolation_level: i8 = 0
    session_id: i32 = field(since=7, ignorable=True, default=0)
    session_epoch: i32 = field(since=7, ignorable=True, default=-1)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = field(since=7, default=[])
    rack_id: str = field(since=11, ignorable=True, default="")


@part
class EpochEndOffset:
    epoch: i32 = -1
    end_offset: i64 = -1


@part
class LeaderIdAndEpoch:
    leader_id: i32 = -1
    leader_epoch: i32 = -1


@part
class SnapshotId:
    end_offset: i64 = -1
    epoch: i32 = -1


@part
class AbortedTransaction:
    producer_id: i64
    first_offset: i64


@part
class PartitionData:
    partition_index: i32
    error_code: i16 = 0
    high_watermark: i64
    last_stable_offset: i64 = -1
    log_start_offset: i64 = field(since=5, ignorable=True, default=-1)
    diverging_epoch: EpochEndOffset | None = field(since=12, tag=0, default=None)
    current_leader: LeaderIdAndEpoch | None = field(since=12, tag=1, default=None)
    snapshot_id: SnapshotId | None = field(since=12, tag=2, default=None)
    aborted_transactions: list[AbortedTransaction] | None
    preferred_read_replica: i32 = field(since=11, default=-1)
    records: Records | None


@part
class FetchableTopicResponse:
    topic: str = field(until=12, ignorable=True, default="")
    topic_id: uuid.UUID = field(since=13, ignorable=True, default=NO_UUID)
    partitions: list[PartitionData]


@part
class NodeEndpoint:
    node_id: i32
    host: str
    port: i32
    rack: str | None = None


@message(key=1, versions=(4, 17), flexible=12)
class FetchResponse:
    """Record batches, high watermark and other offsets of each partition."""

    throttle_time_ms: i32 = 0
    error_code: i16 = field(since=7, ignorable=True, default=0)
    session_id: i32 = field(since=7, default=0)
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = field(since=16, tag=0, default=[])
