"""What a replica records: its roles, truncations with their reasons, and changes of the ISR."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hightide import event_log
from hightide.broker.replication.replica import Replica
from hightide.core.events import Event, EventRing
from hightide.core.partition.follower import Action, LogTruncated, RecordsLost
from hightide.core.partition.isr import IsrGrown, IsrShrunk
from hightide.core.partition.state import NO_BROKER, FirstWrite, Role, RoleChanged
from hightide.wire.errors import ErrorCode
from hightide.wire.hot.replica_fetch_codec import ReceivedPartition
from tests.unit.broker.replica_world import (
    NOW_MS,
    append,
    fetched,
    lead,
    make,
    received,
    state,
)

WHERE = ("t", 0)


@pytest.fixture(autouse=True)
def ring(monkeypatch) -> EventRing:
    ring = EventRing(100)
    monkeypatch.setattr(event_log, "ring", ring)
    return ring


def recorded(ring: EventRing, kind: type[Event]) -> list[Event]:
    return [found.event for found in ring.after(0, [kind.kind])]


def respond(replica: Replica, response: ReceivedPartition) -> Action:
    assert replica.follower is not None
    asked = replica.follower.position()
    assert asked is not None
    return replica.apply_response(asked, response, NOW_MS).action


def test_each_role_is_recorded_with_its_leader_and_epoch(ring) -> None:
    replica = make()
    lead(replica)
    replica.follow(state(leader=2, epoch=1))
    replica.rest(state(leader=NO_BROKER, epoch=2, isr=()))
    assert recorded(ring, RoleChanged) == [
        RoleChanged(*WHERE, Role.LEADS, 1, 0),
        RoleChanged(*WHERE, Role.FOLLOWS, 2, 1),
        RoleChanged(*WHERE, Role.WAITS, NO_BROKER, 2),
    ]
    assert [str(event).partition(": ")[2] for event in recorded(ring, RoleChanged)] == [
        "this replica leads in leader epoch 0",
        "this replica follows broker 2 in leader epoch 1",
        "this replica waits in leader epoch 2",
    ]


def test_a_truncation_has_its_offsets_epochs_and_reason(ring) -> None:
    replica = make()
    lead(replica, state(epoch=4, isr=(1, 2)))
    for _ in range(5):
        append(replica)
    replica._set_high_watermark(2)
    replica.follow(state(leader=2, epoch=6))
    assert respond(replica, received(diverging=(4, 3))) is Action.TRUNCATE
    (truncated,) = recorded(ring, LogTruncated)
    assert truncated == LogTruncated(*WHERE, 5, 4, 3, 2, 2, 6, False, False)
    assert str(truncated) == (
        "t/0: truncated from offset 5 of leader epoch 4 to 3, where it diverges from the log of"
        " broker 2, the leader in epoch 6; what is dropped was never committed, because a leader"
        " from the ISR has all that was, and does not have it"
    )
    assert recorded(ring, RecordsLost) == []


def test_after_an_unclean_election_what_is_cut_may_have_been_committed(ring) -> None:
    replica = make()
    lead(replica, state(epoch=4, isr=(1, 2)))
    for _ in range(5):
        append(replica)
    # Its checkpoint is older than the high watermark was.
    replica._set_high_watermark(2)
    replica.follow(replace(state(leader=2, epoch=6), recovery_epoch=6))
    assert respond(replica, received(diverging=(4, 3))) is Action.TRUNCATE
    (truncated,) = recorded(ring, LogTruncated)
    assert isinstance(truncated, LogTruncated)
    assert truncated.may_be_committed
    assert "; some of what is dropped may have been committed, because" in str(truncated)


def test_a_truncation_of_committed_records_is_a_loss(ring) -> None:
    replica = make()
    lead(replica, state(epoch=4, isr=(1, 2)))
    for _ in range(5):
        append(replica)
    replica._set_high_watermark(5)
    replica.follow(state(leader=2, epoch=6))
    respond(replica, received(diverging=(4, 3)))
    (lost,) = recorded(ring, RecordsLost)
    assert isinstance(lost, RecordsLost)
    assert (lost.count, lost.first_offset, lost.last_offset) == (2, 3, 4)
    assert (lost.leader, lost.leader_epoch) == (2, 6)
    (truncated,) = recorded(ring, LogTruncated)
    assert "committed" not in str(truncated)


def test_a_log_that_begins_again_is_not_called_diverging(ring) -> None:
    replica = make()
    lead(replica)
    append(replica)
    replica.follow(state(leader=2, epoch=1))
    assert respond(replica, received(ErrorCode.OFFSET_OUT_OF_RANGE, start=50)) is Action.RESTART
    (restarted,) = recorded(ring, LogTruncated)
    assert restarted == LogTruncated(*WHERE, 1, 0, 50, 0, 2, 1, True, False)
    assert str(restarted).startswith("t/0: begins again at offset 50, without what it had before")


def test_an_isr_that_shrinks_says_who_left_and_how_far_behind(ring) -> None:
    replica = make()
    lead(replica)
    append(replica)
    fetched(replica, 2, 1)
    replica.tick(NOW_MS + 2000)
    assert recorded(ring, IsrShrunk) == [], "the controller has not decided"
    replica.published(state(isr=(1, 2), at=1))
    (shrunk,) = recorded(ring, IsrShrunk)
    assert isinstance(shrunk, IsrShrunk)
    assert (shrunk.removed, shrunk.isr, shrunk.leader) == ((3,), (1, 2), 1)
    assert shrunk.why.startswith("replica 3 ")
    fetched(replica, 3, 1)
    replica.published(state(isr=(1, 2, 3), at=2))
    assert recorded(ring, IsrGrown) == [IsrGrown(*WHERE, (3,), (1, 2, 3), 1, "caught up")]
    replica.published(state(isr=(1, 2, 3), at=3))
    assert len(recorded(ring, IsrGrown)) == 1


def test_the_first_write_after_a_failover_ends_it(ring) -> None:
    replica = make()
    replica._manager.now_ms = lambda: NOW_MS + 31
    lead(replica)
    append(replica)
    assert recorded(ring, FirstWrite) == [], "a new partition has not failed over"
    replica.follow(state(leader=2, epoch=1))
    lead(replica, state(epoch=2))
    append(replica)
    append(replica)
    assert recorded(ring, FirstWrite) == [FirstWrite(*WHERE, 2, 31)]
