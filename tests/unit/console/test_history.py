"""The history of partitions: what is read is what was written, in little space."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.client.xray.frames import Hold, PartitionFrame, ReplicaFrame, TimedFrame
from hightide.console import history
from hightide.console.history import History, structure, thinned
from tests.unit.client.xray_frames import frame, replica

KEY = "orders", 0
brokers = st.integers(0, 5)
ids = st.lists(brokers, max_size=3, unique=True).map(tuple)
offsets = st.none() | st.integers(-1, 1 << 62)
replicas = st.builds(
    ReplicaFrame,
    broker=brokers,
    role=st.sampled_from(["none", "waiting", "leader", "follower"]),
    in_sync=st.booleans(),
    eligible=st.booleans(),
    alive=st.booleans(),
    silent=st.booleans(),
    start_offset=offsets,
    high_watermark=offsets,
    end_offset=offsets,
    lag=offsets,
    lag_ms=offsets,
    why=st.sampled_from(["", "in sync", "is behind", "damaged: ☠"]),
    approximate=st.booleans(),
)
frames = st.builds(
    PartitionFrame,
    partition=st.just(0),
    leader=st.integers(-1, 5),
    leader_epoch=st.integers(-1, 1 << 31),
    partition_epoch=st.integers(-1, 1 << 31),
    isr=ids,
    elr=ids,
    adding=ids,
    removing=ids,
    min_isr=st.integers(1, 3),
    high_watermark=offsets,
    last_stable_offset=offsets,
    held=st.sampled_from(Hold),
    held_by=ids,
    replicas=st.lists(replicas, max_size=3, unique_by=lambda one: one.broker).map(tuple),
)


@st.composite
def looks(draw):
    """Looks with growing times; frames often equal the one before."""
    pool = draw(st.lists(frames, min_size=1, max_size=4))
    time_ms, found = 1_700_000_000_000, []
    for _ in range(draw(st.integers(0, 30))):
        time_ms += draw(st.integers(0, 90_000))
        found.append(TimedFrame(time_ms, draw(st.sampled_from(pool))))
    return found


def kept(timed):
    """Without the frames that equal the one before."""
    found = timed[:1]
    for one in timed[1:]:
        if one.frame != found[-1].frame:
            found.append(one)
    return found


def written(timed):
    made = History()
    for one in timed:
        made.add(one.time_ms, "orders", one.frame)
    return made


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(history, "CHUNK_BYTES", 200)


@given(looks())
def test_what_is_read_is_what_was_written(timed):
    assert written(timed).frames(KEY) == kept(timed)


@given(looks(), st.integers(0, 2_000_000), st.integers(0, 2_000_000))
def test_a_range_has_the_frame_that_holds_at_its_start_and_all_until_its_end(timed, start, length):
    from_ms = 1_700_000_000_000 + start
    to_ms = from_ms + length
    found = written(timed).frames(KEY, from_ms, to_ms)
    held = [one for one in kept(timed) if one.time_ms <= from_ms][-1:]
    assert found == held + [one for one in kept(timed) if from_ms < one.time_ms <= to_ms]


@given(looks(), st.integers(2, 20))
def test_a_thinned_range_is_a_part_that_keeps_all_changes_of_structure(timed, most):
    everything = kept(timed)
    found = thinned(everything, most)
    assert [one for one in everything if one in found] == found
    assert found[:1] == everything[:1]
    assert found[-1:] == everything[-1:]
    changed = [
        after
        for before, after in pairwise(everything)
        if structure(before.frame) != structure(after.frame)
    ]
    assert all(one in found for one in changed)
    assert len(found) <= most + len(changed) + 1


@given(looks(), st.integers(2, 20))
def test_a_long_range_that_is_read_coarsely_keeps_all_changes_of_structure(timed, most):
    everything, made = kept(timed), written(timed)
    for _ in range(2):
        found = made.frames(KEY, 0, None, most)
        assert [one for one in everything if one in found] == found
        for before, after in pairwise(everything):
            if structure(before.frame) != structure(after.frame):
                assert after in found


def test_a_frame_that_equals_the_one_before_takes_no_space():
    made = written([TimedFrame(1_000, frame())])
    before = made.byte_count
    for second in range(100):
        made.add(2_000 + second * 1_000, "orders", frame())
    assert made.byte_count == before
    assert len(made.frames(KEY)) == 1


def busy(seconds, topic="orders", made=None):
    made = made or History(kept_ms=60_000, most_bytes=1 << 30)
    for second in range(seconds):
        end = 100 * second
        shown = frame(replica(1, end, role="leader"), replica(2, end), high_watermark=end)
        made.add(second * 1_000, topic, shown)
    return made


def test_what_is_older_than_the_kept_time_is_dropped_but_for_the_frame_that_holds():
    made = busy(600)
    made.trim(600_000)
    found = made.frames(KEY)
    assert 540_000 - 20_000 < found[0].time_ms <= 540_000
    assert found[-1].time_ms == 599_000


def test_a_history_that_is_too_large_becomes_shorter():
    made = History(kept_ms=900_000, most_bytes=20_000)
    busy(600, made=made)
    made.trim(600_000)
    assert made.byte_count <= 20_000
    assert made.frames(KEY)[-1].time_ms == 599_000


def test_a_partition_that_is_forgotten_leaves_nothing():
    made = busy(100)
    made.forget([KEY])
    assert made.byte_count == 0
    assert made.frames(KEY) == []


def test_a_clock_that_is_set_back_keeps_the_order():
    made = History()
    made.add(2_000, "orders", frame())
    made.add(1_000, "orders", replace(frame(), leader_epoch=1))
    assert [one.time_ms for one in made.frames(KEY)] == [2_000, 2_000]


def test_the_time_without_a_cluster_is_one_span_until_it_is_back():
    made = History(kept_ms=60_000)
    made.was_away(1_000, 2_000)
    made.was_away(1_000, 3_000)
    made.was_away(9_000, 9_500)
    assert list(made.away) == [(1_000, 3_000), (9_000, 9_500)]
    made.trim(65_000)
    assert list(made.away) == [(9_000, 9_500)]
