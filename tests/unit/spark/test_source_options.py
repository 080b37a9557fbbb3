"""Options of the source: what users write, what it means, and the errors."""

from __future__ import annotations

import pytest

from hightide.spark.source.offsets import ExactOffsets, LogEnd, SinceTimestamp
from hightide.spark.source.source_options import (
    OptionError,
    Subscription,
    duration_ms,
    for_batch,
    for_stream,
    parse,
)

PLAIN = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
EARLIEST, LATEST = -2, -1


def test_the_names_of_options_are_not_case_sensitive() -> None:
    options = parse(
        {"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": "t", "maxoffsetspertrigger": "5"}
    )
    assert options.client == {"bootstrap.servers": "a:1"}
    assert options.max_offsets_per_trigger == 5


def test_what_is_not_said_has_the_defaults_of_sparks_kafka_source() -> None:
    options = parse(PLAIN)
    assert options.starting is None
    assert options.fail_on_data_loss
    assert not options.headers
    assert not options.read_committed
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.group is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"subscribe": " a, b ,a"}, Subscription(topics=("a", "b"))),
        ({"subscribePattern": "orders-.*"}, Subscription(pattern="orders-.*")),
        ({"assign": '{"t": [1, 0]}'}, Subscription(partitions=(("t", 0), ("t", 1)))),
    ],
)
def test_partitions_are_chosen_by_one_of_three_options(
    given: dict[str, str], meant: Subscription
) -> None:
    assert parse({"kafka.bootstrap.servers": "a:1"} | given).subscription == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"startingOffsets": "Earliest"}, LogEnd(EARLIEST)),
        ({"startingOffsets": "latest"}, LogEnd(LATEST)),
        (
            {"startingOffsets": '{"t": {"0": 23, "1": -2}}'},
            ExactOffsets({("t", 0): 23, ("t", 1): EARLIEST}),
        ),
        ({"startingTimestamp": "1000"}, SinceTimestamp(1000)),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 7}}'}, SinceTimestamp({("t", 0): 7})),
        (
            {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "LATEST"},
            SinceTimestamp(1, latest_if_none=True),
        ),
        # A timestamp for all takes precedence over one for each, and both over offsets.
        (
            {
                "startingTimestamp": "1",
                "startingOffsetsByTimestamp": '{"t": {"0": 2}}',
                "startingOffsets": "earliest",
            },
            SinceTimestamp(1),
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 2}}', "startingOffsets": "latest"},
            SinceTimestamp({("t", 0): 2}),
        ),
    ],
)
def test_a_start_can_be_said_in_many_ways(given: dict[str, str], meant: object) -> None:
    assert parse(PLAIN | given).starting == meant


def test_an_end_by_timestamp_is_the_end_of_the_log_where_all_is_older() -> None:
    assert for_batch(PLAIN | {"endingTimestamp": "9"}).ending == SinceTimestamp(
        9, latest_if_none=True
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({"kafka.key.deserializer": "x"}, "keys come as bytes"),
        ({"kafka.value.deserializer": "x"}, "values come as bytes"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.group.id"),
        ({"kafka.interceptor.classes": "x"}, "interceptors"),
        ({"startingOffset": "earliest"}, "Did you mean startingOffsets"),
        ({"topic": "orders"}, "is an option of the sink"),
        ({"bootstrap.servers": "a:1"}, "kafka.bootstrap.servers"),
        ({"nonsense": "1"}, "no option 'nonsense'.*It takes .*subscribePattern"),
        ({"assign": '{"t": [0]}'}, "subscribe and assign are set"),
        ({"subscribe": " , "}, "names no topic"),
        ({"startingOffsets": "begin"}, r'startingOffsets is .begin.*\{"topic"'),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "t/0 has offset -3"),
        ({"startingTimestamp": "soon"}, "whole number"),
        ({"startingOffsetsByTimestampStrategy": "first"}, '"error" or "latest"'),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "more than"),
        ({"maxTriggerDelay": "a while"}, "100ms, 30s or 15m"),
        ({"minPartitions": "-1"}, "at least 1"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
        ({"columns": "value,colour"}, "there is no colour"),
        ({"columns": " "}, "empty"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(PLAIN | given)


def test_brokers_and_topics_have_to_be_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        parse({"subscribe": "t"})
    with pytest.raises(OptionError, match="none is set"):
        parse({"kafka.bootstrap.servers": "a:1"})
    with pytest.raises(OptionError, match="not a regular expression"):
        parse({"kafka.bootstrap.servers": "a:1", "subscribePattern": "("})
    with pytest.raises(OptionError, match=r'\{"topic": \[0, 1\]\}'):
        parse({"kafka.bootstrap.servers": "a:1", "assign": "t"})


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="no end"):
        for_stream(PLAIN | {"endingOffsets": "latest"})
    with pytest.raises(OptionError, match="no end"):
        for_stream(PLAIN | {"endingTimestamp": "5"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "latest"}, "start at the latest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "start at the latest offset in t/0"),
        ({"endingOffsets": "earliest"}, "end at the earliest"),
        ({"endingOffsets": '{"t": {"1": -2}}'}, "end at the earliest offset in t/1"),
        (
            {"startingOffsets": '{"t": {"0": 9}}', "endingOffsets": '{"t": {"0": 5}}'},
            "starts at offset 9 of t/0, after its end at 5",
        ),
        ({"startingTimestamp": "9", "endingTimestamp": "5"}, "starts at timestamp 9, after"),
    ],
)
def test_a_batch_that_would_be_empty_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        for_batch(PLAIN | given)


def test_a_batch_that_is_empty_by_chance_is_not_refused() -> None:
    for_batch(
        PLAIN
        | {
            "startingOffsets": '{"t": {"0": 5, "1": -2}}',
            "endingOffsets": '{"t": {"0": 5, "1": -1}}',
        }
    )


def test_columns_are_chosen_by_name_and_headers_among_them_need_no_other_option() -> None:
    options = parse(PLAIN | {"columns": "Value, timestamptype, headers, value"})
    assert options.columns == ("value", "timestampType", "headers")
    assert options.headers


def test_a_live_batch_reads_whole_logs() -> None:
    assert for_batch(PLAIN | {"endingOffsets": "live"}).is_live
    assert not for_batch(PLAIN | {"endingOffsets": "latest"}).is_live
    with pytest.raises(OptionError, match="must be earliest"):
        for_batch(PLAIN | {"endingOffsets": "live", "startingTimestamp": "5"})
    with pytest.raises(OptionError, match="no end"):
        for_stream(PLAIN | {"endingOffsets": "live"})


@pytest.mark.parametrize("option", ["kafka.group.id", "group.id"])
def test_a_group_is_named_with_or_without_the_prefix(option: str) -> None:
    assert parse(PLAIN | {option: "watchers"}).group == "watchers"


@pytest.mark.parametrize(
    ("text", "ms"),
    [("100ms", 100), ("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000), ("7", 7)],
)
def test_durations_are_written_as_spark_writes_them(text: str, ms: int) -> None:
    assert duration_ms(text) == ms
