"""The transactions of producers and their outcomes, checked against the committed records.

A `Producer` here is one instance of a client: the next one with the same transactional id fences
it. Each notes its transactions: the sends, the requested end, and its outcome.  At the end,
`TransactionHistory.checked` compares that with the committed records.  It knows nothing of brokers.

    aborted-read        a record is read whose transaction was aborted, or never to be committed
    torn-transaction    some records of a transaction are read, and others are not
    lost-transaction    a commit was confirmed, and its records are not there
    zombie              a commit succeeded that began after another producer had taken over
    early-read          a record was read before its commit was requested
    dirty-read          a record was read that committed readers do not see in the end
    unseen              a reader waited for the end and did not get a record
    nonmonotonic-poll   a reader got an offset again, or one before
    duplicate           a record is there twice
    nonmonotonic-send   records of a transactional id are not in the order in which it sent them
    realtime-order      committed before the other was begun, and behind it in the log
    phantom             sent by no producer
    unread-position     the offsets of a transaction and its records do not fit together

`copy_anomalies` judges a copy that was made in transactions: lost-copy, duplicate, phantom and
out-of-order.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from tests.conformance.history import AnomaliesFound, Anomaly, Partition

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
        return f"{self.producer.transactional_id}/{self.producer.number}/{self.number}"


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
        places: dict[tuple[Partition, bytes | None], list[int]] = defaultdict(list)
        for partition, log in logs.items():
            for offset, value in log:
                places[partition, value].append(offset)
        found = self._strangers(places)
        for transaction in self.transactions:
            found += self._of_transaction(transaction, places)
        found += self._order(places)
        found += self._realtime_order(places)
        for reading in self.readings:
            found += self._of_reading(reading, logs)
        if positions is not None:
            found += self._of_positions(places, positions)
        return found

    def _strangers(
        self, places: Mapping[tuple[Partition, bytes | None], list[int]]
    ) -> list[Anomaly]:
        known = {
            (sent.partition, sent.value)
            for transaction in self.transactions
            for sent in transaction.sent
        }
        found = []
        for (partition, value), offsets in places.items():
            if (partition, value) not in known:
                found.append(Anomaly("phantom", partition, f"{value!r} at {offsets}"))
            elif len(offsets) > 1:
                found.append(Anomaly("duplicate", partition, f"{value!r} is at {offsets}"))
        return found

    def _of_transaction(
        self, transaction: Transaction, places: Mapping[tuple[Partition, bytes | None], list[int]]
    ) -> list[Anomaly]:
        seen = [send for send in transaction.sent if (send.partition, send.value) in places]
        name, where = (
            transaction.name,
            (seen or transaction.sent or [Sent(NOWHERE, b"")])[0].partition,
        )
        if transaction.fate is Fate.ABORTED or transaction.commit_asked_s is None:
            text = f"{len(seen)} records of {name}, which was not committed"
            return [Anomaly("aborted-read", where, text)] if seen else []
        found = []
        if seen and len(seen) < len(transaction.sent):
            text = f"{len(seen)} of the {len(transaction.sent)} records of {name}"
            found.append(Anomaly("torn-transaction", where, text))
        if transaction.fate is Fate.COMMITTED and transaction.sent and not seen:
            found.append(Anomaly("lost-transaction", where, f"{name} was committed"))
        successor_s = self._successor_s(transaction.producer)
        is_done = bool(seen) or transaction.fate is Fate.COMMITTED
        if is_done and transaction.commit_asked_s > successor_s:
            late_s = transaction.commit_asked_s - successor_s
            text = f"{name} was asked for {late_s:.3f} s after another had taken over"
            found.append(Anomaly("zombie", where, text))
        return found

    def _successor_s(self, producer: Producer) -> float:
        """Return when another producer learned that it owns the transactional id."""
        later = self._instances[producer.transactional_id][producer.number :]
        return min((transaction.ready_s for transaction in later), default=float("inf"))

    def _order(self, places: Mapping[tuple[Partition, bytes | None], list[int]]) -> list[Anomaly]:
        """Check that the records of a transactional id are in the order of its sends."""
        last: dict[tuple[str, Partition], tuple[int, bytes]] = {}
        found = []
        for transaction in sorted(
            self.transactions,
            key=lambda transaction: (transaction.producer.number, transaction.number),
        ):
            for sent in transaction.sent:
                offsets = places.get((sent.partition, sent.value))
                if not offsets:
                    continue
                key = (transaction.producer.transactional_id, sent.partition)
                offset, value = last.get(key, (-1, b""))
                if offset > offsets[0]:
                    text = f"{value!r} is at {offset} and {sent.value!r} at {offsets[0]}"
                    found.append(Anomaly("nonmonotonic-send", sent.partition, text))
                last[key] = (offsets[0], sent.value)
        return found

    def _realtime_order(
        self, places: Mapping[tuple[Partition, bytes | None], list[int]]
    ) -> list[Anomaly]:
        """Check that a transaction committed before another began comes before it."""
        found = []
        for partition in {
            sent.partition for transaction in self.transactions for sent in transaction.sent
        }:
            begun, ended = [], []
            for transaction in self.transactions:
                offsets = [
                    offset
                    for sent in transaction.sent
                    if sent.partition == partition
                    for offset in places.get((partition, sent.value), ())
                ]
                if not offsets:
                    continue
                begun.append((transaction.begun_s, min(offsets), transaction))
                if transaction.fate is Fate.COMMITTED and transaction.ended_s is not None:
                    ended.append((transaction.ended_s, max(offsets), transaction))
            begun.sort(key=lambda item: item[0])
            ended.sort(key=lambda item: item[0])
            at, highest, whose = 0, -1, ""
            for begun_s, first, transaction in begun:
                while at < len(ended) and ended[at][0] < begun_s:
                    if ended[at][1] > highest:
                        highest, whose = ended[at][1], ended[at][2].name
                    at += 1
                if highest > first:
                    text = f"{whose} at {highest} was committed before {transaction.name}"
                    text += f" at {first} was begun"
                    found.append(Anomaly("realtime-order", partition, text))
        return found

    def _of_reading(
        self, reading: CommittedReading, logs: Mapping[Partition, Log]
    ) -> list[Anomaly]:
        asked_s = {
            (sent.partition, sent.value): transaction.commit_asked_s
            for transaction in self.transactions
            for sent in transaction.sent
        }
        found = []
        for partition, records in reading.records.items():
            kept = dict(logs.get(partition, []))
            for (before, *_), (after, *_) in pairwise(records):
                if after <= before:
                    text = f"{reading.name} was given {after} after {before}"
                    found.append(Anomaly("nonmonotonic-poll", partition, text))
            for offset, value, read_s in records:
                if kept.get(offset, b"nothing") != value:
                    text = f"{reading.name} read {value!r} at {offset}"
                    found.append(Anomaly("dirty-read", partition, text))
                commit_s = asked_s.get((partition, value or b""))
                if commit_s is None or commit_s > read_s:
                    text = f"{reading.name} read {value!r} before its commit was asked for"
                    found.append(Anomaly("early-read", partition, text))
            missing = kept.keys() - {offset for offset, *_ in records}
            if missing:
                text = f"{reading.name} was not given {sorted(missing)[:5]} ({len(missing)} in all)"
                found.append(Anomaly("unseen", partition, text))
        return found

    def _of_positions(
        self,
        places: Mapping[tuple[Partition, bytes | None], list[int]],
        positions: Mapping[Partition, int],
    ) -> list[Anomaly]:
        """Check that a group's offsets are those of the transactions whose records are read."""
        expected: dict[Partition, int] = {}
        for transaction in self.transactions:
            if any((sent.partition, sent.value) in places for sent in transaction.sent):
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
