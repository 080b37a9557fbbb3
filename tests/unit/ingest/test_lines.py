"""Bytes into lines, and lines into events."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from hightide.ingest.lines import Joiner, Line, Splitter


def split(pieces, **settings) -> list[Line]:
    splitter = Splitter(**settings)
    return [line for piece in pieces for line in splitter.feed(piece)] + splitter.finish()


def test_a_line_is_given_out_when_its_newline_has_come() -> None:
    splitter = Splitter(position=10)
    assert splitter.feed(b"on") == []
    assert splitter.feed(b"e\r\ntwo\nthr") == [Line(10, 15, b"one"), Line(15, 19, b"two")]
    assert splitter.feed(b"ee\n") == [Line(19, 25, b"three")]
    assert splitter.finish() == []


def test_what_is_left_at_the_end_is_a_line() -> None:
    assert split([b"one\ntw"]) == [Line(0, 4, b"one"), Line(4, 6, b"tw")]


def test_a_long_line_is_cut_before_its_end_has_come() -> None:
    splitter = Splitter(line_bytes=4)
    assert [line.text for line in splitter.feed(b"abcdefghi")] == [b"abcd", b"efgh"]
    assert [line.text for line in splitter.feed(b"jklm\n")] == [b"ijkl", b"m"]


@given(st.lists(st.binary(max_size=12)), st.integers(1, 9))
def test_nothing_is_lost_and_positions_join(pieces, line_bytes) -> None:
    data = b"".join(pieces)
    found = split(pieces, line_bytes=line_bytes)
    assert [line.start for line in found] == [0, *(line.end for line in found)][: len(found)]
    assert (found[-1].end if found else 0) == len(data)
    for line in found:
        raw = data[line.start : line.end]
        assert raw.removesuffix(b"\n").removesuffix(b"\r") == line.text.removesuffix(b"\r")
        assert len(line.text) <= line_bytes


@given(st.lists(st.binary(max_size=12)))
def test_how_the_bytes_come_does_not_matter(pieces) -> None:
    assert split(pieces) == split([b"".join(pieces)])


def test_an_event_has_all_lines_up_to_the_next_beginning() -> None:
    joiner = Joiner(re.compile(rb"^\d"))
    lines = Splitter().feed(b"1 error\n  at a\n  at b\n2 fine\n3")
    assert joiner.feed(lines) == [Line(0, 22, b"1 error\n  at a\n  at b")]
    assert joiner.finish() == [Line(22, 29, b"2 fine")]
    assert joiner.finish() == []


def test_an_event_does_not_grow_without_end() -> None:
    joiner = Joiner(re.compile(rb"^\d"), event_bytes=10)
    found = joiner.feed(Splitter().feed(b"1\naaaa\nbbbb\ncccc\n"))
    assert [line.text for line in found + joiner.finish()] == [b"1\naaaa", b"bbbb\ncccc"]
