"""The transaction coordinator: decides, has the decision written, and only then answers.

    request ──▶ Changes.answer                                         refused
           └──▶ Changes.write ──▶ __transaction_state ──▶ written ──▶ answer, ending
                                                      ├─▶ write_failed    nothing has changed
                                                      └─▶ write_delayed   the outcome is unknown
    ending ──▶ PendingMarkers ──▶ leaders ──▶ marked ──▶ write (complete) ──▶ written

One `TransactionCoordinator` lasts as long as its broker leads one partition of
`__transaction_state` in one leader epoch, which is its coordinator epoch.  It is loaded from the
records of the partition (`apply`, `loaded`), and its state is at any time what the records say: a
transaction changes in `written` alone, when the record is committed, so a successor has the same
state.  Uncommitted state is never sent to a client.

**One write at a time per transactional id.**  Other requests for the id are answered with
CONCURRENT_TRANSACTIONS.  If a write's outcome is unknown (it takes too long), it stays in flight:
deciding otherwise could make two decisions true.

**A decision to end is final.**  From PREPARE_COMMIT and PREPARE_ABORT there is one way, and the
coordinator of the moment follows it to the end: it sends markers to all partitions until each has
its own, and writes the completion until that succeeds.

**Success is confirmed by a record.**  A request for what is true already is answered when the same
record has been committed once more: a coordinator that was replaced without knowing it commits
nothing.  It could otherwise confirm a transaction that its successor has ended since.

**A timeout fences.**  The abort bumps the epoch, so that the slow producer cannot continue in a
transaction that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hightide.core.controller.cluster_state import Partition
from hightide.core.events import Event, Severity
from hightide.core.transactions.transaction import (
    EPOCH_BUMPS,
    IDLE,
    NO_PRODUCER,
    TRANSITIONS,
    Producer,
    State,
    Transaction,
)
from hightide.wire.errors import ErrorCode

MOST_EXPIRED_AT_ONCE = 500
RETRY_MS = 100
MAX_ID_CHARACTERS = 1024
"""The longest new transactional id.  The log may hold longer ones."""

# The first versions of InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn whose clients
# know PRODUCER_FENCED. Older clients get INVALID_PRODUCER_EPOCH.
_KNOWS_FENCED_SINCE = {22: 4, 24: 2, 25: 2, 26: 2}


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings of a coordinator."""

    max_timeout_ms: int = 900_000
    expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    expiry_interval_ms: int = 3_600_000
    max_ids: int = 100_000
    """Of the whole broker."""


class Answer(NamedTuple):
    """The answer to a client or broker."""

    error: ErrorCode
    producer: Producer = NO_PRODUCER


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A record that must be committed before anything follows from it."""

    transactional_id: str
    before: Transaction | None
    after: Transaction | None
    """None removes the id."""
    answer: Answer | None
    """The answer to send once it is written; None for a write that no request asked for."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The markers that end a transaction: one for each of its partitions."""

    transactional_id: str
    producer: Producer
    is_commit: bool
    coordinator_epoch: int
    version: int
    partitions: frozenset[Partition]


