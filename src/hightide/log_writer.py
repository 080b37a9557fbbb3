"""Write the lines of a log in a thread, so that the event loop never waits for a pipe or a disk.

    event loop, threads ─▶ bounded queue ─▶ thread ─▶ stderr, or a file that is rotated

A pipe that nothing reads, a full disk or a dead one stops the thread and not the process. Lines
that find no room are counted and left out; when the log can be written again, a line says how many.
If stderr itself is a regular file, as under `hightide up`, a write only copies to the page cache,
and takes less time than to wake a thread: then each line is written where it is logged.

`logging.handlers` has a queue and a rotating file. Its queue reports a full queue on stderr, which
may be what blocks; its file keeps what could not be written in a buffer, and fails again with it.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from hightide import private_files

MOST_BYTES = 4 * 1024 * 1024
"""What may wait for the thread: some 40,000 lines."""
BATCH_BYTES = 64 * 1024
FLUSH_S = 2.0
"""How long the end of the process waits for its last lines."""
_PIPE_BUF = 4096  # a pipe that polls as writable takes so much without blocking

log = logging.getLogger(__name__)


class Line(NamedTuple):
    text: bytes
    is_error: bool


class Sink(Protocol):
    """Where lines go; `write` raises OSError."""

    name: str
    may_block: bool

    def write(self, lines: list[bytes]) -> None: ...


class Writer:
    """The queue, and the thread that empties it into a sink; neither for one that never blocks."""

    def __init__(self, sink: Sink, most_bytes: int = MOST_BYTES) -> None:
        self._sink = sink
        self._most_bytes = most_bytes
        self._queue: SimpleQueue[Line | threading.Event] = SimpleQueue()
        # Each of these is changed by one side only: the first two by `put`, the others by the
        # thread.
        self._put_bytes = 0
        self._refused = 0
        self._written_bytes = 0
        self._left_out = 0
        self._reported = 0
        self._failure = ""
        self._thread: threading.Thread | None = None
        if sink.may_block:
            self._thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._thread.start()

    def put(self, text: bytes, *, is_error: bool = False) -> None:
        """Queue a line; never blocks. Only one thread at a time may be in here."""
        if self._thread is None:
            self._write([Line(text, is_error)])
            return
        if self._put_bytes - self._written_bytes + len(text) > self._most_bytes:
            self._refused += 1
            return
        self._put_bytes += len(text)
        self._queue.put(Line(text, is_error))

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until what has been put so far is written; return whether it is."""
        if self._thread is None:
            return True
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return False
        written = threading.Event()
        self._queue.put(written)
        return written.wait(timeout_s)

    def _run(self) -> None:
        while True:
            lines: list[Line] = []
            waiting: list[threading.Event] = []
            size = 0
            while not size or (size < BATCH_BYTES and not self._queue.empty()):
                item = self._queue.get()
                if isinstance(item, threading.Event):
                    waiting.append(item)
                    if self._queue.empty():
                        break
                else:
                    lines.append(item)
                    size += len(item.text)
            if lines:
                self._write(lines)
            self._written_bytes += size
            for written in waiting:
                written.set()

    def _write(self, lines: list[Line]) -> None:
        try:
            self._sink.write([line.text for line in lines])
        except OSError as error:
            self._left_out += len(lines)
            self._failed(error)
        else:
            self._succeeded()
        if not isinstance(self._sink, Stderr):
            for line in lines:
                if line.is_error:
                    with suppress(OSError):
                        to_stderr(line.text, wait=False)

    def _failed(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if not self._failure and not isinstance(self._sink, Stderr):
            report = f"cannot write the log to {self._sink.name}: {reason}; lines are left out"
            with suppress(OSError):
                to_stderr(f"{report}\n".encode(errors="backslashreplace"), wait=False)
        self._failure = reason

    def _succeeded(self) -> None:
        failure, self._failure = self._failure, ""
        left_out = self._left_out + self._refused - self._reported
        if left_out:
            self._reported += left_out
            reason = failure or f"{self._sink.name} did not take them in time"
            lines = "1 line was" if left_out == 1 else f"{left_out} lines were"
            log.error("%s left out of the log: %s", lines, reason)


class Stderr:
    """Standard error, whatever it is: a terminal, a pipe, a file or a socket of the journal."""

    name = "stderr"

    def __init__(self) -> None:
        self.may_block = True
        if sys.__stderr__ is not None:
            self.may_block = not stat.S_ISREG(os.fstat(sys.__stderr__.fileno()).st_mode)

    def write(self, lines: list[bytes]) -> None:
        to_stderr(b"".join(lines), wait=True)


def to_stderr(data: bytes, *, wait: bool) -> None:
    """Write to stderr; without `wait`, leave out the rest when it would block."""
    if sys.__stderr__ is None:
        return  # the process was started without one, and its descriptor may be any other file
    descriptor = sys.__stderr__.fileno()
    writable = select.poll()
    writable.register(descriptor, select.POLLOUT)
    rest = memoryview(data)
    while rest and writable.poll(None if wait else 0):
        with suppress(BlockingIOError):
            rest = rest[os.write(descriptor, rest[:_PIPE_BUF]) :]


class LogFile:
    """A file of limited size, and the earlier ones: `FILE.1` is the latest of them.

    Every write looks whether the path still names the open file, so another program may move the
    file away or truncate it at any time.
    """

    may_block = True

    def __init__(self, path: Path, max_bytes: int, backups: int) -> None:
        self.name = str(path)
        self.max_bytes = max_bytes
        self.backups = backups
        """How many earlier files are kept; with 0 the file grows until it is moved away."""
        self._path = path
        self._descriptor = -1
        self._size = 0
        self._is_torn = False
        self._cannot_rotate = False

    def open(self) -> None:
        """Open the file; raise OSError if there is none and it cannot be created."""
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self._path.stat().st_mode):
                raise OSError(f"{self._path} is not a regular file")
        self._descriptor = private_files.append_to(self._path)
        self._size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def write(self, lines: list[bytes]) -> None:
        self._follow()
        data = bytearray()
        for line in lines:
            size = self._size + len(data)
            if self.backups and size and size + len(line) > self.max_bytes:
                self._append(data)
                data = bytearray()
                self._rotate()
            data += line
        self._append(data)

    def _follow(self) -> None:
        """Open the file again if the path names another one, or none."""
        if self._descriptor >= 0:
            try:
                found, own = self._path.stat(), os.fstat(self._descriptor)
            except FileNotFoundError:
                self.close()
            else:
                self._size = own.st_size
                if not os.path.samestat(found, own):
                    self.close()
        if self._descriptor < 0:
            self.open()

    def _append(self, data: bytearray) -> None:
        if not data:
            return
        # A write that failed in the middle of a line must not swallow the next one.
        rest = memoryview(b"\n" + data if self._is_torn else data)
        try:
            while rest:
                written = os.write(self._descriptor, rest)
                self._is_torn = rest[written - 1] != ord("\n")
                self._size += written
                rest = rest[written:]
        except OSError:
            self.close()
            raise

    def _rotate(self) -> None:
        try:
            for index in count(self.backups):
                try:
                    os.unlink(f"{self._path}.{index}")
                except FileNotFoundError:
                    break
            for index in range(self.backups - 1, 0, -1):
                with suppress(FileNotFoundError):
                    os.rename(f"{self._path}.{index}", f"{self._path}.{index + 1}")
            os.rename(self._path, f"{self._path}.1")
        except OSError as error:
            if not self._cannot_rotate:
                log.error("cannot rotate %s, which grows: %s", self._path, error.strerror)
            self._cannot_rotate = True
            return
        self._cannot_rotate = False
        self.close()
        self.open()
