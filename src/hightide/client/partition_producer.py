"""Record batches into one partition, several requests under way, in order and each once.

    append ──▶ waiting ──▶ in flight (≤ 5) ──▶ acknowledged
                  ▲            │ an answer says "not now", or the connection breaks
                  └────────────┘ when all that is in flight has been heard of: again, from the first

The broker recognises a batch that it has by producer id and sequence, so sending it again is
harmless, as long as the order stays and no more than five batches are in doubt: that is how many it
remembers.  A batch behind one that failed is refused as out of order; then it too goes again.
Without a producer id there is nothing to recognise, and a batch may be there twice after a failure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hightide.client.connection import Connection, ConnectionFailed, check
from hightide.client.leaders import Leaders
from hightide.client.retry import Backoff, is_passing
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
"""How much longer than its timeout an answer may be on its way."""
NEWEST_VERSION = 11
"""From version 12 on a broker may take a produce for the beginning of a transaction."""


@dataclass(slots=True, eq=False)
class _Batch:
    data: bytes
    count: int
    is_done: bool = False


class PartitionProducer:
    """Writes to one partition; `begin` is awaited before the first batch goes."""

    def __init__(
        self,
        leaders: Leaders,
        topic: str,
        partition: int,
        *,
        transactional_id: str | None = None,
        acks: int = -1,
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        if acks not in (-1, 1):
            raise ValueError(f"acks is -1 (all) or 1, not {acks}: a writer waits for its answers.")
        self._leaders = leaders
        self._topic, self._partition = topic, partition
        self._transactional_id = transactional_id
        self._acks = acks
        self._begin = begin
        self._batches: deque[_Batch] = deque()
        self._unsent: deque[_Batch] = deque()
        self._bytes = 0
        self._patience = Backoff(leaders.patience_ms)
        self._wake = asyncio.Event()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.written = 0
        """Records that are acknowledged."""

    async def append(self, data: bytes, count: int) -> None:
        """Take a batch; waits while enough others wait."""
        self._check()
        batch = _Batch(data, count)
        self._batches.append(batch)
        self._unsent.append(batch)
        self._bytes += len(data)
        self._wake.set()
        while self._bytes > WAITING_BYTES and len(self._batches) > IN_FLIGHT:
            await self._movement()

    async def flush(self) -> None:
        """Wait until everything is acknowledged; raises what made that impossible."""
        while self._batches:
            await self._movement()

    def close(self) -> None:
        """What is not acknowledged by now may or may not be written."""
        if self._task is not None:
            self._task.cancel()

    def _check(self) -> None:
        """Raise what has ended the sending; begin it if it has not begun."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(lambda _: self._moved.set())
        if self._task.done():
            self._task.result()

    async def _movement(self) -> None:
        self._check()
        self._moved.clear()
        await self._moved.wait()
        self._check()

    # -- the one that sends ------------------------------------------------------------------

    async def _run(self) -> None:
        if self._begin is not None:
            await self._begin()
        while True:
            connection: Connection | None = None
            try:
                connection = await self._leaders.connection(self._topic, self._partition)
                failure = await self._round(connection)
            except (KafkaError, ConnectionFailed) as error:
                if isinstance(error, KafkaError) and not is_passing(error):
                    raise
                failure = error
            broken = connection if isinstance(failure, ConnectionFailed) else None
            self._leaders.forget(self._topic, broken)
            await self._patience.after(failure)
            self._unsent = deque(each for each in self._batches if not each.is_done)

    async def _round(self, connection: Connection) -> Exception:
        """Send until something fails in passing; that is returned when nothing is in flight.

        The first batch goes alone.  A broker that knows nothing of a producer takes any batch as
        its first, so one that overtakes the real first would make it come too late.
        """
        in_flight: deque[tuple[_Batch, asyncio.Future[memoryview]]] = deque()
        failure: Exception | None = None
        version = min(NEWEST_VERSION, connection.version_for(ProduceRequest))
        limit = 1
        while True:
            while failure is None and self._unsent and len(in_flight) < limit:
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
                elif is_passing(refusal):
                    failure = failure or refusal
                elif failure is None or not _is_out_of_order(refusal):
                    raise refusal
            elif failure is not None and not in_flight:
                return failure
            else:
                self._wake.clear()
                await self._wake.wait()

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
        answer.add_done_callback(self._heard)
        return answer

    def _heard(self, answer: asyncio.Future[memoryview]) -> None:
        # Looked at here too, because nobody else does when another failure has ended it all.
        if not answer.cancelled():
            answer.exception()
        self._wake.set()

    def _refusal(
        self, connection: Connection, version: int, answer: asyncio.Future[memoryview]
    ) -> KafkaError | ConnectionFailed | None:
        """Why a batch is not known to be written; None if it is."""
        try:
            told = answer.result()
            _, response = connection.read(
                lambda: frame.decode_response(ProduceResponse, told, version)
            )
            (given,) = response.responses[0].partition_responses
            about = f"{self._topic}/{self._partition}"
            check(given.error_code, given.error_message, about=about)
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
        self._patience.reward()
        while self._batches and self._batches[0].is_done:
            self._batches.popleft()
        self._moved.set()


def _is_out_of_order(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