@dataclass(frozen=True, slots=True)
class TransactionAborted(Event):
    """A transaction ends without its records."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: int
    why: str
    is_asked: bool
    """Whether its own client asked for it."""

    @property
    def level(self) -> Severity:
        return Severity.DEBUG if self.is_asked else Severity.WARNING

    def __str__(self) -> str:
        count = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return (
            f"transaction of {self.transactional_id}, producer {self.producer_id} in epoch"
            f" {self.producer_epoch}, in {count}, is aborted: {self.why}"
        )


def abort_of(write: Write) -> TransactionAborted | None:
    """Return the event of a write that has decided to abort a transaction."""
    before, after = write.before, write.after
    if before is None or after is None or before.state != State.ONGOING:
        return None
    if after.state != State.PREPARE_ABORT:
        return None
    if write.answer is None:
        why = f"it has not ended within {before.timeout_ms} ms"
    elif write.answer.error == ErrorCode.NONE:
        why = "its client asked"
    else:
        why = "another producer with this transactional id has begun"
    is_asked = write.answer is not None and write.answer.error == ErrorCode.NONE
    producer = before.producer
    return TransactionAborted(
        write.transactional_id, producer.id, producer.epoch, len(before.partitions), why, is_asked
    )


class Changes(NamedTuple):
    """What follows from a fact."""

    answer: Answer | None = None
    """To send now."""
    write: Write | None = None
    """To commit; then call `written`."""
    ending: Ending | None = None
    """Markers to send; then call `marked`."""
    needs_producer_id: bool = False
    """Call again, with a producer id that was never used."""


NOTHING = Changes()
_NEEDS_PRODUCER_ID = Changes(needs_producer_id=True)


def _refused(error: ErrorCode) -> Changes:
    return Changes(answer=Answer(error))


class TransactionCoordinator:
    """The transactional ids of one partition of `__transaction_state`.

    `count_ids` returns the number of ids of all coordinators of the broker.  Without it, the ids of
    this coordinator count.
    """

    __slots__ = (
        "_abort_look_ms",
        "_count_ids",
        "_endings",
        "_expiry_look_ms",
        "_limits",
        "_new_ids",
        "_ongoing",
        "_to_complete",
        "_transactions",
        "_unmarked",
        "_writes",
        "epoch",
        "is_loaded",
    )

    def __init__(
        self, epoch: int, limits: Limits, count_ids: Callable[[], int] | None = None
    ) -> None:
        self.epoch = epoch
        self.is_loaded = False
        self._limits = limits
        self._count_ids = count_ids or (lambda: self.id_count)
        # Ids without a committed record, whose first record is being written.
        self._new_ids: set[str] = set()
        self._transactions: dict[str, Transaction] = {}
        self._ongoing: set[str] = set()
        self._writes: dict[str, Write] = {}
        self._endings: dict[str, Ending] = {}
        # The partitions of each ending that have no marker yet.
        self._unmarked: dict[str, set[Partition]] = {}
        # Completions whose record could not be written, and when to try again.
        self._to_complete: dict[str, int] = {}
        self._abort_look_ms = self._expiry_look_ms = 0

    # Loading ----------------------------------------------------------------------------------

    def apply(self, transactional_id: str, transaction: Transaction | None) -> None:
        """Apply a record of the partition.  Nothing else changes a coordinator's transactions."""
        if transaction is None:
            self._transactions.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = transaction
        if transaction is not None and transaction.state == State.ONGOING:
            self._ongoing.add(transactional_id)
        else:
            self._ongoing.discard(transactional_id)

    def loaded(self, now_ms: int) -> list[Changes]:
        """All records have been applied.  Return what finishes the work of a predecessor."""
        assert not self.is_loaded
        self.is_loaded = True
        self._abort_look_ms = now_ms + self._limits.abort_interval_ms
        self._expiry_look_ms = now_ms + self._limits.expiry_interval_ms
        followed = [self._end(id_, now_ms) for id_ in list(self._transactions)]
        return [changes for changes in followed if changes is not NOTHING]

    def configured(self, limits: Limits) -> None:
        self._limits = limits

    # Requests ---------------------------------------------------------------------------------

    def init_asked(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer,
        now_ms: int,
        new_producer_id: int | None = None,
    ) -> Changes:
        """InitProducerId.  `expected` is the producer that the client had, or `NO_PRODUCER`."""
        if not transactional_id or (expected.id < 0) != (expected.epoch < 0):
            return _refused(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._limits.max_timeout_ms:
            return _refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        if not self.is_loaded:
            return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if transactional_id in self._writes:
            return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        known = self._transactions.get(transactional_id)
        if known is None:
            if len(transactional_id) > MAX_ID_CHARACTERS:
                return _refused(ErrorCode.INVALID_REQUEST)
            if self._count_ids() >= self._limits.max_ids:
                return _refused(ErrorCode.POLICY_VIOLATION)
            if new_producer_id is None:
                return _NEEDS_PRODUCER_ID
            after = Transaction(Producer(new_producer_id, 0), timeout_ms, now_ms)
            return self._write(transactional_id, after, Answer(ErrorCode.NONE, after.producer))
        claimed = expected if expected.id >= 0 else None
        if claimed is not None and not known.admits(claimed):
            return _refused(ErrorCode.PRODUCER_FENCED)
        if known.state == State.ONGOING:
            again = Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._write(transactional_id, known.fenced(now_ms), again)
        if known.state not in IDLE:
            return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.is_exhausted and claimed in (None, known.producer) and new_producer_id is None:
            return _NEEDS_PRODUCER_ID
        after = known.initialized(claimed, timeout_ms, now_ms, new_producer_id)
        return self._write(transactional_id, after, Answer(ErrorCode.NONE, after.producer))

    def partitions_asked(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[Partition],
        now_ms: int,
    ) -> Changes:
        """AddPartitionsToTxn, and AddOffsetsToTxn with the partition of the group's offsets."""
        known = self._find(transactional_id, producer)
        if isinstance(known, ErrorCode):
            return _refused(known)
        if known.producer != producer:
            return _refused(ErrorCode.PRODUCER_FENCED)
        if transactional_id in self._writes or known.state not in (*IDLE, State.ONGOING):
            return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        wanted = frozenset(partitions)
        if not wanted:
            return Changes(answer=Answer(ErrorCode.NONE))
        if wanted <= known.partitions:
            return self._write(transactional_id, known, Answer(ErrorCode.NONE))
        after = known.with_partitions(wanted, now_ms)
        return self._write(transactional_id, after, Answer(ErrorCode.NONE))

    def verification_asked(
        self, transactional_id: str, producer: Producer, partitions: Iterable[Partition]
    ) -> dict[Partition, ErrorCode]:
        """AddPartitionsToTxn with verify_only: does the transaction contain these partitions?

        What is being ended contains nothing any more, and what is being added is not in it yet:
        both are told to come again.
        """
        wanted = list(partitions)
        known = self._find(transactional_id, producer)
        if isinstance(known, ErrorCode):
            return dict.fromkeys(wanted, known)
        if known.producer != producer:
            return dict.fromkeys(wanted, ErrorCode.PRODUCER_FENCED)
        write = self._writes.get(transactional_id)
        coming: frozenset[Partition] = frozenset()
        if write is not None and write.after is not None and write.after.state == State.ONGOING:
            coming = write.after.partitions
        elif write is not None or known.state not in (*IDLE, State.ONGOING):
            return dict.fromkeys(wanted, ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            partition: ErrorCode.NONE
            if partition in known.partitions
            else ErrorCode.CONCURRENT_TRANSACTIONS
            if partition in coming
            else ErrorCode.TRANSACTION_ABORTABLE
            for partition in wanted
        }

    def end_asked(
        self,
        transactional_id: str,
        producer: Producer,
        is_commit: bool,
        version: int,
        now_ms: int,
        new_producer_id: int | None = None,
    ) -> Changes:
        """EndTxn.  The answer names the producer to continue with; version 2 may change it."""
        known = self._find(transactional_id, producer, may_be_former=True)
        if isinstance(known, ErrorCode):
            return _refused(known)
        is_repeated = known.is_ended_by(producer)
        if not is_repeated and known.producer != producer:
            return _refused(ErrorCode.PRODUCER_FENCED)
        if transactional_id in self._writes:
            return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state != State.ONGOING:
            # Version 1 recognises a repetition by its state alone.
            if is_repeated or (version < EPOCH_BUMPS and known.state != State.EMPTY):
                return self._end_repeated(transactional_id, known, is_commit)
            if known.state not in IDLE:
                return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
            # A client of version 2 may not know that its transaction has no partition, and aborts
            # it all the same.
            if is_commit or version < EPOCH_BUMPS:
                return _refused(ErrorCode.INVALID_TXN_STATE)
        if version >= EPOCH_BUMPS and known.is_exhausted and new_producer_id is None:
            return _NEEDS_PRODUCER_ID
        unused = new_producer_id if known.is_exhausted else None
        after = known.ending(is_commit, version, now_ms, unused)
        answer = Answer(ErrorCode.NONE, after.completed(now_ms).producer)
        return self._write(transactional_id, after, answer)

    def _end_repeated(self, transactional_id: str, known: Transaction, is_commit: bool) -> Changes:
        if is_commit != known.is_commit:
            return _refused(ErrorCode.INVALID_TXN_STATE)
        if known.state not in IDLE:
            return _refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        return self._write(transactional_id, known, Answer(ErrorCode.NONE, known.producer))

    def _find(
        self, transactional_id: str, producer: Producer, *, may_be_former: bool = False
    ) -> Transaction | ErrorCode:
        """Return the state of the id, or the error if it is not this producer's."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if not self.is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        known = self._transactions.get(transactional_id)
        if known is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_former = may_be_former and known.is_ended_by(producer)
        if known.producer.id != producer.id and not is_former:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return known

    # Outcomes ---------------------------------------------------------------------------------

    def written(self, write: Write, now_ms: int) -> Changes:
        """The record is committed."""
        if self._writes.get(write.transactional_id) is not write:
            return _refused(ErrorCode.NOT_COORDINATOR)
        self._ended(write)
        self.apply(write.transactional_id, write.after)
        return self._end(write.transactional_id, now_ms)._replace(answer=write.answer)

    def write_failed(self, write: Write, error: ErrorCode, now_ms: int) -> Changes:
        """The record is not in the log and never will be."""
        if self._writes.get(write.transactional_id) is not write:
            return _refused(ErrorCode.NOT_COORDINATOR)
        self._ended(write)
        if write.before is not None and write.before.state not in (*IDLE, State.ONGOING):
            self._to_complete[write.transactional_id] = now_ms + RETRY_MS
        return _refused(coordinator_error(error)) if write.answer else NOTHING

    def _ended(self, write: Write) -> None:
        del self._writes[write.transactional_id]
        self._new_ids.discard(write.transactional_id)

    def write_delayed(self, write: Write) -> Changes:
        """The write takes long, and its outcome is unknown.  The client is answered with
        COORDINATOR_NOT_AVAILABLE; nothing else is decided for the id until the outcome is known."""
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE) if write.answer else NOTHING

    def marked(self, ending: Ending, partitions: Iterable[Partition], now_ms: int) -> Changes:
        """These partitions have the marker, or were deleted."""
        transactional_id = ending.transactional_id
        if not self.is_ending(ending):
            return NOTHING
        unmarked = self._unmarked[transactional_id]
        unmarked.difference_update(partitions)
        return NOTHING if unmarked else self._complete(transactional_id, now_ms)

    def fenced(self, ending: Ending) -> None:
        """A partition has a marker of a newer coordinator, which will end the transaction."""
        if self.is_ending(ending):
            del self._endings[ending.transactional_id], self._unmarked[ending.transactional_id]

    def _write(
        self, transactional_id: str, after: Transaction | None, answer: Answer | None
    ) -> Changes:
        before = self._transactions.get(transactional_id)
        assert transactional_id not in self._writes, "one write at a time"
        if after is not None:
            after.check()
            assert before is None or before == after or after.state in TRANSITIONS[before.state]
        write = Write(transactional_id, before, after, answer)
        self._writes[transactional_id] = write
        if before is None:
            self._new_ids.add(transactional_id)
        return Changes(write=write)

    def _end(self, transactional_id: str, now_ms: int) -> Changes:
        """Return what finishes the transaction, if its end is decided."""
        known = self._transactions.get(transactional_id)
        if known is None or known.state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            return NOTHING
        if not known.partitions:
            return self._complete(transactional_id, now_ms)
        ending = Ending(
            transactional_id,
            known.producer,
            known.is_commit,
            self.epoch,
            known.version,
            known.partitions,
        )
        self._endings[transactional_id] = ending
        self._unmarked[transactional_id] = set(known.partitions)
        return Changes(ending=ending)

    def _complete(self, transactional_id: str, now_ms: int) -> Changes:
        self._endings.pop(transactional_id, None)
        self._unmarked.pop(transactional_id, None)
        self._to_complete.pop(transactional_id, None)
        known = self._transactions[transactional_id]
        return self._write(transactional_id, known.completed(now_ms), None)

    # Time -------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Write]:
        """Abort transactions that time out, remove idle ids, and retry failed completions."""
        if not self.is_loaded:
            return []
        due = [id_ for id_, at_ms in self._to_complete.items() if at_ms <= now_ms]
        changes = [self._complete(id_, now_ms) for id_ in due]
        if now_ms >= self._abort_look_ms:
            self._abort_look_ms = now_ms + self._limits.abort_interval_ms
            changes += [
                self._write(id_, self._transactions[id_].fenced(now_ms), None)
                for id_ in sorted(self._ongoing)
                if id_ not in self._writes and self._transactions[id_].is_timed_out(now_ms)
            ]
        if now_ms >= self._expiry_look_ms:
            expired = self._expired(now_ms)
            if len(expired) < MOST_EXPIRED_AT_ONCE:
                self._expiry_look_ms = now_ms + self._limits.expiry_interval_ms
            changes += [self._write(id_, None, None) for id_ in expired]
        return [change.write for change in changes if change.write is not None]

    def deadline_ms(self) -> int | None:
        """Return when to `tick`; None before it is loaded."""
        if not self.is_loaded:
            return None
        return min((self._abort_look_ms, self._expiry_look_ms, *self._to_complete.values()))

    def _expired(self, now_ms: int) -> list[str]:
        oldest_ms = now_ms - self._limits.expiration_ms
        found: list[str] = []
        for transactional_id, known in self._transactions.items():
            if len(found) == MOST_EXPIRED_AT_ONCE:
                break
            is_idle = known.state in IDLE and transactional_id not in self._writes
            if is_idle and known.updated_ms <= oldest_ms:
                found.append(transactional_id)
        return found

    # Questions --------------------------------------------------------------------------------

    @property
    def transactions(self) -> dict[str, Transaction]:
        """The state of each transactional id, as the committed records say."""
        return self._transactions

    @property
    def id_count(self) -> int:
        """The number of transactional ids, with those whose first record is being written."""
        return len(self._transactions) + len(self._new_ids)

    @property
    def endings(self) -> list[Ending]:
        """The transactions whose markers are being delivered."""
        return [*self._endings.values()]

    def is_ending(self, ending: Ending) -> bool:
        return self._endings.get(ending.transactional_id) == ending

    def check(self) -> None:
        """Assert what must hold between any two facts."""
        for transactional_id, known in self._transactions.items():
            known.check()
            assert (transactional_id in self._ongoing) == (known.state == State.ONGOING)
        for transactional_id, write in self._writes.items():
            assert write.before is self._transactions.get(transactional_id)
            assert (transactional_id in self._new_ids) == (write.before is None)
        assert self._new_ids <= self._writes.keys()
        assert self._ongoing <= self._transactions.keys()
        assert self._endings.keys() == self._unmarked.keys()
        for transactional_id, ending in self._endings.items():
            known = self._transactions[transactional_id]
            assert known.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
            assert (ending.producer, ending.is_commit) == (known.producer, known.is_commit)
            assert self._unmarked[transactional_id] <= ending.partitions
            assert transactional_id not in self._writes


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """Return the error for the client if its record could not be written."""
    if error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error


def client_error(error: ErrorCode, api_key: int, version: int) -> ErrorCode:
    """Return the error that a client of this version knows."""
    if error == ErrorCode.PRODUCER_FENCED and version < _KNOWS_FENCED_SINCE[api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
