"""A log manager spreads partitions over directories, does housekeeping, and reports errors."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from hightide.log import checkpoint
from hightide.log.disk import Disk, DiskFailed, MemoryDisk, RealDisk
from hightide.log.flush import Flush, flush
from hightide.log.log_manager import LogManager
from hightide.settings import Topic
from hightide.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    broker,
    open_log_manager,
    run_jobs,
    stored,
    topic,
)

MINUTE_MS = 60_000
ID = UUID(int=77)


def log_manager_on(*disks: Disk, config: Topic | None = None) -> LogManager:
    log_manager = LogManager(disks, broker(), lambda _: config or topic())
    log_manager.open(NOW)
    return log_manager


def test_new_partitions_go_where_the_fewest_are() -> None:
    disks = [MemoryDisk("a"), MemoryDisk("b"), MemoryDisk("c")]
    disks[0].make_directory("old-0")
    disks[0].make_directory("old-1")
    log_manager = log_manager_on(*disks)
    for partition in range(7):
        log_manager.create("t", partition, ID)
    counts = [sum(log.disk is disk for log in log_manager.logs.values()) for disk in disks]
    assert counts == [3, 3, 3]


def test_all_directories_are_loaded_again(tmp_path: Path) -> None:
    config = topic()
    for number in range(3):
        disks = [RealDisk(tmp_path / name) for name in ("a", "b")]
        log_manager = log_manager_on(*disks, config=config)
        assert len(log_manager.logs) == 2 * number
        for partition in (2 * number, 2 * number + 1):
            log_manager.create("t", partition, ID)
        for log in log_manager.logs.values():
            append(log, batch([b"x"]))
        if number == 1:
            log_manager.close(NOW)
        for disk in disks:
            disk.unlock()
    log_manager = log_manager_on(*(RealDisk(tmp_path / name) for name in ("a", "b")), config=config)
    assert {key: log.end_offset for key, log in log_manager.logs.items()} == {
        ("t", 0): 3, ("t", 1): 3, ("t", 2): 2, ("t", 3): 2, ("t", 4): 1, ("t", 5): 1,
    }  # fmt: skip
    assert log_manager.topic_ids == dict.fromkeys(log_manager.logs, ID)


def test_a_partition_in_two_directories_is_an_error_in_words() -> None:
    disks = [MemoryDisk("a"), MemoryDisk("b")]
    for disk in disks:
        disk.make_directory("t-0")
    with pytest.raises(DiskFailed, match="t-0 failed: it is in a and b; remove one of the two"):
        log_manager_on(*disks)


def test_a_directory_in_use_is_an_error_in_words(tmp_path: Path) -> None:
    first = log_manager_on(RealDisk(tmp_path))
    with pytest.raises(DiskFailed, match="another process is using this directory"):
        log_manager_on(RealDisk(tmp_path))
    first.close(NOW)
    log_manager_on(RealDisk(tmp_path)).close(NOW)


def test_a_partition_is_created_once(disk: Disk) -> None:
    log_manager = log_manager_on(disk)
    log_manager.create("t", 0, ID)
    with pytest.raises(KafkaError) as caught:
        log_manager.create("t", 0, ID)
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_names_with_dashes_and_dots_find_their_way_back(disk: Disk) -> None:
    log_manager = log_manager_on(disk)
    for name in ("a-b", "a-1", "a.b-c_d", "x" * 249):
        log_manager.create(name, 3, ID)
    disk.make_directory("not a partition")
    disk.unlock()
    assert set(log_manager_on(disk).logs) == {
        ("a-b", 3),
        ("a-1", 3),
        ("a.b-c_d", 3),
        ("x" * 249, 3),
    }


@pytest.mark.parametrize("name", ["t", "y" * 249])
def test_a_deleted_partition_is_gone_at_once_and_its_bytes_later(disk: Disk, name: str) -> None:
    log_manager = log_manager_on(disk, config=topic(file_delete_delay_ms=5 * MINUTE_MS))
    log = log_manager.create(name, 0, ID)
    append(log, batch([b"x"]))
    part = log.read(0, 100, 1)
    log_manager.delete(name, 0)
    assert (name, 0) not in log_manager.logs
    (renamed,) = [n for n in disk.list("") if n.endswith("-delete")]
    assert renamed.startswith(f"{name[:200]}")
    assert len(renamed) <= 255
    assert part is not None
    assert len(part.file.read(part.position, part.length)) == part.length
    for use in (lambda: append(log, batch([b"x"])), lambda: log.read(0, 1, 1)):
        with pytest.raises(KafkaError) as caught:
            use()
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    again = log_manager.create(name, 0, UUID(int=78))
    assert append(again, batch([b"x"]))[0] == 0
    run_jobs(log_manager, NOW + 4 * MINUTE_MS)
    assert disk.exists(renamed)
    run_jobs(log_manager, NOW + 5 * MINUTE_MS)
    assert not disk.exists(renamed)


def test_a_deletion_that_was_interrupted_is_finished_after_the_next_start(disk: Disk) -> None:
    log_manager = log_manager_on(disk)
    log_manager.create("t", 0, ID)
    log_manager.delete("t", 0)
    disk.unlock()
    log_manager = log_manager_on(disk)
    assert log_manager.logs == {}
    run_jobs(log_manager, NOW + MINUTE_MS)
    assert not [n for n in disk.list("") if n.endswith("-delete")]


def test_settings_of_a_topic_can_change(disk: Disk) -> None:
    settings = {"t": topic(max_message_bytes=100), "u": topic()}
    log_manager = LogManager([disk], broker(), lambda name: settings[name])
    log_manager.open(NOW)
    log = log_manager.create("t", 0, ID)
    with pytest.raises(KafkaError):
        append(log, batch([b"x" * 200]))
    settings["t"] = topic()
    log_manager.reconfigure("t")
    append(log, batch([b"x" * 200]))


class TestHousekeeping:
    def test_retention_by_time(self, disk: Disk) -> None:
        config = topic(segment_bytes=300, retention_ms=60 * MINUTE_MS, file_delete_delay_ms=0)
        log_manager = open_log_manager(disk, config)
        log = log_manager.create("t", 0, ID)
        for i in range(10):
            at = NOW + i * 10 * MINUTE_MS
            append(log, batch([b"x" * 150], timestamp=at), now_ms=at)
        run_jobs(log_manager, NOW + 80 * MINUTE_MS)
        assert log.start_offset == 2
        assert [record.offset for record in stored(log)] == list(range(2, 10))
        run_jobs(log_manager, NOW + 1000 * MINUTE_MS)
        assert (log.start_offset, log.end_offset) == (10, 10), "the active segment expires too"
        assert append(log, batch([b"x"], timestamp=NOW), now_ms=NOW)[0] == 10
        run_jobs(log_manager, NOW + 1001 * MINUTE_MS)
        names = [n for n in disk.list("t-0") if n[:20].isdecimal() and int(n[:20]) < 10]
        assert names == []

    def test_retention_says_what_it_deletes(
        self, disk: Disk, caplog: pytest.LogCaptureFixture
    ) -> None:
        config = topic(segment_bytes=300, retention_bytes=0, retention_ms=-1)
        log_manager = open_log_manager(disk, config)
        log = log_manager.create("t", 0, ID)
        for _ in range(4):
            append(log, batch([b"x" * 150]))
        with caplog.at_level("INFO", "hightide.log"):
            run_jobs(log_manager, NOW + 10 * MINUTE_MS)
            run_jobs(log_manager, NOW + 20 * MINUTE_MS)
        said = [message for message in caplog.messages if "deleting" in message]
        end = log.start_offset
        assert said == [f"t-0: deleting offsets 0 to {end}: retention.ms=-1, retention.bytes=0"]

    def test_retention_without_timestamps_goes_by_the_file(self, disk: Disk) -> None:
        config = topic(segment_bytes=300, retention_ms=60 * MINUTE_MS)
        log_manager = open_log_manager(disk, config)
        log = log_manager.create("t", 0, ID)
        for _ in range(3):
            append(log, batch([b"x" * 150], timestamp=-1))
        run_jobs(log_manager, NOW + 59 * MINUTE_MS)
        assert log.start_offset == 0
        run_jobs(log_manager, NOW + 70 * MINUTE_MS)
        assert log.start_offset == 3

    def test_retention_by_size(self, disk: Disk) -> None:
        config = topic(segment_bytes=300, retention_bytes=1000, retention_ms=-1)
        log_manager = open_log_manager(disk, config)
        log = log_manager.create("t", 0, ID)
        for _ in range(20):
            append(log, batch([b"x" * 150]))
        run_jobs(log_manager, NOW + 10 * MINUTE_MS)
        assert 1000 <= log.size_bytes < 1300

    def test_nothing_goes_before_it_is_committed(self, disk: Disk) -> None:
        config = topic(segment_bytes=300, retention_bytes=0, retention_ms=0)
        log_manager = open_log_manager(disk, config)
        log = log_manager.create("t", 0, ID)
        for _ in range(10):
            append(log, batch([b"x" * 150]))
        log.high_watermark = 4
        run_jobs(log_manager, NOW + 10 * MINUTE_MS)
        assert log.start_offset == 4

    def test_before_a_log_has_a_role_no_more_is_taken_for_committed(self, disk: Disk) -> None:
        config = topic(segment_bytes=300, retention_bytes=0, retention_ms=0)
        log_manager = open_log_manager(disk, config)
        log = log_manager.create("t", 0, ID)
        for _ in range(10):
            append(log, batch([b"x" * 150]))
        log.high_watermark = 4
        log_manager.close(NOW, 1)
        for minutes in (10, 20):
            # A broker that waits long for its first role, and stops without one.
            log_manager = open_log_manager(disk, config, has_roles=False)
            run_jobs(log_manager, NOW + minutes * MINUTE_MS)
            assert log_manager.logs["t", 0].start_offset == 4
            log_manager.close(NOW, 1)
        assert checkpoint.read_offsets(disk, checkpoint.HIGH_WATERMARKS) == {("t", 0): 4}

    def test_a_high_watermark_is_not_believed_of_records_appended_after_a_truncation(
        self, disk: Disk
    ) -> None:
        log_manager = open_log_manager(disk, topic())
        log = log_manager.create("t", 0, ID)
        for _ in range(10):
            append(log, batch([b"x"]))
        log.high_watermark = 8
        run_jobs(log_manager, NOW + 10 * MINUTE_MS)
        assert checkpoint.read_offsets(disk, checkpoint.HIGH_WATERMARKS) == {("t", 0): 8}
        # Its leader has lost committed records.
        log.truncate_to(5, NOW)
        assert disk.list(f"t-0.{NOW}-damaged").keys() == {f"{0:020}.log"}
        for _ in range(5):
            append(log, batch([b"y"]))
        again = open_log_manager(disk, topic(), has_roles=False)
        assert again.logs["t", 0].end_offset == 10
        assert again.logs["t", 0].high_watermark == 5

    def test_nor_of_records_appended_where_a_power_cut_took_others(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic())
        log = log_manager.create("t", 0, ID)
        for _ in range(5):
            append(log, batch([b"x"]))
        log_manager.close(NOW)
        checkpoint_of_more = checkpoint.encode_offsets({("t", 0): 8})
        disk.replace(checkpoint.HIGH_WATERMARKS, checkpoint_of_more)
        log = open_log_manager(disk, topic(), has_roles=False).logs["t", 0]
        assert log.high_watermark == 5
        for _ in range(5):
            append(log, batch([b"y"]))
        assert open_log_manager(disk, topic(), has_roles=False).logs["t", 0].high_watermark == 5

    def test_sealed_segments_are_forced_to_disk_and_the_checkpoint_follows(
        self, disk: Disk
    ) -> None:
        log_manager = open_log_manager(disk, topic(segment_bytes=300))
        log = log_manager.create("t", 0, ID)
        for _ in range(5):
            append(log, batch([b"x" * 150]))
        run_jobs(log_manager, NOW + MINUTE_MS)
        assert log.recovery_point == 4
        run_jobs(log_manager, NOW + 3 * MINUTE_MS)
        points = checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS)
        assert points == {("t", 0): 4}

    def test_flush_ms_takes_the_active_segment_too(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic(flush_ms=1000))
        log = log_manager.create("t", 0, ID)
        run_jobs(log_manager, NOW)
        append(log, batch([b"x"]))
        run_jobs(log_manager, NOW + 999)
        assert log.recovery_point == 0
        run_jobs(log_manager, NOW + 1000)
        assert log.recovery_point == 1

    def test_flush_messages_says_when_a_flush_is_due(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic(flush_messages=3))
        log = log_manager.create("t", 0, ID)
        due = []
        for _ in range(7):
            append(log, batch([b"x"]))
            due.append(log.end_offset >= log.flush_at)
            if due[-1]:
                flush(log)
        assert due == [False, False, True, False, False, True, False]
        assert log.recovery_point == 6

    def test_a_clock_that_is_set_back_postpones_nothing(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic(flush_ms=1000))
        log = log_manager.create("t", 0, ID)
        run_jobs(log_manager, NOW)
        append(log, batch([b"x"]))
        back = NOW - 60 * MINUTE_MS
        run_jobs(log_manager, back)
        assert log.recovery_point == 0
        run_jobs(log_manager, back + 1000)
        assert log.recovery_point == 1
        run_jobs(log_manager, back + MINUTE_MS)
        written = checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS)
        assert written == {("t", 0): 1}

    def test_a_clock_set_back_before_the_first_jobs_postpones_nothing(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic(retention_ms=1000, segment_bytes=300))
        log = log_manager.create("t", 0, ID)
        for _ in range(5):
            append(log, batch([b"x" * 150], timestamp=NOW - 120 * MINUTE_MS))
        back = NOW - 60 * MINUTE_MS
        run_jobs(log_manager, back)
        assert log.start_offset == 0, "the first check is half a minute after the start"
        run_jobs(log_manager, back + MINUTE_MS)
        assert log.start_offset == 5
        written = checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS)
        assert written == {("t", 0): 5}

    def test_a_flush_that_was_overtaken_by_a_truncation_says_nothing(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic(segment_bytes=300))
        log = log_manager.create("t", 0, ID)
        for _ in range(5):
            append(log, batch([b"x" * 150]))
        jobs = list(log_manager.jobs(NOW + 1))
        assert jobs
        log.truncate_to(2)
        for _ in range(5):
            append(log, batch([b"y" * 150]))
        for job in jobs:
            job.run()
            job.finish()
        assert log.recovery_point == 0
        assert log.failure is None

    def test_a_segment_sealed_during_a_flush_waits_for_its_indexes(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic(flush_ms=0))
        log = log_manager.create("t", 0, ID)
        append(log, batch([b"x"] * 5))
        (flush,) = [job for job in log_manager.jobs(NOW) if isinstance(job, Flush)]
        flush.run()
        log.roll(NOW)
        flush.finish()
        assert log.recovery_point == 4, "not the end of a segment whose indexes may be lost"
        run_jobs(log_manager, NOW)
        assert log.recovery_point == 5

    def test_a_late_checkpoint_does_not_undo_a_newer_one(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic(segment_bytes=300))
        log = log_manager.create("t", 0, ID)
        for _ in range(5):
            append(log, batch([b"x" * 150]))
        flush(log)
        late = list(log_manager.jobs(NOW + 2 * MINUTE_MS))
        log.truncate_to(1)
        for job in late:
            job.run()
            job.finish()
        assert checkpoint.read_offsets(disk, checkpoint.RECOVERY_POINTS) == {("t", 0): 1}
        assert log.recovery_point_written <= 1

    def test_deleted_records_stay_deleted_after_a_kill(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic())
        log = log_manager.create("t", 0, ID)
        for _ in range(5):
            append(log, batch([b"x"]))
        log.delete_records(3)
        run_jobs(log_manager, NOW + 1)
        assert open_log_manager(disk, topic()).logs["t", 0].start_offset == 3

    def test_silent_producers_are_forgotten(self, disk: Disk) -> None:
        log_manager = open_log_manager(disk, topic(), producer_id_expiration_ms=MINUTE_MS)
        log = log_manager.create("t", 0, ID)
        append(log, batch([b"x"], producer_id=1, producer_epoch=0, base_sequence=0))
        run_jobs(log_manager, NOW + 10 * MINUTE_MS)
        assert len(log.producers) == 0

    def test_jobs_for_a_log_that_was_deleted_do_no_harm(self, disk: Disk) -> None:
        config = topic(segment_bytes=300, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
        log_manager = open_log_manager(disk, config)
        log = log_manager.create("t", 0, ID)
        for _ in range(5):
            append(log, batch([b"x" * 150], keys=[b"k"]))
        run_jobs(log_manager, NOW + 1)
        run_jobs(log_manager, NOW + 2 * MINUTE_MS)
        append(log, batch([b"x" * 150], keys=[b"k"]))
        log.roll(NOW)
        jobs = list(log_manager.jobs(NOW + 4 * MINUTE_MS))
        assert len(jobs) > 2
        log_manager.delete("t", 0)
        log_manager.create("t", 0, UUID(int=78))
        for job in jobs:
            job.run()
            job.finish()
        assert log_manager.logs["t", 0].failure is None
        assert log_manager.logs["t", 0].segments.bases == [0]


@pytest.mark.parametrize("left", [None, b"", b"version: 0\ntopic_id: AAAA"])
def test_whose_a_log_is_survives_the_loss_of_its_own_note(disk: Disk, left: bytes | None) -> None:
    """A power loss may remove it; a log without it would be used for any topic of that name."""
    log_manager = log_manager_on(disk)
    log_manager.create("t", 0, ID)
    log_manager.sync_names()
    log_manager.unlock()
    disk.remove("t-0/partition.metadata")
    if left is not None:
        disk.create("t-0/partition.metadata").append(left)
    assert log_manager_on(disk).topic_ids == {("t", 0): ID}
    assert checkpoint.read_topic_id(disk, "t-0") == ID, "it is noted again"


def test_a_damaged_list_of_ids_is_none(disk: Disk) -> None:
    log_manager = log_manager_on(disk)
    log_manager.create("t", 0, ID)
    log_manager.unlock()
    for damage in (b"", b"0\n1\nt 0\n", b"0\n1\nt 0 ????\n", b"\xff"):
        disk.replace(checkpoint.TOPIC_IDS, damage)
        assert checkpoint.read_topic_ids(disk) == {}
