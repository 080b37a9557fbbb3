"""The idempotent producers of a partition: their epochs, sequences and last batches.

A producer numbers its records per partition. The leader accepts a batch only if its first sequence
follows the last one, so a retry neither duplicates nor reorders records. The leader remembers the
last five batches and answers a retry of one of them with the offsets that it got at first:

    seq 0..4 ──▶ written, offset 100       seq 0..4 again ──▶ offset 100, nothing written
    seq 5..9 ──▶ written, offset 105       seq 12..  ──▶ OUT_OF_ORDER_SEQUENCE_NUMBER

A client may have five batches in flight. A snapshot has room for one; `recall` restores the others
from the log when a client seems to repeat an unknown batch. An unknown producer is accepted with
any sequence, because its records may have been deleted since (KIP-360). The state is a function of
the batch headers in the log; a snapshot in Kafka's format avoids reading all of them after a
restart.

A batch that the leader refuses for a while, because its disk is full for example, leaves a gap, and
the batches behind it are in flight already. OUT_OF_ORDER_SEQUENCE_NUMBER would make the client give
up its epoch and send batches again that were written. So the leader remembers what it refused, and
refuses later batches with the same error until the missing ones are written in order:

    seq 10..14 ──▶ KAFKA_STORAGE_ERROR     seq 15..19 ──▶ KAFKA_STORAGE_ERROR
    seq 10..14 again ──▶ written           seq 15..19 again ──▶ written

These refusals are not in the log: another leader does not know them, and the client sends all of
the batches to it again in order.

A batch with the sequences of a transaction that has ended is no repetition: a client ends a
transaction when all its batches are answered or given up. librdkafka uses the sequences of a batch
again that it gave up, and that the log has. To call the new batch a repetition would lose it:

    seq 5..9 ──▶ written, the response is lost; the transaction is aborted
    seq 5..9 with other records, in the next transaction ──▶ UNKNOWN_PRODUCER_ID

The number of producers is bounded. When a partition is full, its leader refuses new producers with
KAFKA_STORAGE_ERROR, which clients retry, and keeps the state of the others: to drop it would let a
retry write twice. Room comes from producers that expire, and from those that wrote one batch and
then nothing for `BRIEF_MS`. A replica that replays a log refuses nothing. Far above the bound it
drops the producers whose last batch is lowest in the log, so all replicas drop the same ones.

Coordinators write for producers too (offsets in a transaction), without sequences. Of such batches
only the epoch counts. `core/transactions/open_transactions.py` interprets the fields for
transactions; this module only keeps and stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from struct import Struct
from typing import NamedTuple

from hightide.wire.batch import BatchHeader
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

BATCHES_KEPT = 5
MAX_PRODUCERS = 100_000
BRIEF_MS = 15 * 60 * 1000
"""Idle time of a producer with one batch before it makes room: longer than clients retry."""
NO_TIMESTAMP = -1
NO_OFFSET = -1
NO_SEQUENCE = -1

_SEQUENCE_MASK = 0x7FFF_FFFF

_new_tuple = tuple.__new__

_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_CRC_END = 6


class AppendedBatch(NamedTuple):
    """The sequences and offsets of an appended batch."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int

    @classmethod
    def of(cls, header: BatchHeader) -> AppendedBatch:
        """Return the entry for a stored batch."""
        return cls(
            header.base_sequence,
            _last_sequence(header.base_sequence, header.last_offset_delta),
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
        )


def _last_sequence(first_sequence: int, delta: int) -> int:
    """Return the last sequence of a batch; -1 for a batch without sequences."""
    return (first_sequence + delta) & _SEQUENCE_MASK if first_sequence >= 0 else NO_SEQUENCE


class Refused(NamedTuple):
    """The batches of a producer that the leader refused and that must be written in order."""

    epoch: int
    first_sequence: int  # of the first of these batches
    last_sequence: int  # the first sequence of the last one
    code: ErrorCode
    refused_ms: int


def _is_before(sequence: int, later: int) -> bool:
    return 0 < ((later - sequence) & _SEQUENCE_MASK) <= _SEQUENCE_MASK >> 1


