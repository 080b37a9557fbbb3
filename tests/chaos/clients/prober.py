"""A writer without a client library: it measures how long a partition takes no writes.

Libraries look for a new leader when their timers say so, a second or two late.  The prober asks all
brokers for the leader, ten times a second where a write fails, and sends each record once.  So an
error that it gets is about the only attempt, and a record that was refused must not appear.
"""

from __future__ import annotations

import asyncio
import time

from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.wire import batch
from hightide.wire.errors import ErrorCode, KafkaError, WireError
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from hightide.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.chaos.clients.job import Acks, Control, Job
from tests.chaos.history import Payload, Recorder, encode, outcome

PAUSE_S = 0.1
ANSWER_MS = 1000
FAILURES = (ConnectionFailed, KafkaError, WireError, TimeoutError, OSError)


class Prober:
    def __init__(self, job: Job, recorder: Recorder, control: Control) -> None:
        self.job = job
        self.control = control
        self._acks = {topic: Acks(recorder, topic, job.partitions) for topic in job.topics}
        self._brokers: dict[int, tuple[str, int]] = {}
        for at, address in enumerate(job.bootstrap.split(",")):
            host, _, port = address.rpartition(":")
            self._brokers[-1 - at] = (host, int(port))
        self._connections: dict[tuple[str, int], Connection] = {}
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        """For each partition: leader epoch and leader."""
        self._failing: set[tuple[str, int]] = set()

    def run(self) -> None:
        asyncio.run(self._run())

    def is_over(self) -> bool:
        return self.control.is_finishing.is_set() or self.control.is_stopping.is_set()

    async def _run(self) -> None:
        places = [
            (topic, index) for topic in self.job.topics for index in range(self.job.partitions)
        ]
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._look())
            probes = [tasks.create_task(self._probe(*place)) for place in places]
            while not self.is_over():
                await asyncio.sleep(0.02)
                self._flush()
            await asyncio.wait(probes)
            looking.cancel()
        self._flush()

    def _flush(self) -> None:
        for acks in self._acks.values():
            acks.flush()

    # -- leaders ---------------------------------------------------------------------------

    async def _look(self) -> None:
        """Ask every broker for the leaders: at once where a write fails, or else every second."""
        looked_s = 0.0
        while True:
            if self._failing or time.monotonic() - looked_s > 1.0:
                looked_s = time.monotonic()
                addresses = set(self._brokers.values())
                await asyncio.gather(*(self._ask(*address) for address in addresses))
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, host: str, port: int) -> None:
        topics = [MetadataRequestTopic(name=topic) for topic in self.job.topics]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        try:
            connection = await self._connected(host, port)
            answer = await connection.send(request, timeout_ms=ANSWER_MS // 2)
        except FAILURES:
            self._forget(host, port)
            return
        assert isinstance(answer, MetadataResponse)
        for broker in answer.brokers:
            self._brokers[broker.node_id] = (broker.host, broker.port)
        for topic in answer.topics:
            for partition in topic.partitions:
                place = (str(topic.name), partition.partition_index)
                found = (partition.leader_epoch, partition.leader_id)
                self._leaders[place] = max(found, self._leaders.get(place, (-1, -1)))

    async def _connected(self, host: str, port: int) -> Connection:
        found = self._connections.get((host, port))
        if found is None:
            found = await Connection.open(host, port, timeout_ms=ANSWER_MS // 2)
            self._connections[host, port] = found
        return found

    def _forget(self, host: str, port: int) -> None:
        found = self._connections.pop((host, port), None)
        if found is not None:
            found.close()

    # -- writes ----------------------------------------------------------------------------

    async def _probe(self, topic: str, index: int) -> None:
        acks = self._acks[topic]
        while not self.is_over():
            leader = self._leaders.get((topic, index), (-1, -1))[1]
            if leader not in self._brokers or leader < 0:
                self._failing.add((topic, index))
                await asyncio.sleep(PAUSE_S / 2)
                continue
            (number,) = acks.begin(index, 1)
            error, offset = await self._write(self._brokers[leader], topic, index, number)
            if error:
                self._failing.add((topic, index))
                acks.failed(index, number, outcome(error, was_only_attempt=True), error)
            else:
                self._failing.discard((topic, index))
                acks.acked(index, number, offset)
            await asyncio.sleep(PAUSE_S)

    async def _write(
        self, address: tuple[str, int], topic: str, index: int, number: int
    ) -> tuple[str, int]:
        """Send one record; return the error and the offset."""
        value = encode(Payload(self.job.process, f"{topic}-{index}", number), self.job.size)
        # A key of its own, which a compacted topic keeps.
        key = f"{self.job.process}/{number}".encode()
        record = batch.Record(0, time.time_ns() // 1_000_000, key, value, ())
        data = PartitionProduceData(index=index, records=batch.build([record]))
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=ANSWER_MS,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        try:
            connection = await self._connected(*address)
        except FAILURES as error:
            return f"not sent: {type(error).__name__}", -1
        try:
            answer = await connection.send(request, timeout_ms=ANSWER_MS, version=9)
        except FAILURES as error:
            self._forget(*address)
            return type(error).__name__, -1
        found = answer.responses[0].partition_responses[0]
        return (ErrorCode(found.error_code).name if found.error_code else ""), found.base_offset
