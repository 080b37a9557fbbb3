"""The state of one transactional id, and its transitions.

              ┌────────────── InitProducerId: another epoch, or another producer id ─────────────┐
              ▼                                                                                  │
    EMPTY ── partitions ──▶ ONGOING ── EndTxn ──▶ PREPARE_COMMIT ── all markers ──▶ COMPLETE_COMMIT
      ▲                     ▲    └──── EndTxn, timeout, fencing ──▶ PREPARE_ABORT ──▶ COMPLETE_ABORT
      │                     └──────────────────────── partitions ────────────────────────────────┤
      └──────────────────────────────────────────────────────────────────────────────────────────┘

A `Transaction` is a value.  One record of `__transaction_state` holds all of it but
`last_producer_epoch`, for which Kafka's format has no room: that field only lets a client that
repeats InitProducerId get the same response again, and a new coordinator refuses instead.

**The epoch fences.**  A request without the newest producer id and epoch changes nothing.  An epoch
that a client gets is at most `LAST_CLIENT_EPOCH`, so that there is always one left to fence it;
after that the next producer id starts at epoch 0.

**Version 2 of transactions** (KIP-890) bumps the epoch at the end of a transaction, so that no part
of one transaction can be taken for a part of the next.  The markers carry the new epoch already.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from hightide.core.controller.cluster_state import Partition
from hightide.wire.errors import Corrupt
from hightide.wire.records.transaction_state import PartitionsOfTopic, TransactionLogValue

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIME = -1
LAST_CLIENT_EPOCH = 2**15 - 2
EPOCH_BUMPS = 2
"""The first version of transactions whose end bumps the epoch."""


class State(IntEnum):
    """Kafka's states, with their numbers in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    # Kafka's names for a write in flight: one that removes the id, and one that fences its
    # producer. They are never written.
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name in DescribeTransactions and ListTransactions."""
        return self.name.title().replace("_", "")


TRANSITIONS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.DEAD: frozenset(),
    State.PREPARE_EPOCH_FENCE: frozenset(),
}

ENDING = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
IDLE = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})


class Producer(NamedTuple):
    """A producer id in one of its epochs."""

    id: int
    epoch: int


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of a transactional id."""

    producer: Producer
    timeout_ms: int
    updated_ms: int
    state: State = State.EMPTY
    partitions: frozenset[Partition] = frozenset()
    started_ms: int = NO_TIME
    version: int = 0
    """The transaction version that its last transaction ended with."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The previous producer id, while its client may still repeat the request that changed it."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after the markers are written, if the epochs of this one are used up."""
    last_producer_epoch: int = field(default=NO_PRODUCER_EPOCH, compare=False)

    # Transitions ------------------------------------------------------------------------------

    def initialized(
        self, expected: Producer | None, timeout_ms: int, now_ms: int, new_producer_id: int | None
    ) -> Transaction:
        """InitProducerId, which `admits` has allowed: a new epoch or a new producer id; the same
        as last time if the client repeats its request."""
        known, last_epoch = self.producer, NO_PRODUCER_EPOCH
        if expected is not None and expected != known:
            producer, last_epoch = known, self.last_producer_epoch
        elif self.is_exhausted:
            assert new_producer_id is not None
            producer = Producer(new_producer_id, 0)
        else:
            producer = Producer(known.id, known.epoch + 1)
        if expected == known:
            last_epoch = known.epoch
        moved = producer.id != known.id
        return replace(
            self,
            producer=producer,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
            state=State.EMPTY,
            partitions=frozenset(),
            started_ms=NO_TIME,
            version=0,
            previous_producer_id=known.id if moved else self.previous_producer_id,
            last_producer_epoch=last_epoch,
        )

    def with_partitions(self, partitions: frozenset[Partition], now_ms: int) -> Transaction:
        is_first = self.state != State.ONGOING
        return replace(
            self,
            state=State.ONGOING,
            partitions=self.partitions | partitions,
            started_ms=now_ms if is_first else self.started_ms,
            updated_ms=now_ms,
            version=0,
        )

    def ending(
        self, committed: bool, version: int, now_ms: int, new_producer_id: int | None
    ) -> Transaction:
        """EndTxn: prepare to commit or to abort."""
        state = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
        started_ms = self.started_ms if self.state == State.ONGOING else now_ms
        if version < EPOCH_BUMPS:
            return replace(
                self, state=state, updated_ms=now_ms, started_ms=started_ms, version=version
            )
        return replace(
            self,
            state=state,
            producer=Producer(self.producer.id, self.producer.epoch + 1),
            updated_ms=now_ms,
            started_ms=started_ms,
            version=version,
            next_producer_id=NO_PRODUCER_ID if new_producer_id is None else new_producer_id,
            last_producer_epoch=self.producer.epoch,
        )

    def fenced(self, now_ms: int) -> Transaction:
        """Prepare to abort, and fence the producer."""
        return replace(
            self,
            state=State.PREPARE_ABORT,
            producer=Producer(self.producer.id, self.producer.epoch + 1),
            updated_ms=now_ms,
            version=0,
            last_producer_epoch=NO_PRODUCER_EPOCH,
        )

    def completed(self, now_ms: int) -> Transaction:
        """Complete the transaction: all its partitions have the marker."""
        is_commit = self.state == State.PREPARE_COMMIT
        moved = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            state=State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT,
            producer=Producer(self.next_producer_id, 0) if moved else self.producer,
            partitions=frozenset(),
            updated_ms=now_ms,
            previous_producer_id=self.producer.id if moved else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    # Questions --------------------------------------------------------------------------------

    @property
    def is_exhausted(self) -> bool:
        """Whether no epoch of this producer id is left for a client."""
        return self.producer.epoch >= LAST_CLIENT_EPOCH

    @property
    def is_commit(self) -> bool:
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    def admits(self, expected: Producer) -> bool:
        """Return whether a client with this producer id and epoch may get a new epoch (KIP-360).

        It may if it is the newest producer, or was until it got the present epoch in a response
        that was lost.
        """
        if expected == self.producer:
            return True
        is_same = expected.id == self.producer.id
        is_rotated = expected.id == self.previous_producer_id and self.producer.epoch == 0
        return (
            (is_same or (is_rotated and expected.epoch >= LAST_CLIENT_EPOCH))
            and expected.epoch == self.last_producer_epoch
            and expected.epoch != NO_PRODUCER_EPOCH
        )

    def is_ended_by(self, producer: Producer) -> bool:
        """Return whether this producer's EndTxn bumped the epoch: it may be repeating it."""
        if self.version < EPOCH_BUMPS:
            return False
        if producer == Producer(self.producer.id, self.producer.epoch - 1):
            return True
        return producer == (self.previous_producer_id, LAST_CLIENT_EPOCH) and not (
            self.producer.epoch or self.state in ENDING
        )

    def is_timed_out(self, now_ms: int) -> bool:
        return self.state == State.ONGOING and self.started_ms + self.timeout_ms < now_ms

    def check(self) -> None:
        """Assert what must hold of every state that is written."""
        assert self.producer.id >= 0
        assert 0 <= self.producer.epoch <= LAST_CLIENT_EPOCH + 1
        assert self.state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)
        assert not self.partitions or self.state not in IDLE
        if self.next_producer_id != NO_PRODUCER_ID:
            assert self.state in ENDING
            assert self.version >= EPOCH_BUMPS
        if self.state == State.ONGOING:
            assert self.partitions
            assert self.started_ms >= 0
        if self.state == State.EMPTY:
            assert self.started_ms == NO_TIME

    # Records ----------------------------------------------------------------------------------

    def to_value(self) -> TransactionLogValue:
        """Return the value of its record."""
        topics = [
            PartitionsOfTopic(topic=topic, partition_ids=[index for _, index in group])
            for topic, group in groupby(sorted(self.partitions), key=lambda p: p[0])
        ]
        return TransactionLogValue(
            producer_id=self.producer.id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer.epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state,
            transaction_partitions=None if self.state == State.EMPTY else topics,
            transaction_last_update_timestamp_ms=self.updated_ms,
            transaction_start_timestamp_ms=self.started_ms,
            client_transaction_version=self.version,
        )

    @classmethod
    def of(cls, value: TransactionLogValue) -> Transaction:
        """Return the state in a record.  Raise Corrupt if it is none that is ever written."""
        try:
            state = State(value.transaction_status)
        except ValueError:
            raise Corrupt(f"a transaction has state {value.transaction_status}") from None
        if state in (State.DEAD, State.PREPARE_EPOCH_FENCE) or value.producer_id < 0:
            raise Corrupt(f"a transaction of producer {value.producer_id} has state {state.title}")
        return cls(
            producer=Producer(value.producer_id, value.producer_epoch),
            timeout_ms=value.transaction_timeout_ms,
            updated_ms=value.transaction_last_update_timestamp_ms,
            state=state,
            partitions=frozenset(
                (topic.topic, index)
                for topic in value.transaction_partitions or ()
                for index in topic.partition_ids
            ),
            started_ms=value.transaction_start_timestamp_ms,
            version=value.client_transaction_version,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
        )
