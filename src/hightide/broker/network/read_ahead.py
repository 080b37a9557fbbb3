"""Reading ahead of consumers whose records are not in the page cache.

A consumer that catches up reads files from the disk.  The first access to a page that comes from
the disk is expensive; in a virtual machine it is most of the work.  The event loop has other
connections to serve, so another thread reads ahead and touches the pages before they are sent.  It
discards the bytes: their being in the page cache is what counts.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakKeyDictionary

from hightide.log.disk import File
from hightide.wire.errors import KafkaError

AHEAD_BYTES = 8 << 20
STEP_BYTES = 256 << 10
# Cold reads and flushes need threads too.
MOST_THREADS = 4


class ReadAhead:
    """The files that are read from the disk, and how far each has been read ahead."""

    __slots__ = ("_running", "_until")

    def __init__(self) -> None:
        self._running = 0  # threads at work
        self._until: WeakKeyDictionary[File, int] = WeakKeyDictionary()

    def __bool__(self) -> bool:
        return bool(self._until)

    def begin(self, file: File, position: int) -> None:
        """Start reading ahead: the bytes before `position` were not in memory."""
        self._read(file, position)

    def reached(self, file: File, position: int) -> None:
        """A consumer gets the bytes at `position`: read on if they are near the end."""
        until = self._until.get(file)
        if until is not None and position > until - AHEAD_BYTES:
            self._read(file, max(position, until))

    def _read(self, file: File, start: int) -> None:
        if start >= file.size:
            self._until.pop(file, None)
        elif self._running < MOST_THREADS:
            self._until[file] = start + AHEAD_BYTES
            self._running += 1
            end = min(start + AHEAD_BYTES, file.size)
            reading = asyncio.get_running_loop().run_in_executor(None, touch, file, start, end)
            reading.add_done_callback(self._done)

    def _done(self, _reading: asyncio.Future[None]) -> None:
        self._running -= 1


def touch(file: File, start: int, end: int) -> None:
    """Bring part of a file into the page cache; the file may be truncated or fail meanwhile."""
    view = memoryview(bytearray(STEP_BYTES))
    with suppress(KafkaError, OSError):
        for at in range(start, end, STEP_BYTES):
            file.read_into(view[: end - at], at)
