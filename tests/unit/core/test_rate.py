"""A rate over windows of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hightide.core.rate import Rate

# Eleven windows of a second, as in Kafka.
WINDOWS, WINDOW_MS = 11, 1000


def rate() -> Rate:
    return Rate(WINDOWS, WINDOW_MS)


def test_nothing_is_a_rate_of_nothing() -> None:
    assert rate().per_second(0) == 0
    assert not rate().exceeds(0, 0)
    assert rate().delay_ms(0, 0) == 0


def test_the_first_bytes_are_not_a_rate_of_any_height() -> None:
    measured = rate()
    measured.record(500, 0)
    assert measured.per_second(0) == measured.per_second(WINDOW_MS) == 500
    assert not measured.exceeds(500, 0)
    assert measured.exceeds(499, 0)


def test_what_goes_at_once_is_the_worth_of_one_window_and_not_of_all() -> None:
    measured = rate()
    measured.record(2_000, 0)
    assert measured.exceeds(1_000, 1_999)
    assert not measured.exceeds(1_000, 2_000)


def test_what_is_older_than_all_windows_is_forgotten() -> None:
    measured = rate()
    measured.record(1_000, 0)
    measured.record(4_000, 2_500)
    assert measured.per_second(10_999) == 5_000 * 1000 / 10_999
    assert measured.per_second(11_000) == 4_000 * 1000 / 8_500
    assert measured.per_second(13_499) == 4_000 * 1000 / 10_999
    assert measured.per_second(13_500) == 0


def test_a_steady_flow_is_measured_as_what_it_is() -> None:
    measured = rate()
    for now_ms in range(0, 60_000, 100):
        measured.record(100, now_ms)
    assert 950 < measured.per_second(60_000) < 1_050


def test_after_the_delay_there_is_room_again_or_less_is_remembered() -> None:
    measured = rate()
    measured.record(10_500, 0)
    # 10,500 over 10.5 seconds are 1,000 a second.
    assert measured.delay_ms(1_000, 0) == 10_500
    assert measured.delay_ms(1_000, 4_000) == 6_500
    assert not measured.exceeds(1_000, 10_500)
    # That is more than all windows hold, so it waits for the end of the oldest one.
    measured = rate()
    measured.record(1_000_000, 300)
    assert measured.delay_ms(1_000, 300) == 11_000
    assert measured.delay_ms(0, 300) == 11_000
    assert measured.delay_ms(1_000, 11_300) == 0


def test_one_window_is_enough() -> None:
    measured = Rate(1, 1000)
    measured.record(500, 0)
    assert measured.per_second(999) == 500
    assert measured.per_second(1000) == 0


RECORDS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 5000)), max_size=30)


@given(RECORDS, st.integers(0, 2000), st.integers(1, 5))
def test_a_caller_that_waits_as_advised_keeps_to_the_limit(
    amounts: list[tuple[int, int]], limit: int, windows: int
) -> None:
    measured = Rate(windows, 100)
    now_ms = 0
    for pause_ms, amount in amounts:
        now_ms += pause_ms
        waits = 0
        while measured.exceeds(limit, now_ms):
            delay_ms = measured.delay_ms(limit, now_ms)
            assert 0 < delay_ms <= windows * 100
            now_ms += delay_ms
            waits += 1
        assert waits <= windows + 1
        assert measured.delay_ms(limit, now_ms) == 0
        before = measured.per_second(now_ms)
        assert before <= limit
        measured.record(amount, now_ms)
        assert measured.per_second(now_ms) >= before
