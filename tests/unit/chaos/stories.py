"""Synthetic histories for the tests of the checker."""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.chaos.checker import check
from tests.chaos.findings import Findings
from tests.chaos.history import END_MARKER, NEMESIS, Operation

TICK_NS = 10_000_000
P = "t-0"

Records = list[tuple[str, int]]
"""Records of a log from offset 0 on, as writer and number; an empty writer is a control record."""


class Story:
    """Notes operations one after the other, 10 ms apart."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._ticks = count(1)
        self._finals = count(1)

    def note(self, process: str, kind: str, f: str, value: Any, error: str = "") -> int:
        t_ns = next(self._ticks) * TICK_NS
        self.operations.append(Operation(process, kind, f, value, t_ns, error))
        return t_ns

    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            next(self._ticks)

    # -- writers ---------------------------------------------------------------------------

    def open(self, process: str, role: str, **about: Any) -> None:
        self.note(process, "info", "open", {"role": role, "group": process, **about})

    def send(self, writer: str, first: int, end: int, transaction: int = -1, at: str = P) -> None:
        self.note(writer, "invoke", "send", [at, first, end, transaction])

    def acked(self, writer: str, first: int, end: int, offset: int, at: str = P) -> None:
        self.note(writer, "ok", "send", [at, [[first, end - first, offset]]])

    def write(self, writer: str, first: int, end: int, offset: int, at: str = P) -> None:
        self.send(writer, first, end, at=at)
        self.acked(writer, first, end, offset, at)

    # -- readers ---------------------------------------------------------------------------

    def start(self, process: str, offset: int = 0, at: str = P) -> None:
        self.note(process, "ok", "assign", [at, offset])

    def poll(
        self, process: str, offset: int, writer: str, first: int, end: int, **given: Any
    ) -> None:
        run = [offset, end - first, writer, first, given.get("transaction", -1), -1]
        self.note(process, "ok", "poll", [given.get("at", P), [run]])

    def read(self, process: str, log: Records, at: str = P) -> None:
        """Read a log to its end, record by record."""
        self.start(process, 0, at)
        for offset, (writer, number) in enumerate(log):
            if writer:
                self.poll(process, offset, writer, number, number + 1, at=at)
        self.poll(process, len(log), END_MARKER, 0, 1, at=at)
        self.note(process, "ok", "end", [at, len(log)])

    def final(self, log: Records, at: str = P, sources: dict[int, int] | None = None) -> None:
        """Read the log at the end, with the marker behind it."""
        process = f"final.{next(self._finals)}"
        self.open(process, "final")
        runs = [
            [offset, 1, writer, number, -1, (sources or {}).get(offset, -1)]
            for offset, (writer, number) in enumerate(log)
            if writer
        ]
        runs.append([len(log), 1, END_MARKER, 0, -1, -1])
        self.note(process, "ok", "final", [at, runs])
        self.note(process, "ok", "end", [at, len(log)])

    # -- transactions, groups and faults ---------------------------------------------------

    def commit(self, process: str, number: int, kind: str = "ok", **offsets: int) -> None:
        named = {name.replace("_", "-"): offset for name, offset in offsets.items()}
        self.note(process, "invoke", "commit", [number, named])
        self.note(process, kind, "commit", [number, named])

    def commit_offset(self, process: str, offset: int, kind: str = "ok") -> None:
        self.note(process, "invoke", "commit-offsets", {P: offset})
        self.note(process, kind, "commit-offsets", {P: offset})

    def committed(self, process: str, offset: int) -> None:
        self.note(process, "invoke", "committed", [P])
        self.note(process, "ok", "committed", {P: offset})

    def fault(self, name: str, ticks: int = 10, kind: str = "ok") -> None:
        value = {"id": next(self._ticks)}
        self.note(NEMESIS, "invoke", name, value)
        self.wait(ticks)
        self.note(NEMESIS, kind, name, value)

    # -- the check -------------------------------------------------------------------------

    def check(self) -> Findings:
        return check(self.operations)

    def kinds(self) -> set[str]:
        return self.check().kinds()


def log_of(writer: str, *numbers: int) -> Records:
    return [(writer, number) for number in numbers]
