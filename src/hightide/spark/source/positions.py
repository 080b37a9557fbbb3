"""Where a query starts and ends, as options say it: everywhere the earliest or the latest, exact
offsets, or the first record that is not older than a time.

What has to be asked of the brokers and what follows from their answers are two functions without a
broker in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hightide.spark.source.offsets import EARLIEST, LATEST, Offsets, TopicPartition, name, names


class NoSuchOffset(Exception):
    """The options ask for a place that the log does not have."""


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The same end of the log, EARLIEST or LATEST, in each partition."""

    where: int


@dataclass(frozen=True, slots=True)
class Exactly:
    """An offset for each partition, or EARLIEST or LATEST."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Since:
    """The first record of each partition with this time or a later one."""

    # Milliseconds, one for all or one for each.
    timestamp_ms: int | Mapping[TopicPartition, int]
    # What to do where all records are older: go to the end of the log, or say so.
    latest_if_none: bool = False


Position = Everywhere | Exactly | Since


def is_settled(position: Position) -> bool:
    """Whether asking again later gives the same: the latest offset moves with each record."""
    match position:
        case Everywhere(where):
            return where != LATEST
        case Exactly(offsets):
            return LATEST not in offsets.values()
        case Since(latest_if_none=moves):
            return not moves


def questions(
    position: Position, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The timestamps to ask for with ListOffsets, where EARLIEST and LATEST are timestamps too."""
    wanted = set(partitions)
    match position:
        case Everywhere(where):
            return dict.fromkeys(sorted(wanted), where)
        case Exactly(offsets):
            check_all_named(offsets, wanted, "Offsets")
            return {each: offset for each, offset in sorted(offsets.items()) if offset < 0}
        case Since(timestamp_ms=int() as timestamp):
            return dict.fromkeys(sorted(wanted), timestamp)
        case Since(timestamp_ms=Mapping() as timestamps):
            check_all_named(timestamps, wanted, "Timestamps")
            return dict(sorted(timestamps.items()))
    raise AssertionError(position)


def resolved(
    position: Position,
    answers: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> Offsets:
    """The offsets that a position means, by the brokers' answers and the ends of the logs."""
    if isinstance(position, Exactly):
        return {
            each: answers[each] if offset < 0 else offset
            for each, offset in position.offsets.items()
        }
    found = dict(answers)
    for each, offset in answers.items():
        if offset >= 0:
            continue
        if isinstance(position, Since) and not position.latest_if_none:
            raise NoSuchOffset(
                f"{name(each)} has no record as new as the timestamp to start at. "
                'With startingOffsetsByTimestampStrategy "latest" it starts at the end of the log.'
            )
        found[each] = latest[each]
    return found


def check_all_named(
    given: Mapping[TopicPartition, int], wanted: set[TopicPartition], what: str
) -> None:
    """Options that name partitions have to name all of them, as Spark's Kafka source wants it."""
    missing, unknown = wanted - given.keys(), given.keys() - wanted
    if missing:
        raise NoSuchOffset(
            f"{what} are given by partition but not for {names(missing)}. "
            f"Name every partition; {EARLIEST} is the earliest offset and {LATEST} the latest."
        )
    if unknown:
        raise NoSuchOffset(f"{what} are given for {names(unknown)}, which the query does not read.")
