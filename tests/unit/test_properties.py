"""Java's properties files, as Java reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.settings import properties


def pairs(text: str) -> list[tuple[str, str]]:
    return [(prop.name, prop.value) for prop in properties.parse(text)]


@pytest.mark.parametrize(
    "line",
    [
        "a.b=c d",
        "a.b = c d",
        "a.b:c d",
        "a.b : c d",
        "a.b c d",
        "a.b\tc d",
        "  a.b=c d",
        "a.b   =c d",
    ],
)
def test_every_separator_parts_a_name_from_its_value(line: str) -> None:
    assert pairs(line) == [("a.b", "c d")]


def test_blank_lines_and_comments_say_nothing() -> None:
    assert pairs("# one\n! two\n\n   \n\t# three\na=1 # part of the value\n") == [
        ("a", "1 # part of the value")
    ]


def test_a_backslash_joins_lines_and_drops_the_indent_of_the_next() -> None:
    assert pairs("a=one,\\\n    two,\\\n    three\nb=2") == [("a", "one,two,three"), ("b", "2")]


def test_a_line_that_ends_in_two_backslashes_is_not_joined() -> None:
    assert pairs("a=c:\\\\\nb=2") == [("a", "c:\\"), ("b", "2")]


def test_a_comment_is_not_joined_and_a_joined_line_is_no_comment() -> None:
    assert pairs("# a \\\nb=2") == [("b", "2")]
    assert pairs("a=1\\\n#2") == [("a", "1#2")]


def test_a_last_line_that_wants_to_be_joined_counts() -> None:
    assert pairs("a=1\\") == [("a", "1")]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r"a=\t\n\r\f", "\t\n\r\f"),
        (r"a=\q\=", "q="),
        (r"a=\u00e9", "é"),
        (r"a=\ud83c\udf0a", "🌊"),
        (r"a=\ud83c", "�"),
    ],
)
def test_escapes_are_undone(written: str, value: str) -> None:
    assert pairs(written) == [("a", value)]


def test_an_escaped_separator_belongs_to_the_name() -> None:
    assert pairs(r"a\=b\:c\ d=e") == [("a=b:c d", "e")]


def test_a_name_alone_has_an_empty_value() -> None:
    assert pairs("a\nb=\n=c") == [("a", ""), ("b", ""), ("", "c")]


def test_a_property_knows_the_line_that_it_begins_on() -> None:
    lines = "# comment\n\na=1\\\n2\r\nb=3\rc=4"
    assert [(prop.line, prop.name) for prop in properties.parse(lines)] == [
        (3, "a"),
        (5, "b"),
        (6, "c"),
    ]


@pytest.mark.parametrize("digits", ["", "12", "00zz", "12 4"])
def test_a_broken_escape_is_told_with_its_line(digits: str) -> None:
    with pytest.raises(properties.BadProperties) as raised:
        pairs(f"\na=\\u{digits}")
    assert raised.value.line == 2


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"))
        )
    )
)
def test_what_is_written_is_read_back(written: list[tuple[str, str]]) -> None:
    assert pairs(properties.write(written)) == written


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    lines = text.count("\n") + text.count("\r") + 1
    try:
        line = len(pairs(text))
    except properties.BadProperties as wrong:
        line = wrong.line
    assert line <= lines
