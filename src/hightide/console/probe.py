"""The journey of one record with acks=all: appended, fetched by each follower, acknowledged.

While the record is on its way, every broker of the partition is asked for its log end as often as
it answers.  Each step's time is when the console saw it, or saw what needs it: the leader has
appended what a follower has fetched, and the ISR has fetched what is acknowledged.

The record has no key, an empty value, and the header `hightide-probe`, so that a consumer can skip
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from hightide.client.admin import Admin
from hightide.client.broker_connection import Connection, ConnectionFailed, check
from hightide.client.xray.frames import PartitionFrame
from hightide.core.partition.state import NO_BROKER
from hightide.wire.batch import build
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hightide.wire.messages.replicas import DescribeReplicasRequest, TopicPartitions

HEADER = "hightide-probe"
PRODUCE_VERSION = 11
"""The last version that names topics for sure."""
WAIT_S = 8.0
"""How long to wait for the acknowledgement; min.insync.replicas may hold it for ever."""
AFTER_S = 0.5
"""How long to wait then for followers that are not in sync and for the high watermark."""
PAUSE_S = 0.0005
CONNECT_S = 1.0


@dataclass(slots=True)
class _Seen:
    """When a broker's log end and high watermark were seen to move, in seconds."""

    ends: list[tuple[float, int]] = field(default_factory=list)
    marks: list[tuple[float, int]] = field(default_factory=list)

    def take(self, end_offset: int, high_watermark: int) -> None:
        now_s = time.perf_counter()
        for moves, offset in ((self.ends, end_offset), (self.marks, high_watermark)):
            if not moves or moves[-1][1] != offset:
                moves.append((now_s, offset))


class Probe:
    """One probe record on its way."""

    def __init__(
        self, admin: Admin, topic: str, frame: PartitionFrame, *, is_foreign: bool
    ) -> None:
        self._admin = admin
        self._topic, self._frame = topic, frame
        self._is_foreign = is_foreign
        self._seen = {replica.broker: _Seen() for replica in frame.replicas}
        self._ready: dict[int, asyncio.Event] = {
            replica.broker: asyncio.Event() for replica in frame.replicas
        }

    async def run(self) -> dict[str, Any]:
        """Send the record; return its steps in the order of time, those not seen at the end."""
        leader = self._frame.leader
        if leader == NO_BROKER:
            name = f"{self._topic}/{self._frame.partition}"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} has no leader.")
        connection = await self._admin.router.broker(leader)
        watchers = [] if self._is_foreign else [self._watch(broker) for broker in self._seen]
        tasks = [asyncio.create_task(watcher) for watcher in watchers]
        try:
            if tasks:
                await self._wait_until_seen()
            began_s = time.perf_counter()
            offset = await self._produce(connection)
            acknowledged_s = time.perf_counter() if offset is not None else None
            if tasks and offset is not None:
                await self._wait_for_followers(offset)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._result(began_s, offset, acknowledged_s)

    async def _wait_until_seen(self) -> None:
        """Until each broker has answered once, or is silent."""
        waits = [asyncio.create_task(event.wait()) for event in self._ready.values()]
        _, pending = await asyncio.wait(waits, timeout=CONNECT_S)
        for task in pending:
            task.cancel()

    async def _watch(self, broker: int) -> None:
        request = DescribeReplicasRequest(
            topics=[TopicPartitions(topic=self._topic, partitions=[self._frame.partition])]
        )
        with (
            contextlib.suppress(ConnectionFailed, KafkaError, TimeoutError),
            contextlib.ExitStack() as stack,
        ):
            # A connection answers in order, and the Produce waits: this is another one.
            await self._admin.router.broker(broker)
            connection = await self._admin.router.another(self._admin.router.nodes[broker])
            stack.callback(connection.close)
            while True:
                answer = await connection.send(request, version=0, timeout_ms=int(WAIT_S * 1000))
                for topic in answer.topics:
                    for replica in topic.partitions:
                        self._seen[broker].take(replica.end_offset, replica.high_watermark)
                self._ready[broker].set()
                await asyncio.sleep(PAUSE_S)

    async def _produce(self, connection: Connection) -> int | None:
        """The offset of the record; None if it is not acknowledged in time."""
        now_ms = time.time_ns() // 1_000_000
        batch = bytes(build([(0, now_ms, None, b"", ((HEADER, b"1"),))]))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=int(WAIT_S * 1000),
            topic_data=[
                TopicProduceData(
                    name=self._topic,
                    partition_data=[
                        PartitionProduceData(index=self._frame.partition, records=batch)
                    ],
                )
            ],
        )
        version = min(PRODUCE_VERSION, connection.version_for(ProduceRequest))
        try:
            answer = await connection.send(
                request, version=version, timeout_ms=int((WAIT_S + 1) * 1000)
            )
        except ConnectionFailed:
            return None
        (result,) = answer.responses[0].partition_responses
        if result.error_code in (
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ):
            return None
        about = f"{self._topic}/{self._frame.partition}"
        check(result.error_code, result.error_message, about=about)
        return int(result.base_offset)

    async def _wait_for_followers(self, offset: int) -> None:
        until_s = time.perf_counter() + AFTER_S
        while time.perf_counter() < until_s:
            leader = self._seen[self._frame.leader]
            ends = [one.ends for one in self._seen.values()]
            if _when(leader.marks, offset) and all(_when(one, offset) for one in ends):
                return
            await asyncio.sleep(0.005)

    def _result(
        self, began_s: float, offset: int | None, acknowledged_s: float | None
    ) -> dict[str, Any]:
        leader = self._frame.leader
        # Without an acknowledgement the offset is the next one that the leader had.
        ends = self._seen[leader].ends
        known = offset if offset is not None else (ends[0][1] if ends else None)
        steps: list[dict[str, Any]] = []

        def step(name: str, broker: int | None, at_s: float | None) -> None:
            after_ms = None if at_s is None else round(max(0.0, at_s - began_s) * 1000, 2)
            steps.append({"name": name, "broker": broker, "after_ms": after_ms})

        if not self._is_foreign and known is not None:
            passed_s = _earliest(_when(self._seen[leader].marks, known), acknowledged_s)
            fetched = {
                broker: _earliest(
                    _when(seen.ends, known), passed_s if broker in self._frame.isr else None
                )
                for broker, seen in self._seen.items()
                if broker != leader
            }
            appended_s = _earliest(_when(ends, known), *fetched.values(), passed_s)
            step("appended", leader, appended_s)
            for broker, at_s in fetched.items():
                step("fetched", broker, at_s)
            step("high watermark passes", leader, passed_s)
        step("acknowledged", None, acknowledged_s)
        steps.sort(key=lambda one: (one["after_ms"] is None, one["after_ms"] or 0))
        acknowledged = next(one for one in steps if one["name"] == "acknowledged")
        return {
            "steps": steps,
            "acknowledged_ms": acknowledged["after_ms"],
            "offset": offset,
            "epoch": self._frame.leader_epoch,
        }


def _earliest(*times_s: float | None) -> float | None:
    return min((at_s for at_s in times_s if at_s is not None), default=None)


def _when(moves: list[tuple[float, int]], offset: int) -> float | None:
    """When an offset was first seen to be passed."""
    return next((at_s for at_s, reached in moves if reached > offset), None)
