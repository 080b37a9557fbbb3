"""The seam between the log and the machine: files and directories, real or in memory.

Everything the log does to a disk goes through `Disk` and `File`, so the same log runs on a file
system, in memory (`hightide up --memory`), and on a disk that loses power in a test. Paths are
strings relative to the log directory, with `/` between the parts.

Two rules keep acknowledged records safe. A write that fails leaves the file as it was, or says that
it could not, so that a half-written batch never stays between good ones. And a failed sync is never
tried again, because the kernel marks the pages clean whether or not they reached the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

from hightide.wire.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview

_pwrite = os.pwrite
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# What a kernel or file system says when it does not know RWF_NOWAIT.
_UNKNOWN_FLAG = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


class DiskFailed(KafkaError):
    """A file could not be written, read or synced. Clients are told KAFKA_STORAGE_ERROR."""

    def __init__(self, path: str, doing: str, error: OSError | str, harmless: bool = False) -> None:
        reason = error if isinstance(error, str) else error.strerror
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing} {path} failed: {reason}")
        self.path = path
        # The disk was only full and the file is as it was: once there is room, go on.
        self.harmless = harmless


class File(Protocol):
    """An open file that grows at its end. It closes itself when nobody refers to it any more."""

    path: str
    size: int

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the end, or fail and leave the file as long as it was."""

    def read(self, position: int, length: int) -> bytes:
        """The bytes at `position`; fewer than `length` only at the end of the file."""

    def read_now_into(self, buffer: memoryview, position: int) -> int | None:
        """Put into `buffer` what can be had of it without waiting for the disk, and say how many
        bytes that is; None when it is nothing: then ask a thread. 0 is the end of the file."""

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position` and say how many bytes were there."""

    def sync(self) -> None:
        """Return when every byte written so far would survive a loss of power."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""


class Disk(Protocol):
    """One log directory."""

    name: str

    def open(self, path: str) -> File: ...
    def create(self, path: str) -> File:
        """A new, empty file; one of that name that is already there is emptied."""

    def list(self, path: str) -> dict[str, int]:
        """Names in a directory and their sizes in bytes; -1 for a directory."""

    def exists(self, path: str) -> bool: ...
    def modified_ms(self, path: str) -> int:
        """When the file was last written; 0 when the disk keeps no times."""

    def read_file(self, path: str) -> bytes: ...
    def replace(self, path: str, data: bytes) -> None:
        """Put `data` in the file so that after any crash it holds the old bytes or the new."""

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None:
        """Remove a file. It is not an error when there is none."""

    def make_directory(self, path: str) -> None: ...
    def remove_directory(self, path: str) -> None:
        """Remove a directory and the files in it."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory would survive a loss of power."""

    def lock(self) -> bool:
        """Take the directory for this process; False when another one has it."""

    def unlock(self) -> None: ...
    def space(self) -> tuple[int, int]:
        """Bytes in all and bytes that can still be used; -1 when unknown."""


def replace(disk: Disk, path: str, data: bytes) -> None:
    """What `Disk.replace` means, in the disk's own smaller steps."""
    temporary = f"{path}.tmp"
    file = disk.create(temporary)
    file.append(data)
    file.sync()
    disk.rename(temporary, path)
    disk.sync_directory(path.rpartition("/")[0])


class RealFile:
    """A file of the file system."""

    __slots__ = ("__weakref__", "fd", "path", "size")

    def __init__(self, fd: int, path: str, size: int) -> None:
        self.fd = fd
        self.path = path
        self.size = size

    def append(self, data: Buffer) -> None:
        size = self.size
        try:
            written = _pwrite(self.fd, data, size)
        except OSError as error:
            raise self._write_failed(error) from error
        if written != len(data):
            self._append_rest(memoryview(data), written)
            return
        self.size = size + written

    def _append_rest(self, data: memoryview, written: int) -> None:
        """Go on after a short write: the disk filled up, or the batch is larger than one write."""
        try:
            while written < len(data):
                count = _pwrite(self.fd, data[written:], self.size + written)
                if count == 0:
                    raise OSError(errno.EIO, "nothing was written")
                written += count
        except OSError as error:
            raise self._write_failed(error) from error
        self.size += written

    def _write_failed(self, error: OSError) -> DiskFailed:
        # A torn batch may lie behind the last good one.
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        try:
            os.ftruncate(self.fd, self.size)
        except OSError:
            full = False
        return DiskFailed(self.path, "writing to", error, harmless=full)

    def read(self, position: int, length: int) -> bytes:
        try:
            data = os.pread(self.fd, length, position)
            if len(data) < length and position + len(data) < self.size:
                parts = [data]
                while data and sum(map(len, parts)) < length:
                    at = sum(map(len, parts))
                    data = os.pread(self.fd, length - at, position + at)
                    parts.append(data)
                data = b"".join(parts)
        except OSError as error:
            raise DiskFailed(self.path, "reading", error) from error
        return data

    def read_now_into(self, buffer: memoryview, position: int) -> int | None:
        try:
            return os.preadv(self.fd, [buffer], position, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            # Without the flag the kernel cannot say what is cached, and the page cache is the
            # better guess: a thread for each read would be slower than the rare wait.
            if error.errno in _UNKNOWN_FLAG:
                return self.read_into(buffer, position)
            raise DiskFailed(self.path, "reading", error) from error

    def read_into(self, buffer: memoryview, position: int) -> int:
        filled = 0
        try:
            while filled < len(buffer):
                count = os.preadv(self.fd, [buffer[filled:]], position + filled)
                if count == 0:
                    break
                filled += count
        except OSError as error:
            raise DiskFailed(self.path, "reading", error) from error
        return filled

    def sync(self) -> None:
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            raise DiskFailed(self.path, "syncing", error) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise DiskFailed(self.path, "truncating", error) from error
        self.size = size

    def __del__(self) -> None:
        os.close(self.fd)


class RealDisk:
    """A directory of the file system."""

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = f"{self.name}/"
        self._lock_fd = -1
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskFailed(self.name, "creating", error) from error

    def _open(self, path: str, flags: int) -> RealFile:
        full = self._root + path
        try:
            fd = os.open(full, flags | os.O_CLOEXEC, 0o644)
            return RealFile(fd, full, os.fstat(fd).st_size)
        except OSError as error:
            raise DiskFailed(full, "opening", error) from error

    def open(self, path: str) -> RealFile:
        return self._open(path, os.O_RDWR)

    def create(self, path: str) -> RealFile:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def list(self, path: str) -> dict[str, int]:
        try:
            with os.scandir(self._root + path) as entries:
                return {
                    e.name: -1 if e.is_dir(follow_symlinks=False) else e.stat().st_size
                    for e in entries
                }
        except OSError as error:
            raise DiskFailed(self._root + path, "listing", error) from error

    def exists(self, path: str) -> bool:
        return os.path.exists(self._root + path)

    def modified_ms(self, path: str) -> int:
        try:
            return os.stat(self._root + path).st_mtime_ns // 1_000_000
        except OSError as error:
            raise DiskFailed(self._root + path, "reading", error) from error

    def read_file(self, path: str) -> bytes:
        try:
            with open(self._root + path, "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            raise DiskFailed(self._root + path, "reading", error) from error

    def replace(self, path: str, data: bytes) -> None:
        replace(self, path, data)

    def rename(self, old: str, new: str) -> None:
        try:
            os.rename(self._root + old, self._root + new)
        except OSError as error:
            raise DiskFailed(self._root + old, "renaming", error) from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(self._root + path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DiskFailed(self._root + path, "removing", error) from error

    def make_directory(self, path: str) -> None:
        try:
            os.makedirs(self._root + path, exist_ok=True)
        except OSError as error:
            raise DiskFailed(self._root + path, "creating", error) from error

    def remove_directory(self, path: str) -> None:
        for name in self.list(path):
            self.remove(f"{path}/{name}")
        try:
            os.rmdir(self._root + path)
        except OSError as error:
            raise DiskFailed(self._root + path, "removing", error) from error

    def sync_directory(self, path: str) -> None:
        try:
            fd = os.open(self._root + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise DiskFailed(self._root + path, "syncing", error) from error

    def lock(self) -> bool:
        # The kernel drops the lock with the process, so a crash leaves nothing to clean up.
        try:
            fd = os.open(f"{self._root}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DiskFailed(f"{self._root}.lock", "opening", error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._lock_fd = fd
        return True

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def space(self) -> tuple[int, int]:
        try:
            status = os.statvfs(self._root)
        except OSError:
            return -1, -1
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


class MemoryFile:
    """A file that is only memory. The name it is stored under belongs to the disk, not to it."""

    __slots__ = ("__weakref__", "data", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self.data = bytearray()
        self.size = 0

    def append(self, data: Buffer) -> None:
        self.data += data
        self.size = len(self.data)

    def read(self, position: int, length: int) -> bytes:
        return bytes(self.data[position : position + length])

    def read_now_into(self, buffer: memoryview, position: int) -> int | None:
        return self.read_into(buffer, position)

    def read_into(self, buffer: memoryview, position: int) -> int:
        part = self.data[position : position + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def sync(self) -> None:
        return

    def truncate(self, size: int) -> None:
        # A new array, because a reader in a thread may still look at the old one.
        self.data = self.data[:size]
        self.size = len(self.data)


class MemoryDisk:
    """A log directory without a disk under it: it lasts as long as the object."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.files: dict[str, MemoryFile] = {}
        self.directories: set[str] = {""}
        self._locked = False

    def _new_file(self, path: str) -> MemoryFile:
        return MemoryFile(f"{self.name}/{path}")

    def open(self, path: str) -> MemoryFile:
        file = self.files.get(path)
        if file is None:
            raise DiskFailed(f"{self.name}/{path}", "opening", "no such file")
        return file

    def create(self, path: str) -> MemoryFile:
        if path.rpartition("/")[0] not in self.directories:
            raise DiskFailed(f"{self.name}/{path}", "opening", "no such directory")
        self.files[path] = file = self._new_file(path)
        return file

    def list(self, path: str) -> dict[str, int]:
        if path not in self.directories:
            raise DiskFailed(f"{self.name}/{path}", "listing", "no such directory")
        prefix = f"{path}/" if path else ""
        found = {
            name[len(prefix) :]: file.size
            for name, file in list(self.files.items())
            if name.startswith(prefix) and "/" not in name[len(prefix) :]
        }
        for name in list(self.directories):
            if name and name.startswith(prefix) and "/" not in name[len(prefix) :]:
                found[name[len(prefix) :]] = -1
        return found

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def modified_ms(self, path: str) -> int:
        self.open(path)
        return 0

    def read_file(self, path: str) -> bytes:
        return bytes(self.open(path).data)

    def replace(self, path: str, data: bytes) -> None:
        replace(self, path, data)

    def rename(self, old: str, new: str) -> None:
        if old in self.directories:
            self.directories.remove(old)
            self.directories.add(new)
            for name in [n for n in self.files if n.startswith(f"{old}/")]:
                self.files[new + name[len(old) :]] = self.files.pop(name)
        elif old in self.files:
            self.files[new] = self.files.pop(old)
        else:
            raise DiskFailed(f"{self.name}/{old}", "renaming", "no such file")

    def remove(self, path: str) -> None:
        self.files.pop(path, None)

    def make_directory(self, path: str) -> None:
        self.directories.add(path)

    def remove_directory(self, path: str) -> None:
        for name in self.list(path):
            self.remove(f"{path}/{name}")
        self.directories.discard(path)

    def sync_directory(self, path: str) -> None:
        if path not in self.directories:
            raise DiskFailed(f"{self.name}/{path}", "syncing", "no such directory")

    def lock(self) -> bool:
        taken, self._locked = self._locked, True
        return not taken

    def unlock(self) -> None:
        self._locked = False

    def space(self) -> tuple[int, int]:
        return -1, -1
