"""The options of the source, with the names and meanings of Spark's Kafka source.

Options are checked before anything runs. What Spark's source refuses is refused, with an
alternative; an unknown name is an error. Three things are Hightide's own: `columns` leaves out what
a query does not need, because Spark asks a Python source for all columns; `group.id` is short for
`kafka.group.id`; and a batch may end "live", because Spark plans the static side of a stream join
only once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from hightide.spark.source.offsets import (
    EARLIEST,
    LATEST,
    ExactOffsets,
    LogEnd,
    Position,
    SinceTimestamp,
    TopicPartition,
    name,
)

T = TypeVar("T")

# By their lower-case form, because options are not case-sensitive.
NAMES = {
    option.lower(): option
    for option in (
        "subscribe",
        "subscribePattern",
        "assign",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "includeHeaders",
        "columns",
        "group.id",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        # Accepted without effect: this source waits for an election as long as it takes, and
        # commits only to a group that is named.
        "kafkaConsumer.pollTimeoutMs",
        "groupIdPrefix",
    )
}
PREFIX = "kafka."
# The end of a batch is the log end when a task reads it, not when the tasks are planned.
LIVE = "live"
# Consumer properties that the source itself uses.
OURS = ("group.id", "isolation.level", "max.partition.fetch.bytes", "metadata.max.age.ms")
REFUSED = {
    "auto.offset.reset": "startingOffsets says where to start, the checkpoint where to continue",
    "key.deserializer": "keys come as bytes; decode them with functions of the DataFrame",
    "value.deserializer": "values come as bytes; decode them with functions of the DataFrame",
    "enable.auto.commit": "the checkpoint holds the progress; kafka.group.id shows it to tools",
    "interceptor.classes": "interceptors could change records; transform the DataFrame instead",
}
UNITS_MS = {
    "us": 0.001,
    "ms": 1,
    "": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class OptionError(ValueError):
    """An option with a wrong name or value; the text says which and what to write."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions a query reads; one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of one read, with their defaults."""

    # Properties of the connection, without the prefix "kafka.".
    client: Mapping[str, str]
    subscription: Subscription
    # None by default: a stream starts at the latest offset and a batch at the earliest.
    starting: Position | None = None
    ending: Position | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    headers: bool = False
    columns: tuple[str, ...] | None = None
    read_committed: bool = False
    group: str | None = None
    retries: int = 3
    retry_interval_ms: int = 1000
    metadata_age_ms: int = 1000
    fetch_bytes: int | None = None
    # Whether each task of a batch asks for the log ends itself when it reads.
    is_live: bool = False


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read; raise `OptionError` if one is wrong."""
    options = {key.lower(): value for key, value in given.items()}
    check_names(options)
    minimum = _number(options, "minOffsetsPerTrigger", least=1)
    maximum = _number(options, "maxOffsetsPerTrigger", least=1)
    if minimum and maximum and minimum > maximum:
        raise OptionError(
            f"minOffsetsPerTrigger is {minimum}, more than maxOffsetsPerTrigger, {maximum}."
        )
    columns = _columns(options)
    return SourceOptions(
        client=client_properties(options),
        subscription=_subscription(options),
        starting=_position(options, "starting"),
        ending=_position(options, "ending"),
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=_read(options, "maxTriggerDelay", duration_ms, 15 * 60_000),
        min_partitions=_number(options, "minPartitions", least=1),
        max_records_per_partition=_number(options, "maxRecordsPerPartition", least=1),
        fail_on_data_loss=_read(options, "failOnDataLoss", _boolean, True),
        headers=_read(options, "includeHeaders", _boolean, False) or "headers" in (columns or ()),
        columns=columns,
        read_committed=_read(options, "kafka.isolation.level", _is_read_committed, False),
        group=options.get("group.id") or options.get("kafka.group.id"),
        retries=_number(options, "fetchOffset.numRetries", least=1) or 3,
        retry_interval_ms=_read(options, "fetchOffset.retryIntervalMs", duration_ms, 1000),
        metadata_age_ms=_read(options, "kafka.metadata.max.age.ms", duration_ms, 1000),
        is_live=_is_live(options),
        fetch_bytes=_number(options, "kafka.max.partition.fetch.bytes", least=1),
    )


def for_stream(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of `spark.readStream`."""
    options = parse(given)
    if options.ending is not None:
        raise OptionError(
            "A stream has no end; ending offsets and timestamps are options of spark.read."
        )
    return options


