"""Fuzz targets: the files of a log directory. A damaged file is refused or ignored, never fatal."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from uuid import UUID

from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.aborted_index import AbortedIndex, AbortedTransaction
from hightide.log import checkpoint, damage
from hightide.log.disk import MemoryDisk
from hightide.log.index import OffsetIndex, TimeIndex
from hightide.log.leader_epochs import EPOCH_CHECKPOINT, LeaderEpochs
from hightide.log.recovery import CheckpointedState, load
from hightide.log.segment import OpenFiles
from hightide.settings import Topic
from hightide.wire.batch import build
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt
from tests.fuzz.targets_records import _RECORDS, seeds_batch, with_right_crcs

NOW_MS = 1_700_000_000_000
LOG_SIZE_BYTES = 2**20
DIRECTORY = "t-0"
CHECKPOINTS = (
    checkpoint.RECOVERY_POINTS,
    checkpoint.TOPIC_IDS,
    checkpoint.CLEAN_SHUTDOWN,
    f"{DIRECTORY}/{checkpoint.PARTITION_METADATA}",
    f"{DIRECTORY}/{EPOCH_CHECKPOINT}",
    f"{DIRECTORY}/{damage.DAMAGED_OFFSETS}",
)


def disk_with(name: str, data: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    disk.create(name).append(data)
    return disk


def fuzz_checkpoints(data: bytes) -> None:
    """Every reader of a small file takes a damaged file for a missing one."""
    for name in CHECKPOINTS:
        disk = disk_with(name, data)
        offsets = checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS)
        if offsets is not None:
            checkpoint.write_offsets(disk, checkpoint.RECOVERY_POINTS, offsets)
            assert checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS) == offsets
        checkpoint.read_topic_ids(disk)
        checkpoint.read_clean_shutdown(disk)
        checkpoint.read_topic_id(disk, DIRECTORY)
        damage.load_damage(disk, DIRECTORY, 0)
        epochs = LeaderEpochs.load(disk, DIRECTORY).entries
        assert epochs == sorted(epochs)


def seeds_checkpoints() -> Iterator[bytes]:
    yield checkpoint.encode_offsets({("t", 0): 5, ("orders", 12): 2**40})
    yield checkpoint.encode_lines(["0 0", "3 17"])
    yield b'{"version":0,"brokerEpoch":17}'
    yield b'{"brokerEpoch":1e999}'
    yield b"[" * 2000
    yield f"version: 0\ntopic_id: {checkpoint.topic_id_text(UUID(int=7))}".encode()
    yield checkpoint.encode_lines([f"t 0 {checkpoint.topic_id_text(UUID(int=7))}"])
    yield damage.encode([damage.Hole(3, 5), damage.Hole(7, 9)], 2)


def fuzz_producer_snapshot(data: bytes) -> None:
    """A snapshot with the right CRC is Corrupt, or can be written again."""
    made = bytearray(data)
    if len(made) >= 6:
        struct.pack_into(">I", made, 2, crc32c(memoryview(made)[6:]))
    with contextlib.suppress(Corrupt):
        states = ProducerStates.decode(bytes(made), NOW_MS)
        again = ProducerStates.decode(states.encode(), NOW_MS)
        assert again.encode() == states.encode()


def seeds_producer_snapshot() -> Iterator[bytes]:
    states = ProducerStates()
    yield states.encode()
    states.appended(7, 0, 0, 0, 4, NOW_MS, NOW_MS, False)
    states.appended(8, 3, 5, 5, 9, NOW_MS, NOW_MS, True)
    yield states.encode()


def fuzz_indexes(data: bytes) -> None:
    """The offset, time and transaction index are Corrupt, or every lookup gives a position."""
    disk = disk_with("index", data)
    offsets, times = OffsetIndex("index", 100), TimeIndex("index", 100)
    with contextlib.suppress(Corrupt):
        offsets.load(disk, LOG_SIZE_BYTES)
        for offset in (0, 100, 101, 2**31, 2**40):
            assert 0 <= offsets.position_for(offset) < LOG_SIZE_BYTES
        assert 0 <= offsets.boundary_before(1000) <= 1000
    with contextlib.suppress(Corrupt):
        times.load(disk)
        for timestamp in (-(2**63), 0, NOW_MS, 2**63 - 1):
            assert times.offset_before(timestamp) >= 100
        assert times.last()[1] >= 100
    with contextlib.suppress(Corrupt):
        index = AbortedIndex.decode(data, 0, 2**40)
        assert index.encode() == data
        index.in_range(0, 2**40)


def seeds_indexes() -> Iterator[bytes]:
    yield struct.pack(">IIII", 4, 100, 9, 5000)
    yield struct.pack(">qiqi", NOW_MS, 4, NOW_MS + 1, 9)
    yield AbortedIndex([AbortedTransaction(7, 0, 5, 0), AbortedTransaction(7, 6, 9, 9)]).encode()
    yield bytes(24)


def fuzz_recovery(data: bytes) -> None:
    """A log with any bytes in its segment is loaded, and can be loaded again.

    Recovery trusts the CRC of a control batch: with the right CRC and records that cannot be
    decoded, it raises Corrupt.
    """
    if not data:
        return
    content = (
        bytes(with_right_crcs(data[1:], of_control_batches=False)) if data[0] & 1 else data[1:]
    )
    disk = disk_with(f"{DIRECTORY}/00000000000000000000.log", content)
    if data[0] & 2:
        disk.create(f"{DIRECTORY}/00000000000000000000.index").append(content[:24])
        disk.create(f"{DIRECTORY}/00000000000000000000.timeindex").append(content[:24])
    state = CheckpointedState(False, 0, 0, allows_gaps=bool(data[0] & 4))
    log = load(disk, "t", 0, Topic(), OpenFiles(16), state, NOW_MS)
    end_offset = log.end_offset
    assert log.start_offset <= end_offset
    again = load(disk, "t", 0, Topic(), OpenFiles(16), state, NOW_MS)
    assert again.end_offset == end_offset


def seeds_recovery() -> Iterator[bytes]:
    for content in seeds_batch():
        yield b"\x01" + content
    two = bytes(build(_RECORDS)) + bytes(
        build([record._replace(offset=record.offset + 3) for record in _RECORDS], base_offset=3)
    )
    yield b"\x01" + two
    yield b"\x07" + two
