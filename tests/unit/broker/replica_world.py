"""Replicas on a memory disk, and stand-ins for the requests that wait for them."""

import uuid

from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.core.partition.state import PartitionState
from hightide.log.disk import MemoryDisk
from hightide.log.log import Log
from hightide.log.segment import OpenFiles
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.hot.replica_fetch_codec import ReceivedPartition

NOW_MS = 1_700_000_000_000
LIVE = {1: 10, 2: 20, 3: 30}
NOTHING = memoryview(b"")


def make(replicas: ReplicaManager | None = None, **overrides: str) -> Replica:
    disk = MemoryDisk()
    disk.make_directory("t-0")
    config = TopicSettings.effective(Settings(), overrides)
    log = Log.create(disk, "t", 0, config, OpenFiles(10), NOW_MS)
    return (replicas or ReplicaManager()).add(log, uuid.UUID(int=7), 0)


def state(leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2, 3), at: int = 0):
    return PartitionState((1, 2, 3), leader, epoch, isr, partition_epoch=at)


def lead(replica: Replica, of: PartitionState | None = None) -> None:
    replica.lead(of or state(), 1, LIVE[1], LIVE, frozenset(), 1000, NOW_MS)


def append(replica: Replica, value: bytes = b"v") -> int:
    """Append a batch of one record and return the next offset."""
    buf = batch.build([batch.Record(0, NOW_MS, None, value, ())])
    return replica.append(buf, memoryview(buf), 0, len(buf), NOW_MS)[1]


def fetched(replica: Replica, follower: int, offset: int) -> None:
    replica.fetched(follower, offset, LIVE[follower], NOW_MS, 0)


class Write:
    """A delayed write, and the codes that it was completed with."""

    def __init__(self) -> None:
        self.codes: list[ErrorCode] = []

    def complete(self, code: ErrorCode) -> None:
        self.codes.append(code)


class Fetch:
    """A delayed fetch of a consumer, or of a follower and its session."""

    partition_count = 1

    def __init__(self, missing_bytes: int = 1) -> None:
        self.missing_bytes = missing_bytes
        self.changed: dict[tuple[bytes, int], None] = {}
        self.served = 0
        self.delayed = self

    def try_complete(self, is_last: bool = False) -> None:
        self.served += 1


def received(
    code: int = 0,
    high_watermark: int = 0,
    start: int = 0,
    records: memoryview = NOTHING,
    diverging: tuple[int, int] | None = None,
) -> ReceivedPartition:
    return ReceivedPartition(0, code, high_watermark, start, records, diverging, None)
