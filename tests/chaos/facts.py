"""A history as columns, which the checks go through from end to end.

`Facts.load` reads the operations once. A writer's records to a partition are a `Sends`: arrays
with one entry for each record number. A partition's final log is a `Log`: an array with one cell
for each offset. A cell names the record, as `writer << 40 | number`, so runs of records are
ranges of cells and are compared as a whole.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.history import END_MARKER, NEMESIS, Operation, operations

WRITER_SHIFT = 40
NUMBERS = (1 << WRITER_SHIFT) - 1
HOLE = -1
UNKNOWN, ACKED, REFUSED = 0, 1, 2
FOREVER_NS = 1 << 62


class Stretch(NamedTuple):
    """Consecutive records with one time."""

    t_ns: int
    first: int
    end: int


@dataclass(slots=True)
class Sends:
    """The records of one writer to one partition; every array has an entry for each number."""

    writer: str
    partition: str
    begun: list[Stretch] = field(default_factory=list)
    ended: list[Stretch] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    """The acknowledged offset, or -1."""
    places: array[int] = field(default_factory=lambda: array("q"))
    """The offset in the final log, or -1."""
    outcomes: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.outcomes)

    def begin(self, t_ns: int, first: int, end: int) -> None:
        assert first == len(self), f"{self.writer} sent {first} after {len(self) - 1}"
        nothing = array("q", [HOLE]) * (end - first)
        self.offsets += nothing
        self.places += nothing
        self.outcomes += bytes(end - first)
        self.begun.append(Stretch(t_ns, first, end))

    def end(self, t_ns: int, first: int, count: int, outcome: int, offset: int = HOLE) -> None:
        self.outcomes[first : first + count] = bytes([outcome]) * count
        if outcome == ACKED:
            self.ended.append(Stretch(t_ns, first, first + count))
            if offset >= 0:
                self.offsets[first : first + count] = array("q", range(offset, offset + count))

    def begun_ns(self, number: int) -> int:
        return _time_of(self.begun, number)

    def ended_ns(self, number: int) -> int:
        return _time_of(self.ended, number)


def _time_of(stretches: Iterable[Stretch], number: int) -> int:
    """Return the time of a record; a walk, for the few records of anomalies."""
    return next((t_ns for t_ns, first, end in stretches if first <= number < end), 0)


@dataclass(slots=True)
class Log:
    """What a reader found from the first to the last offset of a partition."""

    partition: str
    cells: array[int] = field(default_factory=lambda: array("q"))
    sources: array[int] = field(default_factory=lambda: array("q"))
    first: int = 0
    is_whole: bool = False
    """The reader met the end marker."""

    def put(self, offset: int, cells: range, source: int) -> None:
        end = offset + len(cells)
        if end > len(self.cells):
            more = array("q", [HOLE]) * (end - len(self.cells))
            self.cells += more
            self.sources += more
        self.cells[offset:end] = array("q", cells)
        if source >= 0:
            self.sources[offset:end] = array("q", range(source, source + len(cells)))


class Poll(NamedTuple):
    t_ns: int
    offset: int
    cells: range
    transaction: int


class Start(NamedTuple):
    """A reader starts at an offset; what it read before has no bearing on what follows."""

    t_ns: int
    offset: int


@dataclass(slots=True)
class Reading:
    """The steps of one process in one partition, in order."""

    process: str
    partition: str
    steps: list[Poll | Start] = field(default_factory=list)
    is_whole: bool = False


@dataclass(slots=True)
class Transaction:
    process: str
    number: int
    sent: list[tuple[str, int, int]] = field(default_factory=list)
    """Partition, first number and end."""
    begun_ns: int = 0
    commit_ns: int = FOREVER_NS
    """When the commit was requested."""
    is_committed: bool = False
    is_aborted: bool = False

    @property
    def name(self) -> str:
        return f"transaction {self.number} of {self.process}"


class Commit(NamedTuple):
    """An offset that a member committed; `ended_ns` is FOREVER_NS if the outcome is unknown."""

    offset: int
    begun_ns: int
    ended_ns: int
    process: str


class Committed(NamedTuple):
    """An offset that a member found committed."""

    offset: int
    begun_ns: int
    process: str


@dataclass(slots=True)
class Fault:
    name: str
    begun_ns: int
    ended_ns: int = FOREVER_NS
    is_healed: bool = False
    value: Any = None
    error: str = ""


class Trouble(NamedTuple):
    """A record that was damaged, or an error that a reader could not get over."""

    t_ns: int
    process: str
    partition: str
    offset: int
    error: str


class Facts:
    """Everything that a history says."""

    def __init__(self) -> None:
        self.processes: dict[str, dict[str, Any]] = {}
        self.writers: list[str] = []
        self.sends: dict[tuple[str, str], Sends] = {}
        self.logs: dict[str, Log] = {}
        self.readings: dict[tuple[str, str], Reading] = {}
        self.transactions: dict[tuple[str, int], Transaction] = {}
        self.owners: dict[str, list[tuple[int, str]]] = defaultdict(list)
        """For each transactional id: when each process became its owner."""
        self.commits: dict[tuple[str, str], list[Commit]] = defaultdict(list)
        self.fetched: dict[tuple[str, str], list[Committed]] = defaultdict(list)
        self.faults: list[Fault] = []
        self.troubles: list[Trouble] = []
        self.misses: list[tuple[int, str]] = []
        """What the workload waited for in vain."""
        self.leaders: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.deaths: list[tuple[int, str]] = []
        """Clients that could not continue, and why."""
        self.ended: list[tuple[int, str, int]] = []
        """Clients that ended before they were asked to, and their exit codes."""
        self.errors: Counter[str] = Counter()
        """Errors that clients got over."""
        self.began_ns = FOREVER_NS
        self.drained_ns = FOREVER_NS
        """When the writers were asked to finish."""
        self.last_ns = 0
        self.operations = 0
        self._ids: dict[str, int] = {}
        self._finals: dict[tuple[str, str], Log] = {}
        self._invoked: dict[tuple[str, str], tuple[int, Any]] = {}
        self._open_faults: dict[tuple[str, str], Fault] = {}

    @classmethod
    def load(cls, history: Path | Iterable[Operation]) -> Facts:
        facts = cls()
        handlers = {
            "open": facts._open,
            "send": facts._send,
            "poll": facts._poll,
            "assign": facts._assign,
            "end": facts._end,
            "final": facts._final,
            "init": facts._init,
            "begin": facts._begin,
            "commit": facts._end_transaction,
            "abort": facts._end_transaction,
            "commit-offsets": facts._commit_offsets,
            "committed": facts._committed,
            "died": facts._died,
            "error": facts._error,
        }
        for operation in operations(history) if isinstance(history, Path) else history:
            facts.operations += 1
            facts.began_ns = min(facts.began_ns, operation.t_ns)
            facts.last_ns = max(facts.last_ns, operation.t_ns)
            if operation.process == NEMESIS:
                facts._fault(operation)
            else:
                handlers[operation.f](operation)
        facts._settle()
        return facts

    def writer(self, cell: int) -> str:
        return self.writers[cell >> WRITER_SHIFT]

    def named(self, cell: int) -> str:
        """Return a record as people read it."""
        return "nothing" if cell < 0 else f"{self.writer(cell)} #{cell & NUMBERS}"

    def role(self, process: str) -> str:
        return str(self.processes.get(process, {}).get("role", ""))

    def group(self, process: str) -> str:
        return str(self.processes.get(process, {}).get("group", "") or process)

    def end_cells(self) -> range:
        """Return the cells that end markers have."""
        base = self._id(END_MARKER) << WRITER_SHIFT
        return range(base, base + NUMBERS)

    # -- operations ------------------------------------------------------------------------

    def _id(self, writer: str) -> int:
        found = self._ids.get(writer)
        if found is None:
            found = self._ids[writer] = len(self.writers)
            self.writers.append(writer)
        return found

    def cells(self, writer: str, number: int, count: int) -> range:
        base = (self._id(writer) << WRITER_SHIFT) + number
        return range(base, base + count)

    def _open(self, operation: Operation) -> None:
        self.processes[operation.process] = operation.value

    def _send(self, operation: Operation) -> None:
        process, kind, _, value, t_ns, _ = operation
        sends = self.sends.get((process, value[0]))
        if sends is None:
            sends = self.sends[process, value[0]] = Sends(process, value[0])
        if kind == "invoke":
            _, first, end, transaction = value
            sends.begin(t_ns, first, end)
            if transaction >= 0:
                self._transaction(process, transaction).sent.append((value[0], first, end))
        elif kind == "ok":
            for first, count, offset in value[1]:
                sends.end(t_ns, first, count, ACKED, offset)
        elif kind == "fail":
            for first, count in value[1]:
                sends.end(t_ns, first, count, REFUSED)

    def _reading(self, process: str, partition: str) -> Reading:
        found = self.readings.get((process, partition))
        if found is None:
            found = self.readings[process, partition] = Reading(process, partition)
        return found

    def _poll(self, operation: Operation) -> None:
        process, kind, _, value, t_ns, error = operation
        if kind != "ok":
            self.troubles.append(Trouble(t_ns, process, value[0], value[1], error))
            return
        steps = self._reading(process, value[0]).steps
        for offset, count, writer, number, transaction, _ in value[1]:
            steps.append(Poll(t_ns, offset, self.cells(writer, number, count), transaction))

    def _assign(self, operation: Operation) -> None:
        partition, offset = operation.value
        self._reading(operation.process, partition).steps.append(Start(operation.t_ns, offset))

    def _end(self, operation: Operation) -> None:
        process, partition = operation.process, operation.value[0]
        if self.role(process) == "final":
            self._log(process, partition).is_whole = True
        else:
            self._reading(process, partition).is_whole = True

    def _log(self, process: str, partition: str) -> Log:
        found = self._finals.get((process, partition))
        if found is None:
            found = self._finals[process, partition] = Log(partition)
        return found

    def _final(self, operation: Operation) -> None:
        partition, runs = operation.value
        log = self._log(operation.process, partition)
        for offset, count, writer, number, _, source in runs:
            log.put(offset, self.cells(writer, number, count), source)

    def _init(self, operation: Operation) -> None:
        self.owners[operation.value].append((operation.t_ns, operation.process))

    def _transaction(self, process: str, number: int) -> Transaction:
        found = self.transactions.get((process, number))
        if found is None:
            found = self.transactions[process, number] = Transaction(process, number)
        return found

    def _begin(self, operation: Operation) -> None:
        self._transaction(operation.process, operation.value).begun_ns = operation.t_ns

    def _end_transaction(self, operation: Operation) -> None:
        value = operation.value
        number, offsets = value if isinstance(value, list) else (value, {})
        transaction = self._transaction(operation.process, number)
        if operation.f == "commit":
            if operation.type == "invoke":
                transaction.commit_ns = operation.t_ns
            elif operation.type == "ok":
                transaction.is_committed = True
            if offsets:
                self._commit_offsets(operation._replace(value=offsets))
        elif operation.type == "ok":
            transaction.is_aborted = True

    def _commit_offsets(self, operation: Operation) -> None:
        process, kind, f, value, t_ns, _ = operation
        if kind == "invoke":
            self._invoked[process, f] = (t_ns, value)
            return
        begun_ns, wanted = self._invoked.pop((process, f), (0, {}))
        if kind != "fail":
            ended_ns = t_ns if kind == "ok" else FOREVER_NS
            self._committing(process, wanted, begun_ns, ended_ns)

    def _committing(self, process: str, wanted: Any, begun_ns: int, ended_ns: int) -> None:
        for partition, offset in wanted.items():
            commit = Commit(offset, begun_ns, ended_ns, process)
            self.commits[self.group(process), partition].append(commit)

    def _committed(self, operation: Operation) -> None:
        process, kind, f, value, t_ns, _ = operation
        if kind == "invoke":
            self._invoked[process, f] = (t_ns, value)
            return
        begun_ns, _ = self._invoked.pop((process, f))
        if kind == "ok":
            for partition, offset in value.items():
                found = Committed(offset, begun_ns, process)
                self.fetched[self.group(process), partition].append(found)

    def _died(self, operation: Operation) -> None:
        self.deaths.append((operation.t_ns, f"{operation.process}: {operation.value}"))

    def _error(self, operation: Operation) -> None:
        self.errors[f"{self.group(operation.process)}: {operation.value}"] += 1

    def _fault(self, operation: Operation) -> None:
        _, kind, name, value, t_ns, error = operation
        if name == "drain":
            self.drained_ns = min(self.drained_ns, t_ns)
        elif name == "leaders":
            for partition, leader in value.items():
                self.leaders[partition].append((t_ns, leader))
        elif name == "client-ended":
            self.ended.append((t_ns, value["client"], value["code"]))
        elif name == "missed":
            self.misses.append((t_ns, str(value)))
        elif kind == "invoke":
            fault = Fault(name, t_ns, value=value)
            self._open_faults[name, repr(value)] = fault
            self.faults.append(fault)
        else:
            fault = self._open_faults.pop((name, repr(value)), Fault(name, t_ns, value=value))
            fault.ended_ns, fault.is_healed, fault.error = t_ns, kind == "ok", error

    def _settle(self) -> None:
        """Take the best final reading of each partition, and find every record's place in it."""
        for (process, f), (begun_ns, wanted) in self._invoked.items():
            if f != "committed":
                self._committing(process, wanted, begun_ns, FOREVER_NS)
        for (_, partition), log in self._finals.items():
            known = self.logs.get(partition)
            if known is None or (log.is_whole, len(log.cells)) > (
                known.is_whole,
                len(known.cells),
            ):
                self.logs[partition] = log
        self._finals.clear()
