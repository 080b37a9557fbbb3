"""Rows and options that cannot be written are refused before anything runs."""

from __future__ import annotations

import pytest

from hightide.spark.sink.rows import Unwritable, checked
from hightide.spark.sink.sink_options import OptionError, of_client, parse

HEADERS = "array<struct<key:string,value:binary>>"
BROKERS = {"kafka.bootstrap.servers": "localhost:9092"}


def test_the_columns_of_a_record_are_written_and_others_are_not():
    types = {"other": "bigint", "value": "binary", "key": "string", "headers": HEADERS}
    assert checked(types, "out") == ["key", "value", "headers"]


def test_rows_say_their_topic_only_where_it_is_not_said_for_all():
    types = {"value": "string", "topic": "string", "partition": "int", "timestamp": "timestamp"}
    assert checked(types, None) == ["value", "topic", "partition", "timestamp"]
    assert checked(types, "out") == ["value", "partition", "timestamp"]


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (
            {"key": "string", "total": "bigint"},
            "no column value; the columns are key, total.*to_json",
        ),
        ({"value": "bigint"}, "value is bigint; it must be string or binary"),
        ({"value": "string", "key": "struct<a:int>"}, "key is struct<a:int>"),
        ({"value": "string", "headers": "map<string,string>"}, "headers is map<string,string>"),
        ({"value": "string", "partition": "bigint"}, "partition is bigint; it must be int"),
        ({"value": "string", "timestamp": "string"}, "timestamp is string; it must be timestamp"),
    ],
)
def test_what_is_wrong_with_a_column_is_said_in_words(types, words):
    with pytest.raises(Unwritable, match=words):
        checked(types, "out")


def test_rows_without_any_topic_are_refused():
    with pytest.raises(Unwritable, match="set one, or add a column topic"):
        checked({"value": "string"}, None)


def test_options_have_the_names_of_sparks_kafka_sink():
    options = parse(
        BROKERS
        | {"topic": "out", "kafka.compression.type": "ZSTD", "kafka.acks": "1"}
        | {"includeHeaders": "true", "kafka.linger.ms": "5", "checkpointLocation": "/tmp/x"}
    )
    assert (options.topic, options.codec, options.acks) == ("out", "zstd", 1)
    assert options.client["bootstrap.servers"] == "localhost:9092"
    assert parse(BROKERS).acks == -1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "bootstrap.servers is missing"),
        (BROKERS | {"kafka.acks": "0"}, "'0'.*set all or 1"),
        (BROKERS | {"kafka.compression.type": "brotli"}, "one of none, gzip"),
        (BROKERS | {"kafka.max.request.size": "12"}, "at least 1024"),
        (BROKERS | {"bootstrap.servers": "x"}, "need the prefix kafka.: kafka.bootstrap.servers"),
        (BROKERS | {"subscribe": "x"}, "is for reading; set topic to write"),
        (BROKERS | {"topics": "x"}, "There is no option 'topics'"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_in_words(options, words):
    with pytest.raises(OptionError, match=words):
        parse(options)


def test_properties_without_a_prefix_are_the_same():
    assert of_client({"bootstrap.servers": "a:1"}, "out") == parse(
        {"kafka.bootstrap.servers": "a:1", "topic": "out"}
    )
