"""Checks records that come from the disk before a consumer gets them.

    Slice ─▶ covers? ── yes ─▶ sent from the page cache
                └────── no ──▶ a thread reads and checks them, and some bytes ahead ─▶ sent
                                   └─ damaged ─▶ the log is told, and the connection dropped

What this process has written to the active segment was checked then and needs no check: consumers
that keep up pay nothing.  All other bytes may have changed on the disk.  They are checked in a
thread, which also brings them into the page cache.  A check is good for a second, so that a
consumer which reads on finds records that were checked ahead.

A response has begun when its records are checked, so it cannot say that they are damaged.  The
connection is dropped instead, and the consumer's next fetch gets the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from hightide.log.damage import CheckedPart, Extent, check_part
from hightide.log.disk import DiskFailed, File
from hightide.log.log import Log
from hightide.log.segment import MAX_OFFSET, Segment, Slice

log = logging.getLogger(__name__)

_FIRST_AHEAD_BYTES = 512 * 1024
_AHEAD_BYTES = 4 * 1024 * 1024
_GOOD_FOR_S = 1.0
_MOST_WINDOWS = 16


class Window(NamedTuple):
    """Checked bytes of a file."""

    start: int
    end: int
    next_offset: int
    until_s: float


class CheckedReads:
    """Which parts of which files have been checked."""

    def __init__(self) -> None:
        self.find_log: Callable[[Segment], Log | None] = lambda _segment: None
        self.now_ms: Callable[[], int] = lambda: 0
        self._windows: WeakKeyDictionary[File, list[Window]] = WeakKeyDictionary()
        self._ahead: set[tuple[int, int]] = set()

    def covers(self, part: Slice) -> bool:
        """Whether the records of a slice were checked a short time ago."""
        windows = self._windows.get(part.file)
        if not windows:
            return False
        now = asyncio.get_running_loop().time()
        for window in windows:
            if window.start <= part.position and part.position + part.length <= window.end:
                if window.until_s < now:
                    continue
                if part.position + part.length > window.end - _AHEAD_BYTES // 2:
                    self._check_ahead(part, window)
                return True
        return False

    def check(self, part: Slice, done: Callable[[bool | DiskFailed], None]) -> None:
        """Check a slice in a thread; `done` gets whether it is intact, or why that is unknown."""
        segment = part.segment
        assert segment is not None
        owner = self.find_log(segment)
        follows = any(w.end == part.position for w in self._windows.get(part.file, ()))
        ahead = _AHEAD_BYTES if follows else _FIRST_AHEAD_BYTES
        self._run(owner, segment, part, ahead, done)

    def _check_ahead(self, part: Slice, window: Window) -> None:
        """Check on before a consumer gets there, so that it need not wait."""
        segment = part.segment
        key = (id(part.file), window.end)
        if segment is None or window.end >= segment.size or key in self._ahead:
            return
        self._ahead.add(key)
        following = Slice(part.file, window.end, 0, -1, segment, window.next_offset)
        owner = self.find_log(segment)
        self._run(owner, segment, following, _AHEAD_BYTES, lambda _: self._ahead.discard(key))

    def _run(
        self,
        owner: Log | None,
        segment: Segment,
        part: Slice,
        ahead: int,
        done: Callable[[bool | DiskFailed], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        if owner is not None:
            extent = Extent.of(owner, segment)
        else:
            # The log was deleted, or the segment replaced, and the file is still open.
            extent = Extent(segment.base_offset, segment.limit_offset, part.file.size, MAX_OFFSET)
        future = loop.run_in_executor(None, check_part, part, extent, ahead)

        def checked(future: asyncio.Future[CheckedPart]) -> None:
            error = future.exception()
            if error is None:
                done(self._note(owner, segment, part, future.result(), loop.time()))
            elif isinstance(error, DiskFailed):
                done(error)
            else:
                raise error

        future.add_done_callback(checked)

    def _note(
        self, owner: Log | None, segment: Segment, part: Slice, result: CheckedPart, now: float
    ) -> bool:
        if result.is_intact:
            windows = self._windows.setdefault(part.file, [])
            windows[:] = [w for w in windows if w.until_s > now][-_MOST_WINDOWS + 1 :]
            until_s = now + _GOOD_FOR_S
            for at, window in enumerate(windows):
                if window.end == part.position:
                    # One reader goes on: its window grows, and expires with its first part.
                    windows[at] = window._replace(end=result.end, next_offset=result.next_offset)
                    return True
            windows.append(Window(part.position, result.end, result.next_offset, until_s))
            return True
        if owner is None or self.find_log(segment) is not owner:
            return False
        if result.damage:
            owner.damage.found(owner, segment, result.damage, self.now_ms())
        else:
            log.warning("rebuilding the index of %r, which points between batches", segment)
            owner.hints.clear()
            segment.rebuild_indexes()
        return False
