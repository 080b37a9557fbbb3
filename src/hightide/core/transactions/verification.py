"""Transaction verification (KIP-890): a transaction must contain the partition it writes to.

A batch may arrive late: its transaction has ended, and the batch would open one that is never
ended, or join the next one.  So the first batch of a transaction is appended only after the
coordinator has confirmed that the transaction contains the partition, and if no marker was written
in between:

    begin ──▶ VerificationGuard ──▶ AddPartitionsToTxn, verify_only ──▶ append, if it still holds
                 ▲
                 └── void when a marker is written, or a batch that opens the transaction

A guard is compared by identity: the response to a request from before a marker must not admit a
batch after it, although the producer is the same and may be in a transaction again.

While the request is in flight, later batches of the producer may overtake the first one, and a
partition accepts any sequence from an unknown producer.  So no batch above the lowest waiting
sequence is admitted first.
"""

from __future__ import annotations

from hightide.wire.errors import ErrorCode

_ABORTABLE_SINCE = 11
"""The version of Produce whose clients know TRANSACTION_ABORTABLE."""

# Producers retry after NOT_ENOUGH_REPLICAS; old producers do not retry after these errors.
_TRY_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_COORDINATOR,
)


class VerificationGuard:
    """Stands for one request to the coordinator."""

    __slots__ = ("begun_ms", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int, begun_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        self.begun_ms = begun_ms


class Verification:
    """The producers of a partition whose transactions are not verified yet."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, VerificationGuard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def begin(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> VerificationGuard:
        """Return the guard for a batch whose transaction is not open here."""
        guard = self._guards.get(producer_id)
        if guard is None:
            guard = self._guards[producer_id] = VerificationGuard(epoch, sequence, now_ms)
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence = epoch, sequence
        elif epoch == guard.epoch:
            guard.lowest_sequence = min(sequence, guard.lowest_sequence)
        return guard

    def holds(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        return guard is not None and self._guards.get(producer_id) is guard

    def lowest_sequence(self, producer_id: int) -> int | None:
        """Return the lowest waiting sequence: no batch above it may be appended first."""
        guard = self._guards.get(producer_id)
        return None if guard is None else guard.lowest_sequence

    def settled(self, producer_id: int) -> None:
        """The transaction was opened or has ended: earlier guards are void."""
        self._guards.pop(producer_id, None)

    def clear(self) -> None:
        self._guards.clear()

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drop the guards of producers that never came back, and return how many."""
        old = [i for i, guard in self._guards.items() if now_ms - guard.begun_ms >= expiration_ms]
        for producer_id in old:
            del self._guards[producer_id]
        return len(old)


def produce_error(error: ErrorCode, version: int) -> ErrorCode:
    """Return the error for the producer, given the coordinator's error in a verification."""
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if error in _TRY_AGAIN:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error
