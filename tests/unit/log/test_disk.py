"""Both disks do what the log needs, and the real one never keeps part of a failed write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hightide.log import disk as disk_module
from hightide.log.disk import Disk, DiskFailed, MemoryDisk, RealDisk, RealFile
from hightide.wire.errors import ErrorCode


def test_a_file_grows_and_is_read(disk: Disk) -> None:
    disk.make_directory("t-0")
    file = disk.create("t-0/a")
    file.append(b"hello ")
    file.append(memoryview(bytearray(b"world")))
    assert file.size == 11
    assert file.read(6, 5) == b"world"
    assert file.read(6, 50) == b"world"
    assert file.read(11, 1) == b""
    buffer = bytearray(20)
    assert file.read_into(memoryview(buffer), 6) == 5
    assert buffer[:6] == b"world\0"
    assert file.read_now_into(memoryview(buffer)[:5], 0) == 5
    assert buffer[:6] == b"hello\0"
    file.sync()
    file.truncate(5)
    assert disk.open("t-0/a").size == 5
    disk.open("t-0/a").append(b"!")
    assert disk.read_file("t-0/a") == b"hello!"
    assert disk.create("t-0/a").size == 0


def test_names_can_be_listed_changed_and_removed(disk: Disk) -> None:
    disk.make_directory("t-0")
    disk.make_directory("t-0")
    disk.create("t-0/a").append(b"123")
    disk.create("b")
    assert disk.list("t-0") == {"a": 3}
    assert disk.list("") == {"t-0": -1, "b": 0}
    disk.rename("t-0/a", "t-0/c")
    disk.rename("t-0", "u-0")
    assert disk.list("u-0") == {"c": 3}
    assert disk.exists("u-0")
    assert disk.exists("u-0/c")
    assert not disk.exists("t-0/a")
    disk.remove("u-0/nothing")
    disk.sync_directory("u-0")
    disk.sync_directory("")
    disk.remove_directory("u-0")
    assert disk.list("") == {"b": 0}


def test_a_renamed_or_removed_file_stays_readable_for_who_has_it(disk: Disk) -> None:
    file = disk.create("a")
    file.append(b"data")
    disk.rename("a", "b")
    assert file.read(0, 4) == b"data"
    disk.remove("b")
    assert file.read(0, 4) == b"data"


def test_replace_leaves_no_trace_of_its_steps(disk: Disk) -> None:
    disk.replace("checkpoint", b"old")
    disk.replace("checkpoint", b"new")
    assert disk.list("") == {"checkpoint": 3}
    assert disk.read_file("checkpoint") == b"new"


def test_failures_name_the_path_and_the_reason(disk: Disk) -> None:
    for use in (
        lambda: disk.open("nothing"),
        lambda: disk.create("nowhere/file"),
        lambda: disk.read_file("nothing"),
        lambda: disk.list("nowhere"),
        lambda: disk.rename("nothing", "else"),
        lambda: disk.modified_ms("nothing"),
        lambda: disk.sync_directory("nowhere"),
    ):
        with pytest.raises(DiskFailed, match=r"(?i)(nothing|nowhere).* failed: no such") as caught:
            use()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_directory_is_for_one_process(tmp_path: Path) -> None:
    first, second = RealDisk(tmp_path), RealDisk(tmp_path)
    assert first.lock()
    assert not second.lock()
    first.unlock()
    assert second.lock()
    second.unlock()
    memory = MemoryDisk()
    assert memory.lock()
    assert not memory.lock()


def test_space_is_told(tmp_path: Path) -> None:
    total, usable = RealDisk(tmp_path).space()
    assert 0 < usable <= total
    assert MemoryDisk().space() == (-1, -1)


def test_a_descriptor_closes_with_its_last_user(tmp_path: Path) -> None:
    file = RealDisk(tmp_path).create("a")
    fd = file.fd
    os.fstat(fd)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


class TestFailedWrites:
    def test_short_writes_are_completed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.pwrite
        monkeypatch.setattr(
            disk_module, "_pwrite", lambda fd, data, at: real(fd, bytes(data)[:3], at)
        )
        file = RealDisk(tmp_path).create("a")
        file.append(b"0123456789")
        file.append(b"ab")
        assert file.size == 12
        assert file.read(0, 12) == b"0123456789ab"

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_a_half_written_batch_is_taken_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        file = RealDisk(tmp_path).create("a")
        file.append(b"good")
        real = os.pwrite
        calls = iter([3])

        def fails(fd: int, data: bytes, at: int) -> int:
            count = next(calls, None)
            if count is None:
                raise OSError(code, os.strerror(code))
            return real(fd, bytes(data)[:count], at)

        monkeypatch.setattr(disk_module, "_pwrite", fails)
        with pytest.raises(DiskFailed, match="writing to") as caught:
            file.append(b"0123456789")
        assert caught.value.harmless == (code == errno.ENOSPC)
        assert os.fstat(file.fd).st_size == file.size == 4
        monkeypatch.setattr(disk_module, "_pwrite", real)
        file.append(b" again")
        assert file.read(0, 10) == b"good again"

    def test_a_real_full_device_is_recognised(self) -> None:
        fd = os.open("/dev/full", os.O_RDWR)
        file = RealFile(fd, "/dev/full", 0)
        with pytest.raises(DiskFailed, match="No space left") as caught:
            file.append(b"x")
        assert not caught.value.harmless, "a device cannot be cut back to its last good size"

    def test_a_failed_sync_is_told(self, tmp_path: Path) -> None:
        read_end, write_end = os.pipe()
        os.close(write_end)
        file = RealFile(read_end, "a pipe", 0)
        with pytest.raises(DiskFailed, match="syncing a pipe"):
            file.sync()

    def test_reading_falls_back_where_the_kernel_cannot_say_what_is_cached(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = RealDisk(tmp_path).create("a")
        file.append(b"0123456789")

        def unknown(*_: object) -> int:
            raise OSError(errno.EOPNOTSUPP, "not supported")

        real = os.preadv

        def old_kernel(fd: int, buffers: list[memoryview], at: int, flags: int = 0) -> int:
            return unknown() if flags else real(fd, buffers, at)

        monkeypatch.setattr(os, "preadv", old_kernel)
        buffer = bytearray(3)
        assert file.read_now_into(memoryview(buffer), 2) == 3
        assert buffer == b"234"

        def cold(*_: object) -> int:
            raise BlockingIOError(errno.EAGAIN, "would block")

        monkeypatch.setattr(os, "preadv", cold)
        assert file.read_now_into(memoryview(buffer), 2) is None
