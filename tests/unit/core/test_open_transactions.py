"""The transactions of one partition, rule by rule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.aborted_index import ENTRY_BYTES, AbortedIndex, AbortedTransaction
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import Verification, VerificationGuard, produce_error
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

A, B = Producer(1, 0), Producer(2, 0)
V1, V2 = 1, 2


class Leader:
    """A partition with a log that is a list of offsets."""

    def __init__(self, *, verifies: bool = True) -> None:
        self.producers = ProducerStates()
        self.transactions = PartitionTransactions(self.producers, verifies=verifies)
        self.end = self.high_watermark = 0
        self.sequences: dict[int, int] = {}
        self.index = AbortedIndex()

    def verify(self, producer: Producer, sequence: int = 0) -> VerificationGuard | None:
        return self.transactions.begin_verification(producer, sequence, 0)

    def write(
        self,
        producer: Producer,
        guard: VerificationGuard | None = None,
        *,
        transactional: bool = True,
    ) -> int:
        sequence = self.sequences.get(producer.id, 0)
        assert self.producers.check(*producer, sequence, 1) is None
        self.transactions.check(producer.id, producer.epoch, sequence, transactional, guard)
        offset = self.end
        self.producers.appended(*producer, sequence, offset, offset, 0, 0, transactional)
        if transactional:
            self.transactions.appended(producer.id, offset)
        self.sequences[producer.id] = sequence + 1
        self.end += 1
        self.transactions.check_all()
        return offset

    def open(self, producer: Producer) -> int:
        return self.write(producer, self.verify(producer))

    def mark(
        self, producer: Producer, *, commit: bool = True, epoch: int = 1, version: int = V1
    ) -> bool:
        if not self.transactions.marker_asked(producer, epoch, version):
            return False
        self.producers.marked(*producer, epoch, 0, 0)
        entry = self.transactions.marked(producer.id, self.end, commit)
        if entry:
            self.index.append(entry)
        self.end += 1
        self.transactions.check_all()
        return True

    def commit(self, offset: int | None = None) -> int:
        self.high_watermark = self.end if offset is None else offset
        self.transactions.high_watermark_moved(self.high_watermark)
        return self.stable

    @property
    def stable(self) -> int:
        return self.transactions.last_stable_offset(self.high_watermark)


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


# -- the last stable offset ------------------------------------------------------------------


def test_without_transactions_everything_committed_is_stable() -> None:
    it = Leader()
    it.write(A, transactional=False)
    assert it.commit() == 1


def test_an_open_transaction_holds_it_at_its_first_record() -> None:
    it = Leader()
    it.write(B, transactional=False)
    first = it.open(A)
    it.write(A)
    assert it.commit() == first == 1


def test_it_goes_to_the_next_open_transaction() -> None:
    it = Leader()
    it.open(A)
    second = it.open(B)
    it.mark(A)
    assert it.commit() == second
    it.mark(B)
    assert it.commit() == it.end


def test_a_marker_counts_when_it_is_committed() -> None:
    it = Leader()
    first = it.open(A)
    it.commit()
    it.mark(A)
    assert it.stable == first
    assert it.commit(it.end - 1) == first
    assert it.commit() == it.end


def test_it_is_never_above_the_high_watermark() -> None:
    it = Leader()
    it.write(A, transactional=False)
    it.write(A, transactional=False)
    assert it.commit(1) == 1


def test_what_a_snapshot_knows_is_enough() -> None:
    it = Leader()
    it.open(B)
    it.open(A)
    it.write(B)
    again = ProducerStates.decode(it.producers.encode(), 0)
    restored = PartitionTransactions(again)
    restored.check_all()
    assert restored.last_stable_offset(3) == 0
    assert restored.is_open(A.id)
    restored.marked(B.id, 3, True)
    again.marked(*B, 1, 0, 0)
    restored.high_watermark_moved(4)
    assert restored.last_stable_offset(4) == 1


# -- what may be appended ----------------------------------------------------------------------


def test_the_first_batch_of_a_transaction_needs_a_verification() -> None:
    it = Leader()
    with refused(ErrorCode.INVALID_TXN_STATE):
        it.write(A)
    assert it.open(A) == 0
    assert it.verify(A) is None, "it is open"
    it.write(A)


def test_a_verification_from_before_a_marker_is_void() -> None:
    """The response came late: the transaction that it was about has ended (B15)."""
    it = Leader()
    guard = it.verify(A)
    it.mark(A)
    with refused(ErrorCode.INVALID_TXN_STATE):
        it.write(A, guard)
    newer = it.verify(A)
    assert newer is not guard
    with refused(ErrorCode.INVALID_TXN_STATE):
        it.write(A, guard)
    it.write(A, newer)


def test_a_marker_that_is_not_written_again_voids_verifications_all_the_same() -> None:
    it = Leader()
    it.open(A)
    assert it.mark(A)
    guard = it.verify(A, 1)
    assert not it.mark(A)
    with refused(ErrorCode.INVALID_TXN_STATE):
        it.write(A, guard)


def test_a_batch_after_the_end_of_its_transaction_is_refused() -> None:
    it = Leader()
    it.open(A)
    it.mark(A)
    with refused(ErrorCode.INVALID_TXN_STATE):
        it.write(A)


def test_without_verification_it_would_open_a_transaction_that_is_never_ended() -> None:
    it = Leader(verifies=False)
    it.open(A)
    it.mark(A)
    it.write(A)
    assert it.commit() == 2


def test_what_is_open_in_an_earlier_epoch_lets_nothing_in() -> None:
    """The end of epoch 0 is decided, and its marker is in flight."""
    it = Leader()
    it.open(A)
    it.sequences[A.id] = 0
    later = Producer(A.id, A.epoch + 1)
    with refused(ErrorCode.INVALID_TXN_STATE):
        it.write(later)
    guard = it.verify(later)
    assert guard is not None
    assert it.mark(later, version=V2)
    with refused(ErrorCode.INVALID_TXN_STATE):
        it.write(later, guard)
    it.open(later)


def test_no_batch_overtakes_the_first_one_while_it_is_being_verified() -> None:
    it = Leader()
    it.verify(A, 5)
    guard = it.verify(A, 3)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        it.transactions.check(A.id, A.epoch, 5, True, guard)
    it.transactions.check(A.id, A.epoch, 3, True, guard)


def test_a_newer_epoch_resets_the_lowest_sequence() -> None:
    verification = Verification()
    guard = verification.begin(1, 0, 7, 0)
    assert verification.begin(1, 1, 9, 0) is guard
    assert verification.lowest_sequence(1) == 9
    verification.begin(1, 0, 2, 0)
    assert verification.lowest_sequence(1) == 9, "a fenced one has no say"


def test_who_never_comes_back_is_forgotten() -> None:
    it = Leader()
    it.verify(A)
    assert it.transactions.expire(9, 10) == 0
    assert it.transactions.expire(10, 10) == 1
    assert len(it.transactions.verification) == 0


def test_a_transaction_takes_no_batches_that_belong_to_none() -> None:
    it = Leader()
    it.open(A)
    with refused(ErrorCode.INVALID_TXN_STATE):
        it.write(A, transactional=False)
    it.mark(A)
    it.write(A, transactional=False)


def test_producers_are_told_in_words_they_know() -> None:
    assert produce_error(ErrorCode.PRODUCER_FENCED, 9) == ErrorCode.INVALID_PRODUCER_EPOCH
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert produce_error(abortable, 10) == ErrorCode.INVALID_TXN_STATE
    assert produce_error(abortable, 11) == abortable
    assert produce_error(ErrorCode.NOT_COORDINATOR, 9) == ErrorCode.NOT_ENOUGH_REPLICAS
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert produce_error(mapping, 9) == mapping


# -- markers -----------------------------------------------------------------------------------


def test_a_marker_of_an_older_producer_epoch_is_refused() -> None:
    it = Leader()
    newer = Producer(A.id, 1)
    it.open(newer)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        it.mark(A)


def test_a_marker_of_an_older_coordinator_is_refused() -> None:
    it = Leader()
    it.open(A)
    it.mark(A, epoch=5)
    it.write(A, it.verify(A, 1))
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        it.mark(A, epoch=4)
    assert it.mark(A, epoch=5)


def test_a_marker_fences_a_producer_that_wrote_nothing_yet() -> None:
    it = Leader()
    assert it.mark(Producer(A.id, 3), commit=False)
    with pytest.raises(KafkaError, match="its current epoch is 3"):
        it.open(A)
    assert it.commit() == it.end
    assert not len(it.index)


def test_a_marker_is_written_once() -> None:
    it = Leader()
    it.open(A)
    assert it.mark(A)
    assert not it.mark(A)
    assert it.mark(A, epoch=2), "a newer coordinator makes itself known"


def test_with_version_2_a_late_copy_of_a_marker_cannot_end_the_next_transaction() -> None:
    it = Leader()
    it.open(A)
    ended = Producer(A.id, 1)
    assert it.mark(ended, version=V2)
    it.sequences.clear()
    it.open(ended)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        it.mark(ended, version=V2)
    assert it.mark(Producer(A.id, 2), version=V2)


# -- aborted transactions ------------------------------------------------------------------------


def test_an_aborted_transaction_is_indexed_and_a_committed_one_is_not() -> None:
    it = Leader()
    it.open(A)
    it.open(B)
    it.mark(A, commit=False)
    it.mark(B)
    assert it.index.entries == [AbortedTransaction(A.id, 0, 2, 1)]


def test_a_file_of_the_index_is_kafkas() -> None:
    data = AbortedTransaction(7, 1, 9, 4).encode()
    assert data == bytes.fromhex(
        "0000 0000000000000007 0000000000000001 0000000000000009 0000000000000004"
    )
    assert len(data) == ENTRY_BYTES == 34
    assert AbortedIndex.decode(data, 0, 10).entries == [AbortedTransaction(7, 1, 9, 4)]
    assert AbortedIndex.decode(data, 0, 10).encode() == data


@pytest.mark.parametrize(
    "data",
    [
        AbortedTransaction(7, 1, 9, 4).encode()[:-1],
        b"\0\1" + AbortedTransaction(7, 1, 9, 4).encode()[2:],
        AbortedTransaction(7, 1, 9, 4).encode() * 2,
        AbortedTransaction(7, 1, 3, 4).encode(),
        AbortedTransaction(7, 1, 20, 4).encode(),
        AbortedTransaction(7, 9, 9, 4).encode(),
        AbortedTransaction(-1, 1, 9, 4).encode(),
    ],
)
def test_a_damaged_index_is_told(data: bytes) -> None:
    with pytest.raises(Corrupt):
        AbortedIndex.decode(data, 5, 20)


def test_an_index_is_cut_with_its_log() -> None:
    index = AbortedIndex([AbortedTransaction(1, 0, 4, 5), AbortedTransaction(1, 5, 8, 9)])
    assert not index.truncate_to(9)
    assert index.truncate_to(8)
    assert index.entries == [AbortedTransaction(1, 0, 4, 5)]


PRODUCERS = st.sampled_from([1, 2, 3])
STEPS = st.lists(st.tuples(PRODUCERS, st.sampled_from(["write", "commit", "abort"])), max_size=40)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(1, 9), st.data())
def test_a_range_is_told_all_and_only_the_aborted_transactions_in_it(
    steps: list[tuple[int, str]], segment: int, data: st.DataObject
) -> None:
    """Compare the indexes of segments with the whole history."""
    it = Leader(verifies=False)
    first: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    segments: list[AbortedIndex] = []
    for producer_id, what in steps:
        offset, producer = it.end, Producer(producer_id, 0)
        if what == "write":
            it.write(producer)
            first.setdefault(producer_id, offset)
        elif it.mark(producer, commit=what == "commit", epoch=offset):
            begun = first.pop(producer_id, None)
            if begun is not None and what == "abort":
                aborted.append((producer_id, begun, offset))
    for base in range(0, it.end + 1, segment):
        inside = [e for e in it.index.entries if base <= e.last_offset < base + segment]
        segments.append(AbortedIndex.decode(AbortedIndex(inside).encode(), base, base + segment))
    end = data.draw(st.integers(0, it.commit()))
    start = data.draw(st.integers(0, end))
    found: list[AbortedTransaction] = []
    for at in range(start // segment, len(segments)):
        here, is_all = segments[at].in_range(start, end)
        found += here
        if is_all:
            break
    expected = [entry for entry in aborted if entry[1] < end and entry[2] >= start]
    assert [entry[:3] for entry in found] == expected
