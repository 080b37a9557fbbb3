"""Asking the coordinator whether a transaction really contains the partition it writes to.

    Produce, first batch of a transaction ──▶ a guard of the partition ──▶ coordinator ──▶ append
                                                     ▲
                                a marker, or another batch that opens the transaction, voids it

What the rules are is in `core/transactions/verification.py`.  Whoever asks here gets a guard, and
shows it when he appends: between the two a marker may have come, and then the answer is worth
nothing.

A Produce stays where it is until the answer is there, in the buffer of its connection, which serves
nothing else meanwhile: so a producer's batches stay in order, and take no more memory than others.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from hightide.broker.network.connection import VERIFYING, Connection
from hightide.broker.replication.replica import Replica
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import Guard
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)


class Unverified(NamedTuple):
    """A batch that the coordinator must be asked about."""

    replica: Replica
    producer: Producer
    sequence: int


class Verifier:
    """Asks for all partitions that this broker leads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._asking: set[asyncio.Task[None]] = set()

    def is_needed(self, replica: Replica, producer: Producer, sequence: int, count: int) -> bool:
        """Whether this batch may be appended only after the coordinator was asked."""
        log_ = replica.log
        transactions = log_.transactions
        transactions.verifies = self._broker.settings.transaction_partition_verification_enable
        if not transactions.verifies or transactions.is_open(producer.id):
            return False
        try:
            return log_.producers.check(producer.id, producer.epoch, sequence, count) is None
        except KafkaError:
            return False  # it is refused, or a repetition that only the log knows of

    async def verify(
        self, replica: Replica, transactional_id: str, producer: Producer, sequence: int
    ) -> Guard | None:
        """A guard to append with; None if none is needed.  KafkaError, in the coordinator's words,
        if the partition is not part of the transaction or nobody can say."""
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

    def verdict_now(self, transactional_id: str, batch: Unverified) -> Guard | KafkaError | None:
        """What the coordinator says if it is this broker; None if another must be asked."""
        replica, producer, sequence = batch
        # Before the answer: though it be a refusal, nothing may come in before this batch.
        guard = replica.log.transactions.begin_verification(
            producer, sequence, self._broker.now_ms()
        )
        partition = (replica.topic, replica.partition)
        code = self._broker.transactions.verify_now(transactional_id, producer, partition)
        if code is None:
            return None
        return guard if code == ErrorCode.NONE else _refusal(code, replica, transactional_id)

    def ask(self, connection: Connection, transactional_id: str, wanted: list[Unverified]) -> None:
        """Ask for a Produce, which is served again when all answers are there."""
        asking = asyncio.get_running_loop().create_task(
            self._ask(connection, transactional_id, wanted)
        )
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    async def _ask(
        self, connection: Connection, transactional_id: str, wanted: list[Unverified]
    ) -> None:
        try:
            verdicts = await asyncio.gather(
                *(self._verdict(transactional_id, each) for each in wanted)
            )
        except Exception:
            log.exception("verifying a transaction failed")
            connection.abort("a request failed inside the broker")
            return
        found = zip((each.replica for each in wanted), verdicts, strict=True)
        connection.verified = {**connection.verified, **dict(found)}
        connection.unblock(VERIFYING)

    async def _verdict(self, transactional_id: str, batch: Unverified) -> Guard | KafkaError | None:
        try:
            return await self.verify(
                batch.replica, transactional_id, batch.producer, batch.sequence
            )
        except KafkaError as refusal:
            return refusal

    async def stop(self) -> None:
        """Wait for no more answers; whoever waits for them has gone."""
        for asking in self._asking:
            asking.cancel()
        if self._asking:
            await asyncio.wait(self._asking)


def _refusal(code: ErrorCode, replica: Replica, transactional_id: str) -> KafkaError:
    return KafkaError(
        code,
        f"the transaction of {transactional_id} is not known to contain"
        f" {replica.topic}-{replica.partition}",
    )