def for_batch(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of `spark.read`."""
    options = parse(given)
    for position, wrong, words in (
        (options.starting, LATEST, "start at the latest offset"),
        (options.ending, EARLIEST, "end at the earliest offset"),
    ):
        if position == LogEnd(wrong):
            raise OptionError(f"A batch cannot {words}: it would be empty.")
        if isinstance(position, ExactOffsets) and wrong in position.offsets.values():
            where = next(key for key, value in position.offsets.items() if value == wrong)
            raise OptionError(f"A batch cannot {words} in {name(where)}: it would be empty.")
    _check_order(options.starting, options.ending)
    return options


def _check_order(starting: Position | None, ending: Position | None) -> None:
    """Refuse a batch that ends before it starts."""
    match starting, ending:
        case SinceTimestamp(timestamp_ms=int() as first), SinceTimestamp(
            timestamp_ms=int() as last
        ) if first > last:
            raise OptionError(f"The batch starts at timestamp {first}, after its end at {last}.")
        case ExactOffsets(first_offsets), ExactOffsets(last_offsets):
            for where, offset in sorted(first_offsets.items()):
                if offset > last_offsets.get(where, offset) >= 0:
                    raise OptionError(
                        f"The batch starts at offset {offset} of {name(where)}, after its end at "
                        f"{last_offsets[where]}."
                    )


# -- names -----------------------------------------------------------------------------------


def check_names(options: Mapping[str, str]) -> None:
    for key in options:
        if key.startswith(PREFIX):
            refused = REFUSED.get(key.removeprefix(PREFIX))
            if refused:
                raise OptionError(f"The option {key} is not for Spark: {refused}.")
        elif key not in NAMES:
            raise OptionError(f"There is no option {key!r} of the source. {_advice(key)}")


def _advice(key: str) -> str:
    if key == "topic":
        return "To read a topic, set subscribe to its name; topic is an option of the sink."
    if key in ("bootstrap.servers", "security.protocol") or key.startswith(("sasl.", "ssl.")):
        return f"Client properties need the prefix {PREFIX}: {PREFIX}{key}."
    near = get_close_matches(key, NAMES, 1)
    if near:
        return f"Did you mean {NAMES[near[0]]}?"
    return f"It takes {', '.join(sorted(NAMES.values()))}, and {PREFIX}* for the client."


def client_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the client properties: the options with the prefix, without the prefix."""
    found = {
        key.removeprefix(PREFIX): value
        for key, value in options.items()
        if key.startswith(PREFIX) and key.removeprefix(PREFIX) not in OURS
    }
    if not found.get("bootstrap.servers", "").strip():
        raise OptionError(
            "kafka.bootstrap.servers is missing; set it, for example to localhost:9092."
        )
    return found


# -- values ----------------------------------------------------------------------------------


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [key for key in ("subscribe", "subscribepattern", "assign") if key in options]
    if len(given) != 1:
        found = "none is" if not given else f"{' and '.join(NAMES[key] for key in given)} are"
        raise OptionError(
            f"Set exactly one of subscribe, subscribePattern and assign; {found} set."
        )
    text = options[given[0]].strip()
    match given[0]:
        case "subscribe":
            topics = tuple(sorted({topic.strip() for topic in text.split(",")} - {""}))
            if topics:
                return Subscription(topics=topics)
        case "subscribepattern":
            try:
                re.compile(text)
            except re.error as error:
                raise OptionError(
                    f"subscribePattern is not a regular expression: {text!r}: {error}."
                ) from None
            if text:
                return Subscription(pattern=text)
        case "assign":
            nothing: tuple[TopicPartition, ...] = ()
            partitions = _read(options, "assign", _assigned, nothing)
            if partitions:
                return Subscription(partitions=partitions)
    raise OptionError(f"The option {NAMES[given[0]]} names no topic.")


def _position(options: Mapping[str, str], end: str) -> Position | None:
    """Return where to start or end, by the option with the highest precedence."""
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError(
            f'startingOffsetsByTimestampStrategy is "error" or "latest", not {strategy!r}.'
        )
    # If no record is new enough, a start is an error, but an end is the end of the log.
    latest = end == "ending" or strategy == "latest"
    timestamp = _number(options, f"{end}Timestamp", least=0)
    if timestamp is not None:
        return SinceTimestamp(timestamp, latest)
    timestamps = _read(options, f"{end}OffsetsByTimestamp", _by_partition, None)
    if timestamps is not None:
        return SinceTimestamp(timestamps, latest)
    if end == "ending" and options.get("endingoffsets", "").strip().lower() == LIVE:
        return LogEnd(LATEST)
    return _read(options, f"{end}Offsets", _offsets, None)


def _is_live(options: Mapping[str, str]) -> bool:
    if options.get("endingoffsets", "").strip().lower() != LIVE:
        return False
    if _position(options, "starting") not in (None, LogEnd(EARLIEST)):
        raise OptionError(
            f'endingOffsets "{LIVE}" reads whole logs; startingOffsets must be earliest.'
        )
    return True


def _offsets(text: str) -> Position:
    if text.lower() == "earliest":
        return LogEnd(EARLIEST)
    if text.lower() == "latest":
        return LogEnd(LATEST)
    offsets = _by_partition(text)
    for where, offset in offsets.items():
        if offset < EARLIEST:
            raise ValueError(f"{name(where)} has offset {offset}")
    return ExactOffsets(offsets)


def _by_partition(text: str) -> dict[TopicPartition, int]:
    try:
        return {
            (topic, int(partition)): int(value)
            for topic, partitions in json.loads(text).items()
            for partition, value in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ValueError('expected the form {"topic": {"0": 23, "1": -2}}') from None


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        return tuple(
            sorted(
                {
                    (topic, int(partition))
                    for topic, partitions in json.loads(text).items()
                    for partition in partitions
                }
            )
        )
    except (ValueError, TypeError, AttributeError):
        raise ValueError('expected the form {"topic": [0, 1]}') from None


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    if "columns" not in options:
        return None
    from hightide.spark.columns.record_schema import COLUMNS

    known = {column.lower(): column for column in (*COLUMNS, "headers")}
    wanted = [column.strip().lower() for column in options["columns"].split(",") if column.strip()]
    unknown = [column for column in wanted if column not in known]
    if unknown or not wanted:
        raise OptionError(
            f"columns is a list of {', '.join(known.values())}"
            + (f"; there is no {', '.join(unknown)}." if unknown else ", and here it is empty.")
        )
    return tuple(known[column] for column in dict.fromkeys(wanted))


def _is_read_committed(text: str) -> bool:
    if text.lower() not in ("read_committed", "read_uncommitted"):
        raise ValueError("it is read_committed or read_uncommitted")
    return text.lower() == "read_committed"


def _read(options: Mapping[str, str], option: str, how: Callable[[str], T], default: T) -> T:
    text = options.get(option.lower())
    if text is None:
        return default
    try:
        return how(text.strip())
    except ValueError as error:
        raise OptionError(f"The option {option} is {text!r}: {error}.") from None


def _number(options: Mapping[str, str], option: str, *, least: int) -> int | None:
    def number(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text) or int(text) < least:
            raise ValueError(f"it must be a whole number, at least {least}")
        return int(text)

    return _read(options, option, number, None)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


def duration_ms(text: str) -> int:
    """Parse a duration of Spark: 100ms, 30s, 15m, 2h; a plain number is milliseconds."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if not found or found[2] not in UNITS_MS:
        raise ValueError("it is not a duration such as 100ms, 30s or 15m")
    return int(int(found[1]) * UNITS_MS[found[2]])
