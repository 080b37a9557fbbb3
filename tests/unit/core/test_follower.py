"""A follower continues where its log agrees with its leader's, and reports committed loss."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.core.partition.follower import (
    NO_CHANGES,
    Action,
    FetchPosition,
    Follower,
    FollowerChanges,
    Step,
    divergence,
)
from hightide.core.partition.state import PartitionState
from hightide.wire.errors import ErrorCode
from tests.unit.core.replication_world import MemoryLog, Record

EPOCH = 9


def log_of(*epochs: int) -> MemoryLog:
    """Return a log with one record for each epoch."""
    log = MemoryLog()
    log.append([Record(epoch, offset) for offset, epoch in enumerate(epochs)])
    return log


def follower(log: MemoryLog, high_watermark: int = 0, recovery_epoch: int = -1) -> Follower:
    state = PartitionState((1, 2), 1, EPOCH, (1, 2), recovery_epoch=recovery_epoch)
    made = Follower(state, log, high_watermark)
    made.check()
    return made


def answered(made: Follower, error: ErrorCode = ErrorCode.NONE, **answer: Any) -> Step:
    asked = made.position()
    assert asked is not None
    step = made.answered(asked, error, **answer)
    made.check()
    return step


def test_it_asks_from_its_end_and_names_its_last_epoch():
    made = follower(log_of(1, 1, 4))
    assert made.position() == FetchPosition(3, 4, EPOCH, 0)
    assert follower(MemoryLog()).position() == FetchPosition(0, -1, EPOCH, 0)


def test_what_comes_is_appended():
    log = log_of(1)
    made = follower(log)
    assert answered(made) == Step(Action.APPEND)
    log.append([Record(EPOCH, 7), Record(EPOCH, 8)])
    assert made.appended(2, 0) == FollowerChanges(2)
    assert made.appended(99, 0) == FollowerChanges(3), "no further than its own end"
    assert made.appended(99, 0) is NO_CHANGES


def test_its_high_watermark_does_not_go_back_with_a_new_leader():
    made = follower(log_of(1, 1, 1), high_watermark=3)
    assert made.appended(1, 0) is NO_CHANGES
    assert made.high_watermark == 3


def test_its_log_starts_where_the_leaders_does_as_far_as_it_is_committed():
    made = follower(log_of(1, 1, 1))
    assert made.appended(2, 1) == FollowerChanges(2, 1)
    assert made.appended(2, 3) == FollowerChanges(None, 2)


def test_what_it_knows_at_the_start_lies_within_its_log():
    log = log_of(1, 1, 1)
    assert follower(log, high_watermark=9).high_watermark == 3
    log.start_offset = 2
    assert follower(log, high_watermark=0).high_watermark == 2


@pytest.mark.parametrize(
    ("epochs", "leaders", "cut"),
    [
        ((1, 1, 3, 3), (3, 3), 3),  # the leader has less of the same epoch
        ((1, 1, 3, 3), (1, 2), 2),  # the leader does not have the last epoch
        ((1, 1, 3, 3), (1, 1), 1),  # and less of the one before
        ((1, 1, 3, 3), (1, 9), 2),  # or more of it
        ((1, 1, 3, 3), (2, 3), 2),  # an epoch that is not known here: the smaller one's end
        ((3, 3), (2, 1), 0),  # nothing here is as old
    ],
    ids=str,
)
def test_it_cuts_what_cannot_be_in_the_leaders_log(epochs, leaders, cut):
    log = log_of(*epochs)
    made = follower(log)
    assert answered(made, diverging=leaders) == Step(Action.TRUNCATE, cut)
    log.truncate_to(cut)
    made.truncated()
    made.check()
    assert made.position() == FetchPosition(cut, log.epochs.latest, EPOCH, 0)


@pytest.mark.parametrize(("leaders", "start"), [((1, 3), 3), ((1, 2), 3), ((2, 4), 4)])
def test_what_the_leader_has_deleted_is_not_kept(leaders, start):
    """The records of epoch 1 here may not be those that the leader had: it cannot tell any more.
    On disk they would be back after a crash that restores an older start of the log."""
    log = log_of(1, 1, 1, 1, 1)
    made = follower(log, high_watermark=1)
    step = answered(made, diverging=leaders, leader_log_start_offset=start)
    assert step == Step(Action.RESTART, start)
    log.truncate_to(0)
    log.records = [Record(-1, -1)] * start
    log.start_offset = start
    made.truncated()
    made.check()
    assert made.high_watermark == start


def test_it_asks_again_until_the_logs_agree():
    """Two failovers: one step does not reach the offset where the logs diverge."""
    leader, log = log_of(1, 2, 2, 2, 4), log_of(1, 1, 3, 3)
    leader.epochs.assign(EPOCH, 5)
    made = follower(log)
    cuts = []
    while True:
        asked = made.position()
        assert asked is not None
        parting = divergence(
            leader.epochs, leader.end_offset, asked.offset, asked.last_fetched_epoch
        )
        step = made.answered(asked, diverging=parting)
        if step.action is Action.APPEND:
            break
        cuts.append(step.offset)
        log.truncate_to(step.offset)
        made.truncated()
    assert cuts == [2, 1]
    assert log.records == leader.records[: log.end_offset]


def test_an_epoch_in_which_it_led_and_wrote_nothing_is_forgotten():
    log = log_of(1, 1)
    log.epochs.assign(5, 2)
    made = follower(log, high_watermark=2)
    assert answered(made, diverging=(1, 2)) == Step(Action.TRUNCATE, 2)
    log.truncate_to(2)
    made.truncated()
    assert made.position() == FetchPosition(2, 1, EPOCH, 0)


def test_a_diverging_answer_that_would_change_nothing_is_not_followed():
    made = follower(log_of(1, 1))
    assert answered(made, diverging=(1, 5)) == Step(Action.BACK_OFF)


def test_a_log_that_lies_behind_the_leaders_end_begins_again():
    log = log_of(3, 3, 3)
    log.start_offset = 2
    log.epochs.truncate_from_start(2)
    made = follower(log, recovery_epoch=8)
    assert answered(made, diverging=(2, 1)) == Step(Action.RESTART, 1)


def test_committed_records_that_the_leader_lacks_are_counted_and_truncated():
    log = log_of(1, 1, 3, 3)
    made = follower(log, high_watermark=3)
    assert answered(made, diverging=(1, 2)) == Step(Action.TRUNCATE, 2, lost=1)
    assert not made.expects_loss
    log.truncate_to(2)
    made.truncated()
    made.check()
    assert made.high_watermark == 2
    assert made.position() == FetchPosition(2, 1, EPOCH, 0)


def test_records_above_the_high_watermark_are_not_counted_as_lost():
    made = follower(log_of(1, 1, 3), high_watermark=2)
    assert answered(made, diverging=(1, 2)) == Step(Action.TRUNCATE, 2, lost=0)


def test_deleted_records_are_not_counted_as_lost():
    log = log_of(3, 3, 3)
    log.start_offset = 2
    log.epochs.truncate_from_start(2)
    made = follower(log, high_watermark=3)
    assert answered(made, diverging=(2, 1)) == Step(Action.RESTART, 1, lost=1)


def test_a_recovery_since_its_last_record_explains_a_loss():
    made = follower(log_of(1, 1, 3), high_watermark=3, recovery_epoch=4)
    assert answered(made, diverging=(1, 2)) == Step(Action.TRUNCATE, 2, lost=1)
    assert made.expects_loss


def test_a_recovery_before_its_last_record_explains_none():
    made = follower(log_of(1, 1, 4), high_watermark=3, recovery_epoch=4)
    assert answered(made, diverging=(1, 2)).lost == 1
    assert not made.expects_loss


def test_a_log_of_which_nothing_is_the_leaders_begins_again_though_it_ends_before_its_end():
    """Otherwise deleted records of the later epoch would lie before the leader's older records."""
    log = log_of(3, 3, 3)
    log.start_offset = 2
    log.epochs.truncate_from_start(2)
    made = follower(log, recovery_epoch=8)
    assert answered(made, diverging=(2, 9)) == Step(Action.RESTART, 2)


