"""Which offsets a micro-batch reads: decided from offsets alone, without a broker and without
Spark.

Four rules:

- A partition that is new to the query gets an empty share of the batch that finds it. So its start
  offset is in the checkpoint before any record is read. A batch that is run again after a crash
  reads the same records, and planning it needs no broker.
- The same holds for a partition whose log ends before the query's offset, because its topic was
  created again: the query continues at the beginning of the new log.
- A limit is shared out by the backlog of each partition, and every partition with a backlog gets
  something, as in Spark's Kafka source.
- Ranges are split by offsets. After compaction an offset may hold no record, so shares are
  estimates; no record is read twice or skipped because of that.
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
    "To continue without them, set the option failOnDataLoss to false, if the missing records are "
    "not needed."
)
_log = logging.getLogger(__name__)


class Range(NamedTuple):
    """What one task reads of one partition; the end is exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    # Whether it is a loss if the log starts later; not if "earliest" was asked for.
    must_have_start: bool = True

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Changes:
    """How the brokers' partitions differ from those that a query knows."""

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
    """Return a sentence for each thing that the query should have read and cannot read any more.

    A topic that is new to the query just starts; a new partition of a topic that the query already
    reads belongs to it from its first record.
    """
    found = changes(known, latest)
    topics = {topic for topic, _ in known}
    sentences = []
    if found.gone:
        sentences.append(
            f"{names(set(found.gone))}: deleted or no longer subscribed to, "
            "although the query reads it."
        )
    for partition in sorted(found.behind):
        sentences.append(
            f"{name(partition)}: the query is at offset {known[partition]}, but the log ends at "
            f"{latest[partition]}. The topic was deleted and created again, or its log was "
            "truncated."
        )
    for partition in sorted(found.added):
        if partition[0] in topics and beginnings.get(partition, 0) > 0:
            sentences.append(
                f"{name(partition)}: a new partition whose log starts at offset "
                f"{beginnings[partition]}; its first records are gone."
            )
    return sentences


class DataLoss(Exception):
    """Records that the query should have read are gone; the text says which."""


def report_losses(losses: Sequence[str], *, fail: bool) -> None:
    """Raise `DataLoss`, or warn if the query is to continue (failOnDataLoss=false)."""
    if not losses:
        return
    if fail:
        raise DataLoss(" ".join([*losses, ADVICE]))
    for loss in losses:
        _log.warning("Records are missing; the query continues without them. %s", loss)


def end_of_batch(
    known: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    limit: int | None = None,
) -> Offsets:
    """Return where the next batch ends, which is where the one after it starts."""
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
    """Return ends that leave about `limit` records between them and the start."""
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
    """Return how many offsets a query has not read yet."""
    return sum(max(0, offset - known.get(partition, 0)) for partition, offset in latest.items())


def within(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> tuple[Offsets, Offsets, list[str]]:
    """Clamp a batch to what the logs have, with a sentence for each missing part."""
    sentences = []
    for partition in sorted(start):
        begin, finish = earliest[partition], latest[partition]
        if start[partition] < begin:
            sentences.append(
                f"{name(partition)}: the batch starts at offset {start[partition]}, "
                f"but the log starts at {begin}."
            )
        for what, offset in (("starts", start[partition]), ("ends", end[partition])):
            if offset > finish:
                sentences.append(
                    f"{name(partition)}: the batch {what} at offset {offset}, "
                    f"but the log ends at {finish}."
                )
    return (
        {partition: max(offset, earliest[partition]) for partition, offset in start.items()},
        {partition: min(offset, latest[partition]) for partition, offset in end.items()},
        sentences,
    )


def ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    from_earliest: Iterable[TopicPartition] = (),
) -> list[Range]:
    """Return the ranges between two offsets of a query."""
    lenient = set(from_earliest)
    return [
        Range(*partition, start[partition], offset, partition not in lenient)
        for partition, offset in sorted(end.items())
        if partition in start and start[partition] < offset
    ]


def split(
    given: Sequence[Range], *, at_least: int | None = None, records: int | None = None
) -> list[Range]:
    """Split ranges for Spark's tasks: none with more than `records`, and about `at_least` in all.

    Small ranges stay whole. The same ranges are always split in the same way.
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
    """Divide a range into parts whose sizes differ by at most one."""
    parts = max(1, min(parts, given.size))
    edges = [given.start + given.size * number // parts for number in range(parts + 1)]
    return [given._replace(start=first, end=last) for first, last in pairwise(edges)]


def _total(given: Iterable[Range]) -> int:
    return sum(piece.size for piece in given)


def _parts(size: int, total: int, wanted: int) -> int:
    return max(1, floor(size / total * wanted + 0.5))
