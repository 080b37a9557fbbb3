"""The scrub: a slow check of every batch on the disks, and of segments that look damaged.

Disks lose bits in files that are not read for months, until the last good copy is gone too. So each
segment is checked once in `log.scrub.interval.ms`, the active one included, at no more than
`log.scrub.bytes.per.second`. A segment in which a reader met something odd is checked at once.
What a check finds is taken out of the log at once (`repair.Isolate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hightide.log.checkpoint import TopicPartition
from hightide.log.damage import set_aside_at
from hightide.log.disk import Disk, DiskFailed
from hightide.log.log import Log
from hightide.log.repair import Check, Isolate
from hightide.log.segment import Segment

if TYPE_CHECKING:
    from hightide.settings import Broker

# Small batches and small segments take time, not bytes.
_STEPS_PER_SECOND = 20
_BATCHES_PER_STEP = 1_000
_ISOLATE_AGAIN_MS = 30_000


class Scrub:
    """The schedule of checks on all logs of a broker."""

    def __init__(self, settings: Callable[[], Broker], logs: Mapping[TopicPartition, Log]) -> None:
        self._settings = settings
        self._logs = logs
        self._now_ms = 0
        self._looked_ms = 0
        self._current: Check | None = None
        self._waiting: list[tuple[Log, Segment]] = []
        # Segments whose damage could not be set aside, and when to try again.
        self._again_ms: dict[Segment, int] = {}

    def jobs(self, now_ms: int) -> Iterator[Isolate | Check]:
        """Yield the jobs that are due now. Call it about every second."""
        elapsed_ms, self._now_ms = now_ms - self._now_ms, now_ms
        for log in list(self._logs.values()):
            damage = log.damage
            if (damage.suspects or damage.pending) and log.failure is None:
                yield from self._suspects(log, now_ms)
                yield from self._isolations(log, now_ms)
        if self._settings().log_scrub_interval_ms >= 0:
            yield from self._scrub(now_ms, min(max(elapsed_ms, 0), 1000))

    def _suspects(self, log: Log, now_ms: int) -> Iterator[Check]:
        for segment in list(log.damage.suspects):
            check = self._check(log, segment, now_ms)
            while check is not None and not check.is_finished:
                yield check
            log.damage.suspects.pop(segment, None)

    def _isolations(self, log: Log, now_ms: int) -> Iterator[Isolate]:
        for segment in list(log.damage.pending):
            if now_ms < self._again_ms.get(segment, 0):
                continue
            self._again_ms[segment] = now_ms + _ISOLATE_AGAIN_MS
            yield Isolate(log, segment, now_ms)
            if segment not in log.damage.pending:
                del self._again_ms[segment]

    def _scrub(self, now_ms: int, elapsed_ms: int) -> Iterator[Check]:
        room = self._settings().log_scrub_bytes_per_second * elapsed_ms // 1000
        steps = _STEPS_PER_SECOND * elapsed_ms // 1000
        while room > 0 and steps > 0:
            check = self._current
            if check is None:
                check = self._current = self._next(now_ms)
            if check is None:
                return
            before = check.position
            check.max_bytes = room
            check.max_batches = _BATCHES_PER_STEP
            yield check
            room -= check.position - before
            steps -= 1
            if check.is_finished:
                self._current = None

    def _next(self, now_ms: int) -> Check | None:
        """Begin the check that is due for the longest time."""
        every_ms = self._settings().log_scrub_interval_ms
        # Looking at thousands of segments takes time too.
        if not self._waiting and now_ms - self._looked_ms >= min(every_ms, 60_000):
            self._looked_ms = now_ms
            due = [
                (segment.checked_ms, log.directory, segment.base_offset, log, segment)
                for log in self._logs.values()
                for segment in log.segments
                if segment.size and now_ms - segment.checked_ms >= every_ms
            ]
            due.sort(key=lambda entry: entry[:3], reverse=True)
            self._waiting = [(log, segment) for *_, log, segment in due]
        while self._waiting:
            log, segment = self._waiting.pop()
            check = self._check(log, segment, now_ms)
            if check is not None:
                return check
        return None

    def _check(self, log: Log, segment: Segment, now_ms: int) -> Check | None:
        if log.failure is not None or segment not in log.segments or segment in log.damage.pending:
            return None
        try:
            return Check(log, segment, now_ms)
        except DiskFailed as failure:
            log.fail(failure)
            return None


def aside_directories(disks: Sequence[Disk]) -> Iterator[tuple[int, Disk, str]]:
    """Yield the directories with damaged files, and when each was made."""
    for disk in disks:
        for name, size in disk.list("").items():
            made_ms = set_aside_at(name) if size == -1 else None
            if made_ms is not None:
                yield made_ms, disk, name
