"""What a check found: anomalies with the operations that show them, and figures by fault."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.chaos.facts import ACKED, FOREVER_NS, REFUSED, Facts, Fault, Poll
from tests.chaos.history import Operation, operations

SHOWN = 40
"""How many anomalies are shown with their operations."""
EVIDENCE = 12
# The fault that was open when the record was acknowledged, or the next one, is to blame for these.
OF_RECORDS = ("lost", "duplicate", "reordered", "inconsistent-offsets", "refused-written")


@dataclass(slots=True)
class Anomaly:
    kind: str
    partition: str
    text: str
    t_ns: int = 0
    writer: str = ""
    numbers: tuple[int, ...] = ()
    """Records of the writer that show it."""
    offsets: tuple[int, ...] = ()
    count: int = 1
    """How many records it concerns."""
    evidence: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.kind} in {self.partition or 'the cluster'}: {self.text}"
        return text + (f" ({self.count:,} records)" if self.count > 1 else "")

    def is_followed_by(self, other: Anomaly) -> bool:
        """The other anomaly is the same one, of the next record and at the next offsets."""
        if (self.kind, self.partition, self.writer) != (other.kind, other.partition, other.writer):
            return False
        mine, others = (*self.numbers, -1, *self.offsets), (*other.numbers, -1, *other.offsets)
        if len(mine) != len(others) or len(mine) == 1:
            return False
        return all(
            place == -1 == there or there == place + self.count
            for place, there in zip(mine, others, strict=True)
        )


def joined(anomalies: Iterable[Anomaly]) -> list[Anomaly]:
    """Join anomalies of consecutive records."""
    found: list[Anomaly] = []
    for anomaly in anomalies:
        if found and found[-1].is_followed_by(anomaly):
            found[-1].count += anomaly.count
        else:
            found.append(anomaly)
    return found


@dataclass(slots=True)
class PartitionFigures:
    """How acknowledgements came in a partition."""

    name: str
    times_ns: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Records that each of these times acknowledged."""
    until_ns: int = 0

    @property
    def acknowledged(self) -> int:
        return sum(self.counts)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the times between one acknowledgement and the next, and up to the end."""
        yield from pairwise(self.times_ns)
        if self.times_ns and self.until_ns > self.times_ns[-1]:
            yield self.times_ns[-1], self.until_ns

    def longest_gap_s(self, since_ns: int = 0, until_ns: int = FOREVER_NS) -> float:
        """Return the longest time without an acknowledgement that overlaps this time."""
        first = max(bisect_left(self.times_ns, since_ns) - 1, 0)
        longest = 0
        times = self.times_ns
        for index in range(first, len(times)):
            begin = times[index]
            if begin >= until_ns:
                break
            end = times[index + 1] if index + 1 < len(times) else max(self.until_ns, begin)
            longest = max(longest, end - begin)
        return longest / 1e9

    def acknowledged_in(self, since_ns: int, until_ns: int) -> int:
        first, end = bisect_left(self.times_ns, since_ns), bisect_left(self.times_ns, until_ns)
        return sum(self.counts[first:end])

    def first_after(self, t_ns: int) -> int | None:
        at = bisect_right(self.times_ns, t_ns)
        return self.times_ns[at] if at < len(self.times_ns) else None


@dataclass(slots=True)
class FaultFigures:
    """One cycle of a fault, up to the next one."""

    fault: Fault
    until_ns: int
    acknowledged: int = 0
    longest_gap_s: float = 0.0
    gap_in: str = ""
    after_heal_s: float | None = None
    """From the heal until every partition had acknowledged a record; None: some did not."""
    counts: Counter[str] = field(default_factory=Counter)
    """Anomalies by kind."""


@dataclass(slots=True)
class Row:
    """All cycles of one kind of fault."""

    fault: str
    cycles: int = 0
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    other: int = 0
    longest_gap_s: float = 0.0
    after_heal_s: float = 0.0
    healed: int = 0

    HEADS = (
        "fault",
        "cycles",
        "acknowledged",
        "lost",
        "duplicated",
        "other anomalies",
        "longest gap",
        "after heal",
        "healed by itself",
    )

    def cells(self) -> list[str]:
        return [
            self.fault,
            f"{self.cycles}",
            f"{self.acknowledged:,}",
            f"{self.lost:,}",
            f"{self.duplicated:,}",
            f"{self.other:,}",
            f"{self.longest_gap_s:.2f} s",
            f"{self.after_heal_s:.2f} s",
            "yes" if self.healed == self.cycles else f"{self.healed} of {self.cycles}",
        ]


@dataclass(slots=True)
class Findings:
    anomalies: list[Anomaly] = field(default_factory=list)
    partitions: dict[str, PartitionFigures] = field(default_factory=dict)
    faults: list[FaultFigures] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    began_ns: int = 0
    ended_ns: int = 0
    leaders: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """For each partition, when which broker became its leader."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the reader: what was left out, seeds, versions."""

    @classmethod
    def of(cls, facts: Facts, anomalies: list[Anomaly]) -> Findings:
        findings = cls(anomalies, began_ns=facts.began_ns, ended_ns=facts.last_ns)
        findings.partitions = _partitions(facts)
        findings.totals = _totals(facts)
        findings.faults = _faults(facts, findings)
        findings.leaders = facts.leaders
        findings.notes = [
            f"client {text.split(':')[0]} ended at {(t_ns - facts.began_ns) / 1e9:.1f} s:"
            f"{text.partition(':')[2]}"
            for t_ns, text in facts.deaths
        ]
        findings.blame()
        return findings

    def count(self, *kinds: str) -> int:
        """Return how many records these kinds of anomalies concern; without kinds, all."""
        return sum(found.count for found in self.anomalies if not kinds or found.kind in kinds)

    def kinds(self) -> set[str]:
        return {found.kind for found in self.anomalies}

    def add(self, anomalies: Iterable[Anomaly]) -> None:
        """Add what other checks found, such as replicas that differ."""
        self.anomalies += anomalies
        self.blame()

    def blame(self) -> None:
        """Count each anomaly at the fault that was open, or began next."""
        for found in self.faults:
            found.counts.clear()
        for anomaly in self.anomalies:
            culprit = self._culprit(anomaly)
            if culprit is not None:
                culprit.counts[anomaly.kind] += anomaly.count

    def _culprit(self, anomaly: Anomaly) -> FaultFigures | None:
        if not self.faults or not anomaly.t_ns:
            return None
        if anomaly.kind in OF_RECORDS:
            later = [found for found in self.faults if found.fault.ended_ns > anomaly.t_ns]
            return later[0] if later else self.faults[-1]
        before = [found for found in self.faults if found.fault.begun_ns <= anomaly.t_ns]
        return before[-1] if before else None

    def rows(self) -> list[Row]:
        """Return the table of faults, one row for each kind."""
        rows: dict[str, Row] = {}
        for found in self.faults:
            row = rows.setdefault(found.fault.name, Row(found.fault.name))
            row.cycles += 1
            row.acknowledged += found.acknowledged
            row.lost += sum(
                found.counts[kind] for kind in ("lost", "lost-transaction", "copy-lost")
            )
            row.duplicated += found.counts["duplicate"] + found.counts["copy-duplicate"]
            row.other += found.counts.total()
            row.longest_gap_s = max(row.longest_gap_s, found.longest_gap_s)
            row.after_heal_s = max(row.after_heal_s, found.after_heal_s or 0.0)
            row.healed += found.fault.is_healed and found.after_heal_s is not None
        for row in rows.values():
            row.other -= row.lost + row.duplicated
        return list(rows.values())

    def text(self) -> str:
        """Return everything as lines of text."""
        lines = [", ".join(f"{count:,} {name}" for name, count in self.totals.items())]
        table = [list(Row.HEADS), *(row.cells() for row in self.rows())]
        if self.faults:
            lines += ["", *_aligned(table)]
        lines += ["", *_aligned([["partition", "acknowledged", "longest gap"], *self._gap_cells()])]
        lines += ["", *self.notes] if self.notes else []
        if not self.anomalies:
            return "\n".join([*lines, "", "no anomalies"])
        kinds = Counter[str]()
        for found in self.anomalies:
            kinds[found.kind] += found.count
        lines += ["", "ANOMALIES: " + ", ".join(f"{kinds[kind]:,} {kind}" for kind in kinds)]
        for found in self.anomalies[:SHOWN]:
            lines.append(f"  {found}")
            lines += [f"      {line}" for line in found.evidence]
        return "\n".join(lines)

    def _gap_cells(self) -> list[list[str]]:
        return [
            [name, f"{found.acknowledged:,}", f"{found.longest_gap_s():.2f} s"]
            for name, found in sorted(self.partitions.items())
        ]


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _partitions(facts: Facts) -> dict[str, PartitionFigures]:
    times: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (writer, partition), sends in facts.sends.items():
        about = facts.processes.get(writer, {})
        if about.get("durable", True) and about.get("role") != "copier":
            times[partition] += [(t_ns, end - first) for t_ns, first, end in sends.ended]
    found = {}
    until_ns = facts.drained_ns if facts.drained_ns < FOREVER_NS else 0
    for partition, acks in sorted(times.items()):
        acks.sort()
        found[partition] = PartitionFigures(
            partition, [t_ns for t_ns, _ in acks], [count for _, count in acks], until_ns
        )
    return found


