"""Reassignment plans in Kafka's JSON, their targets, and their throttle."""

from __future__ import annotations

import json

import pytest

from hightide.cli.partition.plan import parse_brokers, parse_plan, spread, write_plan
from hightide.cli.partition.reassignment import move_of, objection, pick
from hightide.client.admin.throttle import (
    FOLLOWERS,
    LEADERS,
    throttle_of,
    with_names,
)
from hightide.client.model.replicas import PartitionReplicas, Reassignment
from hightide.core.partition.state import PartitionState


def test_a_plan_is_read_and_written_as_kafka_does():
    text = json.dumps(
        {
            "version": 1,
            "partitions": [
                {"topic": "a", "partition": 0, "replicas": [3, 1], "log_dirs": ["any", "any"]},
                {"topic": "a", "partition": 1, "replicas": [2]},
            ],
        }
    )
    plan = parse_plan(text)
    assert plan == {("a", 0): (3, 1), ("a", 1): (2,)}
    assert parse_plan(write_plan(plan)) == plan
    assert json.loads(write_plan(plan))["version"] == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is not JSON"),
        ("[]", 'an object with a list "partitions"'),
        ('{"partitions": {}}', 'an object with a list "partitions"'),
        ('{"version": 2, "partitions": []}', "the version should be 1, not 2"),
        ('{"partitions": []}', "it has no partitions"),
        ('{"partitions": [7]}', "partition 1 of the list: it should be an object"),
        ('{"partitions": [{"partition": 0, "replicas": [1]}]}', '"topic" should be'),
        ('{"partitions": [{"topic": "a", "partition": "0", "replicas": [1]}]}', '"partition"'),
        ('{"partitions": [{"topic": "a", "partition": true, "replicas": [1]}]}', '"partition"'),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": "1"}]}', '"replicas"'),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": [-1]}]}', '"replicas"'),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": []}]}', "at least one"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": [1, 1]}]}', "twice"),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1]},'
            ' {"topic": "a", "partition": 0, "replicas": [2]}]}',
            "a/0 is in it twice",
        ),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1],'
            ' "log_dirs": ["/data"]}]}',
            '"log_dirs" can only be "any"',
        ),
    ],
)
def test_what_is_no_plan_is_said_in_words(text, why):
    with pytest.raises(ValueError, match=why):
        parse_plan(text)


def test_brokers_are_numbers_between_commas():
    assert parse_brokers("3, 1,2") == (3, 1, 2)
    for wrong in ("", "1,,2", "a", "1,1", "-1"):
        with pytest.raises(ValueError, match=r"1,2,3|twice"):
            parse_brokers(wrong)


def test_the_partitions_of_a_topic_take_turns_in_who_is_preferred():
    assert spread([("a", 0), ("a", 1), ("a", 5)], (1, 2, 3)) == {
        ("a", 0): (1, 2, 3),
        ("a", 1): (2, 3, 1),
        ("a", 5): (3, 1, 2),
    }


def partition(*replicas, adding=(), removing=(), live=(1, 2, 3, 4)):
    state = PartitionState(replicas, replicas[0], 0, replicas, adding=adding, removing=removing)
    return PartitionReplicas("a", 0, state, frozenset(live))


def test_a_move_adds_first_and_removes_at_the_end():
    move = move_of(partition(1, 2, 3), (3, 4))
    assert move == Reassignment((3, 4, 1, 2), (4,), (1, 2))
    assert move.target == (3, 4)
    # Replicas that an earlier reassignment was adding do not belong to the origin.
    again = move_of(partition(3, 4, 1, 2, adding=(4,), removing=(1, 2)), (1, 3))
    assert (again.adding, again.removing) == ((), (2,))


def test_no_replica_is_sent_to_a_broker_that_is_not_alive():
    assert objection((1, 9), partition(1, 2)) == "broker 9 is not alive"
    assert objection((1, 2), partition(1, 2, live=(1,))) is None


def test_moves_are_picked_by_name():
    moves = {(topic, index): Reassignment((1,), (), ()) for topic in "ab" for index in range(2)}
    assert pick(moves, []) == moves
    assert list(pick(moves, [("a", None), ("b", 1)])) == [("a", 0), ("a", 1), ("b", 1)]


def test_the_throttle_names_who_sends_and_who_receives():
    throttle = throttle_of(
        {
            ("a", 0): Reassignment((3, 4, 1, 2), (4,), (1, 2)),
            ("a", 1): Reassignment((1, 2), (), (2,)),
            ("b", 0): Reassignment((5, 1), (5,), ()),
        }
    )
    assert throttle.replicas == {
        "a": {LEADERS: {"0:1", "0:2", "0:3"}, FOLLOWERS: {"0:4"}},
        "b": {LEADERS: {"0:1"}, FOLLOWERS: {"0:5"}},
    }
    assert throttle.brokers == {1, 2, 3, 4, 5}


def test_replicas_that_others_have_throttled_stay_so():
    assert with_names("0:7", {"0:10", "0:2"}) == "0:7,0:2,0:10"
    assert with_names("0:7,0:8", {"0:7"}) is None
    assert with_names("*", {"0:7"}) is None
