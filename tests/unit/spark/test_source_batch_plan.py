"""Which offsets a batch reads, without a broker and without Spark."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.spark.source.batch_plan import (
    DataLoss,
    Range,
    backlog,
    changes,
    divided,
    end_of_batch,
    losses,
    ranges,
    report_losses,
    shared_out,
    split,
    within,
)
from hightide.spark.source.offsets import (
    UNDECIDED,
    ExactOffsets,
    LogEnd,
    PositionError,
    SinceTimestamp,
    from_json,
    is_settled,
    questions,
    resolved,
    to_json,
)

EARLIEST, LATEST = -2, -1
A, B, C = ("t", 0), ("t", 1), ("u", 0)
partitions = st.tuples(st.sampled_from(["t", "u", "v"]), st.integers(0, 12))
offsets = st.dictionaries(partitions, st.integers(0, 1 << 40), max_size=12)
sizes = st.lists(st.integers(1, 100_000), min_size=1, max_size=8)


# -- checkpoints -----------------------------------------------------------------------------


def test_offsets_are_written_as_sparks_kafka_source_writes_them() -> None:
    assert to_json({B: 40, C: 1, A: 23}) == {"t": {"0": 23, "1": 40}, "u": {"0": 1}}


@settings(deadline=None)
@given(offsets)
def test_equal_offsets_are_equal_text_and_are_read_back(given_offsets: dict) -> None:
    text = json.dumps(to_json(given_offsets))
    turned = dict(reversed(given_offsets.items()))
    assert json.dumps(to_json(turned)) == text
    assert from_json(json.loads(text)) == given_offsets


def test_partitions_stand_in_the_order_of_their_numbers() -> None:
    assert list(to_json({("t", 10): 0, ("t", 9): 0})["t"]) == ["9", "10"]


def test_a_start_that_is_not_decided_is_not_the_one_of_a_query_that_found_no_topic() -> None:
    assert to_json({}) != UNDECIDED
    assert from_json(UNDECIDED) == {}


# -- from batch to batch ---------------------------------------------------------------------


def test_a_batch_ends_where_the_logs_end() -> None:
    assert end_of_batch({A: 5, B: 7}, {A: 9, B: 7}, {}) == {A: 9, B: 7}


def test_a_new_partition_starts_with_an_empty_share() -> None:
    known, latest = {A: 5}, {A: 9, B: 30}
    end = end_of_batch(known, latest, {B: 2})
    assert end == {A: 9, B: 2}
    assert ranges(known, end) == [Range("t", 0, 5, 9)]
    assert ranges(end, end_of_batch(end, latest, {})) == [Range("t", 1, 2, 30)]


def test_a_partition_created_again_is_read_from_its_beginning() -> None:
    known, latest = {A: 50}, {A: 9}
    end = end_of_batch(known, latest, {A: 0})
    assert end == {A: 0}
    assert ranges(known, end) == []
    assert end_of_batch(end, latest, {}) == {A: 9}


def test_a_deleted_partition_is_forgotten() -> None:
    assert end_of_batch({A: 5, C: 3}, {A: 9}, {}) == {A: 9}


def test_changes_tell_what_came_what_went_and_what_went_back() -> None:
    found = changes({A: 5, C: 3}, {A: 4, B: 1})
    assert (found.added, found.gone) == (frozenset({B}), frozenset({C}))
    assert found.behind == frozenset({A})
    assert found.to_begin == {A, B}


def test_every_loss_is_said_with_its_partition_and_offsets() -> None:
    messages = losses({A: 50, C: 3}, {A: 9, B: 20}, {A: 0, B: 4})
    assert len(messages) == 3
    assert messages[0].startswith("u/0: deleted or no longer subscribed to")
    assert "t/0: the query is at offset 50, but the log ends at 9" in messages[1]
    assert "t/1: a new partition whose log starts at offset 4" in messages[2]


def test_a_topic_that_is_new_to_the_query_just_starts_where_its_log_starts() -> None:
    assert losses({A: 5}, {A: 9, C: 20}, {C: 4}) == []


def test_a_loss_stops_the_query_only_if_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    report_losses([], fail=True)
    report_losses(["t/0: gone."], fail=False)
    assert "t/0: gone." in caplog.text
    with pytest.raises(DataLoss, match=r"t/0: gone\. .*failOnDataLoss"):
        report_losses(["t/0: gone."], fail=True)


# -- limits ----------------------------------------------------------------------------------


def test_a_limit_is_shared_out_by_what_waits() -> None:
    ends = shared_out({A: 0, B: 100, C: 0}, {A: 600, B: 400, C: 100}, 100)
    assert ends == {A: 60, B: 130, C: 10}


def test_a_partition_with_little_waiting_is_not_starved() -> None:
    assert shared_out({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10)[B] == 1


def test_a_limit_larger_than_what_waits_changes_nothing() -> None:
    assert shared_out({A: 0, B: 0}, {A: 3, B: 4}, 7) == {A: 3, B: 4}


@settings(deadline=None)
@given(offsets, sizes, st.integers(1, 10_000))
def test_a_limited_batch_gets_on_and_never_reads_too_much(
    start: dict, waiting: list[int], limit: int
) -> None:
    latest = {
        partition: offset + waiting[number % len(waiting)]
        for number, (partition, offset) in enumerate(start.items())
    }
    ends = shared_out(start, latest, limit)
    assert all(start[partition] < ends[partition] <= latest[partition] for partition in start)
    # A share of less than one record is rounded up to one.
    assert backlog(start, ends) <= limit + len(start)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(partitions, st.integers(0, 50), max_size=5),
            st.one_of(st.none(), st.integers(1, 40)),
        ),
        max_size=20,
    )
)
def test_batch_after_batch_reads_every_record_once_whatever_comes_and_when(history: list) -> None:
    latest: dict = {}
    known: dict = {}
    read: dict = {}
    for grown, limit in [*history, ({}, None), ({}, None)]:
        for partition, count in grown.items():
            latest[partition] = latest.get(partition, 3) + count
        begins = changes(known, latest).to_begin
        # Each log starts at offset 3.
        end = end_of_batch(known, latest, dict.fromkeys(begins, 3), limit)
        for piece in ranges(known, end):
            where = (piece.topic, piece.partition)
            assert piece.start == read.get(where, 3)
            read[where] = piece.end
        known = end
    assert known == latest
    assert all(read.get(partition, 3) == end for partition, end in latest.items())


# -- tasks -----------------------------------------------------------------------------------


def test_a_range_is_a_task_if_nothing_else_is_said() -> None:
    given_ranges = ranges({A: 0, B: 5, C: 9}, {A: 10, B: 5, C: 12})
    assert split(given_ranges) == [Range("t", 0, 0, 10), Range("u", 0, 9, 12)]


def test_more_tasks_are_made_of_the_large_ranges() -> None:
    cut = split([Range("t", 0, 0, 900), Range("t", 1, 0, 10)], at_least=4)
    assert [piece.size for piece in cut] == [300, 300, 300, 10]


def test_no_task_has_more_records_than_wanted() -> None:
    cut = split([Range("t", 0, 5, 30), Range("t", 1, 0, 10)], records=10)
    assert [piece[2:4] for piece in cut] == [(5, 13), (13, 21), (21, 30), (0, 10)]


@settings(deadline=None)
@given(sizes, st.integers(1, 40), st.integers(2000, 50_000))
def test_cut_ranges_are_the_same_offsets_in_the_same_order(
    lengths: list[int], at_least: int, records: int
) -> None:
    whole = [Range("t", number, 7, 7 + length) for number, length in enumerate(lengths)]
    cut = split(whole, at_least=at_least, records=records)
    assert all(0 < piece.size <= records for piece in cut)
    for piece in whole:
        parts = [part for part in cut if part.partition == piece.partition]
        assert parts[0].start == piece.start
        assert parts[-1].end == piece.end
        assert all(one.end == next_one.start for one, next_one in pairwise(parts))
    assert split(whole, at_least=at_least, records=records) == cut


def test_a_range_is_never_cut_into_nothing() -> None:
    assert divided(Range("t", 0, 5, 7), 9) == [Range("t", 0, 5, 6), Range("t", 0, 6, 7)]


# -- where to start and end ------------------------------------------------------------------


def test_only_the_latest_offset_moves_when_it_is_asked_again() -> None:
    assert is_settled(LogEnd(EARLIEST))
    assert not is_settled(LogEnd(LATEST))
    assert is_settled(ExactOffsets({A: 5, B: EARLIEST}))
    assert not is_settled(ExactOffsets({A: 5, B: LATEST}))
    assert is_settled(SinceTimestamp(5))
    assert not is_settled(SinceTimestamp(5, latest_if_none=True))


def test_only_what_is_not_known_is_asked() -> None:
    assert questions(LogEnd(EARLIEST), [B, A]) == {A: EARLIEST, B: EARLIEST}
    assert questions(ExactOffsets({A: 5, B: LATEST}), [A, B]) == {B: LATEST}
    assert questions(SinceTimestamp(77), [A, B]) == {A: 77, B: 77}
    assert questions(SinceTimestamp({A: 1, B: 2}), [A, B]) == {A: 1, B: 2}


def test_offsets_by_partition_name_every_partition_and_no_other() -> None:
    with pytest.raises(PositionError, match="missing for t/1"):
        questions(ExactOffsets({A: 5}), [A, B])
    with pytest.raises(PositionError, match="given for u/0"):
        questions(ExactOffsets({A: 5, C: 5}), [A])
    with pytest.raises(PositionError, match="Timestamps are missing for t/1"):
        questions(SinceTimestamp({A: 5}), [A, B])


def test_a_position_becomes_offsets() -> None:
    latest = {A: 90, B: 80}
    assert resolved(ExactOffsets({A: 5, B: LATEST}), {B: 80}, latest) == {A: 5, B: 80}
    assert resolved(SinceTimestamp(7), {A: 3, B: 4}, latest) == {A: 3, B: 4}
    assert resolved(SinceTimestamp(7, latest_if_none=True), {A: 3, B: -1}, latest) == {A: 3, B: 80}
    with pytest.raises(PositionError, match="t/1 has no record at or after"):
        resolved(SinceTimestamp(7), {A: 3, B: -1}, latest)


def test_a_batch_is_cut_to_what_the_logs_have_and_says_what_is_missing() -> None:
    start, end, messages = within({A: 2, B: 0}, {A: 20, B: 8}, {A: 5, B: 0}, {A: 10, B: 8})
    assert (start, end) == ({A: 5, B: 0}, {A: 10, B: 8})
    assert messages == [
        "t/0: the batch starts at offset 2, but the log starts at 5.",
        "t/0: the batch ends at offset 20, but the log ends at 10.",
    ]
