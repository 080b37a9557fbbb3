"""`spark.read.format("hightide")`, and how a task reads its range of a partition.

The driver decides where a batch starts and ends. A task reads a range of offsets, decodes the
record batches to Arrow and passes them to Spark unchanged. Connections live as long as the Python
process, which Spark reuses from task to task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition

from hightide.spark.source import batch_plan
from hightide.spark.source.batch_plan import Range, report_losses
from hightide.spark.source.offsets import (
    EARLIEST,
    LATEST,
    ExactOffsets,
    LogEnd,
    Position,
    TopicPartition,
    name,
)
from hightide.spark.source.partitions import Partitions
from hightide.spark.source.source_options import SourceOptions
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    import pyarrow as pa

    from hightide.spark.blocking_client import OffsetOutOfRange


class LivePartitions(NamedTuple):
    """What one task of a live batch reads: whole partitions, as they are at that moment.

    The partition numbers alone decide which, so tasks that see different partition counts never
    read a partition twice.
    """

    number: int
    of: int

    def has(self, where: TopicPartition) -> bool:
        return where[1] % self.of == self.number


class BatchReader(DataSourceReader):
    """One batch query: the records between two positions when it is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        starting = options.starting or LogEnd(EARLIEST)
        found = Partitions(options)
        found.check()
        if options.is_live:
            count = 1 + max((partition for _, partition in found.now()), default=0)
            return [InputPartition(LivePartitions(number, count)) for number in range(count)]
        latest = found.latest({})
        earliest = found.earliest(latest)
        start = found.resolve(starting, latest)
        end = found.resolve(options.ending or LogEnd(LATEST), latest)
        start, end, losses = batch_plan.within(start, end, earliest, latest)
        report_losses(losses, fail=options.fail_on_data_loss)
        return input_partitions(
            options, batch_plan.ranges(start, end, at_earliest(starting, latest))
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        given = partition.value
        if isinstance(given, LivePartitions):
            return live_records(self._options, given)
        return records(self._options, given)


def at_earliest(position: Position, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions that start at the beginning of the log, whatever it is when read."""
    match position:
        case LogEnd(where):
            return set(partitions) if where == EARLIEST else set()
        case ExactOffsets(offsets):
            return {partition for partition, offset in offsets.items() if offset == EARLIEST}
    return set()


def input_partitions(options: SourceOptions, ranges: list[Range]) -> list[InputPartition]:
    """Return what Spark makes tasks of."""
    cut = batch_plan.split(
        ranges, at_least=options.min_partitions, records=options.max_records_per_partition
    )
    return [InputPartition(piece) for piece in cut]


def records(options: SourceOptions, given: Range | None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range as Arrow; none for None, for which Spark makes a task too."""
    if given is None:
        return
    # Importing these takes most of a second, and some of Spark's processes only plan.
    from hightide.client.fetcher import FETCH_BYTES
    from hightide.spark.blocking_client import OffsetOutOfRange, shared_client
    from hightide.spark.columns.decode import Decoder

    topic, partition, start, end, must_have_start = given
    decoder = Decoder(topic, partition, headers=options.headers, columns=options.columns)
    while start < end:
        fetching = shared_client(options.client).read(
            topic,
            partition,
            start,
            end,
            read_committed=options.read_committed,
            max_bytes=options.fetch_bytes or FETCH_BYTES,
        )
        try:
            for fetched in fetching:
                aborted = fetched.aborted if options.read_committed else None
                yield from decoder.feed(fetched.data, start, end, aborted)
            break
        except OffsetOutOfRange as gap:
            report_losses([describe_gap(gap)], fail=options.fail_on_data_loss and must_have_start)
            start = gap.log_start if gap.log_start > gap.offset else end
        except KafkaError as error:
            # The log has ended before the end of the range for so long that it will stay that way.
            if error.code != ErrorCode.OFFSET_NOT_AVAILABLE:
                raise
            report_losses([str(error)], fail=options.fail_on_data_loss)
            break
    yield from decoder.flush()


def live_records(options: SourceOptions, given: LivePartitions) -> Iterator[pa.RecordBatch]:
    """Yield a share of the topics as they are now, including partitions added since planning."""
    found = Partitions(options)
    latest = {where: end for where, end in found.latest({}).items() if given.has(where)}
    earliest = found.earliest(latest)
    for offsets in batch_plan.ranges(earliest, latest, latest):
        yield from records(options, offsets)


def describe_gap(gap: OffsetOutOfRange) -> str:
    where = name((gap.topic, gap.partition))
    if gap.offset < gap.log_start:
        return (
            f"{where}: offsets {gap.offset} to {gap.log_start - 1} are no longer in the log; "
            f"it starts at {gap.log_start}."
        )
    return f"{where}: there is no offset {gap.offset}; the log ends at {gap.log_end}."
