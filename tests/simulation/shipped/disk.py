"""The disk of a simulated machine, based on the disk of the crash tests of the log.

A process that dies leaves the disk as it is, with its unsynced bytes, which a later power cut can
still lose.  `fail_in(n)` cuts the power after n more disk operations; it notifies the machine at
once, since the broker must not run on.  Some reads must wait, as for data outside the page cache.

The disk may be full, and may fail writes, syncs or reads for a while.  Bytes that a failed sync did
not write are lost in the next power cut, even if a later sync of the same file succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from hightide.log.disk import Buffer, DiskFailed
from tests.support.crash_disk import CrashDisk, CrashFile, Directory

_COLD = 0.03


class SimFile(CrashFile):  # type: ignore[misc]
    """A file that is not always in the page cache, on a disk that does not always work."""

    disk: SimDisk
    unwritten = (0, 0)

    def append(self, data: Buffer) -> None:
        self.disk.refuse(self.path)
        self.disk.fail("write", self.path)
        super().append(data)

    def sync(self) -> None:
        start = len(self.durable)
        if self.disk.fault == "sync":
            self.unwritten = (min(start, self.unwritten[0] or start), len(self.data))
        self.disk.fail("sync", self.path)
        super().sync()
        start, end = self.unwritten
        if start < end:
            self.durable = self.durable[:start] + bytes(end - start) + self.durable[end:]
            self.untouched = min(self.untouched, start)

    def truncate(self, size: int) -> None:
        self.disk.fail("write", self.path)
        super().truncate(size)
        self.unwritten = (min(self.unwritten[0], size), min(self.unwritten[1], size))

    def read(self, position: int, length: int) -> bytes:
        self.disk.fail("read", self.path)
        data: bytes = super().read(position, length)
        return data

    def read_now_into(self, buffer: memoryview, position: int) -> int | None:
        if self.disk.random.random() < _COLD and position < self.size:
            return None
        count: int = self.read_into(buffer, position)
        return count


class SimDisk(CrashDisk):  # type: ignore[misc]
    """One log directory of a simulated machine."""

    def __init__(self, random: Random, name: str, on_cut: Callable[[], None]) -> None:
        super().__init__()
        self.random = random
        self.name = name
        self._on_cut = on_cut
        self.is_full = False
        self.fault = ""
        """Which operation fails: `write`, `sync`, `read`, or none."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let the checker read the files."""
        fault, self.fault = self.fault, ""
        try:
            yield
        finally:
            self.fault = fault

    def refuse(self, path: str) -> None:
        if self.is_full:
            raise DiskFailed(path, "writing to", "no space left", harmless=True)

    def fail(self, fault: str, path: str) -> None:
        if self.fault == fault:
            raise DiskFailed(path, fault, "input/output error")

    def fail_in(self, steps: int) -> None:
        self.cut_at(self.steps + steps)

    def step(self) -> None:
        self.look()
        self.steps += 1
        if self.steps == self.cut:
            self._on_cut()
            self.look()

    def create(self, path: str) -> SimFile:
        directory, name = self._at(path)
        self.refuse(path)
        self.fail("write", path)
        self.step()
        file = SimFile(self, path)
        directory.change(lambda names: names.__setitem__(name, file), creates=True)
        return file

    def after_power_cut(self) -> SimDisk:
        """Return the disk as the next process finds it; this object is unusable afterwards."""
        found = SimDisk(self.random, self.name, self._on_cut)
        found.is_full, found.fault = self.is_full, self.fault
        found.root = self.after_crash().root
        for file in _files(found.root):
            file.__class__, file.disk = SimFile, found
        self.is_off = True
        return found


def _files(directory: Any) -> Iterator[Any]:
    for node in directory.names.values():
        if isinstance(node, Directory):
            yield from _files(node)
        else:
            yield node
