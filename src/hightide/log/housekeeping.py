"""The periodic work on all logs of a broker.

Retention drops old segments, the cleaner compacts them, sealed segments are flushed, checkpoints
are written, idle producers expire, files marked as deleted are removed after a delay, and the scrub
looks for damage.

Small decisions are made at once, on the thread that owns the logs. Slow work becomes a `Job`: it is
created on the owner's thread, `run` works in any thread and touches only files, and `finish` hands
the result to the owner. In between the log may have changed, so `finish` checks whether the result
still applies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from hightide.log import checkpoint
from hightide.log.checkpoint import TopicPartition, encode_offsets
from hightide.log.cleaner import BYTES_PER_KEY, Compact, plan
from hightide.log.disk import Disk, DiskFailed
from hightide.log.flush import Flush
from hightide.log.log import Log
from hightide.log.scrub import Scrub, aside_directories
from hightide.log.segment import DELETED, SNAPSHOT, SUFFIXES, Segment, file_name
from hightide.wire.errors import Corrupt

if TYPE_CHECKING:
    from hightide.settings import Broker

DELETE_SUFFIX = "-delete"

_log = logging.getLogger(__name__)


class Job(Protocol):
    """One piece of slow work."""

    def run(self) -> None:
        """Do the slow part; may be called in any thread."""

    def finish(self) -> None:
        """Apply the result; called on the thread that owns the logs."""


class CheckpointFile:
    """A checkpoint file that several threads may write; the newest content wins."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self._name = name
        self._lock = Lock()
        self._newest = 0
        self._written = 0

    def next_version(self) -> int:
        """Return the version number of new content."""
        self._newest += 1
        return self._newest

    def write(self, version: int, data: bytes) -> None:
        """Write `data`, unless a newer version has been written."""
        with self._lock:
            if version > self._written:
                self._disk.replace(self._name, data)
                self._written = version


class WriteCheckpoint:
    """The job that writes a checkpoint file."""

    def __init__(
        self, file: CheckpointFile, data: bytes, written: Callable[[], None] = lambda: None
    ) -> None:
        self._file = file
        self._data = data
        self._version = file.next_version()
        self._written = written
        self._failed = False

    def run(self) -> None:
        try:
            self._file.write(self._version, self._data)
        except DiskFailed as failure:
            # The previous checkpoint is still there; it only makes recovery longer.
            _log.error("%s", failure)
            self._failed = True

    def finish(self) -> None:
        if not self._failed:
            self._written()


class Remove:
    """The job that removes files, or a directory, that no log uses."""

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
            # The next start removes them.
            _log.error("%s", failure)

    def finish(self) -> None:
        return


