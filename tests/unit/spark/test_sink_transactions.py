"""One batch is one transaction, whatever fails: the shipped protocol in a world of failures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.spark.sink.marker import (
    Claim,
    Marker,
    Refused,
    Replaced,
    Verdict,
    batch_marker,
    check_owner,
    decide,
    newest,
    read,
    takeover_marker,
)
from tests.unit.spark.sink_world import BATCHES, SIZE, Checkpoint, Fate, World

FATES = [Fate.DONE] * 8 + list(Fate)
MOVES = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 3), st.sampled_from(FATES)),
    st.tuples(st.just("step"), st.integers(0, 3), st.just(Fate.DONE)),
    st.tuples(st.just("start"), st.just(0), st.just(Fate.DONE)),
    st.tuples(st.just("deliver"), st.integers(0, 9), st.just(Fate.DONE)),
    st.tuples(st.just("time out"), st.just(0), st.just(Fate.DONE)),
    st.tuples(st.just("complete"), st.just(0), st.just(Fate.DONE)),
)


def play(world: World, moves) -> None:
    for move, number, fate in moves:
        alive = world.alive()
        if move == "time out":
            world.broker.time_out()
        elif move == "complete":
            world.broker.complete()
        elif move == "deliver":
            world.deliver(number)
        elif move == "start" and len(alive) < 3:
            world.start()
        elif alive:
            alive[number % len(alive)].step(fate)
        world.check()


@settings(max_examples=150, deadline=None)
@given(st.lists(MOVES, max_size=150), st.sampled_from(["out", None]))
def test_whatever_happens_every_row_is_there_once(moves, home):
    world = World(home)
    try:
        world.start()
        play(world, moves)
        world.finish()
    finally:
        world.kill_all()
    world.check()
    assert len(world.broker.records) == BATCHES * SIZE


@pytest.mark.parametrize("fate", list(Fate)[1:], ids=lambda verdict: verdict.value)
@pytest.mark.parametrize("at", range(24))
def test_each_request_may_fail_in_each_way(at, fate):
    world = World()
    driver = world.start()
    for _ in range(at):
        driver.step(Fate.DONE)
    driver.step(fate)
    while not driver.is_over:
        driver.step(Fate.DONE)
        world.check()
    if fate not in (Fate.KILLED, Fate.KILLED_AFTER):
        assert driver.failure is None
        assert world.broker.records == [row for rows in world.checkpoint.inputs for row in rows]
        assert driver.replayed == []
    world.finish()
    world.check()
    assert len(world.broker.records) == BATCHES * SIZE


def test_a_batch_whose_commit_spark_did_not_hear_of_is_replayed_and_not_written():
    world = World()
    driver = world.start()
    while not world.broker.records:
        driver.step(Fate.DONE)
    driver.step(Fate.KILLED)
    again = world.start()
    while not again.is_over:
        again.step(Fate.DONE)
    assert again.replayed == [0]
    assert len(world.broker.records) == BATCHES * SIZE


@pytest.mark.parametrize("at", range(4, 30))
def test_an_older_driver_that_wakes_up_stops_and_the_newer_one_goes_on(at):
    world = World()
    older = world.start()
    for _ in range(at):
        older.step(Fate.DONE)
    newer = world.start()
    while not newer.is_over and "run-1" not in str(world.broker.marker | world.broker.decided):
        newer.step(Fate.DONE)
    while not older.is_over:
        older.step(Fate.DONE)
    while not newer.is_over:
        newer.step(Fate.DONE)
    assert newer.failure is None
    assert older.failure is None or isinstance(older.failure, Replaced)
    world.check()
    assert len(world.broker.records) == BATCHES * SIZE


def test_a_new_checkpoint_is_a_new_life_in_which_nothing_is_left_out():
    world = World()
    world.finish()
    world.checkpoint = Checkpoint("another")
    world.finish()
    assert len(world.broker.records) == 2 * BATCHES * SIZE


# -- what follows from a marker --------------------------------------------------------------

OURS = Claim("q", "run", 5, "input")


@pytest.mark.parametrize(
    ("marker", "verdict"),
    [
        (None, Verdict.WRITE),
        (Marker(5, "q", "run"), Verdict.WRITE),
        (Marker(2, "q", "run"), Verdict.WRITE),
        (Marker(6, "q", "earlier", "input"), Verdict.REPLAY),
        (Marker(6, "q", "earlier", ""), Verdict.REPLAY),
        (Marker(50, "another", "run"), Verdict.WRITE),
        (Marker(6), Verdict.WRITE),
    ],
)
def test_a_batch_is_written_unless_it_is_the_last_one_again(marker, verdict):
    assert decide(marker, OURS) is verdict


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        (Marker(7, "q", "run", "input"), "Batch 5 is older than the last one, 6.* restored"),
        (Marker(6, "q", "run", "other"), "Batch 5 is already written, with other input"),
    ],
)
def test_a_checkpoint_that_was_put_back_is_refused(marker, words):
    with pytest.raises(Refused, match=words):
        decide(marker, OURS)


def test_a_replaced_run_learns_which_run_replaced_it():
    check_owner(None, OURS)
    check_owner(Marker(5, "q", "run"), OURS)
    with pytest.raises(Replaced, match="Run next of this query has taken over"):
        check_owner(Marker(5, "q", "next"), OURS)
    with pytest.raises(Replaced, match="Run next of another query, p, has taken over"):
        check_owner(Marker(5, "p", "next"), OURS)


def test_a_takeover_keeps_the_batches_of_the_same_checkpoint():
    assert takeover_marker(Marker(3, "q", "old", "i"), OURS) == Marker(3, "q", "run", "i")
    assert takeover_marker(Marker(9, "p", "old", "i"), OURS) == Marker(5, "q", "run")
    assert takeover_marker(None, OURS) == Marker(5, "q", "run")


@given(st.integers(0, 2**40), st.text(), st.text(), st.text())
def test_a_marker_is_read_as_it_was_written(batch, query, run, input):
    marker = batch_marker(Claim(query, run, batch, input))
    assert marker.next_batch == batch + 1
    assert read({("t", 0): (batch + 1, marker.metadata)}) == {("t", 0): marker}


@pytest.mark.parametrize("metadata", ["", "text", "[]", "7", "null"])
def test_foreign_commits_in_the_group_are_not_a_marker_of_any_query(metadata):
    assert read({("t", 0): (7, metadata)}) == {("t", 0): Marker(7)}


def test_the_furthest_marker_of_the_query_counts():
    markers = {("a", 0): Marker(9, "p"), ("b", 0): Marker(3, "q"), ("c", 0): Marker(4, "q")}
    assert newest(markers, "q") == Marker(4, "q")
    assert newest(markers, "x") == Marker(9, "p")
    assert newest({}, "x") is None
