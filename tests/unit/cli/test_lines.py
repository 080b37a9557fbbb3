"""Records as lines of text and of JSON, in both directions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.cli.record.lines import (
    Damaged,
    Incoming,
    Outgoing,
    as_json,
    check_template,
    fill,
    parse_header,
    parse_json,
    parse_line,
    unescape,
)

RECORD = Incoming(
    topic="t",
    partition=3,
    offset=42,
    timestamp=1700000000000,
    key=b"k",
    value=b"v",
    headers=(("h", b"x"), ("empty", None)),
)

blobs = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3).map(tuple)


@given(key=blobs, value=blobs, headers=headers, timestamp=st.integers(0, 2**41))
def test_what_consume_prints_as_json_produce_reads_back(key, value, headers, timestamp):
    record = Incoming("t", 1, 7, timestamp, key, value, headers)
    line = json.dumps(as_json(record)).encode()
    assert list(parse_json(line, key=None, headers=())) == [
        Outgoing(value=value, key=key, headers=headers, partition=1, timestamp_ms=timestamp)
    ]


def test_an_object_as_value_is_sent_as_compact_json():
    line = b'{"value": {"id": 1, "name": "x"}, "headers": {"a": "b", "n": null}}'
    (record,) = parse_json(line, key=b"given", headers=(("all", b"1"),))
    assert record.value == b'{"id":1,"name":"x"}'
    assert record.key == b"given"
    assert record.headers == (("all", b"1"), ("a", b"b"), ("n", None))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[1]", "should be an object"),
        (b'{"key": "k"}', 'no "value"'),
        (b'{"value_base64": "%%"}', "not base64"),
        (b'{"value": 1, "partition": "0"}', "whole number"),
        (b'{"value": 1, "headers": "h"}', '"headers" should be'),
    ],
)
def test_a_json_line_that_makes_no_sense_is_refused_in_words(line, complaint):
    with pytest.raises(ValueError, match=complaint):
        list(parse_json(line, key=None, headers=()))


BATCH = {"base_offset": 5, "flags": [], "problems": [], "records": [{"offset": 5, "value": "v"}]}


def test_a_batch_of_dump_log_is_its_records():
    records = [{"offset": 5, "timestamp": 9, "key_base64": "/w==", "value": None, "headers": []}]
    (record,) = parsed_json({**BATCH, "records": records})
    assert record == Outgoing(value=None, key=b"\xff", timestamp_ms=9)
    assert parsed_json({**BATCH, "flags": ["control"]}) == []


@pytest.mark.parametrize("found", [{**BATCH, "problems": ["its CRC is wrong"]}, {"damaged": "x"}])
def test_a_damaged_batch_is_not_produced(found):
    with pytest.raises(Damaged):
        parsed_json(found)


def parsed_json(found):
    return list(parse_json(json.dumps(found).encode(), key=None, headers=()))


def parsed(line, **given):
    options = {"key": None, "separator": None, "headers": (), "null_if_empty": False, **given}
    return parse_line(line, **options)


def test_a_line_is_a_value():
    assert parsed(b"hello: world") == Outgoing(value=b"hello: world")


def test_a_separator_parts_key_from_value_once():
    assert parsed(b"k:v:w", separator=b":") == Outgoing(key=b"k", value=b"v:w")
    assert parsed(b"no separator", separator=b":", key=b"all").key == b"all"


def test_an_empty_value_can_stand_for_null():
    assert parsed(b"") == Outgoing(value=b"")
    assert parsed(b"k:", separator=b":", null_if_empty=True) == Outgoing(key=b"k", value=None)


def test_a_header_is_name_and_value():
    assert parse_header("a=b=c") == ("a", b"b=c")
    assert parse_header("a=") == ("a", b"")
    assert parse_header("a") == ("a", None)
    with pytest.raises(ValueError, match="name=value"):
        parse_header("=x")


def test_a_template_takes_kcats_letters():
    template = unescape(r"%t/%p@%o %T %k=%s (%K,%S) [%h] 100%%\n")
    assert fill(template, RECORD) == b"t/3@42 1700000000000 k=v (1,1) [h=x,empty=] 100%\n"


@pytest.mark.parametrize("template", ["%s %x", "100%", "% s", "%%%", "%\n"])
def test_a_letter_that_is_not_known_is_refused(template):
    with pytest.raises(ValueError, match="is not a letter of the format"):
        check_template(template)
    check_template(r"%t %p %o %k %s %K %S %T %h 100%%\n")


def test_nulls_have_length_minus_one_and_bytes_stay_bytes():
    record = Incoming("t", 0, 0, 0, None, b"\xff\x00", ())
    assert fill("%K %S %k|%s", record) == b"-1 2 |\xff\x00"


def test_values_are_not_taken_for_templates():
    record = Incoming("t", 0, 0, 0, b"%s", b"%k", ())
    assert fill("%k %s", record) == b"%s %k"


@pytest.mark.parametrize(
    ("text", "meant"), [(r"\t", "\t"), (r"\\n", r"\n"), (r"a\nb", "a\nb"), ("x", "x")]
)
def test_a_shells_escapes_are_understood(text, meant):
    assert unescape(text) == meant
