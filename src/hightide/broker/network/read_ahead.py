"""Reading ahead of consumers whose records are not in memory.

A consumer that catches up reads files from the disk, and the first to touch a page that has come
from there pays for it, which in a virtual machine is most of the work.  The thread of the event
loop has others to serve, so another thread goes ahead and touches the pages before they are sent.
What it reads it throws away: only that the page cache has it counts.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakKeyDictionary

from hightide.log.disk import File
from hightide.wire.errors import KafkaError

AHEAD_BYTES = 8 << 20
STEP_BYTES = 256 << 10
# Others need threads too: those who wait for records, and those who make them durable.
MOST_THREADS = 4


class ReadAhead:
    """The files that are read from the disk, and how far a thread has been sent ahead in each."""

    __slots__ = ("_sent", "_until")

    def __init__(self) -> None:
        self._sent = 0  # threads that have not come back
        self._until: WeakKeyDictionary[File, int] = WeakKeyDictionary()

    def __bool__(self) -> bool:
        return bool(self._until)

    def begin(self, file: File, position: int) -> None:
        """What is before `position` was not in memory."""
        self._send(file, position)

    def reached(self, file: File, position: int) -> None:
        """A consumer is given what is at `position`."""
        until = self._until.get(file)
        if until is not None and position > until - AHEAD_BYTES:
            self._send(file, max(position, until))

    def _send(self, file: File, start: int) -> None:
        if start >= file.size:
            self._until.pop(file, None)
        elif self._sent < MOST_THREADS:
            self._until[file] = start + AHEAD_BYTES
            self._sent += 1
            end = min(start + AHEAD_BYTES, file.size)
            sent = asyncio.get_running_loop().run_in_executor(None, touch, file, start, end)
            sent.add_done_callback(self._came_back)

    def _came_back(self, _sent: asyncio.Future[None]) -> None:
        self._sent -= 1


def touch(file: File, start: int, end: int) -> None:
    """Have the page cache hold a part of a file; the file may be cut or fail meanwhile."""
    view = memoryview(bytearray(STEP_BYTES))
    with suppress(KafkaError, OSError):
        for at in range(start, end, STEP_BYTES):
            file.read_into(view[: end - at], at)
