"""Whenever the power fails, and whatever compaction dropped, the transaction state of a log agrees
with its batches, and a read_committed reader sees complete transactions or nothing of them."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hightide.log.disk import MemoryDisk
from hightide.log.flush import flush
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.log.segment import SNAPSHOT, TRANSACTION_INDEX
from tests.support.crash_disk import CrashDisk, PowerCut
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    end_transaction,
    open_log_manager,
    run_jobs,
    stored,
    stored_batches,
    topic,
)
from tests.unit.log.transaction_history import check_history, history_of, read_committed

MINUTE_MS = 60_000
PRODUCERS = range(4)


class Workload:
    """A random workload with transactions, and the outcome for each record."""

    def __init__(self, disk: CrashDisk | MemoryDisk, seed: int, **config: object) -> None:
        self.disk = disk
        self.random = Random(seed)
        self.config = topic(
            **{
                "segment_bytes": 500,
                "index_interval_bytes": 150,
                "file_delete_delay_ms": 0,
                "retention_ms": -1,
                **config,
            }
        )
        self.now_ms = NOW
        self.exists = False
        self.epoch = 0
        self.log_manager: LogManager
        self.log: Log

    def open(self) -> None:
        self.log_manager = open_log_manager(self.disk, self.config, self.now_ms)
        # With few open files, indexes leave memory before they are forced to disk.
        self.log_manager.files.capacity = self.random.choice([1, 64])
        if self.exists:
            self.log = self.log_manager.logs["t", 0]

    def run(self, moves: int) -> None:
        self.open()
        self.log = self.log_manager.create("t", 0, UUID(int=7))
        self.log_manager.sync_names()
        self.exists = True
        for _ in range(moves):
            self.move()

    def move(self) -> None:
        choice = self.random.randrange(25)
        if choice == 0:
            flush(self.log)
        elif choice == 1:
            self.run_housekeeping()
        elif choice == 2:
            self.truncate()
        elif choice == 3:
            self.log_manager.close(self.now_ms)
            self.open()
        elif choice == 4:
            self.log.roll(self.now_ms)
        elif choice == 5:
            self.delete_records()
        elif choice == 6:
            # The followers have all records only from time to time.
            self.log.high_watermark = self.log.end_offset
        elif choice == 24:
            for at in range(self.log.start_offset, self.log.end_offset, 5):
                self.log.read(at, 1, self.log.end_offset)
        elif choice < 13:
            producer_id = self.random.choice(PRODUCERS)
            if producer_id in self.leader.transactions.opened:
                self.end(producer_id)
        else:
            self.write(self.random.choice(PRODUCERS))

    @property
    def leader(self) -> Log:
        """Write as a producer or as a coordinator."""
        return self.log

    def write(self, producer_id: int) -> None:
        state = self.leader.producers.get(producer_id)
        sequence = max(0, state.next_sequence) if state is not None else 0
        values = [b"%d " % self.leader.end_offset * self.random.randint(1, 9)] * 2
        data = batch(
            values,
            keys=[b"%d" % self.random.randrange(6) for _ in values],
            timestamp=self.now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        append(self.leader, data, self.epoch, self.now_ms)

    def end(self, producer_id: int) -> None:
        end_transaction(
            self.leader,
            producer_id,
            commits=self.random.random() < 0.4,
            leader_epoch=self.epoch,
            now_ms=self.now_ms,
        )

    def truncate(self) -> None:
        self.epoch += 1
        log = self.log
        offset = self.random.randint(log.committed_offset, log.end_offset)
        log.truncate_to(max(offset, log.start_offset), self.now_ms)

    def delete_records(self) -> None:
        log = self.log
        log.delete_records(self.random.randint(log.start_offset, log.committed_offset))

    def run_housekeeping(self) -> None:
        for _ in range(2):
            self.now_ms += 6 * MINUTE_MS
            run_jobs(self.log_manager, self.now_ms)


class FollowerWorkload(Workload):
    """The log of a follower, which copies some batches from time to time, and is truncated to the
    log of a new leader."""

    def __init__(self, disk: CrashDisk | MemoryDisk, seed: int) -> None:
        super().__init__(disk, seed)
        log_manager = open_log_manager(MemoryDisk(), self.config)
        self._leader = log_manager.create("t", 0, UUID(int=7))

    @property
    def leader(self) -> Log:
        return self._leader

    def move(self) -> None:
        super().move()
        if self.random.random() < 0.3:
            self.copy(self.random.choice([200, 2000]))

    def copy(self, max_bytes: int) -> None:
        found = self.leader.read(self.log.end_offset, max_bytes, self.leader.end_offset)
        if found is not None:
            data = memoryview(found.file.read(found.position, found.length))
            self.log.append_fetched(data, self.now_ms)

    def truncate(self) -> None:
        super().truncate()
        self.leader.truncate_to(self.log.end_offset, self.now_ms)


def check_survivor(workload: Workload, disk: CrashDisk) -> None:
    log_manager = open_log_manager(disk, workload.config, workload.now_ms)
    log = log_manager.logs.get(("t", 0))
    if log is None:
        assert not workload.exists
        return
    assert log.failure is None
    if "compact" not in workload.config.cleanup_policy:
        check_history(log, history_of(log), log_manager.high_watermarks.get(("t", 0), 0))
    # The log is usable, and survives the next shutdown.
    for producer_id in list(log.transactions.opened):
        end_transaction(log, producer_id, commits=False, leader_epoch=99, now_ms=workload.now_ms)
    assert log.last_stable_offset == log.end_offset
    aborted, shown = log.aborted_between(0, log.end_offset), read_committed(log)
    log_manager.close(workload.now_ms)
    log = open_log_manager(disk, workload.config, workload.now_ms).logs["t", 0]
    assert log.aborted_between(0, log.end_offset) == aborted
    assert read_committed(log) == shown
    assert not log.transactions.opened


@pytest.mark.parametrize("seeds", [range(150), range(150, 300)])
def test_power_may_fail_at_any_moment(seeds: range) -> None:
    for seed in seeds:
        disk = CrashDisk(seed)
        disk.cut_at(disk.random.randint(1, 400))
        workload = Workload(disk, seed) if seed % 2 else FollowerWorkload(disk, seed)
        with suppress(PowerCut):
            workload.run(moves=70)
        crashed = disk.after_crash(kill=seed % 5 == 0)
        if seed % 3 == 0:
            crashed.cut_at(crashed.random.randint(1, 12))
            with suppress(PowerCut):
                open_log_manager(crashed, workload.config, workload.now_ms)
            crashed = crashed.after_crash()
        check_survivor(workload, crashed)


def test_power_may_fail_while_an_index_is_rebuilt() -> None:
    """Recovery does not read the segment, which is on disk, so it trusts its index."""
    for seed in range(40):
        disk = CrashDisk(seed)
        workload = Workload(disk, seed)
        workload.run(moves=0)
        log = workload.log
        for producer_id in PRODUCERS:
            workload.write(producer_id)
            end_transaction(log, producer_id, commits=False, now_ms=workload.now_ms)
        log.roll(workload.now_ms)
        workload.write(1)
        wanted = log.aborted_between(0, 12)
        assert len(wanted) == len(PRODUCERS)
        workload.log_manager.close(workload.now_ms)
        disk.remove(f"t-0/{0:020d}{TRANSACTION_INDEX}")
        disk.sync_directory("t-0")
        workload.open()
        disk.cut_at(disk.steps + 1 + seed % 8)
        with suppress(PowerCut):
            assert workload.log.aborted_between(0, 12) == wanted
            workload.run_housekeeping()
        log = open_log_manager(disk.after_crash(), workload.config, workload.now_ms).logs["t", 0]
        assert log.aborted_between(0, 12) == wanted


def test_the_lives_mean_something() -> None:
    ended, open_, segments = 0, 0, 0
    for seed in range(30):
        workload = Workload(MemoryDisk(), seed)
        workload.run(moves=70)
        ended += len(history_of(workload.log).aborted())
        open_ += len(workload.log.transactions.opened)
        segments += len(workload.log.segments)
        check_history(workload.log, history_of(workload.log), workload.log.committed_offset)
    assert min(ended, open_, segments) > 60


# ---- compaction


class CompactedWorkload(Workload):
    """The same with compaction, which may drop only what no read_committed reader sees."""

    def __init__(self, disk: CrashDisk | MemoryDisk, seed: int) -> None:
        super().__init__(
            disk,
            seed,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio=0,
            delete_retention_ms=10 * MINUTE_MS,
        )

    def truncate(self) -> None:
        """Do nothing: compacted records are committed, and are never truncated."""

    def delete_records(self) -> None:
        """Do nothing, for the same reason."""

    def move(self) -> None:
        super().move()
        if self.log.high_watermark is not None:
            self.log.high_watermark = self.log.end_offset


def rows(log: Log) -> dict[bytes, bytes | None]:
    """Return the table that a read_committed reader builds."""
    return {record.key or b"": record.value for record in read_committed(log)}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), moves=st.lists(st.integers(5, 40), min_size=1, max_size=5))
def test_compaction_changes_nothing_for_readers_of_committed_records(
    seed: int, moves: list[int]
) -> None:
    workload = CompactedWorkload(MemoryDisk(), seed)
    workload.run(moves=0)
    for count in moves:
        for _ in range(count):
            workload.move()
        before, opened = rows(workload.log), dict(workload.log.transactions.opened)
        untouched = [r for r in stored(workload.log) if r.offset >= workload.log.last_stable_offset]
        workload.log.roll(workload.now_ms)
        workload.run_housekeeping()
        workload.run_housekeeping()
        stable = workload.log.last_stable_offset
        assert rows(workload.log) == before
        assert [r for r in stored(workload.log) if r.offset >= stable] == untouched
        assert workload.log.transactions.opened == opened
        check_from_nothing(workload, before)
    for _ in range(3):
        # Only one producer writes, so that compaction drops everything that it may drop.
        append(workload.log, batch([b"x"], keys=[b"x"]), workload.epoch, workload.now_ms)
        workload.log.high_watermark = workload.log.end_offset
        workload.log.roll(workload.now_ms)
        workload.run_housekeeping()
        workload.run_housekeeping()
        assert workload.log.transactions.opened == opened
        check_from_nothing(workload, rows(workload.log))


def check_from_nothing(workload: Workload, before: dict[bytes, bytes | None]) -> None:
    """Check that the batches alone, without indexes and snapshots, give the same."""
    disk = MemoryDisk()
    disk.make_directory("t-0")
    workload.log_manager.disks[0].sync_directory("")
    for name in workload.disk.list("t-0"):
        if not name.endswith((SNAPSHOT, TRANSACTION_INDEX)):
            disk.create(f"t-0/{name}").append(workload.disk.read_file(f"t-0/{name}"))
    log = open_log_manager(disk, workload.config, workload.now_ms).logs["t", 0]
    assert log.failure is None
    assert log.transactions.opened == workload.log.transactions.opened
    assert rows(log) == before


def test_aborted_records_are_gone_and_markers_expire() -> None:
    workload = CompactedWorkload(MemoryDisk(), 1)
    workload.run(moves=0)
    log = workload.log
    for producer_id, commits in ((1, False), (2, True)):
        workload.write(producer_id)
        end_transaction(log, producer_id, commits=commits, now_ms=workload.now_ms)
    log.roll(workload.now_ms)
    workload.run_housekeeping()
    kinds = [(h.producer_id, h.is_control, h.record_count) for h, _ in stored_batches(log)]
    assert kinds[:2] == [(1, False, 0), (1, True, 1)], "the last batch of a producer stays, empty"
    assert [entry.producer_id for entry in log.aborted_between(0, 6)] == [1]
    # The producers write elsewhere, so that none of these batches must be kept for them.
    for producer_id in (1, 2):
        workload.write(producer_id)
        end_transaction(log, producer_id, commits=True, now_ms=workload.now_ms)
    for _ in range(3):
        log.roll(workload.now_ms)
        append(log, batch([b"x"], keys=[b"x"]), now_ms=workload.now_ms)
        log.roll(workload.now_ms)
        workload.now_ms += 20 * MINUTE_MS
        workload.run_housekeeping()
    assert log.aborted_between(0, log.end_offset) == []
    assert all(h.base_offset > 2 for h, _ in stored_batches(log) if h.producer_id == 1)


def test_power_may_fail_while_transactions_are_compacted() -> None:
    for seed in range(60):
        disk = CrashDisk(seed)
        workload = CompactedWorkload(disk, seed)
        workload.run(moves=40)
        for producer_id in list(workload.log.transactions.opened):
            workload.end(producer_id)
        workload.log.roll(workload.now_ms)
        flush(workload.log)
        workload.log.high_watermark = workload.log.end_offset
        before = rows(workload.log)
        disk.cut_at(disk.steps + disk.random.randint(1, 60))
        with suppress(PowerCut):
            workload.run_housekeeping()
            workload.run_housekeeping()
        crashed = disk.after_crash()
        log = open_log_manager(crashed, workload.config, workload.now_ms).logs["t", 0]
        assert log.failure is None
        assert rows(log) == before
        assert not log.transactions.opened
        check_survivor(workload, crashed)