def _totals(facts: Facts) -> dict[str, int]:
    outcomes = Counter[int]()
    for (writer, _), sends in facts.sends.items():
        if facts.role(writer) != "copier":
            outcomes.update(sends.outcomes)
    for transaction in facts.transactions.values():
        if transaction.is_committed:
            outcomes[ACKED] += sum(end - first for _, first, end in transaction.sent)
    reads = sum(
        len(step.cells)
        for reading in facts.readings.values()
        for step in reading.steps
        if isinstance(step, Poll)
    )
    transactions = facts.transactions.values()
    return {
        "operations": facts.operations,
        "acknowledged": outcomes[ACKED],
        "uncertain": outcomes.total() - outcomes[ACKED] - outcomes[REFUSED],
        "refused": outcomes[REFUSED],
        "read": reads,
        "transactions committed": sum(int(found.is_committed) for found in transactions),
        "aborted": sum(int(found.is_aborted) for found in transactions),
        "offset commits": sum(len(commits) for commits in facts.commits.values()),
        "faults": len(facts.faults),
    }


def _faults(facts: Facts, findings: Findings) -> list[FaultFigures]:
    faults = sorted(facts.faults, key=lambda fault: fault.begun_ns)
    figures = []
    for at, fault in enumerate(faults):
        next_ns = faults[at + 1].begun_ns if at + 1 < len(faults) else facts.last_ns + 1
        ended_ns = min(fault.ended_ns, facts.last_ns)
        found = FaultFigures(fault, max(next_ns, ended_ns))
        waits: list[float | None] = []
        for partition in findings.partitions.values():
            found.acknowledged += partition.acknowledged_in(fault.begun_ns, found.until_ns)
            gap_s = partition.longest_gap_s(fault.begun_ns, found.until_ns)
            if gap_s > found.longest_gap_s:
                found.longest_gap_s, found.gap_in = gap_s, partition.name
            first_ns = partition.first_after(ended_ns)
            waits.append(None if first_ns is None else (first_ns - ended_ns) / 1e9)
        known = [wait for wait in waits if wait is not None]
        found.after_heal_s = max(known, default=0.0) if len(known) == len(waits) else None
        figures.append(found)
    return figures


