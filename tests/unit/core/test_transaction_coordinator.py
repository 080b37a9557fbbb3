"""The transaction coordinator, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hightide.core.metadata.topic_names import partition_for
from hightide.core.transactions.transaction import (
    LAST_CLIENT_EPOCH,
    NO_PRODUCER,
    Producer,
    State,
    Transaction,
)
from hightide.core.transactions.transaction_coordinator import (
    MAX_ID_CHARACTERS,
    MOST_EXPIRED_AT_ONCE,
    RETRY_MS,
    Answer,
    Changes,
    Ending,
    Limits,
    TransactionCoordinator,
    Write,
    client_error,
    coordinator_error,
)
from hightide.wire.errors import Corrupt, ErrorCode
from hightide.wire.records.transaction_state import decode_value, encode_value

TX = "tx"
P0, P1 = ("a", 0), ("b", 1)
LIMITS = Limits(
    max_timeout_ms=60_000, expiration_ms=1_000_000, abort_interval_ms=10, expiry_interval_ms=1_000
)
TIMEOUT_MS = 1_000
V1, V2 = 1, 2


class Driver:
    """A coordinator whose writes are committed at once."""

    def __init__(self, *transactions: Transaction, epoch: int = 3) -> None:
        self.machine = TransactionCoordinator(epoch, LIMITS)
        self.records: list[tuple[str, Transaction | None]] = []
        self.endings: list[Ending] = []
        for transaction in transactions:
            self.machine.apply(TX, transaction)
        self.now_ms = 100
        for changes in self.machine.loaded(self.now_ms):
            self.settle(changes)

    @property
    def state(self) -> Transaction:
        return self.machine.transactions[TX]

    def settle(self, changes: Changes) -> Answer:
        answer = changes.answer
        while changes.write is not None:
            self.machine.check()
            self.records.append((TX, changes.write.after))
            changes = self.machine.written(changes.write, self.now_ms)
            answer = answer or changes.answer
            if changes.ending:
                self.endings.append(changes.ending)
        if changes.ending and changes.ending not in self.endings:
            self.endings.append(changes.ending)
        self.machine.check()
        return answer or Answer(ErrorCode.NONE)

    def init(self, expected: Producer = NO_PRODUCER, new: int | None = 7) -> Answer:
        return self.settle(self.machine.init_asked(TX, TIMEOUT_MS, expected, self.now_ms, new))

    def add(self, producer: Producer, *partitions: tuple[str, int]) -> ErrorCode:
        asked = self.machine.partitions_asked(TX, producer, partitions, self.now_ms)
        return self.settle(asked).error

    def end(
        self, producer: Producer, commit: bool = True, version: int = V1, new: int = 8
    ) -> Answer:
        asked = self.machine.end_asked(TX, producer, commit, version, self.now_ms, new)
        return self.settle(asked)

    def mark(self) -> None:
        for ending in self.endings:
            self.settle(self.machine.marked(ending, ending.partitions, self.now_ms))
        self.endings.clear()

    def begin(self) -> Producer:
        producer = self.init().producer
        assert self.add(producer, P0, P1) == ErrorCode.NONE
        return producer


def ok(producer: Producer = NO_PRODUCER) -> Answer:
    return Answer(ErrorCode.NONE, producer)


# -- InitProducerId ----------------------------------------------------------------------------


def test_a_new_id_gets_the_producer_id_that_is_brought_and_epoch_0() -> None:
    it = Driver()
    assert it.machine.init_asked(TX, TIMEOUT_MS, NO_PRODUCER, 100).needs_producer_id
    assert it.init(new=7) == ok(Producer(7, 0))
    assert it.state.state == State.EMPTY


def test_who_comes_again_gets_the_next_epoch_and_the_former_is_fenced() -> None:
    it = Driver()
    first, second = it.init().producer, it.init().producer
    assert second == (first.id, first.epoch + 1)
    assert it.add(first, P0) == ErrorCode.PRODUCER_FENCED
    assert it.end(first).error == ErrorCode.PRODUCER_FENCED
    assert it.add(second, P0) == ErrorCode.NONE


def test_an_open_transaction_is_aborted_first() -> None:
    it = Driver()
    producer = it.begin()
    assert it.init() == Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    (ending,) = it.endings
    assert ending.producer == (producer.id, producer.epoch + 1)
    assert not ending.is_commit
    assert it.init() == Answer(ErrorCode.CONCURRENT_TRANSACTIONS), "while markers are missing"
    assert it.end(producer).error == ErrorCode.PRODUCER_FENCED
    it.mark()
    assert it.init() == ok(Producer(producer.id, producer.epoch + 2))


def test_used_up_epochs_need_another_producer_id() -> None:
    it = Driver(Transaction(Producer(7, LAST_CLIENT_EPOCH), TIMEOUT_MS, 0))
    assert it.machine.init_asked(TX, TIMEOUT_MS, NO_PRODUCER, 100).needs_producer_id
    assert it.init(new=9) == ok(Producer(9, 0))
    assert it.state.previous_producer_id == 7


def test_there_is_always_an_epoch_left_to_fence_with() -> None:
    last = Producer(7, LAST_CLIENT_EPOCH)
    it = Driver(Transaction(last, TIMEOUT_MS, 0))
    assert it.add(last, P0) == ErrorCode.NONE
    assert it.init(new=9) == Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert it.state.producer == (7, LAST_CLIENT_EPOCH + 1)
    it.mark()
    assert it.init(new=9) == ok(Producer(9, 0))


def test_a_producer_that_says_who_it_is_goes_on_with_the_next_epoch() -> None:
    it = Driver()
    producer = it.init().producer
    bumped = it.init(expected=producer).producer
    assert bumped == (producer.id, producer.epoch + 1)
    assert it.init(expected=producer) == ok(bumped), "the answer was lost: it is the same again"
    it.init()  # another instance
    assert it.init(expected=bumped).error == ErrorCode.PRODUCER_FENCED
    assert it.init(expected=producer).error == ErrorCode.PRODUCER_FENCED


def test_a_fenced_producer_cannot_abort_the_transaction_of_its_successor() -> None:
    """Kafka checks the epoch too late for that."""
    it = Driver()
    former = it.init().producer
    successor = it.init().producer
    it.add(successor, P0)
    assert it.init(expected=former).error == ErrorCode.PRODUCER_FENCED
    assert it.state.state == State.ONGOING
    assert it.end(successor) == ok(successor)


def test_a_repeated_question_across_a_change_of_producer_id_gets_the_same_answer() -> None:
    last = Producer(7, LAST_CLIENT_EPOCH)
    it = Driver(Transaction(last, TIMEOUT_MS, 0))
    assert it.init(expected=last, new=9) == ok(Producer(9, 0))
    assert it.init(expected=last, new=10) == ok(Producer(9, 0))
    assert it.init(expected=Producer(7, 3)).error == ErrorCode.PRODUCER_FENCED


def test_an_id_that_was_removed_accepts_any_producer() -> None:
    assert Driver().init(expected=Producer(4, 4), new=11) == ok(Producer(11, 0))


@pytest.mark.parametrize("timeout_ms", [-1, 0, LIMITS.max_timeout_ms + 1])
def test_timeouts_have_bounds(timeout_ms: int) -> None:
    it = Driver()
    asked = it.machine.init_asked(TX, timeout_ms, NO_PRODUCER, 100, 7)
    assert asked.answer == Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)


@pytest.mark.parametrize("expected", [Producer(7, -1), Producer(-1, 0)])
def test_a_producer_id_goes_with_its_epoch(expected: Producer) -> None:
    assert Driver().init(expected).error == ErrorCode.INVALID_REQUEST


def test_an_empty_id_is_refused_everywhere() -> None:
    machine = Driver().machine
    producer = Producer(7, 0)
    refused = Answer(ErrorCode.INVALID_REQUEST)
    assert machine.init_asked("", TIMEOUT_MS, NO_PRODUCER, 0, 7).answer == refused
    assert machine.partitions_asked("", producer, [P0], 0).answer == refused
    assert machine.end_asked("", producer, True, V1, 0).answer == refused
    assert machine.verification_asked("", producer, [P0]) == {P0: ErrorCode.INVALID_REQUEST}


# -- partitions ------------------------------------------------------------------------------


def test_partitions_are_written_before_the_answer() -> None:
    it = Driver()
    producer = it.init().producer
    asked = it.machine.partitions_asked(TX, producer, [P0], 100)
    assert asked.answer is None
    assert asked.write is not None
    assert it.state.state == State.EMPTY, "nothing changes before it is written"
    changes = it.machine.written(asked.write, 100)
    assert changes.answer == ok()
    assert it.state.partitions == {P0}
    assert it.state.started_ms == 100


def test_partitions_that_are_in_are_confirmed_by_the_same_record() -> None:
    it = Driver()
    producer = it.begin()
    before = list(it.records)
    assert it.add(producer, P0) == ErrorCode.NONE
    assert it.add(producer) == ErrorCode.NONE
    assert it.records == [*before, before[-1]]


def test_the_start_of_a_transaction_is_that_of_its_first_partition() -> None:
    it = Driver()
    producer = it.init().producer
    it.add(producer, P0)
    it.now_ms += 50
    it.add(producer, P1)
    assert (it.state.started_ms, it.state.updated_ms) == (100, 150)


def test_an_unknown_id_or_another_producer_id_is_told_so() -> None:
    it = Driver()
    assert it.add(Producer(7, 0), P0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    it.init(new=7)
    assert it.add(Producer(8, 0), P0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert it.end(Producer(8, 0)).error == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert it.add(Producer(7, 1), P0) == ErrorCode.PRODUCER_FENCED, "an epoch from nowhere"


def test_during_a_write_all_requests_for_the_id_are_refused() -> None:
    it = Driver()
    producer = it.init().producer
    asked = it.machine.partitions_asked(TX, producer, [P0], 100)
    concurrent = Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert it.machine.partitions_asked(TX, producer, [P1], 100).answer == concurrent
    assert it.machine.end_asked(TX, producer, True, V1, 100).answer == concurrent
    assert it.machine.init_asked(TX, TIMEOUT_MS, NO_PRODUCER, 100).answer == concurrent
    assert it.machine.verification_asked(TX, producer, [P0, P1]) == {
        P0: ErrorCode.CONCURRENT_TRANSACTIONS,
        P1: ErrorCode.TRANSACTION_ABORTABLE,
    }
    it.settle(asked)
    assert it.machine.verification_asked(TX, producer, [P0]) == {P0: ErrorCode.NONE}


def test_verification_knows_what_the_transaction_contains_and_changes_nothing() -> None:
    it = Driver()
    producer = it.init().producer
    it.add(producer, P0)
    verify = it.machine.verification_asked
    assert verify(TX, producer, [P0, P1]) == {
        P0: ErrorCode.NONE,
        P1: ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert verify(TX, Producer(8, 0), [P0]) == {P0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert verify("other", producer, [P0]) == {P0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert verify(TX, Producer(7, 5), [P0]) == {P0: ErrorCode.PRODUCER_FENCED}
    ending = it.machine.end_asked(TX, producer, True, V1, 100)
    assert verify(TX, producer, [P0]) == {P0: ErrorCode.CONCURRENT_TRANSACTIONS}
    it.settle(ending)
    assert verify(TX, producer, [P0]) == {P0: ErrorCode.CONCURRENT_TRANSACTIONS}
    it.mark()
    assert verify(TX, producer, [P0]) == {P0: ErrorCode.TRANSACTION_ABORTABLE}


# -- EndTxn ----------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_with_a_marker_in_each_partition(commit: bool) -> None:
    it = Driver()
    producer = it.begin()
    assert it.end(producer, commit) == ok(producer)
    (ending,) = it.endings
    assert ending == Ending(TX, producer, commit, 3, V1, frozenset({P0, P1}))
    assert it.machine.endings == [ending]
    assert it.machine.marked(ending, [P0], 100) == Changes()
    assert it.add(producer, P0) == ErrorCode.CONCURRENT_TRANSACTIONS
    done = it.machine.marked(ending, [P1], 100)
    assert done.write is not None
    assert done.write.answer is None
    it.settle(done)
    assert it.machine.endings == []
    assert it.state.state == (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert it.add(producer, P0) == ErrorCode.NONE, "the next transaction"


def test_asking_again_for_the_same_end_gets_the_same_answer() -> None:
    it = Driver()
    producer = it.begin()
    assert it.end(producer) == ok(producer)
    assert it.end(producer).error == ErrorCode.CONCURRENT_TRANSACTIONS
    it.mark()
    assert it.end(producer) == ok(producer)
    assert it.end(producer) == ok(producer)


def test_asking_for_the_other_end_is_refused() -> None:
    it = Driver()
    producer = it.begin()
    it.end(producer, commit=True)
    assert it.end(producer, commit=False).error == ErrorCode.INVALID_TXN_STATE
    it.mark()
    assert it.end(producer, commit=False).error == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("commit", [True, False])
def test_what_has_not_begun_cannot_end(commit: bool) -> None:
    it = Driver()
    producer = it.init().producer
    assert it.end(producer, commit).error == ErrorCode.INVALID_TXN_STATE


def test_markers_of_another_time_complete_nothing() -> None:
    it = Driver()
    producer = it.begin()
    it.end(producer)
    (ending,) = it.endings
    stale = replace(ending, coordinator_epoch=2)
    assert it.machine.marked(stale, [P0, P1], 100) == Changes()
    it.mark()
    assert it.machine.marked(ending, [P0, P1], 100) == Changes(), "a second answer"


def test_a_coordinator_that_hears_of_a_newer_one_stops() -> None:
    it = Driver()
    it.end(it.begin())
    (ending,) = it.endings
    it.machine.fenced(ending)
    assert it.machine.marked(ending, [P0, P1], 100) == Changes()
    assert it.state.state == State.PREPARE_COMMIT
    it.machine.check()


# -- version 2 -------------------------------------------------------------------------------


def test_version_2_bumps_the_epoch_with_the_end() -> None:
    it = Driver()
    producer = it.begin()
    bumped = Producer(producer.id, producer.epoch + 1)
    assert it.end(producer, version=V2) == ok(bumped)
    assert it.endings[0].producer == bumped
    assert it.end(producer, version=V2).error == ErrorCode.CONCURRENT_TRANSACTIONS
    it.mark()
    assert it.end(producer, version=V2) == ok(bumped), "a repetition"
    assert it.end(producer, commit=False, version=V2).error == ErrorCode.INVALID_TXN_STATE
    assert it.add(producer, P0) == ErrorCode.PRODUCER_FENCED
    assert it.add(bumped, P0) == ErrorCode.NONE
    assert it.end(producer, version=V2).error == ErrorCode.PRODUCER_FENCED, "that one is over"


def test_version_2_aborts_a_transaction_without_partitions() -> None:
    it = Driver()
    producer = it.init().producer
    assert it.end(producer, commit=True, version=V2).error == ErrorCode.INVALID_TXN_STATE
    bumped = it.end(producer, commit=False, version=V2).producer
    assert bumped == (producer.id, producer.epoch + 1)
    assert it.state.state == State.COMPLETE_ABORT
    assert it.endings == []
    assert it.end(producer, commit=False, version=V2) == ok(bumped), "a repetition"
    assert it.end(bumped, commit=False, version=V2) == ok(Producer(bumped.id, bumped.epoch + 1))


def test_version_2_goes_on_with_another_producer_id_when_epochs_are_used_up() -> None:
    last = Producer(7, LAST_CLIENT_EPOCH)
    it = Driver(Transaction(last, TIMEOUT_MS, 0))
    it.add(last, P0)
    assert it.machine.end_asked(TX, last, True, V2, 100).needs_producer_id
    assert it.end(last, version=V2, new=9) == ok(Producer(9, 0))
    assert it.endings[0].producer == (7, LAST_CLIENT_EPOCH + 1), "markers go to the former"
    it.mark()
    assert it.state.producer == (9, 0)
    assert it.end(last, version=V2) == ok(Producer(9, 0)), "a repetition"
    assert it.end(Producer(7, 3), version=V2).error == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# -- writes that fail, and time ----------------------------------------------------------------


def test_a_write_that_failed_has_changed_nothing() -> None:
    it = Driver()
    producer = it.begin()
    before = it.state
    asked = it.machine.end_asked(TX, producer, True, V1, 100)
    assert asked.write is not None
    failed = it.machine.write_failed(asked.write, ErrorCode.NOT_ENOUGH_REPLICAS, 100)
    assert failed.answer == Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert it.state is before
    assert it.end(producer) == ok(producer)


def test_a_write_of_unknown_outcome_stays_under_way() -> None:
    """Otherwise a commit and an abort could both be decided."""
    it = Driver()
    producer = it.begin()
    asked = it.machine.end_asked(TX, producer, True, V1, 100)
    assert asked.write is not None
    delayed = it.machine.write_delayed(asked.write)
    assert delayed.answer == Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert it.end(producer, commit=False).error == ErrorCode.CONCURRENT_TRANSACTIONS
    assert it.machine.tick(100 + 10 * TIMEOUT_MS) == []
    assert it.machine.written(asked.write, 200).ending is not None


def test_a_completion_is_written_until_it_is_taken() -> None:
    it = Driver()
    it.end(it.begin())
    (ending,) = it.endings
    done = it.machine.marked(ending, ending.partitions, 100)
    assert done.write is not None
    assert it.machine.write_failed(done.write, ErrorCode.NOT_ENOUGH_REPLICAS, 100) == Changes()
    assert it.machine.tick(100) == []
    it.now_ms = 100 + RETRY_MS
    (again,) = it.machine.tick(it.now_ms)
    it.settle(Changes(write=again))
    assert it.state.state == State.COMPLETE_COMMIT


def test_the_outcome_of_an_unknown_write_is_ignored() -> None:
    it = Driver()
    asked = TransactionCoordinator(2, LIMITS)
    asked.loaded(0)
    other = asked.init_asked(TX, TIMEOUT_MS, NO_PRODUCER, 100, 7)
    assert other.write is not None
    assert it.machine.written(other.write, 100).answer == Answer(ErrorCode.NOT_COORDINATOR)
    assert not it.machine.transactions


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() -> None:
    it = Driver()
    producer = it.begin()
    assert it.machine.tick(100 + TIMEOUT_MS) == []
    it.now_ms = 100 + TIMEOUT_MS + LIMITS.abort_interval_ms
    (write,) = it.machine.tick(it.now_ms)
    it.settle(Changes(write=write))
    assert it.state.state == State.PREPARE_ABORT
    assert it.end(producer).error == ErrorCode.PRODUCER_FENCED
    it.mark()
    completed = it.state
    assert completed.state == State.COMPLETE_ABORT
    assert it.add(producer, P0) == ErrorCode.PRODUCER_FENCED


def test_the_deadline_is_when_there_is_something_to_look_for() -> None:
    machine = TransactionCoordinator(1, LIMITS)
    assert machine.deadline_ms() is None
    machine.loaded(100)
    assert machine.deadline_ms() == 100 + LIMITS.abort_interval_ms


def test_idle_ids_are_forgotten_and_others_are_not() -> None:
    it = Driver()
    it.init()
    late_ms = it.now_ms = 100 + LIMITS.expiration_ms
    (write,) = it.machine.tick(late_ms)
    assert write.after is None
    assert it.add(Producer(7, 0), P0) == ErrorCode.CONCURRENT_TRANSACTIONS
    it.settle(Changes(write=write))
    assert not it.machine.transactions
    assert it.add(Producer(7, 0), P0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    busy = Driver(Transaction(Producer(1, 0), 10**9, 0, State.ONGOING, frozenset({P0}), 0))
    assert busy.machine.tick(late_ms) == []


def test_many_ids_are_not_forgotten_all_at_once() -> None:
    machine = TransactionCoordinator(1, LIMITS)
    for number in range(MOST_EXPIRED_AT_ONCE + 1):
        machine.apply(f"{number}", Transaction(Producer(number, 0), TIMEOUT_MS, 0))
    machine.loaded(0)
    late_ms = LIMITS.expiration_ms
    writes = machine.tick(late_ms)
    assert len(writes) == MOST_EXPIRED_AT_ONCE
    for write in writes:
        machine.written(write, late_ms)
    assert len(machine.tick(late_ms)) == 1
    assert machine.tick(late_ms) == []


# -- taking over -----------------------------------------------------------------------------


def test_nothing_is_answered_before_all_records_are_read() -> None:
    machine = TransactionCoordinator(1, LIMITS)
    machine.apply(TX, Transaction(Producer(7, 0), TIMEOUT_MS, 0))
    loading = Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    producer = Producer(7, 0)
    assert machine.init_asked(TX, TIMEOUT_MS, NO_PRODUCER, 0, 7).answer == loading
    assert machine.partitions_asked(TX, producer, [P0], 0).answer == loading
    assert machine.end_asked(TX, producer, True, V1, 0).answer == loading
    assert machine.verification_asked(TX, producer, [P0]) == {P0: loading.error}
    assert machine.tick(10**9) == []


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_successor_brings_a_decided_transaction_to_its_end(commit: bool, version: int) -> None:
    it = Driver()
    it.end(it.begin(), commit, version)
    heir = Driver(it.state, epoch=4)
    (ending,) = heir.endings
    assert ending == replace(it.endings[0], coordinator_epoch=4)
    heir.mark()
    assert heir.state.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


def test_what_the_records_say_is_what_the_coordinator_knows() -> None:
    it = Driver()
    producer = it.begin()
    bumped = it.end(producer, version=V2).producer
    it.mark()
    it.add(bumped, P1)
    heir = TransactionCoordinator(9, LIMITS)
    for transactional_id, after in it.records:
        assert after is not None
        heir.apply(transactional_id, Transaction.of(decode_value(encode_value(after.to_value()))))
    assert heir.transactions == it.machine.transactions


@pytest.mark.parametrize("status", [State.DEAD, State.PREPARE_EPOCH_FENCE, 8, -1])
def test_a_record_of_a_state_that_is_never_written_is_damaged(status: int) -> None:
    value = Transaction(Producer(7, 0), TIMEOUT_MS, 0).to_value()
    value.transaction_status = status
    with pytest.raises(Corrupt):
        Transaction.of(value)


# -- limits ------------------------------------------------------------------------------------


def init(machine: TransactionCoordinator, name: str, new: int | None = 7) -> Changes:
    return machine.init_asked(name, TIMEOUT_MS, NO_PRODUCER, 100, new)


def test_no_more_ids_are_created_than_allowed_and_known_ones_work() -> None:
    it = Driver()
    it.machine.configured(replace(LIMITS, max_ids=1))
    producer = it.begin()
    refused = Changes(answer=Answer(ErrorCode.POLICY_VIOLATION))
    assert init(it.machine, "other") == init(it.machine, "other", None) == refused
    assert it.end(producer).error == ErrorCode.NONE
    it.mark()
    assert it.init().error == ErrorCode.NONE
    it.machine.apply(TX, None)
    assert init(it.machine, "other").write is not None


def test_ids_that_are_being_written_count() -> None:
    it = Driver()
    it.machine.configured(replace(LIMITS, max_ids=2))
    first, second = init(it.machine, "a").write, init(it.machine, "b").write
    assert first is not None
    assert second is not None
    assert init(it.machine, "c").answer == Answer(ErrorCode.POLICY_VIOLATION)
    it.machine.write_failed(first, ErrorCode.NOT_ENOUGH_REPLICAS, 100)
    it.machine.written(second, 100)
    assert it.machine.id_count == 1
    assert init(it.machine, "c").write is not None


def test_the_log_may_hold_more_ids_than_are_allowed_now() -> None:
    machine = TransactionCoordinator(1, replace(LIMITS, max_ids=1))
    for name in ("a", "b"):
        machine.apply(name, Transaction(Producer(1, 0), TIMEOUT_MS, 0))
    machine.loaded(100)
    assert machine.id_count == 2
    assert init(machine, "a").write is not None


def test_the_ids_of_the_whole_broker_count() -> None:
    machine = TransactionCoordinator(1, replace(LIMITS, max_ids=9), count_ids=lambda: 9)
    machine.loaded(100)
    assert init(machine, "a").answer == Answer(ErrorCode.POLICY_VIOLATION)


def test_a_long_id_is_refused_unless_the_log_has_it() -> None:
    it = Driver()
    long = "x" * (MAX_ID_CHARACTERS + 1)
    assert init(it.machine, long).answer == Answer(ErrorCode.INVALID_REQUEST)
    assert init(it.machine, long[1:]).write is not None
    it.machine.apply(long, Transaction(Producer(1, 0), TIMEOUT_MS, 0))
    assert init(it.machine, long).write is not None


# -- errors ------------------------------------------------------------------------------------


def test_errors_of_the_log_are_told_in_the_words_of_a_coordinator() -> None:
    assert coordinator_error(ErrorCode.NOT_LEADER_OR_FOLLOWER) == ErrorCode.NOT_COORDINATOR
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator_error(ErrorCode.REQUEST_TIMED_OUT) == unavailable
    assert coordinator_error(ErrorCode.MESSAGE_TOO_LARGE) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_old_clients_are_told_of_their_fencing_in_older_words() -> None:
    fenced = ErrorCode.PRODUCER_FENCED
    assert client_error(fenced, 26, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client_error(fenced, 26, 2) == fenced
    assert client_error(fenced, 22, 3) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client_error(ErrorCode.INVALID_TXN_STATE, 24, 0) == ErrorCode.INVALID_TXN_STATE


def test_names_are_kept_where_kafka_looks_for_them() -> None:
    assert partition_for("hello", 1 << 40) == 99162322
    assert partition_for("", 50) == 0
    assert partition_for("polygenelubricants", 50) == 0, "its hash is the smallest number"
    assert partition_for("\N{GRINNING FACE}", 1 << 40) == 1772899, "two characters in Java"


def test_a_write_is_known_by_identity() -> None:
    write = Write(TX, None, None, None)
    assert write != Write(TX, None, None, None)
