"""The transactions of producers and their outcomes, checked against the committed records.

A `Producer` here is one instance of a client: the next one with the same transactional id fences
it. Each notes its transactions: the sends, the requested end, and its outcome.  At the end,
`TransactionHistory.checked` hands that and the committed records to the checker
(`tests/chaos/checker.py`, which names the anomalies).  One more is found here:

    unread-position     the offsets of a transaction and its records do not fit together

`copy_anomalies` judges a copy that was made in transactions: lost-copy, duplicate, phantom and
out-of-order.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.chaos.checker import anomalies_of
from tests.chaos.facts import Facts
from tests.chaos.findings import joined
from tests.chaos.history import Operation
from tests.conformance.history import AnomaliesFound, Anomaly, Partition, name_of

Log = list[tuple[int, bytes | None]]
NOWHERE: Partition = ("", -1)


class Fate(Enum):
    """The outcome that the producer knows.  UNKNOWN: no response, or an error."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Producer:
    """One instance of a client with a transactional id."""

    transactional_id: str
    number: int
    ready_s: float = float("inf")
    """When it learned that it owns the id; no earlier producer may commit from then on."""

    @property
    def name(self) -> str:
        return f"{self.transactional_id}/{self.number}"


@dataclass(slots=True)
class Sent:
    partition: Partition
    value: bytes


@dataclass(slots=True, eq=False)
class Transaction:
    producer: Producer
    number: int
    begun_s: float
    sent: list[Sent] = field(default_factory=list)
    positions: dict[Partition, int] = field(default_factory=dict)
    """Offsets of a group that the transaction commits."""
    commit_asked_s: float | None = None
    ended_s: float | None = None
    fate: Fate = Fate.UNKNOWN

    @property
    def name(self) -> str:
        return f"{self.producer.name}/{self.number}"