class ProducerState:
    """The state of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "is_partial",
        "last_seen_ms",
        "next_sequence",
        "timestamp",
        "transaction_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[AppendedBatch] = []
        # Whether it comes from a snapshot: the log may have more batches than `batches`.
        self.is_partial = False
        self.next_sequence = NO_SEQUENCE
        self.timestamp = NO_TIMESTAMP
        self.last_seen_ms = 0
        self.coordinator_epoch = -1
        self.transaction_first_offset = NO_OFFSET

    @property
    def last_offset(self) -> int:
        """The last offset of its newest batch, or -1."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def has_ended(self, batch: AppendedBatch) -> bool:
        """Return whether the transaction of this batch has ended in this epoch."""
        first_offset = self.transaction_first_offset
        return self.coordinator_epoch >= 0 and (
            first_offset < 0 or batch.base_offset < first_offset
        )

    def __eq__(self, other: object) -> bool:
        """Compare what a replay of the log restores."""
        if not isinstance(other, ProducerState):
            return NotImplemented
        return (self.epoch, self.batches, self.timestamp, self.transaction_first_offset) == (
            other.epoch,
            other.batches,
            other.timestamp,
            other.transaction_first_offset,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ProducerState(epoch={self.epoch}, batches={self.batches})"


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_capacity", "_refused", "_states")

    def __init__(self, capacity: int = MAX_PRODUCERS) -> None:
        self._states: dict[int, ProducerState] = {}
        # Kept until it is known to be obsolete, so that `appended` need not look.
        self._refused: dict[int, Refused] = {}
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        return iter(self._states.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self._states == other._states

    __hash__ = None  # type: ignore[assignment]

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, count: int
    ) -> AppendedBatch | None:
        """Return None if the batch may be appended, or the batch that it repeats.

        Raise INVALID_PRODUCER_EPOCH for an epoch that has been replaced, and
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap, an overlap, or a repetition of a batch that is older
        than the last five. Raise UNKNOWN_PRODUCER_ID for sequences of a transaction that has ended,
        which makes the client abort and ask for a new epoch. Raise the error of an earlier batch
        that was refused and is missing.
        """
        state = self._states.get(producer_id)
        if state is None:
            if self._refused:
                self._check_refused(producer_id, epoch, first_sequence)
            if len(self._states) >= self._capacity:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"the partition has {len(self._states)} producers, so producer {producer_id}"
                    " must wait until others expire",
                )
            return None
        if epoch != state.epoch:
            if epoch < state.epoch:
                raise _replaced(producer_id, epoch, state.epoch)
            if first_sequence != 0:
                self._check_refused(producer_id, epoch, first_sequence)
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} began epoch {epoch} with sequence {first_sequence}",
                )
            return None
        expected = state.next_sequence
        if first_sequence == expected or (expected < 0 and first_sequence == 0):
            return None
        last_sequence = (first_sequence + count - 1) & _SEQUENCE_MASK
        for batch in state.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                if state.has_ended(batch):
                    raise KafkaError(
                        ErrorCode.UNKNOWN_PRODUCER_ID,
                        f"producer {producer_id} sent sequence {first_sequence}, which it used in a"
                        " transaction that has ended",
                    )
                return batch
        self._check_refused(producer_id, epoch, first_sequence)
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} sent sequence {first_sequence}, expected {max(expected, 0)}",
        )

    def _check_refused(self, producer_id: int, epoch: int, first_sequence: int) -> None:
        """Raise the error of an earlier batch that was refused and has not been written since."""
        refused = self._missing(producer_id)
        if refused is None or epoch != refused.epoch:
            return
        state, expected = self._states.get(producer_id), refused.first_sequence
        if state is not None and state.epoch == epoch and state.next_sequence >= 0:
            expected = state.next_sequence
        if _is_before(expected, first_sequence):
            raise KafkaError(
                refused.code,
                f"producer {producer_id} sent sequence {first_sequence}, and sequence {expected}"
                " before it was refused; send that first",
            )

    def _missing(self, producer_id: int) -> Refused | None:
        """Return a producer's refused batches, if not all of them have been written since."""
        refused, state = self._refused.get(producer_id), self._states.get(producer_id)
        if refused is None or state is None:
            return refused
        if state.epoch > refused.epoch or (
            state.epoch == refused.epoch
            and state.next_sequence >= 0
            and _is_before(refused.last_sequence, state.next_sequence)
        ):
            del self._refused[producer_id]
            return None
        return refused

    def refused(
        self, producer_id: int, epoch: int, first_sequence: int, code: ErrorCode, now_ms: int
    ) -> None:
        """The leader has refused a batch with an error after which the client sends it again."""
        known = self._missing(producer_id)
        first = last = first_sequence
        if known is not None and epoch <= known.epoch:
            if epoch < known.epoch:
                return
            first = known.first_sequence if _is_before(known.first_sequence, first) else first
            last = known.last_sequence if _is_before(last, known.last_sequence) else last
        if len(self._refused) >= self._capacity and producer_id not in self._refused:
            del self._refused[next(iter(self._refused))]
        self._refused[producer_id] = Refused(epoch, first, last, code, now_ms)

    def continue_from(self, former: ProducerStates, now_ms: int) -> None:
        """Take over what the same partition refused before its log was opened again.

        Batches that the log has lost since count as refused.
        """
        self._refused |= former._refused
        for producer_id, before in former:
            if before.next_sequence < 0:
                continue
            state = self._states.get(producer_id)
            if state is None or state.epoch != before.epoch:
                first_sequence = before.batches[0].first_sequence
            elif state.next_sequence != before.next_sequence:
                first_sequence = max(state.next_sequence, 0)
            else:
                continue
            code = ErrorCode.KAFKA_STORAGE_ERROR
            self.refused(producer_id, before.epoch, first_sequence, code, now_ms)

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Check a batch without sequences: raise INVALID_PRODUCER_EPOCH for a replaced epoch."""
        state = self._states.get(producer_id)
        if state is not None and epoch < state.epoch:
            raise _replaced(producer_id, epoch, state.epoch)

    def recall(self, producer_id: int, earlier: Iterable[AppendedBatch]) -> None:
        """Restore a producer's batches before those in memory; `earlier` has the newest first."""
        state = self._states[producer_id]
        state.is_partial = False
        batches = state.batches
        for batch in earlier:
            if len(batches) == BATCHES_KEPT:
                return
            first = batches[0]
            follows = (batch.last_sequence + 1) & _SEQUENCE_MASK == first.first_sequence
            if not follows or batch.last_offset >= first.base_offset:
                return
            batches.insert(0, batch)

    def appended(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp: int,
        now_ms: int,
        transactional: bool = False,
    ) -> None:
        """A batch was appended: one that `check` allowed, or one that is being replayed."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._add(producer_id, epoch)
        batches = state.batches
        if epoch != state.epoch:
            state.epoch = epoch
            batches.clear()
        elif len(batches) == BATCHES_KEPT:
            del batches[0]
        if first_sequence >= 0:
            last_sequence = (first_sequence + last_offset - base_offset) & _SEQUENCE_MASK
            state.next_sequence = (last_sequence + 1) & _SEQUENCE_MASK
        else:
            last_sequence = state.next_sequence = NO_SEQUENCE
        # Without the class's own constructor, which takes as long as the rest of this method.
        fields = (first_sequence, last_sequence, base_offset, last_offset, timestamp)
        batches.append(_new_tuple(AppendedBatch, fields))
        state.timestamp = timestamp
        state.last_seen_ms = now_ms
        if transactional and state.transaction_first_offset < 0:
            state.transaction_first_offset = base_offset

    def marked(
        self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int, now_ms: int
    ) -> None:
        """A control batch that ends the producer's transaction was appended."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._add(producer_id, epoch)
        if epoch != state.epoch:
            state.epoch = epoch
            state.batches.clear()
            state.next_sequence = NO_SEQUENCE
        state.coordinator_epoch = coordinator_epoch
        state.transaction_first_offset = NO_OFFSET
        state.timestamp = timestamp
        state.last_seen_ms = now_ms

    def _add(self, producer_id: int, epoch: int) -> ProducerState:
        if len(self._states) >= 2 * self._capacity:
            self._make_room()
        self._states[producer_id] = state = ProducerState(epoch)
        return state

    def _make_room(self) -> None:
        """Drop one percent, lowest in the log first, so that this is rarely needed."""
        idle = [(s.last_offset, i) for i, s in self if s.transaction_first_offset < 0]
        for _, producer_id in nsmallest(max(1, self._capacity // 100), idle):
            self._forget(producer_id)

    def _forget(self, producer_id: int) -> None:
        del self._states[producer_id]
        self._refused.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drop producers that have been idle for `expiration_ms`, and return how many.

        If the partition is nearly full, drop those with one batch after `BRIEF_MS` already.
        """
        # Idle time counts from when this broker saw the producer, not by the timestamps in its
        # records: those may be years old while the producer is active.
        is_crowded = len(self._states) >= self._capacity * 9 // 10
        brief_ms = min(BRIEF_MS, expiration_ms) if is_crowded else expiration_ms
        idle = [
            producer_id
            for producer_id, state in self._states.items()
            if state.transaction_first_offset < 0
            and now_ms - state.last_seen_ms
            >= (brief_ms if len(state.batches) <= 1 and not state.is_partial else expiration_ms)
        ]
        for producer_id in idle:
            self._forget(producer_id)
        for producer_id, refused in list(self._refused.items()):
            if now_ms - refused.refused_ms >= expiration_ms:
                del self._refused[producer_id]
        return len(idle)

    def clear(self) -> None:
        self._states.clear()
        self._refused.clear()

    def encode(self) -> bytes:
        """Return a snapshot file of version 1. It has room for the last batch of each producer."""
        entries = [
            _SNAPSHOT_ENTRY.pack(
                producer_id,
                state.epoch,
                state.batches[-1].last_sequence if state.batches else NO_SEQUENCE,
                state.last_offset,
                state.batches[-1].last_offset - state.batches[-1].base_offset
                if state.batches
                else 0,
                state.timestamp,
                state.coordinator_epoch,
                state.transaction_first_offset,
            )
            for producer_id, state in self._states.items()
        ]
        out = bytearray(_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, 0, len(entries)))
        out += b"".join(entries)
        crc = crc32c(memoryview(out)[_CRC_END:])
        _SNAPSHOT_HEAD.pack_into(out, 0, _SNAPSHOT_VERSION, crc, len(entries))
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes, now_ms: int, capacity: int = MAX_PRODUCERS) -> ProducerStates:
        """Decode a snapshot file. Raise Corrupt if the file is damaged."""
        if len(data) < _SNAPSHOT_HEAD.size:
            raise Corrupt(f"producer snapshot of {len(data)} bytes is too short")
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise Corrupt(f"producer snapshot has version {version}, expected 1")
        if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
            raise Corrupt(f"producer snapshot of {len(data)} bytes cannot hold {count} entries")
        if crc32c(memoryview(data)[_CRC_END:]) != crc:
            raise Corrupt("producer snapshot has a wrong checksum")
        states = cls(capacity)
        states._load(_SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :]), now_ms)
        return states

    def _load(self, entries: Iterable[tuple[int, ...]], now_ms: int) -> None:
        for (
            producer_id,
            epoch,
            last_seq,
            last_offset,
            delta,
            timestamp,
            coordinator,
            txn,
        ) in entries:
            state = self._add(producer_id, epoch)
            if last_offset >= 0:
                first = NO_SEQUENCE
                if last_seq >= 0:
                    first = (last_seq - delta) & _SEQUENCE_MASK
                    state.next_sequence = (last_seq + 1) & _SEQUENCE_MASK
                base = last_offset - delta
                state.batches.append(AppendedBatch(first, last_seq, base, last_offset, timestamp))
                state.is_partial = True
            state.timestamp = timestamp
            state.last_seen_ms = now_ms
            state.coordinator_epoch = coordinator
            state.transaction_first_offset = txn


def _replaced(producer_id: int, epoch: int, newest: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} sent epoch {epoch}, its current epoch is {newest}",
    )
