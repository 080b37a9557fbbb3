"""`spark.readStream.format("hightide")`: what Spark asks of a source from batch to batch.

The reader lives in a Python process beside the driver while the query runs. Spark asks it one thing
at a time: where the next batch ends, then how it is split into tasks. Only the first needs brokers.

If a query starts at the latest offsets, its start must be stored before the first record is read,
or a crash in the first batch would move it. Spark stores only the ends of batches. So such a query
begins at `UNDECIDED`, and its first batch is empty and ends where the query starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from hightide.spark.source import batch_plan
from hightide.spark.source.batch_plan import report_losses
from hightide.spark.source.offsets import (
    LATEST,
    UNDECIDED,
    LogEnd,
    Offsets,
    OffsetsJson,
    TopicPartition,
    from_json,
    is_settled,
    to_json,
)
from hightide.spark.source.partitions import Partitions
from hightide.spark.source.progress import GroupProgress
from hightide.spark.source.reader import input_partitions, records
from hightide.spark.source.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source side of one streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._starting = options.starting or LogEnd(LATEST)
        self._partitions = Partitions(options)
        self._progress = GroupProgress(options.client, options.group)
        self._latest: Offsets | None = None
        # Set if the query ends at the current ends of the logs (availableNow).
        self._target: Offsets | None = None
        self._last_batch_at = float("-inf")

    def __reduce__(self) -> tuple[type[StreamReader], tuple[SourceOptions]]:
        """Pickle only the options: a task needs nothing else."""
        return StreamReader, (self._options,)

    # -- where batches start and end -------------------------------------------------------

    def initialOffset(self) -> OffsetsJson:
        self._partitions.check()
        if not is_settled(self._starting):
            return UNDECIDED
        return to_json(self._partitions.resolve(self._starting, self._ends({})))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._partitions.latest({})

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark takes only one limit and passes it back; the other one stays in the options.
        if self._options.max_offsets_per_trigger:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        known = from_json(start)
        # Spark asks when a batch is finished, so these offsets have been read.
        self._progress.reached(known)
        latest = self._latest = self._ends(known)
        if start == UNDECIDED:
            return to_json(self._partitions.resolve(self._starting, latest))
        begins = batch_plan.changes(known, latest).to_begin
        beginnings = self._partitions.earliest(begins)
        losses = batch_plan.losses(known, latest, beginnings)
        report_losses(losses, fail=self._options.fail_on_data_loss)
        if self._must_wait(known, latest, limit):
            return start
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_json(batch_plan.end_of_batch(known, latest, beginnings, rows))

    def reportLatestOffset(self) -> OffsetsJson | None:
        return None if self._latest is None else to_json(self._latest)

    def _ends(self, known: Mapping[TopicPartition, int]) -> Offsets:
        if self._target is None:
            return self._partitions.latest(known)
        if batch_plan.changes(known, self._target).behind:
            # These ends were asked for before the query's offsets were known.
            self._target = self._partitions.latest(known)
        return self._target

    def _must_wait(
        self,
        known: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        limit: ReadLimit,
    ) -> bool:
        """Return whether to wait for more records, because few are there and the last batch is
        recent.
        """
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        now = time.monotonic()
        since_ms = (now - self._last_batch_at) * 1000
        if (
            batch_plan.backlog(known, latest) < least
            and since_ms < self._options.max_trigger_delay_ms
        ):
            return True
        self._last_batch_at = now
        return False

    # -- what a batch reads ----------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return input_partitions(self._options, batch_plan.ranges(from_json(start), from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return records(self._options, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        self._progress.reached(from_json(end))
