"""Recovery from the files of a clean shutdown, of a crash, and with damage."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from hightide.log import checkpoint
from hightide.log.disk import Disk, MemoryDisk
from hightide.log.flush import flush
from hightide.log.leader_epochs import EPOCH_CHECKPOINT
from hightide.log.log import Log
from hightide.log.segment import LOG
from hightide.wire.errors import ErrorCode, KafkaError
from tests.support.crash_disk import CrashDisk, PowerCut
from tests.unit.log.damaging import flip, overwrite, served
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    newest,
    open_log_manager,
    replayed,
    run_jobs,
    stored,
    topic,
)

CONFIG = topic(segment_bytes=1000, index_interval_bytes=150, retention_ms=-1)


def filled(disk: Disk, batches: int = 20, flushed: int = 0) -> Log:
    """Create a log with two records a batch; the first batches are forced to disk."""
    log_manager = open_log_manager(disk, CONFIG)
    log = log_manager.create("t", 0, UUID(int=3))
    for i in range(batches):
        fields: dict[str, Any] = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 2 * i}
        append(log, batch([b"x" * 60, b"%d" % i], **fields), leader_epoch=i // 6)
        if i + 1 == flushed:
            flush(log)
            checkpoint.write_offsets(disk, checkpoint.RECOVERY_POINTS, {("t", 0): log.end_offset})
    return log


def reopened(disk: Disk) -> Log:
    return open_log_manager(disk, CONFIG).logs["t", 0]


class TestAfterACleanStop:
    def test_nothing_is_read_but_the_end(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, CONFIG)
        log = log_manager.create("t", 0, UUID(int=3))
        for i in range(30):
            append(log, batch([b"%d" % i * 30], producer_id=1, producer_epoch=0, base_sequence=i))
        before = (stored(log), log.epochs.entries, newest(log.producers))
        log_manager.close(NOW)
        assert disk.exists(checkpoint.CLEAN_SHUTDOWN)
        again = reopened(disk)
        assert not disk.exists(checkpoint.CLEAN_SHUTDOWN), "it counts for one start"
        assert all(segment.file is None for segment in again.segments)
        assert (stored(again), again.epochs.entries, newest(again.producers)) == before
        assert again.recovery_point == again.end_offset == 30

    def test_a_stop_without_changes_writes_nothing(self, disk: Disk) -> None:
        log = filled(disk)
        log_manager = open_log_manager(disk, CONFIG)
        log_manager.close(NOW)
        log_manager = open_log_manager(disk, CONFIG)
        names = disk.list("t-0")
        log_manager.logs["t", 0].offsets_lowered = lambda: pytest.fail("nothing goes back")
        log_manager.close(NOW)
        assert disk.list("t-0") == names
        assert reopened(disk).end_offset == log.end_offset

    def test_a_snapshot_of_no_segment_is_passed_over(self, disk: Disk) -> None:
        log = filled(disk)
        open_log_manager(disk, CONFIG).close(NOW)
        for name in list(disk.list("t-0")):
            if name.endswith(".snapshot"):
                disk.remove(f"t-0/{name}")
        overwrite(disk, "t-0/00000000000000000005.snapshot", b"of a segment that is gone")
        assert reopened(disk).producers == log.producers

    def test_a_segment_begun_before_the_stop_is_safe_with_the_next_flush(self) -> None:
        for seed in range(10):
            disk = CrashDisk(seed)
            filled(disk)
            open_log_manager(disk, CONFIG).close(NOW)
            log_manager = open_log_manager(disk, CONFIG)
            log_manager.logs["t", 0].roll(NOW)
            log_manager.close(NOW)
            log = reopened(disk)
            append(log, batch([b"x"]), leader_epoch=3)
            flush(log)
            assert reopened(disk.after_crash()).end_offset == 41

    def test_a_start_behind_the_end_is_not_believed(self, disk: Disk) -> None:
        filled(disk)
        open_log_manager(disk, CONFIG).close(NOW)
        overwrite(disk, checkpoint.LOG_START_OFFSETS, b"0\n1\nt 0 4000\n")
        assert (reopened(disk).start_offset, len(stored(reopened(disk)))) == (0, 40)

    def test_damage_at_the_end_is_checked_in_spite_of_the_marker(self, disk: Disk) -> None:
        filled(disk)
        log_manager = open_log_manager(disk, CONFIG)
        path = log_manager.logs["t", 0].active_segment.path(LOG)
        log_manager.close(NOW)
        disk.open(path).append(b"\0" * 100)
        log = reopened(disk)
        assert log.failure is None
        assert log.end_offset == 40
        assert append(log, batch([b"x"]))[0] == 40


class TestAfterACrash:
    @pytest.mark.parametrize("rest", [1, 11, 12, 60, 61, 80, -1])
    def test_a_torn_batch_is_cut_off(self, disk: Disk, rest: int) -> None:
        log = filled(disk)
        wanted = stored(log)
        torn = batch([b"torn" * 30])
        log.active_segment.opened().append(torn[:rest])
        again = reopened(disk)
        assert again.end_offset == 40
        assert stored(again) == wanted
        assert append(again, batch([b"x"]))[0] == 40

    def test_zeros_and_rubbish_at_the_end_are_cut_off(self, disk: Disk) -> None:
        for rubbish in (bytes(5000), b"\xff" * 3000, bytes(range(256)) * 9):
            log = filled(MemoryDisk())
            log.active_segment.opened().append(rubbish)
            assert reopened(log.disk).end_offset == 40

    def test_segments_behind_the_damage_go(self, disk: Disk) -> None:
        log = filled(disk)
        assert len(log.segments) == 3
        flip(disk, log.segments[1].path(LOG), 100 * 8)
        again = reopened(disk)
        assert again.failure is None
        assert again.end_offset == log.segments[1].base_offset
        assert [record.offset for record in stored(again)] == list(range(again.end_offset))
        names = [n for n in disk.list("t-0") if n[:20].isdecimal()]
        assert all(int(name[:20]) <= again.end_offset for name in names)

    def test_a_hole_between_segments_ends_the_log(self, disk: Disk) -> None:
        log = filled(disk)
        segment = log.segments[1]
        last = [position for position, _ in segment.headers()][-1]
        disk.open(segment.path(LOG)).truncate(last)
        assert reopened(disk).end_offset == segment.limit_offset - 2

    def test_without_a_checkpoint_gaps_are_taken_for_compaction(self, disk: Disk) -> None:
        log = filled(disk)
        segment = log.segments[1]
        last = [position for position, _ in segment.headers()][-1]
        disk.open(segment.path(LOG)).truncate(last)
        overwrite(disk, checkpoint.RECOVERY_POINTS, b"rubbish")
        again = reopened(disk)
        assert again.end_offset == 40
        assert len(stored(again)) == 38

    def test_everything_is_made_again_from_the_batches(self, disk: Disk) -> None:
        log = filled(disk)
        for name in list(disk.list("t-0")):
            if not name.endswith(LOG):
                disk.remove(f"t-0/{name}")
        again = reopened(disk)
        producers, epochs = replayed(again)
        assert again.producers == producers == log.producers
        assert again.epochs.entries == epochs == [(0, 0), (1, 12), (2, 24), (3, 36)]
        assert stored(again) == stored(log)
        assert [(s.max_timestamp, s.max_timestamp_offset) for s in again.segments] == [
            (s.max_timestamp, s.max_timestamp_offset) for s in log.segments
        ]

    def test_indexes_that_disagree_are_not_believed(self, disk: Disk) -> None:
        log = filled(disk)
        wanted = stored(log)
        for name in list(disk.list("t-0")):
            if name.endswith((".index", ".timeindex", ".snapshot", "-checkpoint")):
                overwrite(disk, f"t-0/{name}", b"\x7f" * 24)
        again = reopened(disk)
        assert stored(again) == wanted
        assert again.producers == log.producers
        assert again.epochs.entries == log.epochs.entries

    def test_a_start_behind_the_end_means_that_all_else_was_deleted(self, disk: Disk) -> None:
        """An offset is never assigned twice."""
        filled(disk)
        overwrite(disk, checkpoint.LOG_START_OFFSETS, b"0\n1\nt 0 45\n")
        log = reopened(disk)
        assert append(log, batch([b"x"])) == (45, 46, -1)
        assert [record.offset for record in stored(reopened(disk))] == [45]

    def test_segments_before_the_start_go(self, disk: Disk) -> None:
        log = filled(disk)
        overwrite(disk, checkpoint.LOG_START_OFFSETS, b"0\n1\nt 0 30\n")
        disk.remove(log.segments[1].path(LOG))
        again = reopened(disk)
        assert (again.failure, again.segments.bases, again.start_offset) == (
            None,
            log.segments.bases[2:],
            30,
        )

    def test_a_large_batch_does_not_fit_the_first_buffer(self, disk: Disk) -> None:
        config = topic(max_message_bytes=20_000_000)
        log_manager = open_log_manager(disk, config)
        log = log_manager.create("t", 0, UUID(int=3))
        append(log, batch([b"small"]))
        append(log, batch([b"x" * 9_000_000]))
        append(log, batch([b"small"]))
        again = open_log_manager(disk, config).logs["t", 0]
        assert again.end_offset == 3


class TestBelowTheRecoveryPoint:
    def test_damage_is_not_cut_but_refused(self, disk: Disk) -> None:
        log = filled(disk, flushed=20)
        wanted = stored(log)
        path = log.active_segment.path(LOG)
        flip(disk, path, 100 * 8)
        for _ in range(2):
            log_manager = open_log_manager(disk, CONFIG)
            again = log_manager.logs["t", 0]
            first = again.damage.holes[0].start
            with pytest.raises(KafkaError) as caught:
                again.read(first, 1, again.end_offset)
            assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
            found, refused = served(log_manager, again)
            assert len(refused) == 2
            assert found == [record for record in wanted if record.offset not in refused]
        assert append(again, batch([b"x"]), leader_epoch=9)[0] == log.end_offset

    def test_a_lost_end_is_refused_too(self, disk: Disk) -> None:
        log = filled(disk, flushed=20)
        disk.remove(log.active_segment.path(LOG))
        log_manager = open_log_manager(disk, CONFIG)
        again = log_manager.logs["t", 0]
        assert again.end_offset == log.end_offset
        _, refused = served(log_manager, again)
        assert refused == set(range(log.active_segment.base_offset, log.end_offset))

    def test_epochs_before_a_torn_end_are_kept(self, disk: Disk) -> None:
        """The file of epochs is damaged too, so they are taken from the batches."""
        log = filled(disk, flushed=20)
        entries, wanted = log.epochs.entries, stored(log)
        path = f"t-0/{EPOCH_CHECKPOINT}"
        text = disk.read_file(path)
        assert text.count(b"1 12\n") == 1
        overwrite(disk, path, text.replace(b"1 12\n", b"1 14\n"))
        log.active_segment.opened().append(bytes(40))
        again = reopened(disk)
        assert again.epochs.entries == entries
        assert stored(again) == wanted

    def test_other_logs_are_not_harmed(self, disk: Disk) -> None:
        log = filled(disk, flushed=20)
        flip(disk, log.active_segment.path(LOG), 100 * 8)
        log_manager = open_log_manager(disk, CONFIG)
        other = log_manager.create("u", 0, UUID(int=9))
        assert append(other, batch([b"x"]))[0] == 0
        log_manager.close(NOW)
        log_manager = open_log_manager(disk, CONFIG)
        assert log_manager.logs["u", 0].end_offset == 1
        assert log_manager.logs["t", 0].damage.holes, "a stop does not make it good"

    def test_every_bit_flip_is_noticed_or_harmless(self) -> None:
        original = filled(MemoryDisk(), batches=6, flushed=6)
        wanted = stored(original)
        files = {name: bytes(file.data) for name, file in original.disk.files.items()}  # type: ignore[attr-defined]
        flipped = 0
        for path in [name for name in files if name.startswith("t-0/")]:
            for bit in range(0, len(files[path]) * 8, 13):
                disk = MemoryDisk()
                disk.make_directory("t-0")
                for name, data in files.items():
                    overwrite(disk, name, data)
                flip(disk, path, bit)
                log_manager = open_log_manager(disk, CONFIG)
                log = log_manager.logs["t", 0]
                flipped += 1
                found, refused = served(log_manager, log)
                assert len(refused) == (2 if path.endswith(LOG) else 0)
                assert found == [record for record in wanted if record.offset not in refused]
                assert log.end_offset == 12
        assert flipped > 500


class TestLeftovers:
    def test_files_marked_as_deleted_or_half_compacted_go(self, disk: Disk) -> None:
        log = filled(disk)
        for name in ("00000000000000000000.log.deleted", "00000000000000000000.log.cleaned",
                     "00000000000000000000.index.cleaned", "partition.metadata.tmp"):  # fmt: skip
            overwrite(disk, f"t-0/{name}", b"rubbish")
        again = reopened(disk)
        assert stored(again) == stored(log)
        assert not [n for n in disk.list("t-0") if n.endswith((".deleted", ".cleaned", ".tmp"))]

    def test_a_finished_compaction_is_put_in_place(self, disk: Disk) -> None:
        log = filled(disk)
        first, second = log.segments[:2]
        joined = disk.read_file(first.path(LOG)) + disk.read_file(second.path(LOG))
        overwrite(disk, first.path(LOG) + ".swap", joined)
        again = reopened(disk)
        assert again.segments.bases == log.segments.bases[:1] + log.segments.bases[2:]
        assert stored(again) == stored(log)

    def test_putting_it_in_place_may_be_interrupted(self) -> None:
        for step in range(1, 12):
            for seed in range(20):
                disk = CrashDisk(seed * 100 + step)
                log = filled(disk, flushed=20)
                wanted, bases = stored(log), log.segments.bases
                joined = b"".join(disk.read_file(s.path(LOG)) for s in log.segments[:2])
                swap = disk.create(log.segments[0].path(LOG) + ".swap")
                swap.append(joined)
                swap.sync()
                disk.sync_directory("t-0")
                disk.cut_at(disk.steps + step)
                with suppress(PowerCut):
                    open_log_manager(disk, CONFIG)
                again = reopened(disk.after_crash())
                assert again.failure is None
                assert again.segments.bases == bases[:1] + bases[2:]
                assert stored(again) == wanted

    def test_an_unfinished_swap_is_dropped(self, disk: Disk) -> None:
        log = filled(disk)
        path = log.segments[0].path(LOG)
        overwrite(disk, path + ".swap", disk.read_file(path)[:100])
        overwrite(disk, path.replace(LOG, ".index.cleaned"), b"")
        again = reopened(disk)
        assert again.segments.bases == log.segments.bases
        assert stored(again) == stored(log)

    def test_files_without_a_segment_go(self, disk: Disk) -> None:
        log = filled(disk)
        for name in ("00000000000000000005.index", "00000000000000000003.snapshot"):
            overwrite(disk, f"t-0/{name}", b"")
        reopened(disk)
        assert not disk.exists("t-0/00000000000000000005.index")
        assert not disk.exists("t-0/00000000000000000003.snapshot")
        assert log.end_offset == 40

    def test_an_empty_directory_is_an_empty_log(self, disk: Disk) -> None:
        open_log_manager(disk, CONFIG)
        disk.make_directory("t-0")
        log = reopened(disk)
        assert append(log, batch([b"x"])) == (0, 1, -1)


def test_thousands_of_segments_open_quickly_and_read_right(disk: Disk) -> None:
    config = topic(segment_bytes=100, retention_ms=-1)
    log_manager = open_log_manager(disk, config)
    log = log_manager.create("t", 0, UUID(int=3))
    # On a real disk each segment costs syncs, which do not matter for this test.
    count = 3000 if isinstance(disk, MemoryDisk) else 400
    for i in range(count):
        append(log, batch([b"%d" % i]))
    assert len(log.segments) == count
    run_jobs(log_manager, NOW + 10**6)
    assert log.recovery_point == count - 1
    log_manager.close(NOW)
    again = open_log_manager(disk, config).logs["t", 0]
    assert again.end_offset == count
    assert sum(segment.file is not None for segment in again.segments) == 0
    assert [record.value for record in stored(again)] == [b"%d" % i for i in range(count)]
    assert again.truncate_to(300) == 300
    assert len(disk.list("t-0")) < 1600
