"""The sends, responses and reads of clients, checked against the log.

Writers note a `Send` before each record leaves them, and its outcome; readers note every record
with its offset.  At the end, `History.checked` compares that with the whole partitions.  It knows
nothing of brokers: it checks Kafka's guarantees alone.  Anomalies have the names that Jepsen gave
them.

    lost-write              acknowledged by all replicas, and not in the log
    inconsistent-offsets    a client's value at an offset is not the value in the log
    duplicate               an idempotent writer's record is there twice
    nonmonotonic-send       an idempotent writer's records are not in the order of its sends
    realtime-order          acknowledged before the other was sent, and behind it in the log
    refused-write           refused for good, and written
    phantom                 in the log, and sent by no producer
    hole                    an offset of the log without a record
    nonmonotonic-poll       a reader got an offset again, or one before
    poll-skip               a reader did not get an offset
    unseen                  a reader waited for the end and did not get it
    reader-error            a reader got an error that it could not recover from
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

Partition = tuple[str, int]


class Outcome(Enum):
    """The outcome of a send.  UNKNOWN may have been written, or may be written later."""

    UNKNOWN = "unknown"
    ACKED = "acked"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer, and the guarantees of its settings."""

    name: str
    is_durable: bool = True
    """It writes with acks=all."""
    is_idempotent: bool = True


@dataclass(slots=True, eq=False)
class Send:
    writer: Writer
    partition: Partition
    number: int
    value: bytes
    begun_s: float
    ended_s: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    """The acknowledged offset; not every client reports it."""
    error: str = ""


class Anomaly(NamedTuple):
    kind: str
    partition: Partition
    detail: str


class AnomaliesFound(AssertionError):
    """A history that no correct log explains."""


