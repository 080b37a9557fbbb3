"""Damaged, cut and lost files: every record is served right or refused, and none is skipped."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.log.damage import Extent, Hole, check_part
from hightide.log.disk import Disk, MemoryDisk, RealDisk
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.log.repair import Fill
from hightide.log.segment import LOG
from hightide.wire.batch import Record, batches
from hightide.wire.errors import Corrupt
from tests.support.crash_disk import CrashDisk, PowerCut
from tests.unit.log.damaging import flip, overwrite, served
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    open_log_manager,
    run_jobs,
    stored,
    topic,
)

CONFIG = topic(segment_bytes=1000, index_interval_bytes=150, retention_ms=-1)
COMPACTED = topic(segment_bytes=1000, index_interval_bytes=150, cleanup_policy="compact")
BATCHES = 33


def filled(disk: Disk, config: Any = CONFIG) -> LogManager:
    log_manager = open_log_manager(disk, config)
    log = log_manager.create("t", 0, UUID(int=3))
    for i in range(BATCHES):
        fields: dict[str, Any] = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 2 * i}
        keys = [b"a%d" % i, b"b%d" % i]
        append(log, batch([b"x" * 60, b"%d" % i], keys=keys, **fields), leader_epoch=i // 6)
    return log_manager


def stopped(disk: Disk, config: Any = CONFIG) -> list[Record]:
    """Fill a log and shut it down cleanly; return its records."""
    log_manager = filled(disk, config)
    records = stored(log_manager.logs["t", 0])
    log_manager.sync_names()
    log_manager.close(NOW)
    return records


def reopened(disk: Disk, config: Any = CONFIG) -> tuple[LogManager, Log]:
    log_manager = open_log_manager(disk, config, log_initial_task_delay_ms=0)
    return log_manager, log_manager.logs["t", 0]


def logs_of(disk: Disk) -> list[str]:
    return sorted(f"t-0/{name}" for name in disk.list("t-0") if name.endswith(LOG))


def copy_of(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("t-0")
    for name, data in files.items():
        overwrite(disk, name, data)
    return disk


def assert_right_or_refused(disk: Disk, wanted: list[Record]) -> set[int]:
    """Read everything; return the refused offsets. A second start finds the same."""
    seen: list[set[int]] = []
    for _ in range(2):
        log_manager, log = reopened(disk)
        assert log.failure is None
        assert log.end_offset == wanted[-1].offset + 1
        found, refused = served(log_manager, log)
        assert found == [record for record in wanted if record.offset not in refused]
        seen.append(refused)
        log_manager.close(NOW)
    assert seen[0] == seen[1]
    return seen[0]


class TestLostAndCutFiles:
    @pytest.mark.parametrize("number", range(5))
    def test_a_lost_segment_is_refused_and_not_skipped(self, disk: Disk, number: int) -> None:
        wanted = stopped(disk)
        disk.remove(logs_of(disk)[number])
        refused = assert_right_or_refused(disk, wanted)
        assert refused
        assert len(refused) < len(wanted) // 2

    @pytest.mark.parametrize("number", range(5))
    @pytest.mark.parametrize("rest", [0, 1, 300, -1])
    def test_a_segment_that_was_cut_is_refused_and_not_skipped(
        self, disk: Disk, number: int, rest: int
    ) -> None:
        wanted = stopped(disk)
        path = logs_of(disk)[number]
        overwrite(disk, path, disk.read_file(path)[:rest])
        refused = assert_right_or_refused(disk, wanted)
        assert refused
        assert len(refused) < len(wanted) // 2

    @pytest.mark.parametrize("is_scrubbed", [False, True])
    @pytest.mark.parametrize("rest", [*range(0, 900, 13), 61, 62])
    def test_a_segment_of_a_running_log_that_was_cut_is_refused(
        self, tmp_path: Path, rest: int, is_scrubbed: bool
    ) -> None:
        """The log has the file open, and does not know its new size."""
        log_manager = filled(RealDisk(tmp_path))
        log = log_manager.logs["t", 0]
        wanted = stored(log)
        path = log.segments[1].path(LOG)
        assert rest < (tmp_path / path).stat().st_size
        os.truncate(tmp_path / path, rest)
        if is_scrubbed:
            for second in range(4):
                run_jobs(log_manager, NOW + 7 * 24 * 3_600_000 + 1000 * second)
            assert log.damage.holes
            assert not log.damage.pending
        found, refused = served(log_manager, log)
        assert found == [record for record in wanted if record.offset not in refused]
        assert 0 < len(refused) <= 16

    def test_all_lost_files_are_refused(self, disk: Disk) -> None:
        wanted = stopped(disk)
        for path in logs_of(disk):
            disk.remove(path)
        assert assert_right_or_refused(disk, wanted) == set(range(len(wanted)))

    def test_appends_continue_after_a_lost_end(self, disk: Disk) -> None:
        wanted = stopped(disk)
        disk.remove(logs_of(disk)[-1])
        log_manager, log = reopened(disk)
        assert append(log, batch([b"new"]), leader_epoch=7)[0] == len(wanted)
        found, refused = served(log_manager, log)
        assert found[-1].value == b"new"
        assert len(found) + len(refused) == len(wanted) + 1

    def test_zeros_in_the_middle_are_refused(self, disk: Disk) -> None:
        wanted = stopped(disk)
        path = logs_of(disk)[1]
        data = bytearray(disk.read_file(path))
        data[200:500] = bytes(300)
        overwrite(disk, path, data)
        refused = assert_right_or_refused(disk, wanted)
        assert 0 < len(refused) <= 6

    def test_the_damaged_file_is_set_aside(self, disk: Disk) -> None:
        stopped(disk)
        path = logs_of(disk)[1]
        flip(disk, path, 8 * 100)
        damaged = disk.read_file(path)
        log_manager, log = reopened(disk)
        served(log_manager, log)
        (aside,) = [name for name in disk.list("") if name.endswith("-damaged")]
        assert aside.startswith("t-0.")
        assert disk.read_file(f"{aside}/{path[4:]}") == damaged


def _flips(files: dict[str, bytes], every: int) -> list[tuple[str, int]]:
    return [(path, bit) for path, data in files.items() for bit in range(0, len(data) * 8, every)]


class TestFlippedBits:
    def test_every_bit_of_a_log_file_is_noticed(self) -> None:
        original = MemoryDisk()
        wanted = stopped(original)
        files = {name: bytes(file.data) for name, file in original.files.items()}
        batch_files = {path: data for path, data in files.items() if path.endswith(LOG)}
        for path, bit in _flips(batch_files, 29):
            disk = copy_of(files)
            flip(disk, path, bit)
            refused = assert_right_or_refused(disk, wanted)
            assert len(refused) == 2, f"bit {bit} of {path} costs one batch"

    @settings(max_examples=150, deadline=None)
    @given(data=st.data())
    def test_any_bit_of_any_file_is_noticed_or_harmless(self, data: st.DataObject) -> None:
        disk = MemoryDisk()
        wanted = stopped(disk)
        path = data.draw(
            st.sampled_from(sorted(name for name in disk.files if disk.files[name].size))
        )
        bit = data.draw(st.integers(0, disk.files[path].size * 8 - 1))
        flip(disk, path, bit)
        assert_right_or_refused(disk, wanted)

    def test_no_bit_of_another_file_costs_a_record(self) -> None:
        """Indexes, snapshots and checkpoints follow from the batches, or from each other."""
        original = MemoryDisk()
        wanted = stopped(original)
        files = {name: bytes(file.data) for name, file in original.files.items()}
        _, log = reopened(copy_of(files))
        epochs, latest = log.epochs.entries, log.offset_for_timestamp(None)
        others = {path: data for path, data in files.items() if not path.endswith(LOG)}
        for path, bit in _flips(others, 7):
            disk = copy_of(files)
            flip(disk, path, bit)
            log_manager, log = reopened(disk)
            assert served(log_manager, log) == (wanted, set()), (path, bit)
            assert log.epochs.entries == epochs, (path, bit)
            assert log.offset_for_timestamp(None) == latest, (path, bit)
            known = {log_manager.topic_ids["t", 0], log_manager.other_ids.get(("t", 0))}
            assert UUID(int=3) in known, (path, bit)

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_several_flips_cost_what_they_hit(self, data: st.DataObject) -> None:
        disk = MemoryDisk()
        wanted = stopped(disk)
        for _ in range(data.draw(st.integers(2, 5))):
            path = data.draw(st.sampled_from(logs_of(disk)))
            flip(disk, path, data.draw(st.integers(0, disk.files[path].size * 8 - 1)))
        assert_right_or_refused(disk, wanted)

    def test_a_wrong_base_offset_behind_damage_is_not_believed(self) -> None:
        """The CRC does not cover base offsets, and there is no batch before it to compare with."""
        original = MemoryDisk()
        wanted = stopped(original)
        files = {name: bytes(file.data) for name, file in original.files.items()}
        path = logs_of(original)[0]
        second = [at for at, _ in batches(files[path])][1]
        for bit in (second + 7) * 8, (second + 7) * 8 + 2:
            disk = copy_of(files)
            flip(disk, path, 0)
            flip(disk, path, bit)
            assert assert_right_or_refused(disk, wanted) == {0, 1, 2, 3}, bit

    def test_a_read_may_begin_inside_the_first_batch_of_a_file(self, disk: Disk) -> None:
        log = filled(disk).logs["t", 0]
        part = log.read(1, 1 << 20, log.end_offset)
        assert part is not None
        assert part.segment is not None
        assert part.position == 0
        assert check_part(part, Extent.of(log, part.segment), 0).is_intact

    def test_a_flip_in_a_running_log_is_found(self, disk: Disk) -> None:
        log_manager = filled(disk)
        log = log_manager.logs["t", 0]
        wanted = stored(log)
        path = logs_of(disk)[0]
        data = bytearray(disk.read_file(path))
        data[150] ^= 4
        log.segments.close_files(log.segments)
        overwrite(disk, path, data)
        found, refused = served(log_manager, log)
        assert len(refused) == 2
        assert found == [record for record in wanted if record.offset not in refused]


class TestScrub:
    def test_it_finds_a_flip_in_every_segment(self, disk: Disk) -> None:
        stopped(disk)
        for path in logs_of(disk):
            flip(disk, path, 8 * 90)
        log_manager, log = reopened(disk)
        for second in range(4):
            run_jobs(log_manager, NOW + 1000 * second)
        assert len(log.damage.holes) == 6
        assert not log.damage.pending

    def test_it_reads_no_faster_than_it_may(self, disk: Disk) -> None:
        stopped(disk)
        flip(disk, logs_of(disk)[4], 8 * 90)
        log_manager = open_log_manager(disk, CONFIG, log_scrub_bytes_per_second=1024)
        log = log_manager.logs["t", 0]
        for second in range(3):
            run_jobs(log_manager, NOW + 1000 * second)
        assert not log.damage
        for second in range(3, 10):
            run_jobs(log_manager, NOW + 1000 * second)
        assert log.damage.holes

    def test_it_does_not_look_again_before_its_time(self, disk: Disk) -> None:
        log_manager = filled(disk)
        log = log_manager.logs["t", 0]
        run_jobs(log_manager, NOW + 1000)
        path = logs_of(disk)[0]
        log.segments.close_files(log.segments)
        flip(disk, path, 8 * 90)
        run_jobs(log_manager, NOW + 120_000)
        assert not log.damage
        for second in range(5):
            run_jobs(log_manager, NOW + 7 * 24 * 3_600_000 + 120_000 + 1000 * second)
        assert log.damage.holes

    def test_damaged_files_are_removed_after_their_time(self, disk: Disk) -> None:
        stopped(disk)
        flip(disk, logs_of(disk)[1], 8 * 90)
        log_manager, _ = reopened(disk)
        for second in range(3):
            run_jobs(log_manager, NOW + 1000 * second)
        assert [name for name in disk.list("") if name.endswith("-damaged")]
        run_jobs(log_manager, NOW + 8 * 24 * 3_600_000)
        assert not [name for name in disk.list("") if name.endswith("-damaged")]


class TestFilling:
    def test_a_filled_hole_is_served_again(self, disk: Disk) -> None:
        wanted = stopped(disk)
        good = b"".join(disk.read_file(path) for path in logs_of(disk))
        flip(disk, logs_of(disk)[1], 8 * 300)
        log_manager, log = reopened(disk)
        _, refused = served(log_manager, log)
        assert len(refused) == 2
        (hole,) = log.damage.holes
        fill = Fill(log, hole)
        fill.append(memoryview(good))
        fill.sync()
        fill.install()
        assert not log.damage
        for _ in range(2):
            assert served(log_manager, log) == (wanted, set())
            assert b"".join(disk.read_file(path) for path in logs_of(disk)) == good
            log_manager.close(NOW)
            log_manager, log = reopened(disk)

    def test_records_that_are_there_are_not_replaced(self, disk: Disk) -> None:
        wanted = stopped(disk)
        good = b"".join(disk.read_file(path) for path in logs_of(disk))
        log_manager, log = reopened(disk)
        # The hole was truncated and appended to while it was known.
        segment = log.segments[1]
        log.damage.holes = [Hole(segment.base_offset, segment.limit_offset)]
        fill = Fill(log, log.damage.holes[0])
        fill.append(memoryview(good))
        fill.sync()
        fill.install()
        assert not log.damage
        assert served(log_manager, log) == (wanted, set())
        assert b"".join(disk.read_file(path) for path in logs_of(disk)) == good

    def test_records_of_another_leader_epoch_are_refused(self, disk: Disk) -> None:
        stopped(disk)
        good = b"".join(disk.read_file(path) for path in logs_of(disk))
        disk.remove(logs_of(disk)[1])
        _, log = reopened(disk)
        fill = Fill(log, log.damage.holes[0])
        other = bytearray(good)
        for at, _ in batches(good):
            other[at + 12 : at + 16] = (7).to_bytes(4, "big")
        with pytest.raises(Corrupt, match="leader epoch"):
            fill.append(memoryview(other))
        fill.install()
        assert log.damage.holes, "the hole stays"

    def test_a_source_with_the_same_hole_is_refused(self, disk: Disk) -> None:
        stopped(disk)
        paths = logs_of(disk)
        others = disk.read_file(paths[0]) + disk.read_file(paths[2])
        disk.remove(paths[1])
        _, log = reopened(disk)
        fill = Fill(log, log.damage.holes[0])
        with pytest.raises(Corrupt):
            fill.append(memoryview(others))

    def test_a_crash_leaves_the_hole_or_the_records(self) -> None:
        for step in range(1, 30):
            disk = CrashDisk(step)
            log_manager = filled(disk)
            log = log_manager.logs["t", 0]
            wanted = stored(log)
            log_manager.close(NOW)
            good = b"".join(disk.read_file(path) for path in logs_of(disk))
            data = bytearray(disk.read_file(logs_of(disk)[1]))
            data[300] ^= 1
            file = disk.create(logs_of(disk)[1])
            file.append(data)
            file.sync()
            disk.cut_at(disk.steps + 10 + step)
            with suppress(PowerCut):
                log_manager, log = reopened(disk)
                served(log_manager, log)
                for hole in log.damage.holes:
                    fill = Fill(log, hole)
                    fill.append(memoryview(good))
                    fill.sync()
                    fill.install()
            again = disk.after_crash()
            log_manager, log = reopened(again)
            found, refused = served(log_manager, log)
            assert len(refused) in (0, 2)
            assert found == [record for record in wanted if record.offset not in refused]
