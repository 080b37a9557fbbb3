"""Groups that wait for more members, that are full, and that expire."""

from __future__ import annotations

import time

import pytest

from hightide.testing import Cluster
from hightide.wire.errors import ErrorCode
from tests.conformance.conftest import GROUP_SETTINGS
from tests.conformance.raw import Raw
from tests.conformance.raw_group import (
    RawMember,
    commit_request,
    find,
    listed,
    new_group,
    offsets_of,
)
from tests.conformance.test_groups_consumer import heartbeat
from tests.support.eventually import eventually

DELAY_MS = 700


@pytest.fixture(scope="module")
def narrow():
    """A broker with small limits."""
    settings = {
        **GROUP_SETTINGS,
        "group.initial.rebalance.delay.ms": DELAY_MS,
        "group.max.size": 2,
        "group.consumer.max.size": 2,
        "offsets.retention.check.interval.ms": 300,
    }
    with Cluster(settings=settings) as cluster:
        yield cluster
        assert "Traceback" not in cluster.log(), cluster.log()


@pytest.fixture(scope="module")
def topic(narrow):
    return narrow.create_topic()


@pytest.fixture
def raws(narrow):
    made = [Raw(narrow) for _ in range(3)]
    eventually(lambda: find(made[0], "any").error_code == 0)
    yield made
    for member in made:
        member.__exit__()


def test_a_new_group_waits_for_more_members_and_takes_no_more_than_it_may(raws, topic):
    group = new_group()
    one, two, three = (RawMember(raw, group, (topic,)) for raw in raws)
    began = time.monotonic()
    one.begin_to_join()
    two.begin_to_join()
    assert one.end_of_join() is two.end_of_join() is ErrorCode.NONE
    assert time.monotonic() - began >= DELAY_MS / 1000
    assert one.generation == two.generation == 1
    assert three.join() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert one.sync({one.member_id: b"", two.member_id: b""}).error_code == 0
    assert one.heartbeat() is two.heartbeat() is ErrorCode.NONE
    assert two.leave() is ErrorCode.NONE
    three.begin_to_join()
    assert one.join() is three.end_of_join() is ErrorCode.NONE
    assert one.generation == three.generation == 2


def test_a_group_of_the_newer_protocol_takes_no_more_than_it_may(raws, topic):
    group = new_group()
    for _ in range(2):
        assert heartbeat(raws[0], group, subscribed_topic_names=[topic]).error_code == 0
    answer = heartbeat(raws[0], group, subscribed_topic_names=[topic])
    assert ErrorCode(answer.error_code) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_offsets_that_were_to_be_kept_for_a_while_are_forgotten_then(raws, topic):
    """Versions 2 to 4 say for how long."""
    raw, group = raws[0], new_group()
    request = commit_request(group, {(topic, 0): 7})
    request.retention_time_ms = 1000
    answer = raw.ask(request, 3)
    assert answer.topics[0].partitions[0].error_code == 0
    assert offsets_of(raw, group) == {(topic, 0): 7}
    eventually(lambda: group not in listed(raw))
    assert offsets_of(raw, group) == {}


def test_offsets_of_a_group_at_work_are_kept(raws, topic):
    raw, group = raws[0], new_group()
    member = RawMember(raw, group, (topic,)).form((topic, 0))
    request = commit_request(group, {(topic, 0): 7}, generation=1, member_id=member.member_id)
    raw.ask(request, 9)
    gone = new_group()
    request = commit_request(gone, {(topic, 0): 7})
    request.retention_time_ms = 1
    raw.ask(request, 4)
    eventually(lambda: gone not in listed(raw))
    assert offsets_of(raw, group) == {(topic, 0): 7}