def test_a_log_that_ends_before_the_leaders_begins_starts_there():
    log = log_of(1, 1)
    made = follower(log, high_watermark=2)
    step = answered(made, ErrorCode.OFFSET_OUT_OF_RANGE, leader_log_start_offset=50)
    assert step == Step(Action.RESTART, 50)
    log.truncate_to(0)
    log.records = [Record(-1, -1)] * 50
    log.start_offset = 50
    made.truncated()
    made.check()
    assert made.high_watermark == 50


@pytest.mark.parametrize("start", [-1, 0, 2])
def test_otherwise_it_asks_again_when_out_of_range(start):
    made = follower(log_of(1, 1))
    step = answered(made, ErrorCode.OFFSET_OUT_OF_RANGE, leader_log_start_offset=start)
    assert step == Step(Action.BACK_OFF)


def test_a_fenced_follower_waits_for_a_newer_leader_epoch():
    made = follower(log_of(1))
    assert answered(made, ErrorCode.FENCED_LEADER_EPOCH) == Step(Action.WAIT)
    assert made.position() is None
    made.check()


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
    ids=lambda error: error.name,
)
def test_what_may_pass_is_tried_again(error):
    made = follower(log_of(1))
    assert answered(made, error) == Step(Action.BACK_OFF)
    assert made.position() is not None


