"""The position of `consume`: what users type, and the offsets that it means."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.cli.position import (
    Beginning,
    End,
    Last,
    Offset,
    Time,
    first_offset,
    parse,
)

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Beginning()),
        ("Earliest", Beginning()),
        ("start", Beginning()),
        ("end", End()),
        ("latest", End()),
        ("0", Offset(0)),
        ("42", Offset(42)),
        ("-10", Last(10)),
        ("@1731664800000", Time(1731664800000)),
        ("s@1731664800000", Time(1731664800000)),
        ("15m", Time(NOW_MS - 15 * 60 * 1000)),
        ("-2h", Time(NOW_MS - 2 * 3600 * 1000)),
        ("1970-01-01T00:00:01Z", Time(1000)),
        ("1970-01-01T01:00:01+01:00", Time(1000)),
    ],
)
def test_a_position_is_read_as_people_mean_it(text, position):
    assert parse(text, NOW_MS) == position


def test_a_time_without_a_zone_is_local_time():
    local = datetime(2026, 11, 15, 10, 0).astimezone().astimezone(UTC)
    assert parse("2026-11-15T10:00", NOW_MS) == Time(int(local.timestamp() * 1000))


def test_a_time_without_a_day_is_todays():
    today = datetime.fromtimestamp(NOW_MS / 1000, UTC).astimezone().date()
    local = datetime.combine(today, datetime.min.time().replace(hour=9, minute=30)).astimezone()
    assert parse("9:30", NOW_MS) == parse("09:30:00", NOW_MS)
    assert parse("09:30", NOW_MS) == Time(int(local.timestamp() * 1000))


@pytest.mark.parametrize("text", ["", "json", "25:00", "9:3", "yesterday", "--5", "5x", "@", "1.5"])
def test_what_is_no_position_is_refused_with_what_would_be_one(text):
    with pytest.raises(ValueError, match="is not a position: use beginning"):
        parse(text, NOW_MS)


@given(
    start=st.integers(0, 2**40),
    held=st.integers(0, 2**20),
    position=st.one_of(
        st.just(Beginning()),
        st.just(End()),
        st.integers(0, 2**41).map(Offset),
        st.integers(0, 2**21).map(Last),
        st.integers(0, 2**41).map(Time),
    ),
    at_time=st.none() | st.integers(0, 2**41),
)
def test_the_first_offset_always_lies_in_what_the_partition_holds(start, held, position, at_time):
    found = first_offset(position, start, start + held, at_time)
    assert start <= found <= start + held


def test_each_position_means_its_offset():
    assert first_offset(Beginning(), 5, 20) == 5
    assert first_offset(End(), 5, 20) == 20
    assert first_offset(Offset(7), 5, 20) == 7
    assert first_offset(Last(3), 5, 20) == 17
    assert first_offset(Last(300), 5, 20) == 5
    assert first_offset(Time(1), 5, 20, at_time=9) == 9
    assert first_offset(Time(1), 5, 20, at_time=None) == 20
