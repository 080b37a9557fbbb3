"""`format("hightide")` as a sink: at least once, batch and streaming.

Each task writes to all partitions with its own idempotent producer. A task that Spark runs again
has another producer, so records of the first attempt are duplicated. Use `exactly_once` where that
matters. Spark makes the writer twice for every micro-batch, so it contacts no broker before it runs
on an executor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from hightide.spark.blocking_client import shared_client
from hightide.spark.sink.delivery import deliver
from hightide.spark.sink.row_routing import Routes, encoded
from hightide.spark.sink.rows import checked
from hightide.spark.sink.sink_options import OptionError, SinkOptions, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class TaskResult(WriterCommitMessage):
    """What a task has written."""

    records: int
    bytes: int


def write(options: SinkOptions, rows: Iterator[pa.RecordBatch]) -> TaskResult:
    """Write the rows of one task."""
    cluster = shared_client(options.client)
    counts = cluster.topics(None if options.topic is None else [options.topic])
    routes = Routes(counts, options.topic, options.codec, options.max_bytes)
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    batches = encoded(rows, routes, task)
    done = deliver(cluster, batches, cluster.producer(), acks=options.acks)
    return TaskResult(
        sum(partition.records for partition in done), sum(partition.bytes for partition in done)
    )


class BatchWriter(DataSourceArrowWriter):
    """`DataFrame.write.format("hightide")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = checked_options(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return write(self._options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """`DataFrame.writeStream.format("hightide")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = checked_options(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return write(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: records are written when a task ends."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: records cannot be taken back."""


def checked_options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Parse the options of a write, and check the columns of the rows."""
    options = parse(given)
    checked({field.name: field.dataType.simpleString() for field in schema.fields}, options.topic)
    return options


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    if overwrite:
        raise OptionError('A topic cannot be overwritten; use mode("append").')
    return BatchWriter(options, schema)


def stream_writer(
    options: Mapping[str, str], schema: StructType, _overwrite: bool
) -> DataSourceStreamArrowWriter:
    return StreamWriter(options, schema)
