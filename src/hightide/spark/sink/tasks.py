"""What Spark's tasks do in a transaction: functions for `mapInArrow`, pickled to executors.

    Encode ──▶ record batches, each with the number of the task that is to write it
                  │ shuffled: each output partition is written by exactly one task
                  ▼
    Append ──▶ brokers

Sequence numbers count the records of one producer in one partition, so two tasks cannot write to
the same partition. Not rows are shuffled for that, but finished record batches: a hundred thousand
rows are a few pieces of a megabyte. A task that encodes contacts no broker, and Spark may run it
any number of times. A task that appends runs once: a second attempt refuses, because it is unknown
what the first has written. If one task has all rows, there is nothing to shuffle, and `Write` does
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from hightide.spark.blocking_client import Identity, shared_client
from hightide.spark.sink.delivery import DeliveredPartition, deliver
from hightide.spark.sink.row_routing import EncodedBatch, Routes, encoded

if TYPE_CHECKING:
    from pyspark import TaskContext

PIECES_BYTES = 4 << 20
PIECES = pa.schema(
    [
        ("task", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int32()),
        ("batch", pa.binary()),
    ]
)
PIECES_DDL = "task INT, topic STRING, partition INT, records INT, batch BINARY"
DELIVERED = pa.schema(
    [
        ("stage", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
DELIVERED_DDL = "stage INT, topic STRING, partition INT, records BIGINT, bytes BIGINT"


NOTHING = DeliveredPartition("", 0, 0, 0)
REPEATED = (
    "A task that had started to write to the transaction was run again. The whole batch is written "
    "again instead, in a new transaction."
)


class Repeated(Exception):
    """A task that wrote to a transaction was run again."""


@dataclass(frozen=True)
class Encode:
    """Rows → record batches."""

    routes: Routes
    tasks: int

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = first_numbers(self.routes.partitions)
        waiting: list[EncodedBatch] = []
        size = 0
        for batch in encoded(rows, self.routes, _context().partitionId()):
            waiting.append(batch)
            size += len(batch.batch)
            if size >= PIECES_BYTES:
                yield _pieces(waiting, first, self.tasks)
                waiting, size = [], 0
        if waiting:
            yield _pieces(waiting, first, self.tasks)


@dataclass(frozen=True)
class Append:
    """Record batches → brokers."""

    client: Mapping[str, str]
    name: str
    identity: Identity
    acks: int = -1

    def __call__(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield self.append(
            EncodedBatch(topic, partition, records, batch)
            for piece in pieces
            for topic, partition, records, batch in zip(
                *(piece.column(name).to_pylist() for name in PIECES.names[1:]), strict=True
            )
        )

    def append(self, batches: Iterable[EncodedBatch]) -> pa.RecordBatch:
        context = _context()
        if context.attemptNumber():
            raise Repeated(REPEATED)
        done = deliver(
            shared_client(self.client),
            batches,
            self.identity,
            transactional_id=self.name,
            acks=self.acks,
        )
        # A task that has written nothing still reports its stage.
        rows = [
            {"stage": context.stageId(), **asdict(partition)} for partition in done or [NOTHING]
        ]
        return pa.RecordBatch.from_pylist(rows, DELIVERED)


@dataclass(frozen=True)
class Write:
    """Rows → brokers, where one task has all rows."""

    routes: Routes
    append: Append

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield self.append.append(encoded(rows, self.routes, _context().partitionId()))


def first_numbers(partitions: Mapping[str, int]) -> dict[str, int]:
    """Number all partitions in one sequence; return the number of each topic's first."""
    found, following = {}, 0
    for topic in sorted(partitions):
        found[topic] = following
        following += partitions[topic]
    return found


def _pieces(batches: list[EncodedBatch], first: Mapping[str, int], tasks: int) -> pa.RecordBatch:
    columns = list(zip(*batches, strict=True))
    task = [(first[batch.topic] + batch.partition) % tasks for batch in batches]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip([task, *columns], PIECES, strict=True)
        ],
        schema=PIECES,
    )


def _context() -> TaskContext:
    from pyspark import TaskContext

    found = TaskContext.get()
    assert found is not None, "tasks run on executors"
    return found
