"""Housekeeping that is too slow for the thread that owns the logs.

Each job is made on the owner's thread from what is true at that moment, does its work in `run` in
any thread, touching nothing but files, and lets the owner take the result over in `finish`. In
between the log may have moved on; `finish` looks whether the result still fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol

from hightide.log.disk import Disk, DiskFailed
from hightide.log.log import Log

_log = logging.getLogger(__name__)


class Job(Protocol):
    """A piece of housekeeping."""

    def run(self) -> None:
        """The slow part; may be called in any thread."""

    def finish(self) -> None:
        """Make the result count; called in the thread that owns the logs."""


class Flush:
    """Force the files of a log to disk: the sealed segments, or everything."""

    def __init__(self, log: Log, sealed_only: bool, done: Callable[[], None]) -> None:
        self._log = log
        self._done = done
        self._truncations = log.truncations
        self._end_offset = log.active.base_offset if sealed_only else log.end_offset
        self._sealed, self._paths = log.unsynced()
        if sealed_only:
            self._paths.pop()
        self._name_changes = log.name_changes
        self._epochs = (log.epochs, log.epochs.version, log.epochs.encode())
        self._failure: DiskFailed | None = None

    def run(self) -> None:
        log = self._log
        epochs, version, data = self._epochs
        try:
            for path in self._paths:
                log.disk.open(path).sync()
            epochs.save(log.disk, log.directory, version, data)
            if log.names_synced < self._name_changes:
                log.sync_names()
        except DiskFailed as failure:
            self._failure = failure

    def finish(self) -> None:
        log = self._log
        self._done()
        if log.truncations != self._truncations or log.failure is not None:
            return
        if self._failure is not None:
            log.fail(self._failure)
            return
        log.flushed(self._end_offset, self._sealed, self._name_changes)


class CheckpointFile:
    """A checkpoint that several threads may write, and of which the newest content wins."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self._name = name
        self._lock = Lock()
        self._asked = 0
        self._written = 0

    def number(self) -> int:
        """The place of a new content in the order of contents."""
        self._asked += 1
        return self._asked

    def write(self, number: int, data: bytes) -> None:
        with self._lock:
            if number > self._written:
                self._disk.replace(self._name, data)
                self._written = number


class Checkpoint:
    """Write a checkpoint file."""

    def __init__(
        self, file: CheckpointFile, data: bytes, written: Callable[[], None] = lambda: None
    ) -> None:
        self._file = file
        self._data = data
        self._number = file.number()
        self._written = written
        self._failed = False

    def run(self) -> None:
        try:
            self._file.write(self._number, self._data)
        except DiskFailed as failure:
            # The one before is still there, and only costs a longer recovery.
            _log.error("%s", failure)
            self._failed = True

    def finish(self) -> None:
        if not self._failed:
            self._written()


class Remove:
    """Remove files, or a directory, that no log refers to any more."""

    def __init__(self, disk: Disk, paths: Sequence[str] = (), directory: str | None = None) -> None:
        self._disk = disk
        self._paths = paths
        self._directory = directory

    def run(self) -> None:
        try:
            for path in self._paths:
                self._disk.remove(path)
            if self._directory is not None:
                self._disk.remove_directory(self._directory)
        except DiskFailed as failure:
            # They go with the next start.
            _log.error("%s", failure)

    def finish(self) -> None:
        return
