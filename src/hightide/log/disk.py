"""The interface between the log and the operating system: files and directories.

The log accesses a disk only through `Disk` and `File`. So the same log runs on a file system, in
memory (`hightide up --memory`), and on a simulated disk that loses power. Paths are strings
relative to the log directory, with `/` as separator.

Two rules keep acknowledged records safe. A failed write leaves the file unchanged, or reports that
it could not, so a partial batch never stays between good ones. A failed sync is never retried,
because the kernel marks the pages clean whether or not they reached the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

from hightide.private_files import DIRECTORY_MODE, FILE_MODE
from hightide.wire.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview

# Errors that say nothing about the disk: the process has too many open files, or too little memory.
_OF_PROCESS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}

_pwrite = os.pwrite
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# The errors of a kernel or file system without RWF_NOWAIT.
_UNKNOWN_FLAG = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


class DiskFailed(KafkaError):
    """A file operation failed. Clients get KAFKA_STORAGE_ERROR."""

    def __init__(self, path: str, doing: str, error: OSError | str, harmless: bool = False) -> None:
        reason = error if isinstance(error, str) else error.strerror
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing} {path} failed: {reason}")
        self.path = path
        # The disk was full, and the file is unchanged: appends work again once there is space.
        self.harmless = harmless
        code = None if isinstance(error, str) else error.errno
        self.is_of_disk = code not in _OF_PROCESS


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class File(Protocol):
    """An open append-only file. It is closed when the last reference to it is dropped."""

    path: str
    size: int

    def append(self, data: Buffer) -> None:
        """Append all of `data`, or fail and leave the file unchanged."""

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes at `position`; fewer than `length` only at the end of the file."""

    def read_now_into(self, buffer: memoryview, position: int) -> int | None:
        """Read into `buffer` what the page cache has, without waiting for the disk; return the
        number of bytes. None: not cached, so read in a thread. 0: the end of the file."""

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position`; return the number of bytes read."""

    def sync(self) -> None:
        """Return when every byte written so far survives a power loss."""

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes."""


class Disk(Protocol):
    """One log directory."""

    name: str

    def open(self, path: str) -> File: ...
    def create(self, path: str) -> File:
        """Create an empty file; truncate an existing one."""

    def allocate(self, path: str, size: int) -> None:
        """Create a file that takes `size` bytes of space."""

    def list(self, path: str) -> dict[str, int]:
        """Return the names in a directory with their sizes in bytes; -1 for a directory."""

    def exists(self, path: str) -> bool: ...
    def modified_ms(self, path: str) -> int:
        """Return the time of the last write; 0 if the disk keeps no times."""

    def read_file(self, path: str) -> bytes: ...
    def replace(self, path: str, data: bytes) -> None:
        """Replace the file atomically: after a crash it holds the old bytes or the new ones."""

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def make_directory(self, path: str) -> None: ...
    def remove_directory(self, path: str) -> None:
        """Remove a directory and the files in it."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory survive a power loss."""

    def lock(self) -> bool:
        """Lock the directory for this process; return False if another process has it."""

    def unlock(self) -> None: ...
    def space(self) -> tuple[int, int]:
        """Return the total and the available bytes; -1 if unknown."""


def replace(disk: Disk, path: str, data: bytes) -> None:
    """Implement `Disk.replace` by the other operations of a disk."""
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
        """Continue after a short write: the disk is full, or the batch is larger than one write."""
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
        # Remove a torn batch after the last good one.
        full = _is_full(error)
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
            # Without the flag the kernel cannot say what is cached. Assume that it is: a thread for
            # each read would cost more than the rare wait.
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
            root.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise DiskFailed(self.name, "creating", error) from error

    def _open(self, path: str, flags: int) -> RealFile:
        full = self._root + path
        try:
            fd = os.open(full, flags | os.O_CLOEXEC, FILE_MODE)
            return RealFile(fd, full, os.fstat(fd).st_size)
        except OSError as error:
            raise DiskFailed(full, "opening", error, _is_full(error)) from error

    def open(self, path: str) -> RealFile:
        return self._open(path, os.O_RDWR)

    def create(self, path: str) -> RealFile:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def allocate(self, path: str, size: int) -> None:
        file = self.create(path)
        try:
            os.posix_fallocate(file.fd, 0, size)
        except OSError as error:
            self.remove(path)
            raise DiskFailed(file.path, "allocating", error, _is_full(error)) from error

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
            raise DiskFailed(self._root + old, "renaming", error, _is_full(error)) from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(self._root + path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DiskFailed(self._root + path, "removing", error) from error

    def make_directory(self, path: str) -> None:
        try:
            os.makedirs(self._root + path, DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            raise DiskFailed(self._root + path, "creating", error, _is_full(error)) from error

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
        # The kernel releases the lock with the process, so a crash leaves nothing to clean up.
        try:
            fd = os.open(f"{self._root}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
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
    """A file in memory. `path` is for messages only; the disk maps names to files."""

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
        # A new array, because a reader in a thread may still use the old one.
        self.data = self.data[:size]
        self.size = len(self.data)


class MemoryDisk:
    """A log directory in memory. It lasts as long as the object."""

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

    def allocate(self, path: str, size: int) -> None:
        del size  # memory is not reserved
        self.create(path)

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
