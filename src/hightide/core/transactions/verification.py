"""That a transaction really contains the partition somebody writes to (KIP-890).

A batch may be late: its transaction has ended, and it would open one that nobody will ever end, or
join the next.  So the first batch of a transaction is appended only after the coordinator has said
that the partition is part of it, and if no marker has come in between:

    begin ──▶ Guard ──▶ AddPartitionsToTxn, verify_only ──▶ append, if the guard still holds
                 ▲
                 └── void when a marker is written, or a batch that opens the transaction

A guard is known by its identity: the answer to a question asked before a marker must not let in a
batch after it, although the producer is the same and may be in a transaction again.

While the question is open later batches of the producer may overtake the first one, and a partition
that knows nothing of a producer takes any sequence.  So nothing above the lowest sequence that
waited is let in first.
"""

from __future__ import annotations

from hightide.wire.errors import ErrorCode

_ABORTABLE_SINCE = 11
"""The version of Produce whose clients know TRANSACTION_ABORTABLE."""

# A producer tries again when it is told NOT_ENOUGH_REPLICAS, and old ones not when told these.
_TRY_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_COORDINATOR,
)


class VerificationGuard:
    """Stands for one question to the coordinator."""

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
        """A batch of a transaction that is not open here has come."""
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
        """No batch above it may be appended first."""
        guard = self._guards.get(producer_id)
        return None if guard is None else guard.lowest_sequence

    def settled(self, producer_id: int) -> None:
        """The transaction is open now, or has ended: what was asked before is void."""
        self._guards.pop(producer_id, None)

    def clear(self) -> None:
        self._guards.clear()

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that never came back; returns how many."""
        old = [i for i, each in self._guards.items() if now_ms - each.begun_ms >= expiration_ms]
        for producer_id in old:
            del self._guards[producer_id]
        return len(old)


def produce_error(error: ErrorCode, version: int) -> ErrorCode:
    """What a producer is told when the coordinator answered a verification like this."""
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if error in _TRY_AGAIN:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error