class Housekeeping:
    """The schedule of the periodic work."""

    def __init__(
        self,
        disks: Sequence[Disk],
        settings: Callable[[], Broker],
        logs: Mapping[TopicPartition, Log],
    ) -> None:
        self._disks = disks
        self._settings = settings
        self._logs = logs
        self._points = {d.name: CheckpointFile(d, checkpoint.RECOVERY_POINTS) for d in disks}
        self._starts = {d.name: CheckpointFile(d, checkpoint.LOG_START_OFFSETS) for d in disks}
        self._cleaned = {d.name: CheckpointFile(d, checkpoint.CLEANER_OFFSETS) for d in disks}
        self._committed = {d.name: CheckpointFile(d, checkpoint.HIGH_WATERMARKS) for d in disks}
        self._written_starts: dict[str, bytes] = {}
        self._now_ms = 0
        self._due: dict[str, int] = {}
        self._removals: list[tuple[int, Remove]] = []
        # Logs with a running job. A log gets no second job of the same kind.
        self._flushing: set[Log] = set()
        self._compacting: set[Log] = set()
        self._scrub = Scrub(settings, logs)

    def start(self, now_ms: int) -> None:
        """Begin the schedule, after all logs have been loaded."""
        self._now_ms = now_ms
        first_ms = now_ms + self._settings().log_initial_task_delay_ms
        for kind in ("retention", "points", "committed", "compaction", "producers", "aside"):
            self._due[kind] = first_ms
        for disk in self._disks:
            # From now on the file exists, so recovery knows how far compaction can have gone.
            self.write_offsets(disk)
            for name, size in disk.list("").items():
                if size == -1 and name.endswith(DELETE_SUFFIX):
                    self._removals.append((first_ms, Remove(disk, directory=name)))

    def jobs(self, now_ms: int) -> Iterator[Job]:
        """Yield the jobs that are due now."""
        if now_ms < self._now_ms:
            self._clock_was_set_back(self._now_ms - now_ms)
        self._now_ms = now_ms
        settings = self._settings()
        if self._is_due("retention", now_ms, settings.log_retention_check_interval_ms):
            yield from self._drop_expired(now_ms)
        if self._is_due("producers", now_ms, settings.producer_id_expiration_check_interval_ms):
            for log in list(self._logs.values()):
                log.producers.expire(now_ms, settings.producer_id_expiration_ms)
                log.transactions.expire(now_ms, settings.producer_id_expiration_ms)
        yield from self._flushes(now_ms)
        if self._is_due("points", now_ms, settings.log_flush_offset_checkpoint_interval_ms):
            for disk in self._disks:
                yield self._recovery_points(disk)
        # A new start offset is on disk before the high watermark that came with it: after a restart
        # everything between the two counts as committed.
        committed: list[Job] = []
        every_ms = settings.replica_high_watermark_checkpoint_interval_ms
        if self._is_due("committed", now_ms, every_ms):
            committed = [
                WriteCheckpoint(
                    self._committed[disk.name], encode_offsets(self._high_watermarks(disk))
                )
                for disk in self._disks
            ]
        yield from self._moved_starts()
        yield from committed
        if settings.log_cleaner_enable and self._is_due(
            "compaction", now_ms, settings.log_cleaner_backoff_ms
        ):
            yield from self._compactions(now_ms)
        yield from self._scrub.jobs(now_ms)
        if self._is_due("aside", now_ms, settings.log_retention_check_interval_ms):
            for made_ms, disk, name in aside_directories(self._disks):
                if now_ms - made_ms >= settings.log_damaged_retention_ms:
                    yield Remove(disk, directory=name)
        due = [removal for due_ms, removal in self._removals if due_ms <= now_ms]
        self._removals = [(at, removal) for at, removal in self._removals if at > now_ms]
        yield from due

    def _clock_was_set_back(self, by_ms: int) -> None:
        """Move all due times back by the same time, so that no flush or retention is late."""
        self._due = {kind: at_ms - by_ms for kind, at_ms in self._due.items()}
        self._removals = [(at_ms - by_ms, removal) for at_ms, removal in self._removals]
        for log in self._logs.values():
            log.flushed_ms -= by_ms

    def _is_due(self, kind: str, now_ms: int, interval_ms: int) -> bool:
        if now_ms < self._due[kind]:
            return False
        self._due[kind] = now_ms + interval_ms
        return True

    # ---- retention

    def _drop_expired(self, now_ms: int) -> Iterator[Job]:
        """Move the start offsets past expired segments, then drop the segments before them.

        The new start offsets are on disk before the first segment is removed. So recovery knows
        after a crash in between that the remaining ones are to be removed too.
        """
        for (topic, partition), log in list(self._logs.items()):
            if log.failure is None and log not in self._compacting:
                try:
                    roll_if_old(log, now_ms)
                    before = log.start_offset
                    log.start_at(log.segments.bases[expired(log, now_ms)])
                    if log.start_offset > before:
                        _log.info(
                            "%s-%d: deleting offsets %d to %d: retention.ms=%d, retention.bytes=%d",
                            *(topic, partition, before, log.start_offset),
                            *(log.config.retention_ms, log.config.retention_bytes),
                        )
                except DiskFailed as failure:
                    # A roll reports its failure.
                    _log.error("%s", failure)
                except Corrupt as damage:
                    log.damage.suspect(log.segments, str(damage))
        for disk in self._disks:
            logs = [
                log for _, log in self._logs_on(disk) if log.segments.index_of(log.start_offset)
            ]
            if logs:
                yield self._starts_checkpoint(disk, self._dropping(logs, now_ms))

    def _dropping(self, logs: list[Log], now_ms: int) -> Callable[[], None]:
        starts = [(log, log.start_offset, log.truncations) for log in logs]

        def drop() -> None:
            for log, start_offset, truncations in starts:
                if log.failure is not None or log.truncations != truncations:
                    continue
                if log in self._compacting:
                    continue
                try:
                    dropped = log.drop_segments(log.segments.index_of(start_offset))
                    self._remove_later(log, self._marked_as_deleted(dropped), now_ms)
                except DiskFailed as failure:
                    log.fail(failure)

        return drop

    def _marked_as_deleted(self, segments: list[Segment]) -> list[str]:
        """Rename the files of dropped segments, so that the next start removes them."""
        paths: list[str] = []
        # Oldest first, so that a crash leaves no gap.
        for segment in segments:
            segment.rename_files("", DELETED)
            paths += [segment.path(suffix + DELETED) for suffix in SUFFIXES]
            paths.append(f"{segment.directory}/{file_name(segment.base_offset, SNAPSHOT)}")
        return paths

    def _remove_later(self, log: Log, paths: list[str], now_ms: int) -> None:
        if paths:
            delay_ms = log.config.file_delete_delay_ms
            self._removals.append((now_ms + delay_ms, Remove(log.disk, paths)))

    def directory_deleted(self, log: Log, name: str, now_ms: int) -> None:
        """Remove a partition's directory later, which has been renamed to `name`."""
        delay_ms = log.config.file_delete_delay_ms
        self._removals.append((now_ms + delay_ms, Remove(log.disk, directory=name)))

    # ---- durability

    def _flushes(self, now_ms: int) -> Iterator[Job]:
        for log in list(self._logs.values()):
            if log.failure is not None or log in self._flushing:
                continue
            if log.end_offset == log.recovery_point:
                log.flushed_ms = now_ms
                continue
            everything = now_ms - log.flushed_ms >= log.config.flush_ms
            if everything or log.recovery_point < log.active_segment.base_offset:
                try:
                    job = Flush(log, not everything, self._flushed(log, now_ms))
                except DiskFailed as failure:
                    _log.error("%s", failure)
                    continue
                if everything:
                    log.flushed_ms = now_ms
                self._flushing.add(log)
                yield job

    def _flushed(self, log: Log, now_ms: int) -> Callable[[], None]:
        def done() -> None:
            self._flushing.discard(log)
            # The earlier the checkpoint, the less recovery must read after a crash.
            self._due["points"] = min(self._due["points"], now_ms)

        return done

    def works_on(self, log: Log) -> bool:
        """Say whether a job is running on the files of a log."""
        return log in self._flushing or log in self._compacting

    def _logs_on(self, disk: Disk) -> Iterator[tuple[TopicPartition, Log]]:
        return ((key, log) for key, log in self._logs.items() if log.disk is disk)

    def _recovery_points(self, disk: Disk) -> WriteCheckpoint:
        points = {key: log.recovery_point for key, log in self._logs_on(disk)}
        truncations = {key: log.truncations for key, log in self._logs_on(disk)}

        def written() -> None:
            for key, point in points.items():
                log = self._logs.get(key)
                if log is not None and log.truncations == truncations[key]:
                    log.recovery_point_written = point

        return WriteCheckpoint(self._points[disk.name], encode_offsets(points), written)

    def write_offsets(self, disk: Disk) -> None:
        """Write recovery points, start offsets and high watermarks now, as a truncation needs it.

        At a start this lowers the high watermarks of logs that lost their end in a power loss.
        """
        points = {key: log.recovery_point for key, log in self._logs_on(disk)}
        file = self._points[disk.name]
        file.write(file.next_version(), encode_offsets(points))
        starts = self._start_offsets(disk)
        if self._written_starts.get(disk.name) != starts:
            self._written_starts[disk.name] = starts
            file = self._starts[disk.name]
            file.write(file.next_version(), starts)
        file = self._committed[disk.name]
        file.write(file.next_version(), encode_offsets(self._high_watermarks(disk)))

    def _start_offsets(self, disk: Disk) -> bytes:
        return encode_offsets(
            {key: log.start_offset for key, log in self._logs_on(disk) if log.start_offset}
        )

    def _starts_checkpoint(
        self, disk: Disk, written: Callable[[], None] = lambda: None
    ) -> WriteCheckpoint:
        data = self._written_starts[disk.name] = self._start_offsets(disk)
        return WriteCheckpoint(self._starts[disk.name], data, written)

    def _moved_starts(self) -> Iterator[Job]:
        """Checkpoint start offsets soon after DeleteRecords: deleted records must not reappear."""
        for disk in self._disks:
            if self._written_starts.get(disk.name) != self._start_offsets(disk):
                yield self._starts_checkpoint(disk)

    def write_checkpoints(self, disk: Disk) -> None:
        """Write all checkpoints of a directory, as for a clean shutdown."""
        self.write_offsets(disk)
        self._cleaner_offsets(disk).run()

    def _high_watermarks(self, disk: Disk) -> dict[TopicPartition, int]:
        """Return the high watermarks for the next start. The leader may know newer ones then."""
        return {key: log.committed_offset for key, log in self._logs_on(disk)}

    # ---- compaction

    def _compactions(self, now_ms: int) -> Iterator[Job]:
        """Compact the dirtiest logs, at most `log.cleaner.threads` at the same time."""
        settings = self._settings()
        room = settings.log_cleaner_threads - len(self._compacting)
        if room <= 0:
            return
        waiting = []
        for log in self._logs.values():
            work = plan(log, now_ms) if log not in self._compacting else None
            if work is not None:
                waiting.append((work.ratio, log.directory, log, work))
        waiting.sort(key=lambda entry: entry[:2], reverse=True)
        keys = settings.log_cleaner_dedupe_buffer_size // settings.log_cleaner_threads
        for _, _, log, work in waiting[:room]:
            self._compacting.add(log)
            yield Compact(
                log,
                work,
                now_ms,
                max(1, keys // BYTES_PER_KEY),
                settings.log_cleaner_io_buffer_size,
                self._compacted(log, now_ms),
            )

    def _compacted(self, log: Log, now_ms: int) -> Callable[[list[str]], None]:
        def done(removable: list[str]) -> None:
            self._compacting.discard(log)
            self._remove_later(log, removable, now_ms)
            # The next round may be due at once, if the keys did not fit into the map.
            self._due["compaction"] = min(self._due["compaction"], now_ms)
            self._cleaner_offsets(log.disk).run()

        return done

    def _cleaner_offsets(self, disk: Disk) -> WriteCheckpoint:
        offsets = {key: log.cleaned_offset for key, log in self._logs_on(disk)}
        offsets = {key: offset for key, offset in offsets.items() if offset}
        return WriteCheckpoint(self._cleaned[disk.name], encode_offsets(offsets))


# ---- retention

# Segments are dropped whole and from the old end only, so the result is a count of the oldest
# segments. A segment is as old as its latest record. The active segment is dropped only if all of
# its records have expired; a new, empty one takes its place, so an idle topic empties itself too.


def expired(log: Log, now_ms: int) -> int:
    """Count the oldest segments to drop. Roll the log if the active one is among them."""
    # Segments before the log start offset are always dropped.
    count = 0
    while count < len(log.segments) - 1 and log.segments.bases[count + 1] <= log.start_offset:
        count += 1
    if "delete" in log.config.cleanup_policy:
        count = max(count, _by_age(log, now_ms), _by_size(log))
    if count == len(log.segments):
        log.roll(now_ms)
    return min(count, len(log.segments) - 1)


def _by_age(log: Log, now_ms: int) -> int:
    retention_ms = log.config.retention_ms
    if retention_ms < 0:
        return 0
    count = 0
    for segment in log.segments:
        end_offset = min(segment.limit_offset, log.end_offset)
        if end_offset > log.committed_offset:
            break
        if segment.size:
            if now_ms - segment.largest_timestamp(now_ms) <= retention_ms:
                break
        elif segment is log.active_segment:
            break
        # A segment that compaction emptied has no age and is dropped with its neighbours.
        count += 1
    return count


def _by_size(log: Log) -> int:
    retention_bytes = log.config.retention_bytes
    if retention_bytes < 0:
        return 0
    surplus = log.size_bytes - retention_bytes
    count = 0
    for segment in log.segments[:-1]:
        if surplus < segment.size or segment.limit_offset > log.committed_offset:
            break
        surplus -= segment.size
        count += 1
    return count


def roll_if_old(log: Log, now_ms: int) -> None:
    """Roll a segment whose records have no timestamps once it is `segment.ms` old."""
    segment = log.active_segment
    if segment.first_timestamp == -1 and now_ms - segment.created_ms > log.config.segment_ms:
        log.roll(now_ms)
