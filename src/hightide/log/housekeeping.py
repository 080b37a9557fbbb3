"""What is done to the logs of a broker as time goes by, and how often.

Retention drops old segments, compaction rewrites them, sealed segments are forced to disk, the
checkpoints follow, silent producers are forgotten, and what was dropped is removed after a while.
Small decisions are made here on the spot; what is slow comes out as a `Job`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hightide.log import checkpoint
from hightide.log.checkpoint import TopicPartition, encode_offsets
from hightide.log.cleaner import Compact, plan
from hightide.log.compaction import BYTES_PER_KEY
from hightide.log.disk import Disk, DiskFailed
from hightide.log.jobs import Checkpoint, CheckpointFile, Flush, Job, Remove
from hightide.log.log import Log
from hightide.log.retention import expired
from hightide.log.segment import DELETED, SNAPSHOT, SUFFIXES, Segment, file_name

if TYPE_CHECKING:
    from hightide.settings import Broker

DELETE_SUFFIX = "-delete"

_log = logging.getLogger(__name__)


class Housekeeping:
    """The periodic work on all logs of a broker."""

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
        # Logs with a job under way that must not get a second one of its kind.
        self._flushing: set[Log] = set()
        self._compacting: set[Log] = set()

    def start(self, now_ms: int) -> None:
        """The logs have been loaded."""
        self._now_ms = now_ms
        first_ms = now_ms + self._settings().log_initial_task_delay_ms
        for kind in ("retention", "points", "committed", "compaction", "producers"):
            self._due[kind] = first_ms
        for disk in self._disks:
            # From now on its presence says that compaction went no further than it tells.
            self.write_offsets(disk)
            for name, size in disk.list("").items():
                if size == -1 and name.endswith(DELETE_SUFFIX):
                    self._removals.append((first_ms, Remove(disk, directory=name)))

    def jobs(self, now_ms: int) -> Iterator[Job]:
        """The jobs that are due now."""
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
        # What is deleted is on disk before a high watermark that was heard with it: of a log that
        # comes back, everything between its start and there counts as committed.
        committed: list[Job] = []
        every_ms = settings.replica_high_watermark_checkpoint_interval_ms
        if self._is_due("committed", now_ms, every_ms):
            committed = [
                Checkpoint(self._committed[disk.name], encode_offsets(self._high_watermarks(disk)))
                for disk in self._disks
            ]
        yield from self._moved_starts()
        yield from committed
        if settings.log_cleaner_enable and self._is_due(
            "compaction", now_ms, settings.log_cleaner_backoff_ms
        ):
            yield from self._compactions(now_ms)
        due = [removal for due_ms, removal in self._removals if due_ms <= now_ms]
        self._removals = [(at, removal) for at, removal in self._removals if at > now_ms]
        yield from due

    def _clock_was_set_back(self, by_ms: int) -> None:
        """What was due soon is due soon: flushes must not wait until it is as late as it was."""
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
        """Move the starts behind what has expired, then drop the segments before them.

        The new starts are on the disk before a segment goes, so that a crash that finds some of
        the old ones gone and some not knows that all of them were to go.
        """
        for log in list(self._logs.values()):
            if log.failure is None and log not in self._compacting:
                try:
                    log.roll_if_old(now_ms)
                    log.start_at(log.bases[expired(log, now_ms)])
                except DiskFailed as failure:
                    log.fail(failure)
        for disk in self._disks:
            logs = [log for _, log in self._logs_on(disk) if log.segment_index(log.start_offset)]
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
                    dropped = log.drop_segments(log.segment_index(start_offset))
                    self._remove_later(log, self._marked_as_deleted(dropped), now_ms)
                except DiskFailed as failure:
                    log.fail(failure)

        return drop

    def _marked_as_deleted(self, segments: list[Segment]) -> list[str]:
        """Give the files of dropped segments names that the next start takes for rubbish."""
        paths: list[str] = []
        # The oldest first, so that after a crash what is left has no hole.
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
        """The directory of a partition has been given this name in order to go."""
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
            if everything or log.recovery_point < log.active.base_offset:
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
            # The sooner the disk knows, the less there is to check after a crash.
            self._due["points"] = min(self._due["points"], now_ms)

        return done

    def _logs_on(self, disk: Disk) -> Iterator[tuple[TopicPartition, Log]]:
        return ((key, log) for key, log in self._logs.items() if log.disk is disk)

    def _recovery_points(self, disk: Disk) -> Checkpoint:
        points = {key: log.recovery_point for key, log in self._logs_on(disk)}
        truncations = {key: log.truncations for key, log in self._logs_on(disk)}

        def written() -> None:
            for key, point in points.items():
                log = self._logs.get(key)
                if log is not None and log.truncations == truncations[key]:
                    log.recovery_point_written = point

        return Checkpoint(self._points[disk.name], encode_offsets(points), written)

    def write_offsets(self, disk: Disk) -> None:
        """Write recovery points, starts and high watermarks now, as when one of them goes back.

        At a start this lowers the high watermarks of logs whose ends a power cut took.
        """
        points = {key: log.recovery_point for key, log in self._logs_on(disk)}
        file = self._points[disk.name]
        file.write(file.number(), encode_offsets(points))
        starts = self._start_offsets(disk)
        if self._written_starts.get(disk.name) != starts:
            self._written_starts[disk.name] = starts
            file = self._starts[disk.name]
            file.write(file.number(), starts)
        file = self._committed[disk.name]
        file.write(file.number(), encode_offsets(self._high_watermarks(disk)))

    def _start_offsets(self, disk: Disk) -> bytes:
        return encode_offsets(
            {key: log.start_offset for key, log in self._logs_on(disk) if log.start_offset}
        )

    def _starts_checkpoint(
        self, disk: Disk, written: Callable[[], None] = lambda: None
    ) -> Checkpoint:
        data = self._written_starts[disk.name] = self._start_offsets(disk)
        return Checkpoint(self._starts[disk.name], data, written)

    def _moved_starts(self) -> Iterator[Job]:
        """Checkpoints for records that were deleted on demand, soon: they must not come back."""
        for disk in self._disks:
            if self._written_starts.get(disk.name) != self._start_offsets(disk):
                yield self._starts_checkpoint(disk)

    def write_checkpoints(self, disk: Disk) -> None:
        """Write all checkpoints of a directory, as for a clean stop."""
        self.write_offsets(disk)
        self._cleaner_offsets(disk).run()

    def _high_watermarks(self, disk: Disk) -> dict[TopicPartition, int]:
        """What is known to be committed, for the next start; the leader may know more by then."""
        return {key: log.committed_offset for key, log in self._logs_on(disk)}

    # ---- compaction

    def _compactions(self, now_ms: int) -> Iterator[Job]:
        """The dirtiest logs, as many as may be compacted at the same time."""
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
            # Another round may be due at once, when the keys did not fit into one.
            self._due["compaction"] = min(self._due["compaction"], now_ms)
            self._cleaner_offsets(log.disk).run()

        return done

    def _cleaner_offsets(self, disk: Disk) -> Checkpoint:
        offsets = {key: log.cleaned_offset for key, log in self._logs_on(disk)}
        offsets = {key: offset for key, offset in offsets.items() if offset}
        return Checkpoint(self._cleaned[disk.name], encode_offsets(offsets))
