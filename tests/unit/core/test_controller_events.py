"""What a controller's decisions mean: the leader and the one before, who left the ISR, and why."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from hightide.core.controller.cluster_state import Topic, TopicRules
from hightide.core.controller.controller import PartitionChange
from hightide.core.controller.controller_events import (
    BrokersChanged,
    LeaderElected,
    LeadersElected,
    PartitionOffline,
    PartitionRecovered,
    ReplicasReassigned,
    UncleanLeaderElected,
    brokers_found,
    events_of,
    leaders_elected,
)
from hightide.core.controller.leader_election import RecoveryStrategy
from hightide.core.events import Event, Severity
from hightide.core.partition.isr import IsrGrown, IsrShrunk
from hightide.core.partition.state import NO_BROKER, PartitionState

WHERE = ("orders", 3)
WHY = "broker 1 is gone"
LED = PartitionState((1, 2, 3), 1, 4, (1, 2, 3), partition_epoch=9)
OFFLINE = PartitionState((1, 2, 3), NO_BROKER, 5, (), elr=(1,), last_known_leader=1)


def change(before: PartitionState | None, after: PartitionState) -> PartitionChange:
    return PartitionChange(*WHERE, before, after)


def found(before: PartitionState | None, after: PartitionState, **how: bool) -> list[Event]:
    return [*events_of(change(before, after), WHY, RecoveryStrategy.BALANCED, **how)]


def test_a_failover_names_both_leaders_the_epoch_the_isr_and_the_cause() -> None:
    after = replace(LED, leader=2, leader_epoch=5, isr=(2, 3))
    assert found(LED, after) == [
        LeaderElected(*WHERE, 2, 1, 5, (2, 3), WHY),
        IsrShrunk(*WHERE, (1,), (2, 3), 2, WHY),
    ]


def test_the_first_leader_of_a_new_partition_is_a_detail() -> None:
    (elected,) = found(None, replace(LED, leader_epoch=0))
    assert elected == LeaderElected(*WHERE, 1, NO_BROKER, 0, (1, 2, 3), WHY)
    assert elected.level is Severity.DEBUG
    assert "after" not in str(elected)


def test_a_partition_without_a_leader_says_who_can_lead_again() -> None:
    gone = replace(OFFLINE, elr=(1, 2))
    offline, shrunk = found(replace(LED, isr=(1,)), gone)
    assert offline == PartitionOffline(*WHERE, 1, (1, 2), WHY)
    assert shrunk == IsrShrunk(*WHERE, (1,), (), NO_BROKER, WHY)
    assert "brokers 1 and 2 can lead again" in str(offline)
    assert offline.level is Severity.ERROR


def test_a_leader_after_none_names_the_last_one() -> None:
    after = replace(OFFLINE, leader=1, leader_epoch=6, isr=(1,), elr=())
    # An ISR that was empty has not grown.
    assert found(OFFLINE, after) == [LeaderElected(*WHERE, 1, 1, 6, (1,), WHY)]


def test_an_isr_that_its_leader_proposed_is_the_leaders_event() -> None:
    assert found(LED, replace(LED, isr=(1, 2)), is_proposed=True) == []
    assert found(LED, replace(LED, isr=(1, 2))) == [IsrShrunk(*WHERE, (3,), (1, 2), 1, WHY)]
    assert found(replace(LED, isr=(1, 2)), LED) == [IsrGrown(*WHERE, (3,), (1, 2, 3), 1, WHY)]


@pytest.mark.parametrize(
    ("leader", "strategy", "kind"),
    [
        (2, RecoveryStrategy.BALANCED, PartitionRecovered),
        (3, RecoveryStrategy.BALANCED, UncleanLeaderElected),
        (2, RecoveryStrategy.AGGRESSIVE, UncleanLeaderElected),
    ],
)
def test_an_election_that_may_lose_records_says_so(leader, strategy, kind) -> None:
    before = replace(OFFLINE, elr=(), last_known_elr=(1, 2))
    after = replace(before, leader=leader, leader_epoch=6, isr=(leader,), recovery_epoch=6)
    events = [*events_of(change(before, after), WHY, strategy)]
    assert [type(event) for event in events] == [kind, LeaderElected]
    assert events[0].level is (Severity.WARNING if kind is PartitionRecovered else Severity.ERROR)
    assert events[0].data()["last_known_elr"] == [1, 2]


def test_a_reassignment_begins_and_ends() -> None:
    begun = replace(LED, replicas=(4, 2, 3, 1), adding=(4,), removing=(1,))
    moving = change(LED, begun)
    assert moving.changes_assignment
    assert found(LED, begun) == [ReplicasReassigned(*WHERE, (4, 2, 3, 1), (4,), (1,))]
    assert "replicas move to broker 4 from broker 1" in str(found(LED, begun)[0])


def test_the_elections_of_one_cause_are_counted() -> None:
    plan = [
        change(LED, replace(LED, leader=2, leader_epoch=5, isr=(2, 3))),
        change(LED, replace(LED, isr=(1, 2))),
        change(replace(LED, isr=(1,)), OFFLINE),
        change(LED, replace(LED, adding=(4,))),
    ]
    counted = leaders_elected(plan, WHY, 7)
    assert counted == LeadersElected(WHY, 1, 1, 3, 1, 7)
    assert str(counted) == (
        "broker 1 is gone: 1 new leader, 1 partition without a leader, 3 ISRs shrunk,"
        " 1 other change (7 ms)"
    )
    assert str(leaders_elected([], "audit", 0)) == "audit: no partition changes (0 ms)"


def test_brokers_that_go_and_come_are_one_cause() -> None:
    changed = BrokersChanged((1,), (4, 5), (77, 78), (2, 4, 5))
    assert changed.level is Severity.WARNING
    assert changed.cause == (
        "broker 1 is gone, broker 4 is up (broker epoch 77), broker 5 is up (broker epoch 78)"
    )
    assert BrokersChanged((), (4,), (77,), (4,)).level is Severity.INFO


def test_a_new_controller_finds_who_is_gone() -> None:
    topic = Topic("orders", uuid.UUID(int=1), TopicRules(), {0: LED, 1: OFFLINE})
    assert brokers_found([topic], {2: 20, 3: 30}) == BrokersChanged((1,), (), (), (2, 3))
    assert brokers_found([topic], {1: 10, 2: 20, 3: 30}) is None
    # It was known before that the partition without a leader lost broker 1.
    known = Topic("orders", uuid.UUID(int=1), TopicRules(), {1: OFFLINE})
    assert brokers_found([known], {2: 20}) is None
