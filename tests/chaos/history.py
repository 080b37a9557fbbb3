"""The history of a run: what clients did and saw, and when faults came and went.

A history is a folder with one file for each process, `<process>.jsonl`.  A line is an operation:

    {"process": "confluent-kafka-writer.1", "type": "invoke", "f": "send", "value": …, "t_ns": …}

`type` is `invoke` before a request, then `ok` (it happened), `fail` (it did not happen) or `info`
(unknown).  `t_ns` is CLOCK_MONOTONIC, which all processes of a machine share.  An operation covers
runs of records, because a client sends and gets them in batches: an `invoke` is noted before the
first record of its run is sent, and an `ok` after the last one is acknowledged.

    f         type     value
    open      info     the process: {"role", "client", …}
    send      invoke   [partition, first, end, transaction]       numbers of records; -1: none
              ok       [partition, [[first, count, offset], …]]   offset -1: not known
              info     [partition, [[first, count], …]]
    poll      ok       [partition, [[offset, count, writer, number, transaction, source], …]]
              info     [partition, offset]                        a damaged record, or an error
    assign    ok       [partition, offset]                        the reader starts here
    end       ok       [partition, offset]                        the reader met the end marker
    final     ok       as poll                                    the log, after everything healed
    init      ok       transactional id                           the process owns the id now
    begin, abort       the number of a transaction
    commit             [number, {partition: offset}]              with the offsets of its group
    commit-offsets, committed   {partition: offset}               of a group
    died, error        info: a client could not continue, or got over an error

A partition is `topic-index`.  Records of one writer and one partition have the numbers 0, 1, 2 ….
A record's value names its writer, partition and number, and carries a checksum of itself.  The file
`nemesis.jsonl` has the faults: `f` is the name, `invoke` when the fault begins, `ok` or `info` when
it has healed or has not.  It also notes `leaders` ({partition: broker}), `client-ended`
({client, code}), `drain`, when the writers were asked to finish, and what was `missed` then.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

NEMESIS = "nemesis"
END_MARKER = "end"
"""The writer of the last record of each partition."""

# Errors after which a record was never written, whatever earlier attempts did.
NEVER_WRITTEN = frozenset(
    {
        "MESSAGE_TOO_LARGE",
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_RECORD",
        "INVALID_REQUIRED_ACKS",
        "INVALID_TOPIC_EXCEPTION",
        "INVALID_TIMESTAMP",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "_MSG_TOO_LARGE",
        "_QUEUE_FULL",
        "_INVALID_ARG",
        "_PURGE_QUEUE",
    }
)
# Errors that say so only about the attempt that they answer.
NOT_WRITTEN_NOW = frozenset(
    {
        "NOT_ENOUGH_REPLICAS",
        "POLICY_VIOLATION",
        "INVALID_PRODUCER_EPOCH",
        "PRODUCER_FENCED",
        "UNKNOWN_TOPIC_OR_PARTITION",
    }
)


def outcome(error: str, *, was_only_attempt: bool = False) -> str:
    """Return `fail` if the error proves that nothing was written, or else `info`.

    A client that retries reports its last error: an earlier attempt may have been written.
    Time-outs, lost connections, NOT_LEADER_OR_FOLLOWER and NOT_ENOUGH_REPLICAS_AFTER_APPEND never
    prove anything.
    """
    if error in NEVER_WRITTEN or (was_only_attempt and error in NOT_WRITTEN_NOW):
        return "fail"
    return "info"


# -- records -----------------------------------------------------------------------------------


class Payload(NamedTuple):
    """What a record's value says about itself."""

    writer: str
    partition: str
    number: int
    transaction: int = -1
    source: int = -1
    """The offset of the record that this record is a copy of."""


_PADDING = "abcdefghijklmnopqrstuvwxyz0123456789" * 32


def encode(payload: Payload, size: int = 0) -> bytes:
    """Return a value of about this size; it ends with a checksum of all the rest."""
    writer, partition, number, transaction, source = payload
    text = f"{writer}|{partition}|{number}|{transaction}|{source}|"
    missing = size - len(text) - 9
    if missing > 0:
        start = number % 36
        text += _PADDING[start : start + missing]
    body = text.encode()
    return b"%s|%08x" % (body, zlib.crc32(body))


def decode(value: bytes | None) -> Payload | None:
    """Return what the value says, or None if it is damaged."""
    if value is None or len(value) < 9:
        return None
    body, checksum = value[:-9], value[-8:]
    if b"%08x" % zlib.crc32(body) != checksum:
        return None
    fields = body.split(b"|", 5)
    if len(fields) < 5:
        return None
    return Payload(
        fields[0].decode(), fields[1].decode(), int(fields[2]), int(fields[3]), int(fields[4])
    )


# -- operations --------------------------------------------------------------------------------


class Operation(NamedTuple):
    process: str
    type: str
    f: str
    value: Any
    t_ns: int
    error: str = ""


class Recorder:
    """Appends the operations of one process to its file; every line is on its way to disk at
    once."""

    def __init__(self, folder: Path, process: str, now_ns: Any = time.monotonic_ns) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.process = process
        self._now_ns = now_ns
        self._file: TextIO = (folder / f"{process}.jsonl").open("a", encoding="utf-8", buffering=1)

    def note(self, type: str, f: str, value: Any, error: object = "", t_ns: int = 0) -> int:
        """Append an operation that happens now; return the time."""
        at = t_ns or self._now_ns()
        line = {"process": self.process, "type": type, "f": f, "value": value, "t_ns": at}
        if error:
            line["error"] = str(error)[:500]
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        return at

    def close(self) -> None:
        self._file.close()


def parsed(line: str | bytes) -> Operation | None:
    """Return the operation of a line, or None for the torn line of a killed process."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return Operation(**fields)


def operations(folder: Path) -> Iterator[Operation]:
    """Yield all operations, process by process, each in its order."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open("rb") as lines:
            for line in lines:
                found = parsed(line)
                if found is not None:
                    yield found


class Runs:
    """Joins records that follow each other in a log and in their writer's numbers."""

    def __init__(self) -> None:
        self._runs: dict[str, list[list[Any]]] = {}

    def add(self, partition: str, offset: int, found: Payload) -> None:
        runs = self._runs.setdefault(partition, [])
        if runs:
            first, count, writer, number, transaction, source = runs[-1]
            if (
                first + count == offset
                and writer == found.writer
                and number + count == found.number
                and transaction == found.transaction
                and (source + count if source >= 0 else -1) == found.source
            ):
                runs[-1][1] += 1
                return
        _, _, number, transaction, source = found
        runs.append([offset, 1, found.writer, number, transaction, source])

    def take(self) -> Iterable[tuple[str, list[list[Any]]]]:
        """Return and forget the runs of each partition."""
        runs, self._runs = self._runs, {}
        return runs.items()