@dataclass(slots=True)
class CommittedReading:
    """The records that one reader of committed records got, and when."""

    name: str
    records: dict[Partition, list[tuple[int, bytes | None, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )


class TransactionHistory:
    """Events that many threads note, and one thread checks at the end."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._instances: dict[str, list[Producer]] = defaultdict(list)
        self._numbers = itertools.count()
        self.transactions: list[Transaction] = []
        self.readings: list[CommittedReading] = []

    # -- noting ----------------------------------------------------------------------------

    def producer(self, transactional_id: str) -> Producer:
        """A producer is about to take a transactional id."""
        with self._lock:
            instances = self._instances[transactional_id]
            instances.append(Producer(transactional_id, len(instances) + 1))
            return instances[-1]

    def ready(self, producer: Producer) -> None:
        """The producer owns the transactional id now."""
        producer.ready_s = self._now_s()

    def begin(self, producer: Producer) -> Transaction:
        with self._lock:
            made = Transaction(producer, next(self._numbers), self._now_s())
            self.transactions.append(made)
        return made

    def send(self, transaction: Transaction, topic: str, index: int) -> bytes:
        """A record is about to be sent; its value is unique."""
        value = f"{transaction.name}/{len(transaction.sent)}".encode()
        transaction.sent.append(Sent((topic, index), value))
        return value

    def commit_asked(self, transaction: Transaction) -> None:
        transaction.commit_asked_s = self._now_s()

    def ended(self, transaction: Transaction, fate: Fate) -> None:
        transaction.ended_s = self._now_s()
        transaction.fate = fate

    def reader(self, name: str) -> CommittedReading:
        made = CommittedReading(name)
        with self._lock:
            self.readings.append(made)
        return made

    def read(
        self, reading: CommittedReading, partition: Partition, offset: int, value: bytes | None
    ) -> None:
        reading.records[partition].append((offset, value, self._now_s()))

    def committed(self) -> list[Transaction]:
        return [
            transaction for transaction in self.transactions if transaction.fate is Fate.COMMITTED
        ]

    # -- checks ----------------------------------------------------------------------------

    def checked(
        self, logs: Mapping[Partition, Log], positions: Mapping[Partition, int] | None = None
    ) -> None:
        """Raise AnomaliesFound unless these partitions, read to their ends, explain everything."""
        found = self.anomalies(logs, positions)
        if found:
            shown = "\n".join(f"  {kind} in {where}: {text}" for kind, where, text in found[:40])
            raise AnomaliesFound(f"{len(found)} anomalies:\n{shown}")

    def anomalies(
        self, logs: Mapping[Partition, Log], positions: Mapping[Partition, int] | None = None
    ) -> list[Anomaly]:
        places = {name_of(partition): partition for partition in self._partitions(logs)}
        found = [
            Anomaly(anomaly.kind, places.get(anomaly.partition, NOWHERE), anomaly.text)
            for anomaly in joined(anomalies_of(Facts.load(self._operations(logs))))
        ]
        if positions is not None:
            seen = {(partition, value) for partition, log in logs.items() for _, value in log}
            found += self._of_positions(seen, positions)
        return found

    def _partitions(self, logs: Iterable[Partition]) -> list[Partition]:
        sent = {sent.partition for found in self.transactions for sent in found.sent}
        return sorted({*logs, *sent})

    def _operations(self, logs: Mapping[Partition, Log]) -> Iterator[Operation]:
        """Tell the history to the checker."""
        for instances in self._instances.values():
            for producer in instances:
                yield Operation(producer.name, "info", "open", {"role": "transactional"}, 0)
                if producer.ready_s < float("inf"):
                    ready_ns = int(producer.ready_s * 1e9)
                    owned = producer.transactional_id
                    yield Operation(producer.name, "ok", "init", owned, ready_ns)
        numbers: dict[tuple[str, Partition], int] = defaultdict(int)
        known: dict[tuple[Partition, bytes | None], tuple[str, int, int]] = {}
        for transaction in self.transactions:
            yield from _operations_of(transaction, numbers, known)
        for number, reading in enumerate(self.readings):
            process = f"{reading.name}, reader {number}"
            yield Operation(process, "info", "open", {"role": "reader"}, 0)
            for partition, records in reading.records.items():
                name = name_of(partition)
                yield Operation(process, "ok", "assign", [name, 0], 0)
                for offset, value, read_s in records:
                    run = _run(known, partition, offset, value)
                    yield Operation(process, "ok", "poll", [name, [run]], int(read_s * 1e9))
                yield Operation(process, "ok", "end", [name, -1], 0)
        yield Operation("final", "info", "open", {"role": "final"}, 0)
        for partition in self._partitions(logs):
            name = name_of(partition)
            runs = [_run(known, partition, *record) for record in logs.get(partition, ())]
            yield Operation("final", "ok", "final", [name, runs], 0)
            yield Operation("final", "ok", "end", [name, -1], 0)

    def _of_positions(
        self,
        seen: Set[tuple[Partition, bytes | None]],
        positions: Mapping[Partition, int],
    ) -> list[Anomaly]:
        """Check that a group's offsets are those of the transactions whose records are read."""
        expected: dict[Partition, int] = {}
        for transaction in self.transactions:
            if any((sent.partition, sent.value) in seen for sent in transaction.sent):
                for partition, offset in transaction.positions.items():
                    expected[partition] = max(offset, expected.get(partition, -1))
        return [
            Anomaly(
                "unread-position",
                partition,
                f"the group is at {positions.get(partition, -1)},"
                f" its transactions at {expected.get(partition, -1)}",
            )
            for partition in sorted({*expected, *positions})
            if expected.get(partition, -1) != positions.get(partition, -1)
        ]


def _operations_of(
    transaction: Transaction,
    numbers: dict[tuple[str, Partition], int],
    known: dict[tuple[Partition, bytes | None], tuple[str, int, int]],
) -> Iterator[Operation]:
    """A transaction's operations; its records are acknowledged by its commit."""
    process, number = transaction.producer.name, transaction.number
    begun_ns, ended_ns = int(transaction.begun_s * 1e9), int((transaction.ended_s or 0) * 1e9)
    yield Operation(process, "invoke", "begin", number, begun_ns)
    for sent in transaction.sent:
        name, first = name_of(sent.partition), numbers[process, sent.partition]
        numbers[process, sent.partition] += 1
        known[sent.partition, sent.value] = (process, first, number)
        yield Operation(process, "invoke", "send", [name, first, first + 1, number], begun_ns)
        if transaction.fate is Fate.COMMITTED:
            yield Operation(process, "ok", "send", [name, [[first, 1, -1]]], ended_ns)
    if transaction.commit_asked_s is not None:
        asked_ns = int(transaction.commit_asked_s * 1e9)
        yield Operation(process, "invoke", "commit", number, asked_ns)
    if transaction.fate is Fate.COMMITTED:
        yield Operation(process, "ok", "commit", number, ended_ns)
    elif transaction.fate is Fate.ABORTED:
        yield Operation(process, "ok", "abort", number, ended_ns)


def _run(
    known: Mapping[tuple[Partition, bytes | None], tuple[str, int, int]],
    partition: Partition,
    offset: int,
    value: bytes | None,
) -> list[Any]:
    """A record as the checker reads it."""
    stranger = (f"the sender of {value!r}", 0, -1)
    process, number, transaction = known.get((partition, value), stranger)
    return [offset, 1, process, number, transaction, -1]


def copy_anomalies(
    source: Mapping[int, Iterable[bytes | None]], target: Mapping[int, Iterable[bytes | None]]
) -> list[Anomaly]:
    """Compare target and source, partition by partition, in order."""
    found = []
    for index in sorted({*source, *target}):
        wanted, copied = list(source.get(index, ())), list(target.get(index, ()))
        where = ("copy", index)
        if wanted == copied:
            continue
        counts, known = Counter(copied), set(wanted)
        lost = [value for value in wanted if value not in counts]
        again = [value for value, count in counts.items() if count > 1]
        strange = [count for count in counts if count not in known]
        for kind, values in (("lost-copy", lost), ("duplicate", again), ("phantom", strange)):
            if values:
                found.append(Anomaly(kind, where, f"{len(values)}, the first is {values[0]!r}"))
        if not lost and not again and not strange:
            at = next(
                n for n, pair in enumerate(zip(wanted, copied, strict=True)) if len({*pair}) > 1
            )
            found.append(Anomaly("out-of-order", where, f"{copied[at]!r} is number {at}"))
    return found


def check_copy(
    source: Mapping[int, Iterable[bytes | None]], target: Mapping[int, Iterable[bytes | None]]
) -> None:
    found = copy_anomalies(source, target)
    if found:
        shown = "\n".join(f"  {kind} in {where}: {text}" for kind, where, text in found)
        raise AnomaliesFound(f"not an exact copy:\n{shown}")
