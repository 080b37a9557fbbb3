"""Records carry a checksum of themselves, runs are joined, and errors have classes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.history import Payload, Recorder, Runs, decode, encode, operations, outcome

payloads = st.builds(
    Payload,
    st.text("abc-.0123", min_size=1),
    st.text("abc-.0123", min_size=1),
    st.integers(0, 2**40),
    st.integers(-1, 2**40),
    st.integers(-1, 2**40),
)


@given(payloads, st.integers(0, 500))
def test_a_value_says_what_it_is(payload: Payload, size: int) -> None:
    value = encode(payload, size)
    assert decode(value) == payload
    assert len(value) >= min(size, 500)


@given(payloads, st.data())
def test_a_value_with_a_flipped_bit_is_damaged(payload: Payload, data: st.DataObject) -> None:
    value = bytearray(encode(payload, 80))
    bit = data.draw(st.integers(0, len(value) * 8 - 1))
    value[bit // 8] ^= 1 << bit % 8
    # The separator before the checksum is the one byte that the checksum does not cover.
    if bit // 8 != len(value) - 9:
        assert decode(bytes(value)) is None


@pytest.mark.parametrize("value", [None, b"", b"x", bytes(4096)])
def test_a_value_that_is_not_ours_is_damaged(value: bytes | None) -> None:
    assert decode(value) is None


def test_records_that_follow_each_other_are_one_run() -> None:
    runs = Runs()
    for offset, number in ((5, 0), (6, 1), (8, 2), (9, 7)):
        runs.add("t-0", offset, Payload("w", "t-0", number))
    runs.add("t-0", 10, Payload("x", "t-0", 8))
    assert dict(runs.take()) == {
        "t-0": [
            [5, 2, "w", 0, -1, -1],
            [8, 1, "w", 2, -1, -1],
            [9, 1, "w", 7, -1, -1],
            [10, 1, "x", 8, -1, -1],
        ]
    }
    assert not dict(runs.take())


def test_copies_are_one_run_if_their_sources_are() -> None:
    runs = Runs()
    for number, source in ((0, 3), (1, 4), (2, 9)):
        runs.add("t-0", number, Payload("w", "t-0", number, 1, source))
    assert dict(runs.take()) == {"t-0": [[0, 2, "w", 0, 1, 3], [2, 1, "w", 2, 1, 9]]}


def test_operations_come_back_from_their_files(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "p.1")
    begun_ns = recorder.note("invoke", "send", ["t-0", 0, 2, -1])
    recorder.note("info", "send", ["t-0", [[0, 2]]], "_MSG_TIMED_OUT")
    recorder.close()
    first, second = operations(tmp_path)
    assert first == ("p.1", "invoke", "send", ["t-0", 0, 2, -1], begun_ns, "")
    assert second.error == "_MSG_TIMED_OUT"
    assert second.t_ns >= begun_ns


def test_an_error_proves_that_nothing_was_written_or_proves_nothing() -> None:
    assert outcome("MESSAGE_TOO_LARGE") == "fail"
    for error in ("_MSG_TIMED_OUT", "NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"):
        assert outcome(error, was_only_attempt=True) == "info"
    # A client that retries reports the error of its last attempt.
    assert outcome("NOT_ENOUGH_REPLICAS") == "info"
    assert outcome("NOT_ENOUGH_REPLICAS", was_only_attempt=True) == "fail"
