"""Verifies with the coordinator that a partition is part of a transaction (KIP-890).

    Produce, first batch of a transaction ──▶ a guard of the partition ──▶ coordinator ──▶ append
                                                     ▲
                                a marker, or another batch that opens the transaction, voids it

The rules are in `core/transactions/verification.py`.  A verification returns a guard, and the
append presents it: if a marker was written in between, the guard is void.

A Produce that waits for a verification stays in the buffer of its connection, which serves nothing
else meanwhile.  So a producer's batches stay in order, and take no extra memory.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from hightide.broker.network.connection import VERIFYING, Connection
from hightide.broker.replication.replica import Replica
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import VerificationGuard
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)


class Unverified(NamedTuple):
    """A batch that must be verified with the coordinator."""

    replica: Replica
    producer: Producer
    sequence: int


class Verifier:
    """Verifies transactions for all partitions that this broker leads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._asking: set[asyncio.Task[None]] = set()

    def is_needed(self, replica: Replica, producer: Producer, sequence: int, count: int) -> bool:
        """Whether this batch may be appended only after a verification."""
        log_ = replica.log
        transactions = log_.transactions
        transactions.verifies = self._broker.settings.transaction_partition_verification_enable
        if not transactions.verifies or transactions.is_open(producer.id):
            return False
        try:
            return log_.producers.check(producer.id, producer.epoch, sequence, count) is None
        except KafkaError:
            return False  # the log refuses the batch, or answers it as a duplicate

    async def verify(
        self, replica: Replica, transactional_id: str, producer: Producer, sequence: int
    ) -> VerificationGuard | None:
        """Return a guard to append with, or None if none is needed.

        KafkaError, with the coordinator's error, if the partition is not part of the transaction or
        that cannot be determined.
        """
        transactions = replica.log.transactions
        transactions.verifies = self._broker.settings.transaction_partition_verification_enable
        guard = transactions.begin_verification(producer, sequence, self._broker.now_ms())
        if guard is None:
            return None
        partition = (replica.topic, replica.partition)
        code = await self._broker.transactions.verify(transactional_id, producer, partition)
        if code != ErrorCode.NONE:
            raise _refusal(code, replica, transactional_id)
        return guard

    def verdict_now(
        self, transactional_id: str, batch: Unverified
    ) -> VerificationGuard | KafkaError | None:
        """Verify a batch if this broker is the coordinator; None if another must be asked."""
        replica, producer, sequence = batch
        # Before the coordinator decides: even if it refuses, no other batch may overtake this one.
        guard = replica.log.transactions.begin_verification(
            producer, sequence, self._broker.now_ms()
        )
        partition = (replica.topic, replica.partition)
        code = self._broker.transactions.verify_now(transactional_id, producer, partition)
        if code is None:
            return None
        return guard if code == ErrorCode.NONE else _refusal(code, replica, transactional_id)

    def ask(self, connection: Connection, transactional_id: str, batches: list[Unverified]) -> None:
        """Verify the batches of a Produce request, which is served again when all are decided."""
        asking = asyncio.get_running_loop().create_task(
            self._ask(connection, transactional_id, batches)
        )
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    async def _ask(
        self, connection: Connection, transactional_id: str, batches: list[Unverified]
    ) -> None:
        try:
            verdicts = await asyncio.gather(
                *(self._verdict(transactional_id, batch) for batch in batches)
            )
        except Exception:
            log.exception("verifying the transaction of %r failed", transactional_id)
            connection.abort("a request failed inside the broker")
            return
        found = zip((batch.replica for batch in batches), verdicts, strict=True)
        connection.verified = {**connection.verified, **dict(found)}
        connection.unblock(VERIFYING)

    async def _verdict(
        self, transactional_id: str, batch: Unverified
    ) -> VerificationGuard | KafkaError | None:
        try:
            return await self.verify(
                batch.replica, transactional_id, batch.producer, batch.sequence
            )
        except KafkaError as refusal:
            return refusal

    async def stop(self) -> None:
        """Cancel all verifications; their connections are closed."""
        for asking in self._asking:
            asking.cancel()
        if self._asking:
            await asyncio.wait(self._asking)


def _refusal(code: ErrorCode, replica: Replica, transactional_id: str) -> KafkaError:
    return KafkaError(
        code,
        f"{replica.topic}-{replica.partition} could not be verified as part of the transaction of"
        f" {transactional_id}",
    )
