"""Forcing a log to disk, and closing it.

`Flush` is a job: its constructor and `finish` run on the thread that owns the log, `run` in any
thread. In between the log may have changed; `finish` checks whether the result still applies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from hightide.log.disk import DiskFailed
from hightide.log.log import Log

_log = logging.getLogger(__name__)


class Flush:
    """Force the files of a log to disk: all of them, or only the sealed segments."""

    def __init__(
        self, log: Log, sealed_only: bool = False, done: Callable[[], None] = lambda: None
    ) -> None:
        segments = log.segments
        self._log = log
        self._done = done
        self._truncations = log.truncations
        self._end_offset = log.active_segment.base_offset if sealed_only else log.end_offset
        self._sealed, self._paths = segments.unsynced(log.recovery_point)
        if sealed_only:
            self._paths.pop()
        self._name_changes = segments.name_changes
        self._epochs = (log.epochs, log.epochs.version, log.epochs.encode())
        self.failure: DiskFailed | None = None

    def run(self) -> None:
        """Sync the files."""
        log, segments = self._log, self._log.segments
        epochs, version, data = self._epochs
        try:
            for path in self._paths:
                log.disk.open(path).sync()
            epochs.save(log.disk, log.directory, version, data)
            if segments.names_synced < self._name_changes:
                segments.sync_names()
        except DiskFailed as failure:
            self.failure = failure

    def finish(self) -> None:
        """Move the recovery point, or take the log offline if a file could not be synced."""
        log = self._log
        self._done()
        if log.truncations != self._truncations or log.failure is not None:
            return
        if self.failure is not None:
            log.disk_failed(self.failure)
            return
        log.flushed(self._end_offset, self._sealed, self._name_changes)


def flush(log: Log) -> None:
    """Force everything to disk now, and move the recovery point to the end of the log."""
    try:
        job = Flush(log)
    except DiskFailed as failure:
        log.disk_failed(failure)
        raise
    job.run()
    job.finish()
    if job.failure is not None:
        raise job.failure


def flush_recovered(log: Log) -> None:
    """Force to disk what recovery has found, if the topic promises that before a response.

    The last process may have died between the write and the flush. As a leader, this replica counts
    all of its records as its own, and they would be committed without being on disk.
    """
    if log.end_offset >= log.flush_at:
        try:
            flush(log)
        except DiskFailed as failure:
            _log.error("%s", failure)


def close(log: Log) -> None:
    """Flush a log so that the next start need not read its batches, and close its files."""
    segments = log.segments
    if log.failure is None and (segments.settled_at != log.end_offset or log.epochs.dirty):
        log.active_segment.sync_indexes()
        segments.write_snapshot(log.end_offset, log.producers.encode())
        segments.name_changes += 1
        flush(log)
    segments.close_files(segments)
