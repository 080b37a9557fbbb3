"""DescribeLogDirs (35), versions 1 to 4: the logs and the free space of each log directory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hightide.broker.handlers.request_context import Context
from hightide.broker.network.turn import Steps
from hightide.log.disk import Disk, DiskFailed
from hightide.log.log import Log
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker


def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, _context: Context
) -> Steps[DescribeLogDirsResponse]:
    requested = None
    if request.topics is not None:
        requested = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    logs: dict[Disk, list[Log]] = {disk: [] for disk in broker.log_manager.disks}
    for key, log in list(broker.log_manager.logs.items()):
        yield
        if requested is None or key in requested:
            logs[log.disk].append(log)
    results = []
    for disk, found in logs.items():
        results.append((yield from _describe(disk, found)))
    return DescribeLogDirsResponse(results=results)


def _describe(disk: Disk, logs: Iterable[Log]) -> Steps[DescribeLogDirsResult]:
    code = ErrorCode.NONE
    total_bytes = usable_bytes = -1
    try:
        total_bytes, usable_bytes = disk.space()
    except DiskFailed as error:
        code = error.code
    topics: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for log in logs:
        yield
        topics[log.topic].append(
            DescribeLogDirsPartition(
                partition_index=log.partition,
                partition_size=log.size_bytes,
                offset_lag=0,
                is_future_key=False,
            )
        )
    return DescribeLogDirsResult(
        error_code=code,
        log_dir=disk.name,
        topics=[
            DescribeLogDirsTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
