"""For tests of replica fetchers: a leader on a real socket, and replicas to copy to."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast
from uuid import UUID

from hightide.broker.replication.peers import Peers
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_fetcher import ReplicaFetchers
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.broker.replication.replication_throttle import ReplicationThrottle
from hightide.core.partition.fetch_session import INITIAL_EPOCH, FetchSessions, Session
from hightide.core.partition.follower import divergence
from hightide.core.partition.state import PartitionState
from hightide.log.disk import MemoryDisk
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.log.segment import Slice
from hightide.settings import Broker, Topic
from hightide.wire.batch import Record, build
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.frame import encode_response
from hightide.wire.hot import fetch_codec as hot
from hightide.wire.hot.read_cursor import body_at
from hightide.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from hightide.wire.messages.replication import PublishedEndpoint
from tests.support.eventually import eventually_async
from tests.support.proving import NoProof

NOW = 1_700_000_000_000
FETCH, API_VERSIONS = 1, 18
LEADER_ID, FOLLOWER_ID, FOLLOWER_EPOCH = 2, 1, 44

Key = tuple[bytes, int]


def open_store(config: Topic | None = None) -> LogManager:
    store = LogManager([MemoryDisk()], Broker(), lambda _: config or Topic())
    store.open(NOW)
    return store


def append(log: Log, *values: bytes, leader_epoch: int = 0) -> None:
    buf = build([Record(i, NOW + i, None, value, ()) for i, value in enumerate(values)])
    log.append(buf, memoryview(buf), 0, len(buf), leader_epoch, NOW)


def contents(log: Log) -> bytes:
    """Return all bytes of a log."""
    found = b""
    offset = log.start_offset
    while (part := log.read(offset, 1 << 30, log.end_offset)) is not None:
        found += part.file.read(part.position, part.length)
        offset = log.end_offset
    return found


class LeaderBroker:
    """Answers Fetch as a leader does, from logs that a test writes to."""

    def __init__(self) -> None:
        self.store = open_store()
        self.logs: dict[Key, Log] = {}
        self.leader_epoch = 0
        self.refusals: dict[Key, ErrorCode] = {}
        self.high_watermarks: dict[Key, int] = {}
        self.sessions = FetchSessions(10, 60_000, Random(1))
        self.requests: list[hot.Fetch] = []
        self.ends_polls = True
        """Whether the next request of a session ends the wait of the one before."""
        self.held: asyncio.Event | None = None
        """Responses leave when this is set."""
        self.endpoint = endpoint(0)
        self._changed = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    # -- what tests do ---------------------------------------------------------------------

    def create(self, topic: str, partition: int, topic_id: UUID) -> Log:
        log = self.store.create(topic, partition, topic_id)
        self.logs[topic_id.bytes, partition] = log
        return log

    def changed(self) -> None:
        """Let waiting requests look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    @property
    def connections(self) -> int:
        return len(self._writers)

    # -- the protocol ----------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        requests: asyncio.Queue[tuple[int, int, hot.Fetch | None]] = asyncio.Queue()
        answering = asyncio.create_task(self._answer_all(requests, writer))
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = bytearray(await reader.readexactly(size))
                api, version, correlation_id = struct.unpack_from(">hhi", frame)
                fetch = None
                if api == FETCH:
                    at = body_at(frame, 0, size, flexible=True)
                    fetch = hot.decode(frame, memoryview(frame), at, size, version)
                    self.requests.append(fetch)
                requests.put_nowait((version, correlation_id, fetch))
                if self.ends_polls:
                    self.changed()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            answering.cancel()
            writer.close()

    async def _answer_all(
        self,
        requests: asyncio.Queue[tuple[int, int, hot.Fetch | None]],
        writer: asyncio.StreamWriter,
    ) -> None:
        while True:
            version, correlation_id, fetch = await requests.get()
            if fetch is None:
                offered = ApiVersion(api_key=FETCH, min_version=4, max_version=hot.HIGHEST)
                answer = ApiVersionsResponse(api_keys=[offered])
                writer.write(encode_response(answer, version, correlation_id))
                continue
            parts = await self._answer(version, correlation_id, fetch, requests.empty)
            if self.held is not None:
                await self.held.wait()
            for part in parts:
                if isinstance(part, bytes):
                    writer.write(part)
                else:
                    part = cast(Slice, part)
                    writer.write(part.file.read(part.position, part.length))

    async def _answer(
        self, version: int, correlation_id: int, fetch: hot.Fetch, is_last: Callable[[], bool]
    ) -> list[hot.Part]:
        try:
            session = self.sessions.begin(fetch, version, 0)
        except KafkaError as error:
            return hot.encode(correlation_id, version, [], error_code=error.code)
        topics = fetch.topics if session is None else session.topics()
        loop = asyncio.get_running_loop()
        end = loop.time() + fetch.max_wait_ms / 1000
        while True:
            results = [(topic, [self._read(topic, w) for w in wanted]) for topic, wanted in topics]
            is_urgent = self._is_urgent([result for _, found in results for result in found])
            left = end - loop.time()
            if is_urgent or left <= 0 or (self.ends_polls and not is_last()):
                break
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass
        if session is None:
            return hot.encode(correlation_id, version, results)
        return self._news(session, version, correlation_id, fetch, results)

    @staticmethod
    def _news(
        session: Session,
        version: int,
        correlation_id: int,
        fetch: hot.Fetch,
        results: list[tuple[bytes, list[hot.FetchedPartition]]],
    ) -> list[hot.Part]:
        is_first = fetch.session_epoch == INITIAL_EPOCH
        return hot.encode(
            correlation_id, version, session.news(results, everything=is_first), session.id
        )

    @staticmethod
    def _is_urgent(results: Iterable[hot.FetchedPartition]) -> bool:
        return any(
            result.records or result.error_code or result.diverging_epoch for result in results
        )

    def _read(self, topic: bytes, wanted: hot.RequestedPartition) -> hot.FetchedPartition:
        key = topic, wanted.partition
        log = self.logs.get(key)
        code = self.refusals.get(key, ErrorCode.NONE)
        if log is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif wanted.current_leader_epoch > self.leader_epoch:
            code = ErrorCode.UNKNOWN_LEADER_EPOCH
        elif wanted.current_leader_epoch < self.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        if code or log is None:
            return hot.FetchedPartition(wanted.partition, code)
        offset, high_watermark = wanted.fetch_offset, self.high_watermarks.get(key, log.end_offset)
        parts = divergence(log.epochs, log.end_offset, offset, wanted.last_fetched_epoch)
        records = None
        if parts is None and offset != log.end_offset:
            records = log.read(offset, wanted.max_bytes, log.end_offset)
        return hot.FetchedPartition(
            wanted.partition,
            0,
            high_watermark,
            high_watermark,
            log.start_offset,
            records,
            diverging_epoch=parts,
        )


