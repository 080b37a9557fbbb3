"""When a broker must assume that others were elected in its place."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hightide.broker.membership.contact import Contact
from hightide.broker.membership.fenced_session import FencedSession
from hightide.broker.replication.replica import Replica
from hightide.core.partition.leader import Leader
from hightide.wire.errors import ErrorCode, KafkaError
from tests.unit.broker.replica_world import LIVE, lead, make, state


class Session:
    """A ZooKeeper session, its clock and its lease."""

    def __init__(self) -> None:
        self.session_id = 1
        self.now_s = 100.0
        self.until_s = 110.0
        self.has_roles = True
        self.fenced = FencedSession(cast(Any, self), 1)
        self.contact = Contact(self, self.fenced, lambda: self.has_roles)

    def clock_s(self) -> float:
        return self.now_s

    def sure_until_s(self) -> float:
        return self.until_s

    def in_doubt_at(self, now_s: float) -> bool:
        self.now_s = now_s
        return self.contact.in_doubt()


def test_a_broker_is_in_doubt_when_its_session_may_have_expired() -> None:
    session = Session()
    assert not session.in_doubt_at(100.0)
    assert not session.in_doubt_at(109.9)
    assert session.in_doubt_at(110.0)
    session.until_s = 120.0
    assert not session.in_doubt_at(111.0), "the session was alive, and was heard from"


def test_a_session_that_ended_is_noticed_before_its_time() -> None:
    session = Session()
    assert not session.in_doubt_at(100.0)
    session.until_s = 0.0
    session.contact.changed()
    assert session.in_doubt_at(101.0)


def test_in_a_new_session_the_roles_must_be_applied_first() -> None:
    session = Session()
    session.session_id, session.has_roles = 2, False
    session.contact.changed()
    assert session.in_doubt_at(101.0), "it is not registered"
    session.fenced.admit(2)
    assert session.in_doubt_at(101.0), "it leads what it led in its former broker epoch"
    session.has_roles = True
    assert not session.in_doubt_at(101.0)


class Follower:
    """A follower's fetch session."""

    changed: dict[tuple[bytes, int], None]
    delayed: Any

    def __init__(self, replica_id: int, heard_ms: int, leader: Leader | None) -> None:
        self.replica_id = replica_id
        self.heard_ms = heard_ms
        self._leader = leader

    def follows(self, _key: tuple[bytes, int], leader: Leader) -> bool:
        return leader is self._leader

    def has_news(self, _key: tuple[bytes, int]) -> bool:
        return False


def leading() -> tuple[Replica, Leader]:
    replica = make()
    lead(replica, state(isr=(1, 2)))
    assert replica.leader is not None
    replica._manager.since_ms = lambda: 50
    return replica, replica.leader


def test_a_leader_in_doubt_serves_while_its_members_follow() -> None:
    replica, leader = leading()
    with pytest.raises(KafkaError) as refusal:
        replica.check_certain()
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    replica.purgatory.followers[Follower(2, 60, leader)] = None
    replica.check_certain()


@pytest.mark.parametrize("follower", [Follower(2, 49, None), Follower(2, 60, None)])
def test_a_member_that_is_silent_or_follows_in_another_epoch_is_no_proof(
    follower: Follower,
) -> None:
    replica, leader = leading()
    if follower.heard_ms < 50:
        follower._leader = leader
    replica.purgatory.followers[follower] = None
    with pytest.raises(KafkaError):
        replica.check_certain()


def test_a_follower_needs_no_certainty() -> None:
    replica = make()
    replica.follow(state(leader=2))
    replica.check_certain()
    assert LIVE
