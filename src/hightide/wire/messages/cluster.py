"""The cluster: its brokers, and their log directories."""

from __future__ import annotations

from hightide.wire.types import field, i8, i16, i32, i64, message, part


@message(key=60, versions=(0, 1), flexible=0)
class DescribeClusterRequest:
    """Request the brokers and the controller."""

    include_cluster_authorized_operations: bool
    endpoint_type: i8 = field(since=1, default=1)


@part
class DescribeClusterBroker:
    broker_id: i32
    host: str
    port: i32
    rack: str | None = None


@message(key=60, versions=(0, 1), flexible=0)
class DescribeClusterResponse:
    """The cluster id, the controller and the brokers."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    endpoint_type: i8 = field(since=1, default=1)
    cluster_id: str
    controller_id: i32 = -1
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: i32 = -(2**31)


@part
class DescribableLogDirTopic:
    topic: str
    partitions: list[i32]


@message(key=35, versions=(1, 4), flexible=2)
class DescribeLogDirsRequest:
    """Request the log directories and sizes of partitions; of all if `topics` is null."""

    topics: list[DescribableLogDirTopic] | None


@part
class DescribeLogDirsPartition:
    partition_index: i32
    partition_size: i64
    offset_lag: i64
    is_future_key: bool


@part
class DescribeLogDirsTopic:
    name: str
    partitions: list[DescribeLogDirsPartition]


@part
class DescribeLogDirsResult:
    error_code: i16 = 0
    log_dir: str
    topics: list[DescribeLogDirsTopic]
    total_bytes: i64 = field(since=4, ignorable=True, default=-1)
    usable_bytes: i64 = field(since=4, ignorable=True, default=-1)


@message(key=35, versions=(1, 4), flexible=2)
class DescribeLogDirsResponse:
    """Each log directory with its partitions and their sizes."""

    throttle_time_ms: i32 = 0
    error_code: i16 = field(since=3, ignorable=True, default=0)
    results: list[DescribeLogDirsResult]
