"""A partition accepts each sequence of a producer once and in order, and survives a snapshot."""

from __future__ import annotations

from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hightide.core.partition.producer_state import (
    BATCHES_KEPT,
    BRIEF_MS,
    AppendedBatch,
    ProducerStates,
)
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

NOW = 1_700_000_000_000
LAST_SEQUENCE = (1 << 31) - 1


def send(
    states: ProducerStates,
    sequence: int,
    count: int = 1,
    *,
    offset: int,
    pid: int = 1,
    epoch: int = 0,
) -> AppendedBatch | None:
    written = states.check(pid, epoch, sequence, count)
    if written is None:
        states.appended(pid, epoch, sequence, offset, offset + count - 1, NOW, NOW)
    return written


def refused(
    states: ProducerStates, sequence: int, count: int = 1, *, pid: int = 1, epoch: int = 0
) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        states.check(pid, epoch, sequence, count)
    return caught.value.code


def test_sequences_follow_each_other() -> None:
    states = ProducerStates()
    assert send(states, 0, 3, offset=100) is None
    assert send(states, 3, 2, offset=103) is None
    assert refused(states, 6) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(states, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(states, 5, offset=105) is None


def test_the_last_five_batches_are_recognised_with_their_offsets() -> None:
    states = ProducerStates()
    for i in range(7):
        send(states, 2 * i, 2, offset=10 * i)
    for i in range(2, 7):
        assert send(states, 2 * i, 2, offset=-1) == (2 * i, 2 * i + 1, 10 * i, 10 * i + 1, NOW)
    assert refused(states, 2, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(states, 12, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "half a repetition"


def test_sequences_wrap() -> None:
    states = ProducerStates()
    assert send(states, LAST_SEQUENCE - 1, 4, offset=0) is None
    state = states.get(1)
    assert state is not None
    assert state.batches[-1].last_sequence == 1
    assert send(states, LAST_SEQUENCE - 1, 4, offset=9) is not None
    assert send(states, 2, offset=4) is None
    whole = ProducerStates()
    send(whole, LAST_SEQUENCE, offset=0)
    assert send(whole, 0, offset=1) is None


def test_an_unknown_producer_may_begin_anywhere() -> None:
    states = ProducerStates()
    assert send(states, 17, offset=0) is None
    assert send(states, 18, offset=1) is None


def test_epochs_fence() -> None:
    states = ProducerStates()
    send(states, 0, offset=0, epoch=3)
    assert refused(states, 1, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(states, 1, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(states, 0, offset=1, epoch=4) is None
    assert refused(states, 0, 2, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(states, 1, epoch=3) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(states, 0, offset=9, epoch=4) == (0, 0, 1, 1, NOW), "a repetition in the new epoch"


def test_a_marker_raises_the_epoch_and_the_next_sequence_is_zero() -> None:
    states = ProducerStates()
    send(states, 0, 5, offset=0, epoch=3)
    states.marked(1, 4, 9, NOW, NOW)
    state = states.get(1)
    assert state is not None
    assert state.coordinator_epoch == 9
    assert refused(states, 5, epoch=3) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(states, 5, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(states, 0, offset=6, epoch=4) is None


def test_silent_producers_are_forgotten_but_not_open_transactions() -> None:
    states = ProducerStates()
    states.appended(1, 0, 0, 0, 0, NOW - 10**9, NOW)
    states.appended(2, 0, 0, 1, 1, NOW, NOW + 500)
    states.appended(3, 0, 0, 2, 2, NOW, NOW, transactional=True)
    assert states.expire(NOW + 999, 1000) == 0, "old records do not make a silent producer"
    assert states.expire(NOW + 1000, 1000) == 1
    assert [producer_id for producer_id, _ in states] == [2, 3]
    states.marked(3, 0, 0, NOW, NOW)
    assert states.expire(NOW + 1500, 1000) == 2


def test_strangers_do_not_evict_an_honest_producer() -> None:
    states = ProducerStates(capacity=20)
    states.appended(7, 0, 0, 0, 0, NOW, NOW)
    for pid in range(100, 1000):
        try:
            states.check(pid, 0, 0, 1)
        except KafkaError as error:
            assert error.code == STORAGE  # noqa: PT017
            continue
        states.appended(pid, 0, 0, pid, pid, NOW, NOW)
    assert len(states) == 20
    repeated = states.check(7, 0, 0, 1)
    assert repeated is not None
    assert repeated.base_offset == 0


def test_a_crowded_partition_drops_producers_of_one_batch_early() -> None:
    states = ProducerStates(capacity=10)
    for offset in range(2):
        states.appended(1, 0, offset, offset, offset, NOW, NOW)
    for pid in range(2, 10):
        states.appended(pid, 0, 0, pid, pid, NOW, NOW)
    states.appended(50, 0, 0, 50, 50, NOW, NOW, transactional=True)
    assert states.expire(NOW + BRIEF_MS - 1, 10 * BRIEF_MS) == 0
    assert states.expire(NOW + BRIEF_MS, 10 * BRIEF_MS) == 8
    assert sorted(pid for pid, _ in states) == [1, 50]
    assert states.check(99, 0, 0, 1) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10_000)), max_size=200))
def test_replicas_that_replay_a_log_keep_the_same_producers_whatever_their_clocks_say(
    batches: list[tuple[int, int]],
) -> None:
    leader, follower = ProducerStates(capacity=5), ProducerStates(capacity=5)
    last: dict[int, int] = {}
    for offset, (pid, delay_ms) in enumerate(batches):
        leader.appended(pid, 0, offset, offset, offset, NOW, NOW)
        follower.appended(pid, 0, offset, offset, offset, NOW, NOW + delay_ms)
        if pid not in last and len(last) >= 10:
            del last[min(last, key=last.__getitem__)]
        last[pid] = offset
    assert leader == follower
    assert {pid: state.last_offset for pid, state in leader} == last


def test_a_snapshot_has_kafkas_layout() -> None:
    states = ProducerStates()
    states.appended(0x0102, 3, 10, 100, 104, NOW, NOW)
    data = states.encode()
    assert data[:2] == b"\0\1"
    assert data[6:10] == b"\0\0\0\1"
    assert Struct(">qhiqiqiq").unpack(data[10:]) == (0x0102, 3, 14, 104, 4, NOW, -1, -1)


@given(
    st.dictionaries(
        st.integers(0, 2**63 - 1),
        st.tuples(
            st.integers(0, 2**15 - 1),
            st.integers(0, LAST_SEQUENCE),
            st.integers(0, 2**40),
            st.integers(0, 2**20),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_a_snapshot_keeps_the_last_batch_of_each(
    given_states: dict[int, tuple[int, int, int, int, bool]],
) -> None:
    states = ProducerStates()
    for pid, (epoch, sequence, offset, delta, transactional) in given_states.items():
        states.appended(pid, epoch, sequence, offset, offset + delta, NOW, NOW, transactional)
    assert ProducerStates.decode(states.encode(), NOW) == states


@given(st.data())
def test_a_damaged_snapshot_is_noticed(data: st.DataObject) -> None:
    states = ProducerStates()
    for pid in range(3):
        states.appended(pid, 0, 0, pid, pid, NOW, NOW)
    good = states.encode()
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    flipped = bytearray(good)
    flipped[bit // 8] ^= 1 << bit % 8
    cut = good[: data.draw(st.integers(0, len(good) - 1))]
    for damaged in (bytes(flipped), cut, good + b"\0"):
        with pytest.raises(Corrupt):
            ProducerStates.decode(damaged, NOW)


STORAGE = ErrorCode.KAFKA_STORAGE_ERROR
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def refuse(states: ProducerStates, sequence: int, *, pid: int = 1, epoch: int = 0) -> None:
    assert states.check(pid, epoch, sequence, 1) is None
    states.refused(pid, epoch, sequence, STORAGE, NOW)


def test_batches_behind_a_refused_one_are_refused_with_its_error_until_it_is_written() -> None:
    states = ProducerStates()
    send(states, 0, 3, offset=0)
    refuse(states, 3)
    assert refused(states, 4) == STORAGE
    assert refused(states, 9) == STORAGE
    assert send(states, 0, 3, offset=9) is not None, "a repetition is still recognised"
    assert refused(states, 1) == OUT_OF_ORDER, "it comes before the refused batch"
    send(states, 3, offset=3)
    assert refused(states, 9) == OUT_OF_ORDER
    send(states, 4, offset=4)


def test_a_new_producer_whose_first_batch_was_refused_begins_with_that_batch() -> None:
    states = ProducerStates()
    refuse(states, 0)
    assert refused(states, 1) == STORAGE
    assert refused(states, 5) == STORAGE
    send(states, 0, offset=0)
    send(states, 1, offset=1)


def test_a_new_epoch_begins_with_its_own_refused_batch() -> None:
    states = ProducerStates()
    send(states, 0, offset=0)
    refuse(states, 1)
    refuse(states, 0, epoch=1)
    assert refused(states, 2, epoch=1) == STORAGE
    assert refused(states, 2) == OUT_OF_ORDER, "the old epoch has ended at the client"
    send(states, 0, offset=1, epoch=1)
    assert refused(states, 2, epoch=1) == OUT_OF_ORDER
    assert refused(states, 1) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_refusal_of_a_batch_that_another_leader_wrote_means_nothing() -> None:
    states = ProducerStates()
    refuse(states, 0)
    states.appended(1, 0, 0, 0, 4, NOW, NOW)
    send(states, 5, offset=5)
    states.refused(1, 0, 0, STORAGE, NOW)
    send(states, 6, offset=6)
    assert refused(states, 9) == OUT_OF_ORDER


def test_refusals_are_bounded_and_expire() -> None:
    states = ProducerStates(capacity=10)
    for pid in range(100):
        refuse(states, 0, pid=pid)
    assert refused(states, 1, pid=99) == STORAGE
    assert states.check(0, 0, 1, 1) is None, "the oldest refusal made room"
    states.expire(NOW + 1000, 1000)
    assert states.check(99, 0, 1, 1) is None


def test_what_a_reopened_log_has_lost_counts_as_refused() -> None:
    former = ProducerStates()
    for sequence in range(3):
        send(former, sequence, offset=sequence)
    send(former, 0, offset=3, pid=2)
    send(former, 0, offset=4, pid=3)
    refuse(former, 1, pid=3)
    states = ProducerStates()
    send(states, 0, offset=0)
    send(states, 0, offset=1, pid=3)
    states.continue_from(former, NOW)
    assert refused(states, 3) == STORAGE
    assert refused(states, 1, pid=2) == STORAGE
    assert refused(states, 2, pid=3) == STORAGE
    for sequence in (1, 2, 3):
        send(states, sequence, offset=sequence)
    send(states, 0, offset=4, pid=2)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_client_with_five_batches_in_flight_never_sees_a_gap_on_a_disk_that_fills(
    data: st.DataObject,
) -> None:
    """The client sends refused batches again in order, and other batches meanwhile."""
    states = ProducerStates()
    log: list[int] = []
    everything = [(LAST_SEQUENCE - 15 + 4 * n) % (LAST_SEQUENCE + 1) for n in range(10)]
    unsent = [(first, 4) for first in everything]
    in_flight: list[tuple[int, int]] = []

    def send_again(first: int, count: int) -> None:
        unsent.append((first, count))
        unsent.sort(key=lambda one: everything.index(one[0]))

    steps = 0
    while unsent or in_flight:
        steps += 1
        is_over = steps > 100
        if unsent and len(in_flight) < 5 and (is_over or data.draw(st.booleans())):
            in_flight.append(unsent.pop(0))
            continue
        if not in_flight:
            continue
        first, count = in_flight.pop(0)
        code, written = ErrorCode.NONE, None
        try:
            written = states.check(1, 0, first, count)
        except KafkaError as error:
            code = error.code
        assert code in (ErrorCode.NONE, STORAGE)
        if written is not None:
            continue
        if code == STORAGE or (not is_over and data.draw(st.booleans())):
            states.refused(1, 0, first, STORAGE, NOW)
            send_again(first, count)
            continue
        states.appended(1, 0, first, len(log) * 4, len(log) * 4 + 3, NOW, NOW)
        log.append(first)
        if not is_over and data.draw(st.integers(0, 4)) == 0:  # the response is lost
            send_again(first, count)
    assert log == everything


class OneProducer(RuleBasedStateMachine):
    """A client that sends, repeats, skips and starts new epochs, against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates()
        self.epoch = 0
        self.log: list[tuple[int, int, int, int]] = []
        self.next_offset = 0
        self.next_sequence = LAST_SEQUENCE - 20

    def write(self, sequence: int, count: int) -> None:
        assert send(self.states, sequence, count, offset=self.next_offset, epoch=self.epoch) is None
        self.log.append((self.epoch, sequence, count, self.next_offset))
        self.next_offset += count
        self.next_sequence = (sequence + count) % (LAST_SEQUENCE + 1)

    @rule(count=st.integers(1, 9))
    def sends_the_next(self, count: int) -> None:
        self.write(self.next_sequence, count)

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def repeats_one(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.log) - 1))
        epoch, sequence, count, offset = self.log[i]
        same_epoch = [entry for entry in self.log if entry[0] == self.epoch]
        if epoch < self.epoch:
            assert refused(self.states, sequence, count, epoch=epoch) == (
                ErrorCode.INVALID_PRODUCER_EPOCH
            )
        elif self.log[i] in same_epoch[-BATCHES_KEPT:]:
            written = self.states.check(1, epoch, sequence, count)
            assert written is not None
            assert (written.base_offset, written.last_offset) == (offset, offset + count - 1)
        else:
            assert refused(self.states, sequence, count, epoch=epoch) == (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            )

    @precondition(lambda self: self.log)
    @rule(gap=st.integers(1, 1000), count=st.integers(1, 9))
    def leaves_a_gap(self, gap: int, count: int) -> None:
        sequence = (self.next_sequence + gap) % (LAST_SEQUENCE + 1)
        assert refused(self.states, sequence, count, epoch=self.epoch) == (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )

    @precondition(lambda self: self.log)
    @rule(count=st.integers(1, 9))
    def begins_a_new_epoch(self, count: int) -> None:
        self.epoch += 1
        self.write(0, count)

    @invariant()
    def offsets_are_given_once(self) -> None:
        offsets = [offset for _, _, _, offset in self.log]
        assert offsets == sorted(set(offsets))


OneProducer.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestOneProducer = OneProducer.TestCase
