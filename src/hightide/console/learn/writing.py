"""The producers of the scenes: one request with its outcome, and a steady stream of records."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass

from hightide.client.admin import Admin
from hightide.client.broker_connection import check
from hightide.client.leader_cache import LeaderCache
from hightide.client.producer import PartitionProducer
from hightide.client.transactional import Transactional
from hightide.wire import batch
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

ALL, LEADER_ONLY = -1, 1
GRACE_MS = 5_000
EVERY_S = 0.02
MOST_IN_DOUBT = 500


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A write that the leader has confirmed."""

    offset: int
    ms: float


async def write(
    admin: Admin,
    topic: str,
    count: int,
    *,
    acks: int = ALL,
    timeout_ms: int = 10_000,
    value_bytes: int = 0,
) -> Acknowledged:
    """Send one batch to the leader of partition 0, once; a refusal raises."""
    (description,) = await admin.router.topics([topic])
    connection = await admin.router.broker(description.partitions[0].leader_id)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[
                    PartitionProduceData(index=0, records=_batch(range(count), value_bytes))
                ],
            )
        ],
    )
    version = min(11, connection.version_for(ProduceRequest))
    started = time.perf_counter()
    answer = await connection.send(request, version=version, timeout_ms=timeout_ms + GRACE_MS)
    ms = (time.perf_counter() - started) * 1000
    (result,) = answer.responses[0].partition_responses
    check(result.error_code, result.error_message, about=f"{topic}/0")
    return Acknowledged(result.base_offset, ms)


def _batch(numbers: range, value_bytes: int = 0, producer: tuple[int, int] | None = None) -> bytes:
    now_ms = int(time.time() * 1000)
    producer_id, epoch = producer or (-1, -1)
    return bytes(
        batch.build(
            [
                (at, now_ms, None, f"record {number}".encode().ljust(value_bytes, b"."), ())
                for at, number in enumerate(numbers)
            ],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=-1 if producer is None else numbers.start,
        )
    )


class Stream:
    """An idempotent producer that writes a record 50 times a second, with acks=all."""

    def __init__(self, producer: PartitionProducer, identity: tuple[int, int]) -> None:
        self._producer = producer
        self._identity = identity
        self._stopping = asyncio.Event()
        self.sent = 0
        self.longest_silence_ms = 0.0
        """The longest time between two acknowledgements."""
        self._acknowledged_at = time.perf_counter()

    @property
    def acknowledged(self) -> int:
        return self._producer.written

    @property
    def silent_ms(self) -> float:
        """How long ago the newest acknowledgement came."""
        return (time.perf_counter() - self._acknowledged_at) * 1000

    def forget_silence(self) -> None:
        self.longest_silence_ms = 0.0

    async def run(self) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            for number in itertools.count():
                if self._stopping.is_set():
                    break
                data = _batch(range(number, number + 1), producer=self._identity)
                await self._producer.append(data, 1)
                self.sent += 1
                if self.sent - self.acknowledged > MOST_IN_DOUBT:
                    await self._producer.flush()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), EVERY_S)
            await self._producer.flush()
            self._note(self._producer.written)
        finally:
            watching.cancel()
            self._producer.close()

    def stop(self) -> None:
        """Send no more; `run` returns when everything is acknowledged."""
        self._stopping.set()

    async def _watch(self) -> None:
        known = 0
        while True:
            known = self._note(known)
            await asyncio.sleep(0.005)

    def _note(self, known: int) -> int:
        if self.acknowledged == known:
            return known
        self.longest_silence_ms = max(self.longest_silence_ms, self.silent_ms)
        self._acknowledged_at = time.perf_counter()
        return self.acknowledged


async def open_stream(admin: Admin, topic: str) -> Stream:
    identity = await Transactional(admin.router).init_producer(None)
    producer = PartitionProducer(LeaderCache(admin.router, retry_ms=60_000), topic, 0)
    return Stream(producer, (identity.producer_id, identity.epoch))
