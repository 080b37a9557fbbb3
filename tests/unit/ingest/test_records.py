"""A line as a record."""

from __future__ import annotations

import json

import pytest

from hightide.ingest.lines import Line
from hightide.ingest.records import Record, RecordFormat, check_key, key_of

LINE = Line(7, 12, b'{"a":{"b":5},"s":"t"}')


def test_a_line_is_the_value_and_headers_say_where_it_was() -> None:
    made = RecordFormat("web1").record("/var/log/a.log", LINE, 0)
    assert made == Record(
        LINE.text,
        b"/var/log/a.log",
        [
            ("hightide.file", b"/var/log/a.log"),
            ("hightide.position", b"7"),
            ("hightide.host", b"web1"),
        ],
    )


def test_json_has_the_line_and_where_it_was() -> None:
    made = RecordFormat("web1", "none", "json").record(
        "a.log", Line(7, 12, "é\xff".encode("latin-1")), 0
    )
    assert json.loads(made.value) == {
        "file": "a.log",
        "position": 7,
        "host": "web1",
        "at": "1970-01-01T00:00:00+00:00",
        # Bytes that are not UTF-8 can be read back.
        "line": "\\xe9\\xff",
    }
    assert made.key is None


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ("json:s", b"t"),
        ("json:a.b", b"5"),
        ("json:a", b'{"b": 5}'),
        ("json:none", None),
        ("json:s.x", None),
        ("none", None),
        ("path", b"p"),
    ],
)
def test_a_key_comes_from_the_path_or_from_json(rule, key) -> None:
    assert key_of(rule, LINE.text, b"p") == key


def test_what_is_no_json_has_no_key() -> None:
    assert key_of("json:a", b"oops") is None


def test_other_rules_are_refused() -> None:
    check_key("json:a", "none")
    for wrong in ("json:", "path", "", "a"):
        with pytest.raises(ValueError, match="expected none or json:FIELD"):
            check_key(wrong, "none")
