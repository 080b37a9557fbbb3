"""What a client process is asked to do, and how it is asked to stop."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.history import END_MARKER, Payload, Recorder, Runs, decode

PROBER = "prober"
GAVE_UP = 3
HUNG = 4


@dataclass(frozen=True, slots=True)
class Job:
    role: str
    """writer, reader, member, copier or final."""
    client: str
    process: str
    bootstrap: str
    folder: str
    partitions: int
    topic: str = ""
    """The topic to write or read; for a copier, its source."""
    topics: dict[str, str] = field(default_factory=dict)
    """For the final reader: each topic and its isolation level; for the prober: its topics."""
    target: str = ""
    group: str = ""
    transactional_id: str = ""
    isolation: str = "read_uncommitted"
    rate: float = 500.0
    """Records each second, over all partitions."""
    size: int = 120
    keys: int = 0
    """How many keys a writer has in each partition; 0: records have no key."""
    durable: bool = True
    idempotent: bool = True
    compression: str = "none"
    answer_ms: int = 3000
    """How long a client waits for a response before it tries another broker."""
    patience_ms: int = 120_000
    """How long a client tries to deliver a record."""
    transaction_records: int = 200
    transaction_timeout_ms: int = 10_000
    session_ms: int = 6000
    protocol: str = "classic"

    def recorder(self) -> Recorder:
        """Open the process's history; its first line says what the process is and promises."""
        recorder = Recorder(Path(self.folder), self.process)
        about: dict[str, Any] = {"role": self.role, "client": self.client, "topic": self.topic}
        if self.role == "writer":
            about |= {"durable": self.durable, "idempotent": self.idempotent, "keys": self.keys}
        if self.role == "copier":
            about |= {"source": self.topic, "target": self.target}
        about["group"] = self.group or self.process.rpartition(".")[0]
        recorder.note("info", "open", about)
        return recorder


class Control(threading.Thread):
    """Reads commands from standard input."""

    def __init__(self, rate: float) -> None:
        super().__init__(daemon=True)
        self.rate = rate
        self.is_finishing = threading.Event()
        self.is_stopping = threading.Event()

    def run(self) -> None:
        for line in sys.stdin:
            command, _, value = line.strip().partition(" ")
            if command == "rate":
                self.rate = float(value)
            elif command == "finish":
                self.is_finishing.set()
        self.is_stopping.set()
        time.sleep(5)
        os._exit(GAVE_UP)  # the parent is gone, and this process hangs


class Watchdog(threading.Thread):
    """Ends the process after a long time without progress, as the supervisor of a service does.

    Some clients wait without limit for a request that they have dropped.
    """

    def __init__(self, recorder: Recorder, limit_s: float) -> None:
        super().__init__(daemon=True)
        self._recorder = recorder
        self._limit_s = limit_s
        self._moved_s = time.monotonic()

    def moved(self) -> None:
        self._moved_s = time.monotonic()

    def run(self) -> None:
        while time.monotonic() - self._moved_s < self._limit_s:
            time.sleep(0.2)
        self._recorder.note("info", "died", "hung")
        os._exit(HUNG)


class Notes:
    """Notes the records that a reader gets: runs, damage, and the end of each partition."""

    def __init__(self, recorder: Recorder, f: str = "poll") -> None:
        self._recorder = recorder
        self._f = f
        self._runs = Runs()
        self._ends: list[tuple[str, int]] = []
        self._errors: dict[str, float] = {}
        self.ended: set[str] = set()

    def record(self, topic: str, index: int, offset: int, value: bytes | None) -> Payload | None:
        partition = f"{topic}-{index}"
        found = decode(value)
        if found is None or (found.partition != partition and found.writer != END_MARKER):
            shown = (value or b"")[:80].hex()
            self._recorder.note("info", "poll", [partition, offset, shown], "damaged")
            return None
        self._runs.add(partition, offset, found)
        if found.writer == END_MARKER:
            self._ends.append((partition, offset))
        return found

    def flush(self) -> None:
        for partition, runs in self._runs.take():
            self._recorder.note("ok", self._f, [partition, runs])
        for partition, offset in self._ends:
            self._recorder.note("ok", "end", [partition, offset])
            self.ended.add(partition)
        self._ends.clear()

    def error(self, error: object) -> None:
        """Note an error that the client gets over; each at most once a second."""
        name = str(error)[:200]
        now_s = time.monotonic()
        if now_s - self._errors.get(name, 0.0) > 1.0:
            self._errors[name] = now_s
            self._recorder.note("info", "error", name)


class Acks:
    """Joins acknowledgements and failures into runs, and notes them."""

    def __init__(self, recorder: Recorder, topic: str, partitions: int) -> None:
        self._recorder = recorder
        self._names = [f"{topic}-{index}" for index in range(partitions)]
        self._lock = threading.Lock()
        self._acked: list[list[list[int]]] = [[] for _ in self._names]
        self._failed: dict[tuple[int, str, str], list[list[int]]] = {}
        self.outstanding = [0] * partitions
        self.next_number = [0] * partitions

    def begin(self, index: int, count: int, transaction: int = -1) -> range:
        """Note that so many records are about to be sent; return their numbers."""
        first = self.next_number[index]
        value = [self._names[index], first, first + count, transaction]
        self._recorder.note("invoke", "send", value)
        self.next_number[index] = first + count
        with self._lock:
            self.outstanding[index] += count
        return range(first, first + count)

    def acked(self, index: int, number: int, offset: int | None) -> None:
        offset = -1 if offset is None or offset < 0 else offset
        with self._lock:
            self.outstanding[index] -= 1
            runs = self._acked[index]
            if runs:
                first, count, base = runs[-1]
                expected = base + count if base >= 0 else -1
                if first + count == number and expected == offset:
                    runs[-1][1] += 1
                    return
            runs.append([number, 1, offset])

    def failed(self, index: int, number: int, kind: str, error: str) -> None:
        with self._lock:
            self.outstanding[index] -= 1
            runs = self._failed.setdefault((index, kind, error), [])
            if runs and runs[-1][0] + runs[-1][1] == number:
                runs[-1][1] += 1
            else:
                runs.append([number, 1])

    def flush(self) -> None:
        with self._lock:
            acked, self._acked = self._acked, [[] for _ in self._names]
            failed, self._failed = self._failed, {}
        for name, runs in zip(self._names, acked, strict=True):
            if runs:
                self._recorder.note("ok", "send", [name, runs])
        for (index, kind, error), failures in failed.items():
            self._recorder.note(kind, "send", [self._names[index], failures], error)


class Pace:
    """How many records to send to each partition now, so that the rate comes out.

    A partition that does not acknowledge gets no more than `limit` records.
    """

    TICK_S = 0.02

    def __init__(self, control: Control, acks: Acks, partitions: int) -> None:
        self._control = control
        self._acks = acks
        self._due = [index / partitions for index in range(partitions)]
        self._last_s = time.monotonic()

    def due(self) -> list[tuple[int, int]]:
        """Return partition and count of the sends that are due."""
        now_s = time.monotonic()
        elapsed_s = min(now_s - self._last_s, 0.5)
        self._last_s = now_s
        rate = self._control.rate / len(self._due)
        limit = max(200, int(rate))
        found = []
        for index in range(len(self._due)):
            self._due[index] = min(self._due[index] + rate * elapsed_s, limit)
            count = min(int(self._due[index]), limit - self._acks.outstanding[index])
            if count > 0:
                self._due[index] -= count
                found.append((index, count))
        return found

    def wait_s(self) -> float:
        return max(0.0, self._last_s + self.TICK_S - time.monotonic())