class World:
    """A follower's broker, and the replicas that it copies from one leader or two."""

    def __init__(self, leader: LeaderBroker, **given: Any) -> None:
        self.leader = leader
        self.settings = Broker(
            **{
                "replica_fetch_wait_max_ms": 20_000,
                "replica_fetch_backoff_ms": 200,
                "replica_socket_timeout_ms": 5_000,
                **given,
            }
        )
        self.config = Topic()
        self.store = LogManager([MemoryDisk()], Broker(), lambda _: self.config)
        self.store.open(NOW)
        self.replica_manager = ReplicaManager()
        self.peers = Peers("broker-1", NoProof(), socket_timeout_ms=lambda: 5_000)
        self.fetchers = ReplicaFetchers(
            FOLLOWER_ID,
            lambda: FOLLOWER_EPOCH,
            self.peers,
            lambda: self.settings,
            lambda: NOW,
            ReplicationThrottle(FOLLOWER_ID, lambda: self.settings),
        )

    def replica(self, number: int = 0, topic: str = "t") -> Replica:
        """Create a partition on both brokers; the follower's replica is empty."""
        topic_id = UUID(int=1 + ord(topic))
        if (topic_id.bytes, number) not in self.leader.logs:
            self.leader.create(topic, number, topic_id)
        log = self.store.create(topic, number, topic_id)
        return self.replica_manager.add(log, topic_id, 0)

    def source(self, replica: Replica) -> Log:
        return self.leader.logs[replica.topic_id.bytes, replica.partition]

    def write(self, replica: Replica, *values: bytes) -> None:
        append(self.source(replica), *values, leader_epoch=self.leader.leader_epoch)
        self.leader.changed()

    def follow(
        self,
        replica: Replica,
        *,
        leader_epoch: int = 0,
        leader_id: int = LEADER_ID,
        to: PublishedEndpoint | None = None,
    ) -> None:
        replicas = (leader_id, FOLLOWER_ID)
        replica.follow(PartitionState(replicas, leader_id, leader_epoch, (leader_id,)))
        self.fetchers.follow(replica, to or self.leader.endpoint)

    async def copied(self, *replicas: Replica) -> None:
        """Wait until these replicas are equal to the leader's."""
        await eventually_async(
            lambda: all(
                replica.log.end_offset == self.source(replica).end_offset == replica.high_watermark
                for replica in replicas
            )
        )
        for replica in replicas:
            assert contents(replica.log) == contents(self.source(replica))

    async def request(self, count: int) -> hot.Fetch:
        """Wait for the leader's n-th request, counted from one, and return it."""
        await eventually_async(lambda: len(self.leader.requests) >= count)
        return self.leader.requests[count - 1]

    async def pause(self) -> None:
        """Wait for requests and responses in flight."""
        await asyncio.sleep(0.1)


def endpoint(port: int) -> PublishedEndpoint:
    return PublishedEndpoint(
        listener="PLAINTEXT", host="127.0.0.1", port=port, security_protocol="PLAINTEXT"
    )


@asynccontextmanager
async def listening(leader: LeaderBroker) -> AsyncIterator[LeaderBroker]:
    server = await asyncio.start_server(leader.serve, "127.0.0.1", 0)
    leader.endpoint = endpoint(server.sockets[0].getsockname()[1])
    try:
        yield leader
    finally:
        server.close()
        leader.hang_up()
        await server.wait_closed()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def world(**given: Any) -> AsyncIterator[World]:
    async with listening(LeaderBroker()) as leader:
        made = World(leader, **given)
        try:
            yield made
        finally:
            await made.fetchers.stop()
            await made.peers.close()


def requested(request: hot.Fetch) -> dict[Key, int]:
    """The partitions in a request, with their fetch offsets."""
    return {
        (topic, partition.partition): partition.fetch_offset
        for topic, requested in request.topics
        for partition in requested
    }


def partitions(request: hot.Fetch) -> list[int]:
    return [partition.partition for _, found in request.topics for partition in found]
