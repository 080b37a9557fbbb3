"""A log on a disk that is full, fails once, or forgets what it could not sync."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from hightide.log.disk import DiskFailed, RealDisk
from hightide.log.flush import Flush
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.log.reopen import reopen
from hightide.log.reserve import RESERVE, Reserve
from hightide.wire.errors import ErrorCode, KafkaError
from tests.support.crash_disk import CrashDisk, CrashFile
from tests.support.failing_disk import FailingDisk
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    broker,
    open_log_manager,
    run_jobs,
    stored_batches,
    topic,
)

MIB = 1 << 20


def manager_of(disk: FailingDisk, **config: object) -> tuple[LogManager, Log]:
    manager = open_log_manager(disk, topic(**config))
    log = manager.create("t", 0, UUID(int=1))
    log.high_watermark = None
    return manager, log


def offsets(log: Log) -> list[int]:
    return [header.base_offset for header, _ in stored_batches(log)]


def refusal(log: Log) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        append(log, batch([b"v"]))
    return caught.value.code


def test_a_full_disk_is_reported_and_the_log_stays_readable() -> None:
    disk = FailingDisk()
    manager, log = manager_of(disk)
    seen: list[tuple[Log, KafkaError]] = []
    manager.on_disk_failure = lambda log, failure: seen.append((log, failure))
    append(log, batch([b"v"]))
    disk.capacity = disk.used()
    assert refusal(log) == ErrorCode.KAFKA_STORAGE_ERROR
    assert [log for log, _ in seen] == [log]
    assert log.failure is None
    assert offsets(log) == [0]
    disk.capacity = -1
    append(log, batch([b"v"]))
    assert offsets(log) == [0, 1]


def test_a_log_of_a_full_disk_refuses_every_kind_of_append_and_serves_reads() -> None:
    _, log = manager_of(FailingDisk())
    append(log, batch([b"v"]))
    log.set_full(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "full"))
    assert refusal(log) == ErrorCode.KAFKA_STORAGE_ERROR
    for write in (
        lambda: log.append_own(batch([b"v"]), 0, NOW),
        lambda: log.append_fetched(memoryview(batch([b"v"])), NOW),
    ):
        with pytest.raises(KafkaError):
            write()
    log.reconfigure(topic(segment_bytes=1 << 20))
    assert refusal(log) == ErrorCode.KAFKA_STORAGE_ERROR, "other settings change nothing"
    assert offsets(log) == [0]
    log.set_full(None)
    append(log, batch([b"v"]))
    assert offsets(log) == [0, 1]


def test_a_roll_that_finds_no_space_takes_no_log_offline() -> None:
    disk = FailingDisk()
    manager, log = manager_of(disk, segment_bytes=200)
    append(log, batch([b"v" * 100]))
    create = disk.create

    def no_space(path: str) -> object:
        raise DiskFailed(path, "opening", "no space left on device", harmless=True)

    disk.create = no_space  # type: ignore[method-assign,assignment]
    assert refusal(log) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failure is None
    run_jobs(manager, NOW + 10**10)
    assert log.failure is None, "retention could not roll"
    disk.create = create  # type: ignore[method-assign]
    append(log, batch([b"v" * 100]))
    assert log.end_offset == 2


@pytest.mark.parametrize("operation", ["write", "sync", "read"])
def test_a_log_is_opened_again_after_one_error(operation: str) -> None:
    disk = FailingDisk()
    manager, log = manager_of(disk, segment_bytes=400)
    for _ in range(10):
        append(
            log, batch([b"v" * 50], producer_id=5, producer_epoch=0, base_sequence=log.end_offset)
        )
    disk.fails, disk.only = {operation}, ".log"
    if operation == "write":
        assert refusal(log) == ErrorCode.KAFKA_STORAGE_ERROR
    elif operation == "sync":
        job = Flush(log)
        job.run()
        job.finish()
    else:
        log.disk_failed(DiskFailed("t", "reading", "input/output error"))
    assert log.failure is not None
    with pytest.raises(KafkaError):
        log.read(0, 100, 1)
    with pytest.raises(DiskFailed):
        reopen(log, manager.files, NOW)
    disk.fails = set()
    assert manager.may_reopen(log)
    opened = reopen(log, manager.files, NOW)
    manager.reopened(log, opened)
    opened.high_watermark = None
    assert opened.failure is None
    assert offsets(opened) == list(range(10))
    assert opened.producers == log.producers
    append(opened, batch([b"v"], producer_id=5, producer_epoch=0, base_sequence=10))
    assert manager.logs["t", 0] is opened


class ForgetfulFile(CrashFile):  # type: ignore[misc]
    """After a sync has failed, the pages are clean: a later sync succeeds without them."""

    def sync(self) -> None:
        if getattr(self.disk, "fails", False) and self.path.endswith(".log"):
            self.lost = (len(self.durable), len(self.data))
            raise DiskFailed(self.path, "syncing", "input/output error")
        super().sync()
        start, end = getattr(self, "lost", (0, 0))
        durable = bytearray(self.durable)
        durable[start:end] = bytes(end - start)
        self.durable = bytes(durable)


class ForgetfulDisk(CrashDisk):  # type: ignore[misc]
    fails = False

    def create(self, path: str) -> ForgetfulFile:
        directory, name = self._at(path)
        self.step()
        file = ForgetfulFile(self, path)
        directory.change(lambda names: names.__setitem__(name, file), creates=True)
        return file


def test_what_a_failed_sync_may_have_lost_is_written_again_before_it_counts_as_synced() -> None:
    disk = ForgetfulDisk(1)
    manager = open_log_manager(disk, topic())
    log = manager.create("t", 0, UUID(int=1))
    manager.sync_names()
    for _ in range(5):
        append(log, batch([b"v" * 50]))
    disk.fails = True
    job = Flush(log)
    job.run()
    job.finish()
    assert log.failure is not None
    disk.fails = False
    opened = reopen(log, manager.files, NOW)
    assert opened.end_offset == 5
    job = Flush(opened)
    job.run()
    job.finish()
    assert opened.recovery_point == 5
    file = disk.open(opened.segments[0].path(".log"))
    assert bytes(file.durable) == bytes(file.data)


def test_a_topic_that_promises_a_flush_has_it_after_a_kill() -> None:
    """The process was killed between the write and the flush; the power fails after the restart."""
    disk = CrashDisk(3)
    manager = open_log_manager(disk, topic(flush_messages=1))
    log = manager.create("t", 0, UUID(int=1))
    manager.sync_names()
    for _ in range(5):
        append(log, batch([b"v" * 50]))
    disk = disk.after_crash(kill=True)
    again = open_log_manager(disk, topic(flush_messages=1))
    assert again.logs["t", 0].end_offset == again.logs["t", 0].recovery_point == 5


def test_a_reopened_log_that_lost_its_end_lowers_the_checkpointed_high_watermark() -> None:
    disk = FailingDisk()
    manager, log = manager_of(disk)
    for _ in range(5):
        append(
            log, batch([b"v" * 50], producer_id=5, producer_epoch=0, base_sequence=log.end_offset)
        )
    log.high_watermark = 5
    log.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "failed"))
    file = disk.open("t-0/00000000000000000000.log")
    file.truncate(file.size - 10)
    opened = reopen(log, manager.files, NOW)
    manager.reopened(log, opened)
    assert opened.end_offset == opened.high_watermark == 4
    assert b"t 0 4" in disk.read_file("replication-offset-checkpoint")
    with pytest.raises(KafkaError) as caught:
        append(opened, batch([b"v"], producer_id=5, producer_epoch=0, base_sequence=5))
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR, "the lost batch comes first"
    append(opened, batch([b"v"], producer_id=5, producer_epoch=0, base_sequence=4))


def test_the_reserve_gives_a_start_on_a_full_disk_its_space() -> None:
    disk = FailingDisk()
    _, log = manager_of(disk)
    append(log, batch([b"v" * 50]))
    reserve = Reserve(disk, 8 * MIB)
    disk.capacity = disk.used() + 8 * MIB + 10
    reserve.restore()
    assert disk.space()[1] == 10
    disk.unlock()
    again = LogManager([disk], broker(), lambda _: topic())
    again.open(NOW)
    assert not disk.exists(RESERVE)
    assert again.logs["t", 0].end_offset == 1
    assert not reserve.has_room(), "the reserve is used, so nothing more is appended"
    again.close(NOW)
    assert disk.exists(".kafka_cleanshutdown")


def test_the_reserve_takes_space_on_a_real_disk(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    reserve = Reserve(disk, MIB)
    reserve.restore()
    assert os.stat(tmp_path / RESERVE).st_blocks * 512 >= MIB
    assert reserve.is_there
    assert reserve.release()
    assert not reserve.release()
    assert not reserve.is_there