# -- evidence ----------------------------------------------------------------------------------


def add_evidence(findings: Findings, folder: Path) -> None:
    """Look the operations up that show the first anomalies, in one more pass over the history."""
    shown = findings.anomalies[:SHOWN]
    if not shown:
        return
    by_partition: dict[str, list[Anomaly]] = defaultdict(list)
    for anomaly in shown:
        by_partition[anomaly.partition].append(anomaly)
    lines: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for operation in operations(folder):
        if not isinstance(operation.value, list):
            continue
        for anomaly in by_partition.get(operation.value[0], ()):
            if _shows(operation, anomaly):
                at_s = (operation.t_ns - findings.began_ns) / 1e9
                text = f"{at_s:9.3f} s {operation.process} {operation.type} {operation.f}"
                text += f" {_told(operation, anomaly)} {operation.error}"
                lines[id(anomaly)].append((operation.t_ns, text.rstrip()))
    for anomaly in shown:
        anomaly.evidence = [text for _, text in sorted(lines[id(anomaly)])[:EVIDENCE]]


def _matches(operation: Operation, anomaly: Anomaly) -> list[list[object]]:
    """Return the runs of an operation that have a record or an offset of the anomaly."""
    value = operation.value
    if operation.f == "send":
        if operation.process != anomaly.writer:
            return []
        runs = [[value[1], value[2] - value[1]]] if operation.type == "invoke" else value[1]
        return [
            run
            for run in runs
            if any(run[0] <= number < run[0] + run[1] for number in anomaly.numbers)
        ]
    if operation.f not in ("poll", "final") or operation.type != "ok":
        return []
    return [
        run
        for run in value[1]
        if any(run[0] <= offset < run[0] + run[1] for offset in anomaly.offsets)
        or (
            run[2] == anomaly.writer
            and any(run[3] <= number < run[3] + run[1] for number in anomaly.numbers)
        )
    ]


def _shows(operation: Operation, anomaly: Anomaly) -> bool:
    return bool(_matches(operation, anomaly))


def _told(operation: Operation, anomaly: Anomaly) -> str:
    texts = []
    for run in _matches(operation, anomaly):
        if operation.f == "send":
            text = f"#{run[0]} to #{run[0] + run[1] - 1}"  # type: ignore[operator]
            texts.append(text + (f" at offset {run[2]}" if len(run) > 2 else ""))
        else:
            end = run[0] + run[1] - 1  # type: ignore[operator]
            texts.append(f"offsets {run[0]} to {end}: {run[2]} from #{run[3]} on")
    return f"{operation.value[0]} " + "; ".join(texts)