def test_an_answer_to_a_former_question_is_passed_over():
    log = log_of(1, 1)
    made = follower(log)
    asked = made.position()
    assert asked is not None
    log.append([Record(1, 5)])
    assert made.answered(asked) == Step(Action.ASK_AGAIN)


def test_nothing_is_asked_before_the_cut_is_made():
    made = follower(log_of(1, 3))
    answered(made, diverging=(1, 1))
    with pytest.raises(AssertionError):
        made.position()
    with pytest.raises(AssertionError):
        made.truncated()


def test_a_fetch_without_an_epoch_is_not_compared():
    assert divergence(log_of(1).epochs, 1, 99, -1) is None


def test_a_leader_whose_history_does_not_reach_back_says_so():
    assert divergence(MemoryLog().epochs, 0, 5, 3) == (-1, -1)


EPOCHS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=6)


@given(common=EPOCHS, own=EPOCHS, leaders=EPOCHS)
def test_any_two_logs_come_to_agree_where_they_part(common, own, leaders):
    """Epochs of the two logs differ after the common part, as no two leaders share one."""
    log, leader = MemoryLog(), MemoryLog()
    epoch = 0
    for growth, count in common:
        epoch += growth
        for copy in (log, leader):
            copy.append([Record(epoch, 0)] * count)
    shared = log.end_offset
    for copy, parts, parity in ((log, own, 0), (leader, leaders, 1)):
        now = epoch + 1
        for growth, count in parts:
            now += growth
            copy.append([Record(2 * now + parity, parity + 1)] * count)
    last = max(log.epochs.latest, leader.epochs.latest) + 1
    leader.epochs.assign(last, leader.end_offset)
    state = PartitionState((1, 2), 1, last, (1, 2))
    made = Follower(state, log, shared)
    for _ in range(20):
        asked = made.position()
        assert asked is not None
        parting = divergence(
            leader.epochs, leader.end_offset, asked.offset, asked.last_fetched_epoch
        )
        step = made.answered(asked, diverging=parting)
        if step.action is Action.APPEND:
            break
        log.truncate_to(step.offset)
        made.truncated()
        made.check()
    assert log.end_offset == shared
    assert log.records == leader.records[:shared]
