"""Whenever the power fails, recovery finds an intact prefix of what was written.

A short workload runs again and again, and each time the power fails one step later. The recovered
log must have everything that was forced to disk and nothing that was never written, and it must be
usable. If only the process dies, every acknowledged record must be there.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any
from uuid import UUID

import pytest

from hightide.log.flush import flush
from hightide.log.log import Log
from hightide.log.segment import Segment
from hightide.wire.batch import records
from tests.support.crash_disk import CrashDisk, PowerCut
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    newest,
    open_log_manager,
    replayed,
    run_jobs,
    stored_batches,
    topic,
)

MINUTE_MS = 60_000


class Workload:
    """A workload on a log, and the expected state at each moment."""

    def __init__(self, disk: CrashDisk) -> None:
        self.disk = disk
        self.config = topic(
            segment_bytes=700, index_interval_bytes=150, file_delete_delay_ms=0, retention_ms=-1
        )
        self.now_ms = NOW
        # Values by offset, with a batch that is being written.
        self.written: dict[int, bytes] = {}
        self.acked_end = 0
        self.safe_end = 0
        self.start = 0
        self.exists = False
        self.sequence = 0
        self.count = 0

    def run(self) -> None:
        self.log_manager = open_log_manager(self.disk, self.config, self.now_ms)
        self.log = self.log_manager.create("t", 0, UUID(int=7))
        self.log_manager.sync_names()
        self.exists = True
        for _ in range(4):
            self.append()
        self.flush()
        for _ in range(9):
            self.append(leader_epoch=1)
        self.run_housekeeping()
        for _ in range(3):
            self.append(leader_epoch=1)
        self.truncate(self.log.end_offset - 7)
        for _ in range(6):
            self.append(leader_epoch=2)
        self.start = self.log.delete_records(9)
        self.run_housekeeping()
        self.append(leader_epoch=2)
        self.log_manager.close(self.now_ms)
        self.safe_end = self.acked_end
        self.log_manager = open_log_manager(self.disk, self.config, self.now_ms)
        self.log = self.log_manager.logs["t", 0]
        for _ in range(3):
            self.append(leader_epoch=3)
        self.truncate(self.log.segments.bases[-1] - 1)
        self.append(leader_epoch=4)
        self.flush()
        self.append(leader_epoch=4)

    def append(self, leader_epoch: int = 0) -> None:
        values = [b"value %d " % (self.count + i) * (1 + self.count % 4) for i in range(2)]
        self.count += 2
        fields: dict[str, Any] = {}
        if self.count % 3:
            fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": self.sequence}
        for i, value in enumerate(values):
            self.written[self.log.end_offset + i] = value
        append(self.log, batch(values, **fields), leader_epoch, self.now_ms)
        if fields:
            self.sequence += 2
        self.acked_end = self.log.end_offset

    def flush(self) -> None:
        flush(self.log)
        self.safe_end = self.acked_end

    def truncate(self, offset: int) -> None:
        # Truncated records may or may not come back until the truncation is complete.
        offset -= offset % 2
        self.safe_end = min(self.safe_end, offset)
        self.acked_end = min(self.acked_end, offset)
        self.log.truncate_to(offset, self.now_ms)
        self.written = {o: v for o, v in self.written.items() if o < offset}
        state = self.log.producers.get(5)
        self.sequence = state.next_sequence if state and state.batches else 0

    def run_housekeeping(self) -> None:
        self.now_ms += 6 * MINUTE_MS
        run_jobs(self.log_manager, self.now_ms)
        self.safe_end = max(self.safe_end, self.log.active_segment.base_offset)
        # Run again, for the checkpoints after the flush.
        self.now_ms += 6 * MINUTE_MS
        run_jobs(self.log_manager, self.now_ms)


class RandomWorkload(Workload):
    """A random workload."""

    def __init__(self, disk: CrashDisk, seed: int) -> None:
        super().__init__(disk)
        self.random = Random(seed)

    def run(self) -> None:
        self.reopen()
        self.log = self.log_manager.create("t", 0, UUID(int=7))
        self.log_manager.sync_names()
        self.exists = True
        epoch = 0
        for _ in range(40):
            match self.random.randrange(12):
                case 0:
                    self.flush()
                case 1:
                    self.run_housekeeping()
                case 2:
                    epoch += 1
                    self.truncate(self.random.randint(self.log.start_offset, self.log.end_offset))
                case 3:
                    self.start = max(self.start, self.random.randint(0, self.log.end_offset))
                    self.log.delete_records(self.start)
                case 4:
                    self.log_manager.close(self.now_ms)
                    self.safe_end = self.acked_end
                    self.reopen()
                case 5:
                    self.log.roll(self.now_ms)
                case _:
                    self.append(leader_epoch=epoch)

    def reopen(self) -> None:
        self.log_manager = open_log_manager(self.disk, self.config, self.now_ms)
        if self.exists:
            self.log = self.log_manager.logs["t", 0]

    def truncate(self, offset: int) -> None:
        super().truncate(offset)
        self.start = min(self.start, self.log.end_offset)


def count_steps() -> int:
    disk = CrashDisk()
    Workload(disk).run()
    return disk.steps


STEPS = count_steps()


def check_survivor(workload: Workload, disk: CrashDisk, kept_end: int) -> None:
    log_manager = open_log_manager(disk, workload.config, workload.now_ms)
    log = log_manager.logs.get(("t", 0))
    if log is None:
        assert not workload.exists
        return
    check_log(workload, log, kept_end)
    # The log is usable, and survives the next shutdown.
    end = log.end_offset
    append(log, batch([b"after"]), leader_epoch=9, now_ms=workload.now_ms)
    run_jobs(log_manager, workload.now_ms + 6 * MINUTE_MS)
    log_manager.close(workload.now_ms)
    again = open_log_manager(disk, workload.config, workload.now_ms).logs["t", 0]
    assert again.end_offset == end + 1
    assert again.failure is None
    assert newest(again.producers) == newest(log.producers)
    assert again.epochs.entries == log.epochs.entries


def check_log(workload: Workload, log: Log, kept_end: int) -> None:
    assert log.failure is None
    assert kept_end <= log.end_offset
    assert log.start_offset <= max(workload.start, 0)
    offset = log.start_offset
    for header, data in stored_batches(log, max_bytes=300):
        for record in records(data):
            assert record.value == workload.written[record.offset]
        # During retention some segments may be removed while older ones are still there.
        assert header.base_offset <= max(offset, workload.start), "no gap"
        assert header.last_offset >= offset
        offset = header.last_offset + 1
    assert offset == log.end_offset
    producers, epochs = replayed(log)
    assert newest(producers).items() <= newest(log.producers).items()
    # An epoch may begin at a log start offset that was not in the checkpoint yet.
    known = [(epoch, start) for epoch, start in log.epochs.entries if start > workload.start]
    assert known == [(epoch, start) for epoch, start in epochs if start > workload.start]
    for at in range(max(log.start_offset, workload.start), log.end_offset):
        assert log.read(at, 1, log.end_offset) is not None
    for segment in log.segments:
        check_indexes(segment)


def check_indexes(segment: Segment) -> None:
    """Every index entry is right, and no record is later than the largest timestamp."""
    batches = dict(segment.headers())
    entries = zip(segment.offsets.positions, segment.offsets.offsets, strict=True)
    for position, relative in entries:
        assert batches[position].last_offset == segment.base_offset + relative
    times = {header.last_offset: header.max_timestamp for header in batches.values()}
    for timestamp, relative in zip(segment.times.timestamps, segment.times.offsets, strict=True):
        assert times[segment.base_offset + relative] == timestamp
    assert segment.max_timestamp == max(times.values(), default=-1)


@pytest.mark.parametrize("part", range(8))
def test_power_may_fail_at_every_step(part: int) -> None:
    for step in range(1 + part, STEPS + 1, 8):
        for seed in range(4):
            disk = CrashDisk(seed * 1000 + step)
            disk.cut_at(step)
            workload = Workload(disk)
            with pytest.raises(PowerCut):
                workload.run()
            check_survivor(workload, disk.after_crash(), workload.safe_end)


def test_a_kill_at_any_step_loses_nothing_that_was_acknowledged() -> None:
    for step in range(1, STEPS + 1):
        disk = CrashDisk(step)
        disk.cut_at(step)
        workload = Workload(disk)
        with pytest.raises(PowerCut):
            workload.run()
        check_survivor(workload, disk.after_crash(kill=True), workload.acked_end)


def test_power_may_fail_again_during_recovery() -> None:
    random = Random(11)
    for _ in range(60):
        disk = CrashDisk(random.randrange(10**6))
        disk.cut_at(random.randint(1, STEPS))
        workload = Workload(disk)
        with pytest.raises(PowerCut):
            workload.run()
        for _ in range(4):
            disk = disk.after_crash()
            disk.cut_at(random.randint(1, 12))
            try:
                open_log_manager(disk, workload.config, workload.now_ms)
            except PowerCut:
                continue
        check_survivor(workload, disk.after_crash(), workload.safe_end)


@pytest.mark.parametrize("seeds", [range(60), range(60, 120)])
def test_power_may_fail_in_any_life(seeds: range) -> None:
    for seed in seeds:
        disk = CrashDisk(seed)
        disk.cut_at(disk.random.randint(1, 250))
        workload = RandomWorkload(disk, seed)
        with suppress(PowerCut):
            workload.run()
        kill = seed % 4 == 0
        kept_end = workload.acked_end if kill else workload.safe_end
        check_survivor(workload, disk.after_crash(kill), kept_end)


def test_the_life_is_long_enough_to_mean_something() -> None:
    disk = CrashDisk()
    workload = Workload(disk)
    workload.run()
    assert STEPS > 150
    assert len(workload.log.segments) > 3
    assert workload.log.start_offset == 9
