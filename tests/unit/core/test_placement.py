"""Replica placement: which brokers get the replicas of new partitions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.core.controller.placement import check_assignment, place
from hightide.wire.errors import ErrorCode, KafkaError

BROKERS = st.sets(st.integers(0, 50), min_size=1, max_size=8).map(sorted)


NO_RACKS = st.none()


@st.composite
def cases(draw, racks=NO_RACKS):
    brokers = {broker: draw(racks) for broker in draw(BROKERS)}
    return (
        brokers,
        draw(st.integers(1, 40)),
        draw(st.integers(1, len(brokers))),
        draw(st.integers(0, 100)),
    )


def spread(brokers, counts: Counter[int]) -> int:
    return max(counts[broker] for broker in brokers) - min(counts[broker] for broker in brokers)


def leaders(assignment) -> Counter[int]:
    return Counter(replicas[0] for replicas in assignment.values())


def holders(assignment) -> Counter[int]:
    return Counter(broker for replicas in assignment.values() for broker in replicas)


@given(cases(st.none() | st.sampled_from("abc")))
def test_every_partition_has_as_many_different_brokers_as_asked_for(case):
    brokers, partitions, factor, first = case
    assignment = place(brokers, partitions, factor, first)
    check_assignment(assignment, list(brokers))
    assert len(assignment) == partitions
    assert all(len(replicas) == factor for replicas in assignment.values())


@given(cases(st.none() | st.sampled_from("abc")))
def test_every_broker_is_preferred_as_leader_equally_often(case):
    brokers, partitions, factor, first = case
    assert spread(brokers, leaders(place(brokers, partitions, factor, first))) <= 1


@given(cases())
def test_without_racks_full_rounds_give_every_broker_equally_many_replicas(case):
    brokers, rounds, factor, first = case
    assignment = place(brokers, rounds * len(brokers), factor, first)
    assert spread(brokers, holders(assignment)) == 0


def test_what_a_broker_leads_is_followed_by_all_the_others():
    brokers = dict.fromkeys(range(5))
    assignment = place(brokers, 100, 2, 0)
    followers = Counter(replicas[1] for replicas in assignment.values() if replicas[0] == 0)
    assert followers == {1: 5, 2: 5, 3: 5, 4: 5}


@given(cases(st.sampled_from("abcd")))
def test_replicas_stand_in_as_many_racks_as_there_can_be(case):
    brokers, partitions, factor, first = case
    sizes = Counter(brokers.values())
    for replicas in place(brokers, partitions, factor, first).values():
        used = Counter(brokers[broker] for broker in replicas)
        assert len(used) == min(factor, len(sizes))
        # No rack has two replicas more than another that still had a free broker.
        for rack, size in sizes.items():
            assert used[rack] == size or used[rack] >= max(used.values()) - 1


@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 60), st.integers(0, 100), st.data())
def test_equal_racks_give_equal_brokers(size, rack_count, partitions, first, data):
    brokers = {broker: "abcd"[broker % rack_count] for broker in range(size * rack_count)}
    factor = data.draw(st.integers(1, rack_count))
    assignment = place(brokers, partitions, factor, first)
    assert spread(brokers, leaders(assignment)) <= 1
    assert spread(brokers, holders(assignment)) <= 2


def test_leaders_of_neighbouring_partitions_stand_in_different_racks():
    brokers = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    assignment = place(brokers, 6, 3, 0)
    assert [brokers[assignment[index][0]] for index in range(6)] == list("abcabc")


def test_racks_count_only_if_every_broker_names_one():
    some = {1: "a", 2: None, 3: "b", 4: "b"}
    assert place(some, 8, 2, 0) == place(dict.fromkeys(some), 8, 2, 0)


@given(cases(st.none() | st.sampled_from("abc")), st.integers(1, 40))
def test_partitions_added_later_go_on_with_the_round(case, more):
    brokers, partitions, factor, first = case
    had = place(brokers, partitions, factor, first)
    added = place(brokers, more, factor, 77, existing=list(had.values()))
    assert list(added) == list(range(partitions, partitions + more))
    assert had | added == place(brokers, partitions + more, factor, first)


def test_partitions_added_when_the_first_broker_is_gone_are_placed_all_the_same():
    added = place({2: None, 3: None}, 2, 2, 0, existing=[[1, 2]])
    check_assignment({at - 1: replicas for at, replicas in added.items()}, [2, 3])


@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 4, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_counts_that_cannot_be_are_refused(partitions: int, factor: int, code: ErrorCode):
    with pytest.raises(KafkaError) as refused:
        place(dict.fromkeys([1, 2, 3]), partitions, factor, 0)
    assert refused.value.code == code