@dataclass(slots=True)
class Reading:
    """The records that one reader got, by partition and in order."""

    name: str
    records: dict[Partition, list[tuple[int, bytes | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    errors: list[str] = field(default_factory=list)

    def next_offset(self, partition: Partition) -> int:
        records = self.records.get(partition)
        return records[-1][0] + 1 if records else 0


class History:
    """Events that many threads note, and one thread checks at the end."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self.sends: dict[bytes, Send] = {}
        self.readings: list[Reading] = []
        self._numbers: dict[tuple[Writer, Partition], int] = defaultdict(int)

    # -- noting ----------------------------------------------------------------------------

    def send(self, writer: Writer, topic: str, index: int) -> Send:
        """A record is about to be sent; its value is unique."""
        with self._lock:
            number = self._numbers[writer, (topic, index)]
            self._numbers[writer, (topic, index)] = number + 1
            value = f"{writer.name}/{index}/{number}".encode()
            made = Send(writer, (topic, index), number, value, self._now_s())
            assert value not in self.sends, "two writers have one name"
            self.sends[value] = made
        return made

    def acked(self, send: Send, offset: int | None = None) -> None:
        # Clients report an unknown offset as a negative one.
        send.offset = offset if offset is not None and offset >= 0 else None
        send.ended_s = self._now_s()
        send.outcome = Outcome.ACKED

    def refused(self, send: Send, error: object) -> None:
        """It was refused before it was written, and will not be sent again."""
        send.error = str(error)
        send.ended_s = self._now_s()
        send.outcome = Outcome.REFUSED

    def failed(self, send: Send, error: object) -> None:
        """The writer gave up; one of its attempts may have succeeded."""
        send.error = str(error) or type(error).__name__
        send.ended_s = self._now_s()

    def reader(self, name: str) -> Reading:
        made = Reading(name)
        with self._lock:
            self.readings.append(made)
        return made

    # -- figures ---------------------------------------------------------------------------

    def acked_sends(self) -> list[Send]:
        return [send for send in list(self.sends.values()) if send.outcome is Outcome.ACKED]

    def unacked_sends(self) -> list[Send]:
        return [send for send in list(self.sends.values()) if send.outcome is not Outcome.ACKED]

    def ends(self) -> dict[Partition, int]:
        """Return, per partition, the log end that the acknowledged offsets prove."""
        found: dict[Partition, int] = defaultdict(int)
        for send in self.acked_sends():
            if send.offset is not None:
                found[send.partition] = max(found[send.partition], send.offset + 1)
        return dict(found)

    def stalls_s(self, since_s: float = 0.0) -> dict[Partition, float]:
        """Return, per partition, the longest time between two acknowledgements, one since then.

        Only sends of durable writers count.
        """
        times: dict[Partition, list[float]] = defaultdict(list)
        for send in self.acked_sends():
            # A send without an offset was noted when the client ended.
            if send.writer.is_durable and send.offset is not None and send.ended_s is not None:
                times[send.partition].append(send.ended_s)
        return {
            partition: max(
                (after - before for before, after in pairwise(sorted(found)) if after >= since_s),
                default=0.0,
            )
            for partition, found in times.items()
        }

    # -- checks ----------------------------------------------------------------------------

    def checked(self, logs: Mapping[Partition, list[tuple[int, bytes | None]]]) -> None:
        """Raise AnomaliesFound unless these partitions, read to their ends, explain everything."""
        found = self.anomalies(logs)
        if found:
            shown = "\n".join(f"  {kind} in {where}: {text}" for kind, where, text in found[:40])
            raise AnomaliesFound(f"{len(found)} anomalies:\n{shown}")

    def anomalies(self, logs: Mapping[Partition, list[tuple[int, bytes | None]]]) -> list[Anomaly]:
        sends: dict[Partition, list[Send]] = defaultdict(list)
        for send in self.sends.values():
            sends[send.partition].append(send)
        found = []
        for partition in sorted({*sends, *logs}):
            log = logs.get(partition, [])
            found += self._of_log(partition, log)
            found += self._of_sends(partition, sends[partition], log)
            for reading in self.readings:
                found += self._of_reading(partition, reading, log)
        for reading in self.readings:
            found += [
                Anomaly("reader-error", ("", -1), f"{reading.name}: {e}") for e in reading.errors
            ]
        return found

    def _of_log(self, partition: Partition, log: list[tuple[int, bytes | None]]) -> list[Anomaly]:
        found = []
        for expected, (offset, value) in enumerate(log):
            if offset != expected:
                found.append(Anomaly("hole", partition, f"{expected} is followed by {offset}"))
                break
            send = self.sends.get(value or b"")
            if send is None or send.partition != partition:
                found.append(Anomaly("phantom", partition, f"{value!r} at {offset}"))
            elif send.outcome is Outcome.REFUSED:
                text = f"{value!r} at {offset} was refused: {send.error}"
                found.append(Anomaly("refused-write", partition, text))
        return found

    def _of_sends(
        self, partition: Partition, sends: list[Send], log: list[tuple[int, bytes | None]]
    ) -> list[Anomaly]:
        places: dict[bytes | None, list[int]] = defaultdict(list)
        for offset, value in log:
            places[value].append(offset)
        found = []
        for send in sends:
            at = places.get(send.value, [])
            if send.outcome is Outcome.ACKED and send.writer.is_durable and not at:
                text = f"{send.value!r}, acknowledged with offset {send.offset}"
                found.append(Anomaly("lost-write", partition, text))
            if at and send.outcome is Outcome.ACKED and send.offset not in (None, *at):
                text = f"{send.value!r} was acknowledged with {send.offset} and is at {at}"
                found.append(Anomaly("inconsistent-offsets", partition, text))
            if send.writer.is_idempotent and len(at) > 1:
                found.append(Anomaly("duplicate", partition, f"{send.value!r} is at {at}"))
        placed = [(send, places[send.value][0]) for send in sends if send.value in places]
        return found + _order_of_each(partition, placed) + _realtime_order(partition, placed)

    def _of_reading(
        self, partition: Partition, reading: Reading, log: list[tuple[int, bytes | None]]
    ) -> list[Anomaly]:
        records = reading.records.get(partition)
        if records is None:
            return []
        found = []
        kept = dict(log)
        for expected, (offset, _) in enumerate(records, start=records[0][0]):
            if offset != expected:
                kind = "poll-skip" if offset > expected else "nonmonotonic-poll"
                text = f"{reading.name} was given {offset} after {expected - 1}"
                found.append(Anomaly(kind, partition, text))
                break
        for offset, value in records:
            if offset not in kept or kept[offset] != value:
                text = f"{reading.name} read {value!r} at {offset}, where {kept.get(offset)!r} is"
                found.append(Anomaly("inconsistent-offsets", partition, text))
        end = log[-1][0] + 1 if log else 0
        if reading.next_offset(partition) < end:
            text = f"{reading.name} came to {reading.next_offset(partition)} of {end}"
            found.append(Anomaly("unseen", partition, text))
        return found


def _order_of_each(partition: Partition, placed: Iterable[tuple[Send, int]]) -> list[Anomaly]:
    """Check that sends are in the order in which they began."""
    found = []
    last: dict[Writer, tuple[Send, int]] = {}
    for send, offset in placed:
        if not send.writer.is_idempotent:
            continue
        before = last.get(send.writer)
        if before is not None and before[1] > offset:
            text = f"{before[0].value!r} is at {before[1]} and {send.value!r} at {offset}"
            found.append(Anomaly("nonmonotonic-send", partition, text))
        last[send.writer] = (send, offset)
    return found


def _realtime_order(partition: Partition, placed: list[tuple[Send, int]]) -> list[Anomaly]:
    ended = sorted(
        (
            (send.ended_s, offset, send)
            for send, offset in placed
            if send.outcome is Outcome.ACKED and send.ended_s is not None
        ),
        key=lambda item: item[0],
    )
    found = []
    at, highest = 0, (-1, b"")
    for send, offset in sorted(placed, key=lambda item: item[0].begun_s):
        while at < len(ended) and ended[at][0] < send.begun_s:
            highest = max(highest, (ended[at][1], ended[at][2].value))
            at += 1
        if highest[0] > offset:
            text = (
                f"{highest[1]!r} at {highest[0]} was acknowledged before {send.value!r} was sent,"
            )
            found.append(Anomaly("realtime-order", partition, f"{text} which is at {offset}"))
    return found
