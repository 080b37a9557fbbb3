"""Writes record batches to one partition: several requests in flight, in order, each once.

    append ──▶ waiting ──▶ in flight (≤ 5) ──▶ acknowledged
                  ▲            │ a retriable error, or a broken connection
                  └────────────┘ after all responses in flight: again from the first batch

The broker recognises a duplicate batch by producer id and sequence, so a retry is safe as long as
the order stays and no more than five batches are in doubt: the broker remembers five.  A batch
behind a failed one is refused as out of order, and is then sent again too.  Without a producer id
the broker recognises nothing, and a batch may be written twice after a failure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice

from hightide.client.broker_connection import Connection, ConnectionFailed, check
from hightide.client.leader_cache import LeaderCache
from hightide.client.retry import Backoff, is_retriable
from hightide.client.transactional import fencing
from hightide.wire import frame
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

IN_FLIGHT = 5
WAITING_BYTES = 4 * 1024 * 1024
GRACE_MS = 5_000
"""How much later than the request's timeout the response may arrive."""
NEWEST_VERSION = 11
"""From version 12 on, a Produce may add its partition to the transaction (KIP-890)."""


@dataclass(slots=True, eq=False)
class _Batch:
    data: bytes
    count: int
    is_done: bool = False


class PartitionProducer:
    """Writes to one partition; `begin` is awaited before the first batch is sent."""

    def __init__(
        self,
        leaders: LeaderCache,
        topic: str,
        partition: int,
        *,
        transactional_id: str | None = None,
        acks: int = -1,
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        if acks not in (-1, 1):
            raise ValueError(
                f"acks is -1 (all) or 1, not {acks}: the producer waits for responses."
            )
        self._leaders = leaders
        self._topic, self._partition = topic, partition
        self._transactional_id = transactional_id
        self._acks = acks
        self._begin = begin
        self._batches: deque[_Batch] = deque()
        self._unsent: deque[_Batch] = deque()
        self._bytes = 0
        self._backoff = Backoff(limit_s=leaders.retry_ms / 1000)
        self._wake = asyncio.Event()
        self._progressed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.written = 0
        """How many records are acknowledged."""
        self.last_base_offset = -1
        """The first offset of the newest acknowledged batch; -1 if the broker does not say."""

    async def append(self, data: bytes, count: int) -> None:
        """Queue a batch; wait while too many bytes are queued."""
        self._check()
        batch = _Batch(data, count)
        self._batches.append(batch)
        self._unsent.append(batch)
        self._bytes += len(data)
        self._wake.set()
        while self._bytes > WAITING_BYTES and len(self._batches) > IN_FLIGHT:
            await self._progress()

    async def flush(self) -> None:
        """Wait until everything is acknowledged; raise the error that made that impossible."""
        while self._batches:
            await self._progress()

    def close(self) -> None:
        """Stop.  Batches that are not acknowledged may or may not be written."""
        if self._task is not None:
            self._task.cancel()

    def _check(self) -> None:
        """Start the sender if it has not started; raise the error that has ended it."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(lambda _: self._progressed.set())
        if self._task.done():
            self._task.result()

    async def _progress(self) -> None:
        self._check()
        self._progressed.clear()
        await self._progressed.wait()
        self._check()

    # -- sender ------------------------------------------------------------------------------

    async def _run(self) -> None:
        if self._begin is not None:
            await self._begin()
        while True:
            connection: Connection | None = None
            try:
                connection = await self._leaders.connection(self._topic, self._partition)
                failure = await self._send_batches(connection)
            except (KafkaError, ConnectionFailed) as error:
                if isinstance(error, KafkaError) and not is_retriable(error):
                    raise
                failure = error
            broken = connection if isinstance(failure, ConnectionFailed) else None
            self._leaders.forget(self._topic, broken)
            await self._backoff.after(failure)
            self._unsent = deque(batch for batch in self._batches if not batch.is_done)

    async def _send_batches(self, connection: Connection) -> Exception:
        """Send until a retriable failure; return it when nothing is in flight.

        The first batch is sent alone.  A broker that does not know the producer accepts any batch
        as its first, so a later batch that overtakes the first would make the first out of order.
        """
        in_flight: deque[tuple[_Batch, asyncio.Future[memoryview]]] = deque()
        failure: Exception | None = None
        version = min(NEWEST_VERSION, connection.version_for(ProduceRequest))
        limit = 1
        while True:
            while failure is None and len(in_flight) < limit and self._may_send():
                try:
                    answer = self._submit(connection, version, self._unsent[0])
                except ConnectionFailed as error:
                    failure = error
                else:
                    in_flight.append((self._unsent.popleft(), answer))
            if in_flight and in_flight[0][1].done():
                batch, answer = in_flight.popleft()
                refusal = self._refusal(connection, version, answer)
                if refusal is None:
                    self._acknowledged(batch)
                    limit = IN_FLIGHT
                elif is_retriable(refusal):
                    failure = failure or refusal
                elif failure is None or not _is_out_of_order(refusal):
                    raise refusal
            elif failure is not None and not in_flight:
                return failure
            else:
                self._wake.clear()
                await self._wake.wait()

    def _may_send(self) -> bool:
        """Whether the next batch is one of the five from the first batch in doubt on.

        The broker forgets a batch that is in doubt when five later ones are written.
        """
        if not self._unsent:
            return False
        return any(batch is self._unsent[0] for batch in islice(self._batches, IN_FLIGHT))

    def _submit(
        self, connection: Connection, version: int, batch: _Batch
    ) -> asyncio.Future[memoryview]:
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=self._leaders.timeout_ms,
            topic_data=[
                TopicProduceData(
                    name=self._topic,
                    partition_data=[
                        PartitionProduceData(index=self._partition, records=batch.data)
                    ],
                )
            ],
        )
        answer = connection.submit(
            lambda correlation_id: frame.encode_request(
                request, version, correlation_id, connection.client_id
            ),
            "Produce",
            self._leaders.timeout_ms + GRACE_MS,
        )
        answer.add_done_callback(self._answered)
        return answer

    def _answered(self, answer: asyncio.Future[memoryview]) -> None:
        # Retrieve the exception here too: after a final failure no caller looks at the others.
        if not answer.cancelled():
            answer.exception()
        self._wake.set()

    def _refusal(
        self, connection: Connection, version: int, answer: asyncio.Future[memoryview]
    ) -> KafkaError | ConnectionFailed | None:
        """The error of a batch; None if the batch is written."""
        try:
            data = answer.result()
            _, response = connection.read(
                lambda: frame.decode_response(ProduceResponse, data, version)
            )
            (result,) = response.responses[0].partition_responses
            about = f"{self._topic}/{self._partition}"
            check(result.error_code, result.error_message, about=about)
            self.last_base_offset = result.base_offset
        except ConnectionFailed as error:
            return error
        except KafkaError as error:
            if error.code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return None
            return fencing(error)
        return None

    def _acknowledged(self, batch: _Batch) -> None:
        batch.is_done = True
        self.written += batch.count
        self._bytes -= len(batch.data)
        self._backoff.reset()
        while self._batches and self._batches[0].is_done:
            self._batches.popleft()
        self._progressed.set()


def _is_out_of_order(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
