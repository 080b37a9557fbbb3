"""What a micro-batch reads: decided from offsets alone, without a broker and without Spark.

Four rules are worth knowing:

- A partition that the query does not know yet gets an empty share of the batch that finds it, so
  the offset it starts from is in the checkpoint before anything of it is read.  A batch that is run
  again after a crash therefore reads the same records, and planning one needs no broker.
- The same holds for a partition whose end lies before where the query stands, because its topic was
  made anew: the query goes on from its beginning.
- A limit is shared out by how much each partition has waiting, and nobody who has something waiting
  gets nothing, as Spark's Kafka source does it.
- Ranges are cut by numbers of offsets.  After compaction an offset may hold no record, so shares
  are estimates; no record is read twice or left out for that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor
from typing import NamedTuple

from hightide.spark.source.offsets import Offsets, TopicPartition, name, names

ADVICE = (
    "To go on with what is left, set the option failOnDataLoss to false; it is a good idea only if "
    "the missing records are not needed."
)
_log = logging.getLogger(__name__)


class Range(NamedTuple):
    """What one task reads of one partition; the end is exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    # Whether it is a loss if the log begins after the start; not when "the earliest" was asked for.
    must_have_start: bool = True

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Changes:
    """How what the brokers have differs from what a query knows."""

    added: frozenset[TopicPartition]
    gone: frozenset[TopicPartition]
    behind: frozenset[TopicPartition]

    @property
    def to_begin(self) -> frozenset[TopicPartition]:
        """The partitions that are read from their beginning."""
        return self.added | self.behind


def changes(known: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> Changes:
    return Changes(
        frozenset(latest.keys() - known.keys()),
        frozenset(known.keys() - latest.keys()),
        frozenset(
            partition
            for partition, offset in known.items()
            if latest.get(partition, offset) < offset
        ),
    )


def losses(
    known: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
) -> list[str]:
    """A sentence for everything that the query should have read and cannot any more.

    A topic that is new to the query just starts; a new partition of a topic that it already reads
    belongs to it from its first record on.
    """
    found = changes(known, latest)
    topics = {topic for topic, _ in known}
    said = []
    if found.gone:
        said.append(
            f"{names(set(found.gone))}: deleted or no longer subscribed to, "
            "although the query reads it."
        )
    for partition in sorted(found.behind):
        said.append(
            f"{name(partition)}: the query is at offset {known[partition]}, but the log ends at "
            f"{latest[partition]}. The topic was deleted and created again, or its log was "
            "truncated."
        )
    for partition in sorted(found.added):
        if partition[0] in topics and beginnings.get(partition, 0) > 0:
            said.append(
                f"{name(partition)}: a new partition whose log starts at offset "
                f"{beginnings[partition]}; its first records are gone."
            )
    return said


class DataLoss(Exception):
    """Records are gone that the query should have read; the text says which."""


def report_losses(losses: Sequence[str], *, fail: bool) -> None:
    """Say what is missing, and stop the query if that is wanted."""
    if not losses:
        return
    if fail:
        raise DataLoss(" ".join([*losses, ADVICE]))
    for loss in losses:
        _log.warning("Records are missing, and the query goes on without them. %s", loss)


def end_of_batch(
    known: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    limit: int | None = None,
) -> Offsets:
    """Where the next batch ends, which is where the one after it starts."""
    begins = changes(known, latest).to_begin
    moving = {
        partition: offset
        for partition, offset in known.items()
        if partition in latest and partition not in begins
    }
    return shared_out(moving, latest, limit) | {
        begin: beginnings[begin] for begin in begins if begin in beginnings
    }


def shared_out(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], limit: int | None
) -> Offsets:
    """The ends that leave about `limit` records between them and the start."""
    waiting = {partition: latest[partition] - offset for partition, offset in start.items()}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return {partition: latest[partition] for partition in start}
    ends = {}
    for partition, size in waiting.items():
        share = limit * size / total
        whole = ceil(share) if share < 1 else floor(share)
        ends[partition] = start[partition] + min(size, whole)
    return ends


def backlog(known: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """How many offsets a query has not read yet."""
    return sum(max(0, offset - known.get(partition, 0)) for partition, offset in latest.items())


def within(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> tuple[Offsets, Offsets, list[str]]:
    """What a batch wants, cut to what the logs have, and a sentence for each thing missing."""
    said = []
    for partition in sorted(start):
        begin, finish = earliest[partition], latest[partition]
        if start[partition] < begin:
            said.append(
                f"{name(partition)}: the batch starts at offset {start[partition]}, "
                f"but the log starts at {begin}."
            )
        for what, offset in (("starts", start[partition]), ("ends", end[partition])):
            if offset > finish:
                said.append(
                    f"{name(partition)}: the batch {what} at offset {offset}, "
                    f"but the log ends at {finish}."
                )
    return (
        {partition: max(offset, earliest[partition]) for partition, offset in start.items()},
        {partition: min(offset, latest[partition]) for partition, offset in end.items()},
        said,
    )


def ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    from_earliest: Iterable[TopicPartition] = (),
) -> list[Range]:
    """What lies between two offsets of a query."""
    lenient = set(from_earliest)
    return [
        Range(*partition, start[partition], offset, partition not in lenient)
        for partition, offset in sorted(end.items())
        if partition in start and start[partition] < offset
    ]


def split(
    given: Sequence[Range], *, at_least: int | None = None, records: int | None = None
) -> list[Range]:
    """Ranges for Spark's tasks: none with more than `records`, and about `at_least` in all.

    Small ranges stay whole.  The same ranges are always cut alike.
    """
    cut = list(given)
    if records is not None:
        cut = [part for piece in cut for part in divided(piece, -(-piece.size // records))]
    if at_least is None or len(cut) >= at_least:
        return cut
    whole = {piece for piece in cut if _parts(piece.size, _total(cut), at_least) == 1}
    large = [piece for piece in cut if piece not in whole]
    wanted = max(1, at_least - len(whole))
    return [
        part
        for piece in cut
        for part in divided(
            piece, 1 if piece in whole else _parts(piece.size, _total(large), wanted)
        )
    ]


def divided(given: Range, parts: int) -> list[Range]:
    """One range in parts whose sizes differ by one at most."""
    parts = max(1, min(parts, given.size))
    edges = [given.start + given.size * number // parts for number in range(parts + 1)]
    return [given._replace(start=first, end=last) for first, last in pairwise(edges)]


def _total(given: Iterable[Range]) -> int:
    return sum(piece.size for piece in given)


def _parts(size: int, total: int, wanted: int) -> int:
    return max(1, floor(size / total * wanted + 0.5))
