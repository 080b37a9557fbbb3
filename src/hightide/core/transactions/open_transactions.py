"""The transactions in one partition's log: which are open, and the last stable offset (LSO).

    high watermark ─────────────────────────────────▶│
    log   ┃ a ┃ b ┃ a ┃ x ┃ COMMIT a ┃ b ┃ c ┃ COMMIT b ┃ c ┃
              ▲                            ▲
              └ last stable offset: the marker of b is not committed yet
                                           └ here when the high watermark has passed it

The last stable offset is the first record whose transaction is undecided, or whose decision could
still be lost with the marker.  A read_committed consumer sees nothing from there on.

`core/partition/producer_state.py` keeps the epochs and sequences of producers.  Both are functions
of the log, and both are notified of every batch: on leaders, on followers and when a log is loaded.
Only a leader checks first (`check`, `marker_asked`).

**A marker ends one transaction.**  A marker is refused if its coordinator or its producer has been
replaced since.  A marker that is in the log already is not written again.  With version 2 of
transactions the marker's epoch is above that of every record that it ends, so a late copy cannot
end the next transaction.  In version 1 nothing tells the two apart: the sender must make sure that
no copy of a marker is in flight when the transaction is completed.
"""

from __future__ import annotations

from typing import NamedTuple

from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.aborted_index import AbortedTransaction
from hightide.core.transactions.transaction import EPOCH_BUMPS, Producer
from hightide.core.transactions.verification import Verification, VerificationGuard
from hightide.wire.errors import ErrorCode, KafkaError


class _Ended(NamedTuple):
    """A transaction whose marker may not be committed yet."""

    first_offset: int
    marker_offset: int


class PartitionTransactions:
    """The transactions in one replica's log."""

    __slots__ = ("_ended", "opened", "producers", "verification", "verifies")

    def __init__(self, producers: ProducerStates, *, verifies: bool = True) -> None:
        self.verification = Verification()
        self.verifies = verifies
        self.opened: dict[int, int] = {}
        """Producer id → offset of the first record, in the order in which they began."""
        self.restored(producers)

    def restored(self, producers: ProducerStates) -> None:
        """The producers were read from a snapshot, or truncated with the log.  The caller replays
        the batches that follow in the log."""
        self.producers = producers
        opened = [
            (state.transaction_first_offset, producer_id)
            for producer_id, state in producers
            if state.transaction_first_offset >= 0
        ]
        self.opened = {producer_id: first for first, producer_id in sorted(opened)}
        self._ended: list[_Ended] = []
        self.verification.clear()

    # Checks of a leader -----------------------------------------------------------------------

    def begin_verification(
        self, producer: Producer, sequence: int, now_ms: int
    ) -> VerificationGuard | None:
        """Start verifying a transactional batch; return None if its transaction is open here
        already, and the coordinator need not be asked."""
        if not self.verifies or self._is_open_in(producer.id, producer.epoch):
            return None
        return self.verification.begin(producer.id, producer.epoch, sequence, now_ms)

    def _is_open_in(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer's open transaction is of this epoch.

        With version 2 of transactions a producer continues in the next epoch as soon as the end is
        decided; what it writes then is not part of the transaction that is still open here.
        """
        if producer_id not in self.opened:
            return False
        state = self.producers.get(producer_id)
        return state is not None and state.epoch == epoch

    def check(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        is_transactional: bool,
        guard: VerificationGuard | None,
    ) -> None:
        """Check a batch that repeats none and has the newest epoch.

        Raise INVALID_TXN_STATE if it is not part of a transaction that is known to contain this
        partition, or not part of the open one.
        """
        if not is_transactional:
            if producer_id in self.opened:
                raise KafkaError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer {producer_id} has an open transaction, but sent a batch outside it",
                )
            return
        if not self.verifies or self._is_open_in(producer_id, epoch):
            return
        if not self.verification.holds(producer_id, guard):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"the transaction of producer {producer_id} does not contain this partition",
            )
        lowest = self.verification.lowest_sequence(producer_id)
        if lowest is not None and first_sequence > lowest:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {first_sequence}, expected {lowest} first",
            )

    def marker_asked(self, producer: Producer, coordinator_epoch: int, version: int) -> bool:
        """Return whether to write this marker; False if it is in the log already.

        Then acknowledge it when everything that is in the log now is committed.  Raise
        INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED if the producer or the coordinator
        has been replaced.
        """
        state = self.producers.get(producer.id)
        if state is None:
            return True
        is_open = producer.id in self.opened
        is_late_copy = is_open and version >= EPOCH_BUMPS and producer.epoch == state.epoch
        if producer.epoch < state.epoch or is_late_copy:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker for epoch {producer.epoch} of producer {producer.id},"
                f" which is in epoch {state.epoch}",
            )
        if coordinator_epoch < state.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker for producer {producer.id} from coordinator epoch {coordinator_epoch},"
                f" after one from {state.coordinator_epoch}",
            )
        epochs = (producer.epoch, coordinator_epoch)
        is_known = not is_open and epochs == (state.epoch, state.coordinator_epoch)
        if is_known:
            self.verification.settled(producer.id)
        return not is_known

    # Facts ------------------------------------------------------------------------------------

    def appended(self, producer_id: int, base_offset: int) -> None:
        """A transactional batch was appended."""
        self.opened.setdefault(producer_id, base_offset)
        self.verification.settled(producer_id)

    def marked(self, producer_id: int, offset: int, is_commit: bool) -> AbortedTransaction | None:
        """A marker was appended.  Return the entry for the transaction index of its segment."""
        self.verification.settled(producer_id)
        first_offset = self.opened.pop(producer_id, None)
        if first_offset is None:
            return None  # the transaction has no records here
        self._ended.append(_Ended(first_offset, offset))
        if is_commit:
            return None
        stable = self.first_open_offset
        return AbortedTransaction(
            producer_id, first_offset, offset, offset + 1 if stable is None else stable
        )

    def high_watermark_moved(self, high_watermark: int) -> None:
        """The high watermark moved: markers below it cannot be lost any more."""
        if self._ended and self._ended[0].marker_offset < high_watermark:
            self._ended = [t for t in self._ended if t.marker_offset >= high_watermark]

    def recall_ended(self, replayed: PartitionTransactions) -> None:
        """Take the ended transactions from an instance that replayed more of the log."""
        self._ended = replayed._ended

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        return self.verification.expire(now_ms, expiration_ms)

    # Questions --------------------------------------------------------------------------------

    @property
    def are_all_decided(self) -> bool:
        """Whether every transaction up to the high watermark is decided, for good."""
        return not self.opened and not self._ended

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction, or None."""
        return next(iter(self.opened.values()), None)

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self.opened

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: everything before it is decided, for good."""
        least = high_watermark
        first = self.first_open_offset
        if first is not None and first < least:
            least = first
        for ended in self._ended:
            if ended.marker_offset >= high_watermark and ended.first_offset < least:
                least = ended.first_offset
        return least

    def check_all(self) -> None:
        """Assert what must hold between any two facts."""
        opened = {i: s.transaction_first_offset for i, s in self.producers}
        assert self.opened == {i: first for i, first in opened.items() if first >= 0}
        assert sorted(self.opened.values()) == [*self.opened.values()]
        markers = [ended.marker_offset for ended in self._ended]
        assert sorted(markers) == markers
