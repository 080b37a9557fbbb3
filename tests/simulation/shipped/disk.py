"""The disk of a simulated machine, based on the disk of the crash tests of the log.

A process that dies leaves the disk as it is, with its unsynced bytes, which a later power cut can
still lose.  `fail_in(n)` cuts the power after n more disk operations; it notifies the machine at
once, since the broker must not run on.  Some reads must wait, as for data outside the page cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.support.crash_disk import CrashDisk, CrashFile, Directory

_COLD = 0.03


class SimFile(CrashFile):  # type: ignore[misc]
    """A file that is not always in the page cache."""

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
        self.step()
        file = SimFile(self, path)
        directory.change(lambda names: names.__setitem__(name, file), creates=True)
        return file

    def after_power_cut(self) -> SimDisk:
        """Return the disk as the next process finds it; this object is unusable afterwards."""
        found = SimDisk(self.random, self.name, self._on_cut)
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
