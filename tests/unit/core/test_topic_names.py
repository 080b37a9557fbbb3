"""Topic names, and the partition that keeps a group or a transactional id."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.core.controller.placement import check_assignment, place
from hightide.core.metadata.topic_names import check_name, collision
from hightide.wire.errors import ErrorCode, KafkaError


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "_"])
def test_good_names_pass(name: str):
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\0", "a:b"])
def test_bad_names_are_refused_with_a_reason(name: str):
    with pytest.raises(KafkaError) as refused:
        check_name(name)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refused.value.detail


def test_names_that_differ_only_in_dots_and_underscores_collide():
    assert collision("a.b", ["x", "a_b"]) == "a_b"
    assert collision("a.b", ["ab", "a-b"]) is None


@given(
    st.sets(st.integers(0, 50), min_size=1, max_size=7).flatmap(
        lambda brokers: st.tuples(
            st.just(sorted(brokers)),
            st.integers(1, 40),
            st.integers(1, len(brokers)),
            st.integers(0, 100),
        )
    )
)
def test_replicas_are_distinct_and_evenly_spread(case):
    brokers, partitions, factor, first = case
    assignment = place(dict.fromkeys(brokers), partitions, factor, first)
    check_assignment(assignment, brokers)
    assert len(assignment) == partitions
    assert all(len(replicas) == factor for replicas in assignment.values())
    leaders = Counter(replicas[0] for replicas in assignment.values())
    assert max(leaders.values()) - min(leaders[broker] for broker in brokers) <= 1


@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-5, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 4, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_counts_that_cannot_be_are_refused(partitions: int, factor: int, code: ErrorCode):
    with pytest.raises(KafkaError) as refused:
        place(dict.fromkeys([1, 2, 3]), partitions, factor, 0)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "assignment",
    [
        {1: [1]},
        {0: [1], 2: [2]},
        {0: [1, 2], 1: [1]},
        {0: []},
        {0: [1, 1]},
        {0: [9]},
    ],
)
def test_assignments_that_cannot_be_are_refused(assignment: dict[int, list[int]]):
    with pytest.raises(KafkaError) as refused:
        check_assignment(assignment, [1, 2])
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
