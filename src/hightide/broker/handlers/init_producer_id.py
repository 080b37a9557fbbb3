"""InitProducerId (22), versions 0 to 5: ids of idempotent and of transactional producers.

A broker takes ids from ZooKeeper in blocks, so that no two producers of a cluster ever get the same
id.  For a transactional id its coordinator decides: it returns a new producer epoch, and fences the
producer that had the previous one.

INVALID_REQUEST              a producer id without its epoch, or an epoch without its id; or a
                             transactional id that is empty, or new and too long
POLICY_VIOLATION             the transactional id is new, and the broker has
                             transactional.id.max.count of them
COORDINATOR_NOT_AVAILABLE    the coordinator's record could not be written, or is not committed yet
COORDINATOR_LOAD_IN_PROGRESS ZooKeeper gives no block of ids; or the coordinator reads its log
INVALID_TRANSACTION_TIMEOUT  no timeout, or more than transaction.max.timeout.ms
PRODUCER_FENCED              the producer has been replaced (INVALID_PRODUCER_EPOCH for clients
                             that do not know this error)
CONCURRENT_TRANSACTIONS      the transaction of the previous producer is being ended; retry
NOT_COORDINATOR              see handlers/transactions.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from hightide.broker.handlers.request_context import Context
from hightide.broker.handlers.transactions import answered
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.transaction_coordinator import Answer, client_error
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.write_outcome import compare_and_set
from hightide.zookeeper.zookeeper_errors import BadVersion, ZooKeeperError

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_BLOCK = 1_000
_TAKE_AHEAD = 100
"""With fewer ids left than this, the next block is taken."""
_LAST_ID = 2**63 - 1


class ProducerIds:
    """Hands out producer ids, a block at a time.

    The next block is taken ahead, so that producers can begin while ZooKeeper is away.
    """

    def __init__(self, zookeeper: ZooKeeper, broker_id: int) -> None:
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._ids = range(0)
        self._next_ids = range(0)
        self._taking: asyncio.Task[None] | None = None
        self._is_reported = False

    async def next(self) -> int:
        """Return a new id.  Raise COORDINATOR_LOAD_IN_PROGRESS, as Kafka does, if there is none."""
        while not self._ids:
            if self._next_ids:
                self._ids, self._next_ids = self._next_ids, range(0)
            else:
                await self._wait_for_block()
        producer_id, self._ids = self._ids[0], self._ids[1:]
        if len(self._ids) < _TAKE_AHEAD:
            self.take_ahead()
        return producer_id

    def take_ahead(self) -> None:
        """Begin to take the next block, if there is none."""
        # All producers that wait share one block.
        if not self._next_ids and (self._taking is None or self._taking.done()):
            self._taking = asyncio.ensure_future(self._take_block())
            self._taking.add_done_callback(self._taken)

    async def stop(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait([self._taking])

    async def _wait_for_block(self) -> None:
        self.take_ahead()
        assert self._taking is not None
        try:
            await asyncio.shield(self._taking)
        except ZooKeeperError as error:
            # Clients ask again and again.
            level = logging.DEBUG if self._is_reported else logging.ERROR
            log.log(level, "new producers have to wait for a block of producer ids: %s", error)
            self._is_reported = True
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from None
        self._is_reported = False

    def _taken(self, task: asyncio.Task[None]) -> None:
        if self._taking is task:
            self._taking = None
        if not task.cancelled():
            task.exception()  # callers see it; without a caller asyncio would log it

    async def _take_block(self) -> None:
        path = znodes.PRODUCER_ID_BLOCK
        while True:
            data, stat = await self._zookeeper.get(path)
            last = znodes.ProducerIdBlock.decode(data, path)
            first_id = 0 if last is None else last.last_id + 1
            if first_id > _LAST_ID - _BLOCK:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
            block = znodes.ProducerIdBlock(self._broker_id, first_id, first_id + _BLOCK - 1)
            try:
                await compare_and_set(self._zookeeper, path, block.encode(), stat.version)
            except BadVersion:
                continue  # another broker was faster
            self._next_ids = range(first_id, first_id + _BLOCK)
            return


def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: Context
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    transactional_id = request.transactional_id
    if transactional_id is None:
        return _idempotent(broker, request)
    expected = Producer(request.producer_id, request.producer_epoch)
    timeout_ms = request.transaction_timeout_ms
    pending = broker.transactions.ask(
        transactional_id,
        lambda coordinator, now_ms, new_id: coordinator.init_asked(
            transactional_id, timeout_ms, expected, now_ms, new_id
        ),
    )

    def respond(answer: Answer) -> InitProducerIdResponse:
        return InitProducerIdResponse(
            error_code=client_error(answer.error, 22, context.version),
            producer_id=answer.producer.id,
            producer_epoch=answer.producer.epoch,
        )

    return answered(pending, respond)


async def _idempotent(broker: Broker, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a producer id needs its epoch, and an epoch its id"
            )
        producer_id = await broker.producer_ids.next()
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
    )
