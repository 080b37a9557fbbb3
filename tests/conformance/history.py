"""The sends, responses and reads of clients in threads, checked against the log.

Writers note a `Send` before each record leaves them, and its outcome; readers note every record
with its offset.  At the end, `History.checked` hands that and the whole partitions to the checker
(`tests/chaos/checker.py`, which names the anomalies).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

from tests.chaos.checker import anomalies_of
from tests.chaos.facts import Facts
from tests.chaos.findings import joined
from tests.chaos.history import Operation

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
        facts = Facts.load(self._operations(logs))
        places = {name_of(partition): partition for partition in self._partitions(logs)}
        return [
            Anomaly(found.kind, places.get(found.partition, ("", -1)), found.text)
            for found in joined(anomalies_of(facts))
        ]

    def _partitions(self, logs: Iterable[Partition]) -> list[Partition]:
        return sorted({*logs, *(send.partition for send in self.sends.values())})

    def _operations(
        self, logs: Mapping[Partition, list[tuple[int, bytes | None]]]
    ) -> Iterator[Operation]:
        """Tell the history to the checker."""
        for writer in dict.fromkeys(send.writer for send in self.sends.values()):
            promises = {"durable": writer.is_durable, "idempotent": writer.is_idempotent}
            yield Operation(writer.name, "info", "open", {"role": "writer", **promises}, 0)
        for send in self.sends.values():
            yield from _operations_of(send)
        for number, reading in enumerate(self.readings):
            process = f"{reading.name}, reader {number}"
            yield Operation(process, "info", "open", {"role": "reader"}, 0)
            for error in reading.errors:
                yield Operation(process, "info", "poll", ["", -1], 0, error)
            for partition, records in reading.records.items():
                name = name_of(partition)
                if not records:
                    continue
                yield Operation(process, "ok", "assign", [name, records[0][0]], 0)
                yield Operation(process, "ok", "poll", [name, self._runs(partition, records)], 0)
                yield Operation(process, "ok", "end", [name, -1], 0)
        yield Operation("final", "info", "open", {"role": "final"}, 0)
        for partition in self._partitions(logs):
            name, log = name_of(partition), logs.get(partition, [])
            yield Operation("final", "ok", "final", [name, self._runs(partition, log)], 0)
            yield Operation("final", "ok", "end", [name, -1], 0)

    def _runs(
        self, partition: Partition, records: Iterable[tuple[int, bytes | None]]
    ) -> list[list[Any]]:
        runs = []
        for offset, value in records:
            send = self.sends.get(value or b"")
            if send is not None and send.partition == partition:
                runs.append([offset, 1, send.writer.name, send.number, -1, -1])
            else:
                runs.append([offset, 1, f"the sender of {value!r}", 0, -1, -1])
        return runs


def name_of(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _operations_of(send: Send) -> Iterator[Operation]:
    name, process, number = name_of(send.partition), send.writer.name, send.number
    begun_ns = int(send.begun_s * 1e9)
    yield Operation(process, "invoke", "send", [name, number, number + 1, -1], begun_ns)
    ended_ns = int(send.ended_s * 1e9) if send.ended_s is not None else 0
    if send.outcome is Outcome.ACKED:
        runs = [[number, 1, -1 if send.offset is None else send.offset]]
        yield Operation(process, "ok", "send", [name, runs], ended_ns)
    elif send.outcome is Outcome.REFUSED:
        yield Operation(process, "fail", "send", [name, [[number, 1]]], ended_ns, send.error)
