"""Offsets of many partitions, and the positions that options describe.

A query's progress is written as Spark's Kafka source writes it, `{"orders": {"0": 23, "1": 40}}`,
so checkpoints and progress reports look familiar. Spark compares offsets as text and runs a batch
when the text differs, so the order of partitions is always the same.

A position says where a query starts or ends: at the earliest or latest offset everywhere, at exact
offsets, or at the first record that is not older than a timestamp. `questions` says what to ask the
brokers, and `resolved` what follows from their answers; neither needs a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]
OffsetsJson = dict[str, dict[str, int]]

EARLIEST = -2
LATEST = -1

# The offsets of a query whose start is not decided yet. No topic has an empty name.
UNDECIDED: OffsetsJson = {"": {}}


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetsJson:
    """Return offsets in the form of the checkpoint."""
    found: OffsetsJson = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(text: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets that a checkpoint holds."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in text.items()
        for partition, offset in partitions.items()
    }


def name(where: TopicPartition) -> str:
    """Return a partition as it appears in messages."""
    return f"{where[0]}/{where[1]}"


def names(partitions: Mapping[TopicPartition, object] | set[TopicPartition]) -> str:
    return ", ".join(map(name, sorted(partitions)))


# -- positions: where a query starts and ends ---------------------------------------------------


class PositionError(Exception):
    """The options ask for a position that the log does not have."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The same end of the log, EARLIEST or LATEST, in each partition."""

    where: int


@dataclass(frozen=True, slots=True)
class ExactOffsets:
    """An offset for each partition, or EARLIEST or LATEST."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class SinceTimestamp:
    """The first record of each partition with this timestamp or a later one."""

    # One for all partitions, or one for each.
    timestamp_ms: int | Mapping[TopicPartition, int]
    # Where all records are older: start at the end of the log, or raise.
    latest_if_none: bool = False


Position = LogEnd | ExactOffsets | SinceTimestamp


def is_settled(position: Position) -> bool:
    """Return whether asking again later gives the same offsets; the latest offset moves."""
    match position:
        case LogEnd(where):
            return where != LATEST
        case ExactOffsets(offsets):
            return LATEST not in offsets.values()
        case SinceTimestamp(latest_if_none=moves):
            return not moves


def questions(
    position: Position, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the ListOffsets timestamps to ask for; EARLIEST and LATEST are among them."""
    wanted = set(partitions)
    match position:
        case LogEnd(where):
            return dict.fromkeys(sorted(wanted), where)
        case ExactOffsets(offsets):
            check_all_named(offsets, wanted, "Offsets")
            return {
                partition: offset for partition, offset in sorted(offsets.items()) if offset < 0
            }
        case SinceTimestamp(timestamp_ms=int() as timestamp):
            return dict.fromkeys(sorted(wanted), timestamp)
        case SinceTimestamp(timestamp_ms=Mapping() as timestamps):
            check_all_named(timestamps, wanted, "Timestamps")
            return dict(sorted(timestamps.items()))
    raise AssertionError(position)


def resolved(
    position: Position,
    answers: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> Offsets:
    """Return the offsets of a position, given the brokers' answers and the log ends."""
    if isinstance(position, ExactOffsets):
        return {
            partition: answers[partition] if offset < 0 else offset
            for partition, offset in position.offsets.items()
        }
    found = dict(answers)
    for partition, offset in answers.items():
        if offset >= 0:
            continue
        if isinstance(position, SinceTimestamp) and not position.latest_if_none:
            raise PositionError(
                f"{name(partition)} has no record at or after the starting timestamp. "
                'Set startingOffsetsByTimestampStrategy to "latest" to start at the end of the log.'
            )
        found[partition] = latest[partition]
    return found


def check_all_named(
    given: Mapping[TopicPartition, int], wanted: set[TopicPartition], what: str
) -> None:
    """Check that options by partition name all partitions, as Spark's Kafka source demands."""
    missing, unknown = wanted - given.keys(), given.keys() - wanted
    if missing:
        raise PositionError(
            f"{what} are missing for {names(missing)}. "
            f"Name every partition; {EARLIEST} is the earliest offset and {LATEST} the latest."
        )
    if unknown:
        raise PositionError(
            f"{what} are given for {names(unknown)}, which the query does not read."
        )
