"""The rules of a leader, one by one; `test_replication_model.py` has them all at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hightide.core.partition.follower_progress import Standing
from hightide.core.partition.leader import Leader
from hightide.core.partition.state import PartitionState
from hightide.wire.errors import ErrorCode

LIVE = {1: 11, 2: 12, 3: 13}
LAG_MS = 1000


def leader(
    isr: tuple[int, ...] = (1, 2, 3), end: int = 0, high_watermark: int = 0, **changes: Any
) -> Leader:
    state = PartitionState((1, 2, 3), 1, 5, isr, partition_epoch=7)
    options: dict[str, Any] = {"min_isr": 1, "lag_ms": LAG_MS, "live": LIVE}
    options |= {"shutting_down": set(), "now_ms": 0}
    made = Leader(
        1, 11, state, end_offset=end, high_watermark=high_watermark, **(options | changes)
    )
    made.check()
    return made


def fetch(made: Leader, replica: int, offset: int, now_ms: int = 0, epoch: int | None = None):
    changes = made.fetched(replica, offset, LIVE[replica] if epoch is None else epoch, now_ms)
    made.check()
    return changes


def test_the_high_watermark_is_the_least_end_of_all_in_sync():
    made = leader()
    made.appended(10)
    fetch(made, 2, 10)
    assert made.high_watermark == 0, "nothing is known of 3"
    assert fetch(made, 3, 4).high_watermark == 4
    assert fetch(made, 3, 10).high_watermark == 10


def test_a_leader_alone_commits_what_it_writes():
    made = leader(isr=(1,))
    assert made.appended(3) == 3


def test_nothing_is_committed_with_too_few_in_sync():
    made = leader(isr=(1,), min_isr=2)
    assert made.appended(3) == -1
    assert made.write_error() == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader(min_isr=2).write_error() == ErrorCode.NONE


def test_nothing_is_committed_while_the_elr_is_not_empty():
    state = PartitionState((1, 2, 3), 1, 5, (1,), elr=(2,), partition_epoch=7)
    made = leader(isr=(1,))
    made.published(replace(state, partition_epoch=8))
    assert made.appended(3) == -1


def test_who_has_caught_up_joins_and_counts_before_the_answer():
    made = leader(isr=(1, 2), end=10, high_watermark=10)
    proposal = fetch(made, 3, 10).proposal
    assert proposal is not None
    assert (proposal.isr, proposal.broker_epochs[3]) == ((1, 2, 3), 13)
    made.appended(12)
    fetch(made, 2, 12)
    assert made.high_watermark == 10, "3 may be in the ISR already"
    made.refused(proposal)
    assert made.maximal_isr == {1, 2}


def test_no_replica_joins_below_the_start_of_the_epoch():
    made = leader(isr=(1, 2), end=10, high_watermark=4)
    assert fetch(made, 3, 6).proposal is None
    assert not made.is_hw_trusted
    assert fetch(made, 3, 10).proposal is not None


def test_no_replica_joins_in_a_former_broker_epoch_or_while_shutting_down_or_dead():
    assert fetch(leader(isr=(1, 2)), 3, 0, epoch=12).proposal is None
    assert fetch(leader(isr=(1, 2), shutting_down={3}), 3, 0).proposal is None
    assert fetch(leader(isr=(1, 2), live={1: 11, 2: 12}), 3, 0).proposal is None


def test_no_replica_joins_with_records_that_the_leader_has_deleted():
    """Records below the leader's log start cannot be compared: they may be another leader's, never
    committed, and would be shown in place of those that were.  The response makes the follower
    delete them."""
    made = leader(isr=(1, 2), end=10, high_watermark=10)
    assert made.fetched(3, 10, 13, 0, 4, own_log_start_offset=6).proposal is None
    assert made.fetched(3, 10, 13, 0, 5, own_log_start_offset=8).proposal is None
    proposal = made.fetched(3, 10, 13, 0, 6, own_log_start_offset=9).proposal
    assert proposal is not None, "all that it has left was compared with its first fetch"

    made = leader(isr=(1, 2), end=10, high_watermark=10)
    made.fetched(3, 10, 13, 0, 6, own_log_start_offset=0)
    made.brokers_changed({**LIVE, 3: 33}, set())
    assert made.fetched(3, 10, 33, 0, 4, own_log_start_offset=6).proposal is None, (
        "in a new broker epoch"
    )


def test_who_is_behind_for_too_long_leaves():
    made = leader()
    made.appended(10)
    fetch(made, 2, 10, now_ms=900)
    assert made.tick(LAG_MS).proposal is None
    proposal = made.tick(LAG_MS + 1).proposal
    assert proposal is not None
    assert proposal.isr == (1, 2)
    assert made.maximal_isr == {1, 2, 3}, "until it is decided, 3 counts"


def test_a_proposal_refused_after_its_broker_epoch_ended_leaves_no_doubt():
    made = leader(isr=(1, 2), end=10, high_watermark=10)
    proposal = fetch(made, 3, 10).proposal
    made.unanswered()
    made.brokers_changed({1: 11, 2: 12, 3: 99}, set())
    made.refused(proposal)
    made.check()
    assert made.maximal_isr == {1, 2}


def test_a_refusal_after_silence_leaves_the_new_member_counted():
    made = leader(isr=(1, 2), end=10, high_watermark=10)
    proposal = fetch(made, 3, 10).proposal
    made.unanswered()
    made.refused(proposal)
    made.check()
    assert made.maximal_isr == {1, 2, 3}


def test_a_write_is_answered_when_it_is_committed():
    made = leader(isr=(1, 2), min_isr=2)
    made.appended(5)
    assert made.commit_result(5) is None
    fetch(made, 2, 5)
    assert made.commit_result(5) == ErrorCode.NONE


def test_people_are_told_why_a_replica_is_not_in_sync():
    made = leader(isr=(1,), end=10, high_watermark=10, live={1: 11, 3: 13})
    assert made.progress(1, 0).standing is Standing.LEADER
    assert made.progress(2, 0).standing is Standing.NOT_ALIVE
    assert made.progress(3, 0).standing is Standing.NEVER_FETCHED
    fetch(made, 3, 4)
    assert (made.progress(3, 0).standing, made.progress(3, 0).lag_records) == (Standing.BEHIND, 6)
