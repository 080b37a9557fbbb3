"""Causes of what is wrong, why a high watermark stands still, why a client waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hightide.client.model.diagnosis import CauseKind, causes, names
from hightide.client.model.groups import GroupDescription, Rebalance
from hightide.client.model.health import ProblemKind
from hightide.client.model.replicas import (
    PartitionReplicas,
    ReplicaReport,
    ReplicasDescription,
    Role,
)
from hightide.client.model.standstill import (
    Client,
    coordinator_waits,
    group_waits,
    high_watermark,
    unreachable,
    waits,
)
from hightide.core.partition.follower_progress import Progress, Standing
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.types import NO_UUID

ALL = frozenset({1, 2, 3})
WHOLE = PartitionState((1, 2, 3), leader=1, leader_epoch=4, isr=(1, 2, 3), partition_epoch=9)
WITHOUT_3 = replace(WHOLE, isr=(1, 2))
ALONE_ON_3 = PartitionState((3,), leader=3, leader_epoch=4, isr=(3,), partition_epoch=9)


def report(broker, role=Role.FOLLOWER, high_watermark=100, end_offset=100, **values):
    return ReplicaReport(
        broker=broker,
        topic="orders",
        topic_id=NO_UUID,
        partition=0,
        role=role,
        leader_epoch=4,
        log_start_offset=0,
        high_watermark=high_watermark,
        end_offset=end_offset,
        size_bytes=5000,
        state=None,
        **values,
    )


def partition(state, *reports, topic="orders", index=0, live=ALL, silent=()):
    return PartitionReplicas(
        topic,
        index,
        state,
        frozenset(live),
        {report.broker: report for report in reports},
        frozenset(silent),
        is_internal=topic.startswith("__"),
    )


def cluster(*partitions, controller=1, live=ALL, **values):
    return ReplicasDescription(controller, frozenset(live), list(partitions), **values)


def found(cluster, min_isr=2, **options):
    return causes(cluster, dict.fromkeys(("orders", "pay"), min_isr), **options)


def effects(cause):
    return [(effect.kind, effect.partitions, effect.internal) for effect in cause.effects]


# -- health ------------------------------------------------------------------------------------


def test_a_cluster_in_sync_has_no_causes():
    assert found(cluster(partition(WHOLE))) == []


def test_a_dead_broker_has_all_that_it_takes_with_it():
    live = {1, 2}
    internal = partition(WITHOUT_3, topic="__consumer_offsets", live=live)
    (cause,) = found(
        cluster(
            internal,
            partition(WITHOUT_3, live=live),
            partition(replace(WHOLE, isr=(1,)), topic="pay", live=live),
            partition(ALONE_ON_3, index=1, live=live),
            live=live,
            addresses={1: "a:9092", 3: "c:9092"},
            last_seen_ms={3: 1_700_000_000_000},
        ),
        now_ms=1_700_000_065_000,
    )[:1]
    assert (cause.kind, cause.broker, cause.address, cause.last_seen_ms) == (
        CauseKind.BROKER_NOT_ALIVE,
        3,
        "c:9092",
        1_700_000_000_000,
    )
    assert cause.cause == (
        "Broker 3 (c:9092) is not alive and holds 4 replicas; last seen: 2023-11-14 22:13:20 UTC,"
        " 65 s ago."
    )
    assert effects(cause) == [
        (ProblemKind.OFFLINE, ["orders/1"], 0),
        (ProblemKind.UNDER_MIN_ISR, ["pay/0"], 0),
        (ProblemKind.UNDER_REPLICATED, ["orders/0", "__consumer_offsets/0"], 1),
    ]
    assert cause.next.command == "hightide broker start --config server.properties"


def test_the_next_step_for_a_dead_broker_depends_on_what_runs_it():
    dead = partition(WITHOUT_3, live={1, 2})
    (local,) = found(cluster(dead, live={1, 2}), is_local=True)
    assert local.next.command == "hightide broker restart 3"
    assert local.cause == (
        "Broker 3 (address unknown) is not alive and holds 1 replica; last seen: unknown."
    )
    (kafka,) = found(cluster(dead, live={1, 2}, others=frozenset({1, 2})))
    assert kafka.next.command == "kafka-server-start.sh server.properties"


def test_a_partition_that_two_dead_brokers_keep_is_shown_with_both():
    live = {1}
    state = replace(WHOLE, isr=(1,))
    second, third = found(cluster(partition(state, live=live), live=live))
    assert (second.broker, third.broker) == (2, 3)
    assert effects(second) == effects(third) == [(ProblemKind.UNDER_MIN_ISR, ["orders/0"], 0)]


def test_a_broker_that_does_not_answer_is_named_with_what_it_leads():
    silent = {3: "It did not answer within 5 s."}
    leads = partition(replace(WHOLE, leader=3), silent={3})
    behind = partition(WITHOUT_3, index=1, silent={3})
    ill = cluster(leads, behind, silent=silent, addresses={3: "c:9092"})
    (cause,) = found(ill)
    assert cause.cause == (
        "Broker 3 (c:9092) is registered but does not answer; it leads 1 partition. It did not"
        " answer within 5 s."
    )
    assert effects(cause) == [(ProblemKind.UNDER_REPLICATED, ["orders/1"], 0)]
    assert cause.next.command == "hightide doctor"
    (local,) = found(ill, is_local=True)
    assert local.next.command == "hightide broker resume 3"


@pytest.mark.parametrize(
    ("failure", "command"),
    [
        ("full: the disk of /data is full: free space there", "cluster logdirs --broker 3"),
        ("offline: writing failed", "cluster logdirs --broker 3"),
        ("damaged: the CRC does not match", "partition show orders/0"),
    ],
)
def test_replicas_that_fail_for_the_same_reason_are_one_cause(failure, command):
    failed = report(3, failure=failure)
    (cause,) = found(cluster(partition(WITHOUT_3, failed), partition(WITHOUT_3, failed, index=1)))
    sort, _, why = failure.partition(": ")
    assert cause.cause == f"Broker 3 (address unknown): the log of 2 replicas is {sort}: {why}."
    assert effects(cause) == [
        (ProblemKind.REPLICA_FAILED, ["orders/0", "orders/1"], 0),
        (ProblemKind.UNDER_REPLICATED, ["orders/0", "orders/1"], 0),
    ]
    assert cause.next.command == f"hightide {command}"


def test_causes_come_in_the_order_in_which_they_are_treated():
    lossy = report(2, lost_records=20)
    unknown = replace(WHOLE, leader=NO_BROKER, isr=())
    moving = replace(WHOLE, replicas=(1, 2, 3, 4), adding=(4,))
    ill = cluster(
        partition(WITHOUT_3, lossy),
        partition(unknown, index=1),
        partition(moving, index=2),
        controller=NO_BROKER,
    )
    listed = found(ill)
    assert [cause.kind for cause in listed] == [
        CauseKind.NO_CONTROLLER,
        CauseKind.BROKER_NOT_ALIVE,
        CauseKind.LOST_RECORDS,
        CauseKind.OFFLINE,
        CauseKind.REPLICA_BEHIND,
        CauseKind.REASSIGNING,
    ]
    no_controller, _, lost, offline, behind, moves = listed
    assert no_controller.next.command == "hightide cluster controller"
    assert lost.next.command == "hightide partition show orders/0"
    assert offline.next.command == ("hightide partition elect --topic orders/1 --unclean --dry-run")
    assert behind.cause == (
        "Broker 3 (address unknown) is alive and has replicas out of sync; replica 3 of orders/0:"
        " out of sync."
    )
    assert (moves.cause, moves.next.command) == (
        "1 partition is being reassigned: orders/2.",
        "hightide partition reassign --list",
    )


def test_many_partitions_have_a_short_name():
    some = [partition(WHOLE, index=index) for index in (0, 2)]
    internal = [partition(WHOLE, topic="__consumer_offsets", index=index) for index in range(50)]
    assert names([*internal, *some, partition(WHOLE, topic="pay")]) == (
        "orders/0,2 pay/0 and 50 of internal topics"
    )
    assert names(internal) == "50 of internal topics"
    many = [partition(WHOLE, topic=f"t{number}") for number in range(12)]
    assert names(many).endswith(" t9/0 and 2 more topics")


# -- the high watermark ------------------------------------------------------------------------


def progress(broker, end_offset, lag_records, lag_ms):
    return {broker: Progress(broker, Standing.IN_SYNC, end_offset, lag_records, lag_ms)}


def leader(*progresses, high_watermark=60, maximal_isr=(1, 2, 3), **values):
    merged = {broker: one for each in progresses for broker, one in each.items()}
    return report(
        1, Role.LEADER, high_watermark, maximal_isr=maximal_isr, progress=merged, **values
    )


def test_a_high_watermark_at_the_log_end_needs_no_reason():
    assert high_watermark(partition(WHOLE, leader(high_watermark=100)), 2) is None


def test_the_slowest_member_of_the_isr_holds_the_high_watermark_back():
    slow = leader(progress(2, 90, 10, 20), progress(3, 60, 40, 9_000))
    why = high_watermark(partition(WHOLE, slow), 2)
    assert why is not None
    assert why.replica == 3
    assert why.sentence == (
        "The high watermark, 60, stands still, because replica 3 of the ISR is 40 records and 9000"
        " ms behind."
    )
    silent = high_watermark(partition(WHOLE, slow, silent={3}), 2)
    assert silent is not None
    assert silent.sentence.endswith("9000 ms behind, and its broker does not answer.")


def test_a_lag_that_comes_and_goes_is_told_from_one_that_stays():
    quick = leader(progress(2, 90, 10, 20), progress(3, 100, 0, 0), high_watermark=90)
    why = high_watermark(partition(WHOLE, quick), 2)
    assert why is not None
    assert (
        why.sentence
        == "The high watermark, 90, moves: replica 2 of the ISR is 10 records and 20 ms behind."
    )
    caught_up = leader(progress(2, 100, 0, 0), progress(3, 100, 0, 0))
    assert high_watermark(partition(WHOLE, caught_up), 2) is None


def test_too_few_replicas_in_sync_hold_the_high_watermark():
    few = partition(replace(WHOLE, isr=(1,)), leader(high_watermark=100), live={1, 2})
    why = high_watermark(few, 2, is_local=True)
    assert why is not None
    assert why.sentence == (
        "The high watermark, 100, stands still, because 1 of the 2 replicas that"
        " min.insync.replicas needs is in sync; out of sync: replica 2 (out of sync), replica 3"
        " (its broker is not alive)."
    )
    assert why.next is not None
    assert why.next.command == "hightide broker restart 3"


def test_without_a_leader_the_high_watermark_stands_still():
    offline = partition(ALONE_ON_3, live={1, 2})
    why = high_watermark(offline, 1)
    assert why is not None
    assert (why.replica, why.sentence) == (
        3,
        "The high watermark stands still: orders/0 has no leader, because broker 3 is not alive.",
    )
    unknown = high_watermark(partition(replace(WHOLE, leader=NO_BROKER, isr=())), 1)
    assert unknown is not None
    assert unknown.sentence.endswith("no leader, and no replica is known to have all records.")
    assert unknown.next is not None
    assert "--unclean --dry-run" in unknown.next.command


def test_a_leader_that_does_not_answer_or_cannot_write_is_named():
    silent = high_watermark(partition(WHOLE, silent={1}), 1)
    assert silent is not None
    assert "broker 1, the leader, does not answer" in silent.sentence
    full = high_watermark(partition(WHOLE, leader(failure="full: the disk is full")), 1)
    assert full is not None
    assert full.sentence == (
        "The high watermark, 60, stands still, because the leader's log is full: the disk is full."
    )


# -- waiting clients ---------------------------------------------------------------------------

PRODUCER = Client("orders", is_producer=True)
CONSUMER = Client("orders")


def reasons(client, *partitions, min_isr=2, **values):
    return [
        finding.sentence
        for finding in waits(client, cluster(*partitions, **values), {"orders": min_isr})
    ]


def test_nothing_is_said_of_a_cluster_in_sync():
    assert reasons(PRODUCER, partition(WHOLE)) == reasons(CONSUMER, partition(WHOLE)) == []


def test_partitions_without_a_leader_are_named_with_the_broker_that_is_down():
    live = {1, 2}
    down = [partition(ALONE_ON_3, index=index, live=live) for index in (0, 2)]
    whole = partition(WITHOUT_3, index=1, live=live)
    expected = "There is no leader for orders/0,2, because broker 3 is not alive."
    assert reasons(PRODUCER, *down, whole, live=live) == [expected]
    assert reasons(CONSUMER, *down, whole, live=live) == [expected]
    assert reasons(replace(CONSUMER, partitions=[1]), *down, whole, live=live) == []


def test_a_producer_waits_for_replicas_in_sync_only_if_it_asked_for_all():
    few = partition(replace(WHOLE, isr=(1,)), leader(high_watermark=100), live={1, 2})
    assert reasons(PRODUCER, few) == [
        "Too few replicas are in sync in orders/0: 1 of the 2 that min.insync.replicas needs,"
        " because broker 3 is not alive; writes with acks=all are refused and tried again."
    ]
    assert reasons(replace(PRODUCER, waits_for_all=False), few) == []
    # A consumer has all that is committed, and waits only for what is not.
    assert reasons(CONSUMER, few) == []
    uncommitted = partition(replace(WHOLE, isr=(1,)), leader(high_watermark=60), live=ALL)
    (sentence,) = reasons(CONSUMER, uncommitted)
    assert sentence.endswith("needs; new records are not committed, so consumers do not get them.")


def test_a_slow_member_of_the_isr_and_a_silent_leader_are_reasons():
    slow = leader(progress(2, 60, 40, 9_000), progress(3, 100, 0, 0))
    assert reasons(PRODUCER, partition(WHOLE, slow)) == [
        "The high watermark stands still in orders/0: replica 2 is 40 records and 9000 ms behind."
    ]
    assert reasons(PRODUCER, partition(WHOLE, silent={1})) == [
        "There is no answer from the leader of orders/0: broker 1 does not answer."
    ]
    full = partition(WHOLE, leader(high_watermark=100, failure="full: the disk is full"))
    assert reasons(PRODUCER, full) == [
        "Nothing can be written to the leader of orders/0 on broker 1: the log is full."
    ]
    assert reasons(CONSUMER, full) == []


def test_a_consumer_at_the_end_is_told_so_only_if_nothing_is_wrong():
    at_end = replace(CONSUMER, is_at_end=True)
    (finding,) = waits(at_end, cluster(partition(WHOLE)), {})
    assert finding.sentence == "Nothing is new in orders: this is the end of the log."
    assert finding.next is None
    (skipped,) = waits(replace(at_end, skips_old=True), cluster(partition(WHOLE)), {})
    assert skipped.next is not None
    assert skipped.next.command == "hightide consume orders --from beginning"
    offline = partition(ALONE_ON_3, live={1})
    assert reasons(at_end, offline) == [
        "There is no leader for orders/0, because broker 3 is not alive."
    ]


def test_a_cause_keeps_its_key_while_its_numbers_change():
    def key(lag_ms):
        slow = leader(progress(2, 60, 40, lag_ms), progress(3, 100, 0, 0))
        (finding,) = waits(PRODUCER, cluster(partition(WHOLE, slow)), {})
        return finding.key

    assert key(9_000) == key(12_000)


def group(state):
    return GroupDescription(
        group="shop",
        type="Classic",
        state=state,
        coordinator=1,
        protocol_type="consumer",
        assignor="range",
        generation=3,
        members=[],
        last_rebalance=Rebalance("a member joined", 0, 2),
    )


def test_a_group_that_rebalances_is_a_reason():
    (finding,) = group_waits(group("PreparingRebalance"))
    assert finding.sentence == (
        "Group shop is rebalancing (PreparingRebalance, 0 members): a member joined."
    )
    assert finding.next is not None
    assert finding.next.command == "hightide group describe shop"
    assert group_waits(group("Stable")) == []


def test_a_coordinator_is_not_available_without_a_leader():
    offline = partition(ALONE_ON_3, topic="__consumer_offsets", live={1})
    assert coordinator_waits("shop", [offline]).sentence == (
        "The coordinator of group shop is not available: 1 partition of __consumer_offsets without"
        " a leader, because broker 3 is not alive."
    )
    assert coordinator_waits("shop", []).sentence == (
        "The coordinator of group shop is not available."
    )


def test_an_unreachable_cluster_is_named_by_its_addresses():
    assert unreachable("a:1,b:2").sentence == "No broker answers at a:1,b:2."
