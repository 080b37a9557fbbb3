"""The brokers as Spark's driver and executors see them: functions that block.

    task's thread ── read(…) ──▶ ┌ the loop, in a thread of its own ┐ ──▶ brokers
                  ◀── Fetched ── └ one per process and options ─────┘

Spark calls Python sources and sinks from ordinary threads, and keeps its Python workers from one
micro-batch to the next; so what was learned of a cluster, and the connections, are kept with them.
Workers are forked from a daemon.  A fork copies no threads, so what a process finds from before its
own beginning it leaves alone and begins anew.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from hightide.client.admin import Admin
from hightide.client.admin.records import list_offsets
from hightide.client.connection import CLIENT_ID, TIMEOUT_MS, ConnectionFailed
from hightide.client.fetcher import FETCH_BYTES, FetchedBatches, OffsetOutOfRange, RangeFetcher
from hightide.client.leader_cache import LeaderCache
from hightide.client.producer import PartitionProducer
from hightide.client.retry import RETRY_MS, Backoff
from hightide.client.security import FAMILIES, security_of
from hightide.client.transactional import Fenced, Identity, Transactional
from hightide.wire.errors import ErrorCode, KafkaError

__all__ = [
    "BlockingClient",
    "Fenced",
    "FetchedBatches",
    "Identity",
    "OffsetOutOfRange",
    "PartitionWriter",
    "TopicPartition",
    "brokers",
    "ignored",
]

T = TypeVar("T")
TopicPartition = tuple[str, int]

HEEDED = ("bootstrap.servers", "client.id", "request.timeout.ms")
SEQUENCES = 2**31
STOP_S = 5.0
DOUBT_S = 2.0
"""A topic is looked for this long, since not all brokers hear of a new one at once."""


def brokers(options: Mapping[str, str]) -> BlockingClient:
    """The brokers that the options lead to; they are named as for Kafka's clients."""
    return _KEPT.get(options)


def ignored(options: Mapping[str, str]) -> list[str]:
    """Those of the options that change nothing here; whoever set them may want to know."""
    return sorted(
        option for option in options if option not in HEEDED and not option.startswith(FAMILIES)
    )


class _Kept:
    """The clusters that this process knows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[frozenset[tuple[str, str]], BlockingClient] = {}
        self._inherited: list[object] = []

    def get(self, options: Mapping[str, str]) -> BlockingClient:
        key = frozenset(options.items())
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = BlockingClient(options)
            return found

    def begin_anew(self) -> None:
        """After a fork.  What was there is neither used nor closed nor dropped: its sockets belong
        to the process that this one was copied from, as may a lock that another thread held."""
        self._inherited.append(self._known)
        self._lock, self._known = threading.Lock(), {}

    def close(self) -> None:
        for client in self._known.values():
            client.close()
        self._known.clear()


_KEPT = _Kept()
os.register_at_fork(after_in_child=_KEPT.begin_anew)
atexit.register(_KEPT.close)


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="hightide-brokers", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done there; an interrupt of the one who waits ends it there too."""
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def call(self, work: Callable[[], None]) -> None:
        """Have it done there, and do not wait; nothing is left to do in a loop that has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class BlockingClient:
    """A cluster.  Everything blocks, and may be called from any thread."""

    def __init__(self, options: Mapping[str, str]) -> None:
        bootstrap = options.get("bootstrap.servers", "")
        if not bootstrap:
            raise ValueError("bootstrap.servers is not set; it should be host:port,host:port.")
        self._timeout_ms = int(options.get("request.timeout.ms", TIMEOUT_MS))
        self._admin = Admin(
            bootstrap,
            client_id=options.get("client.id", CLIENT_ID),
            timeout_ms=self._timeout_ms,
            security=security_of(options),
            long_running=True,
        )
        self._transactional = Transactional(self._admin.router)
        self._leaders = LeaderCache(self._admin.router)
        self._loop = _Loop()

    def close(self) -> None:
        self._loop.call(self._admin.close)
        self._loop.stop()

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until an attempt succeeds or the error is final."""
        backoff = Backoff(limit_s=RETRY_MS / 1000, doubt_s=DOUBT_S)
        while True:
            try:
                return await attempt()
            except (KafkaError, ConnectionFailed) as error:
                await backoff.after(error, doubtful=not self._admin.router.nodes)

    # -- topics ------------------------------------------------------------------------------

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """How many partitions topics have; without names all topics that are not internal."""

        async def ask() -> dict[str, int]:
            if names is None:
                topics = await self._admin.topics.list()
                found = [topic for topic in topics if not topic.internal]
            else:
                found = [*await self._admin.topics.describe(names)]
            return {topic.name: len(topic.partitions) for topic in found}

        return self._loop.run(self._retry(ask))

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a topic; False if there is one of this name."""

        async def ask() -> bool:
            try:
                await self._admin.topics.create(
                    name,
                    partitions=partitions,
                    replication_factor=replication_factor,
                    config=settings,
                )
            except KafkaError as error:
                if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                    return False
                raise
            return True

        made = self._loop.run(self._retry(ask))
        self.topics([name])
        return made

    # -- reading -----------------------------------------------------------------------------

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """The first offset at or after a timestamp, -1 if there is none; the timestamp -1 stands
        for the end and -2 for the beginning."""
        question = list_offsets(self._timeout_ms, read_committed=read_committed)
        found = self._loop.run(self._leaders.ask(wanted, question))
        return {partition: at.offset for partition, at in found.items()}

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        read_committed: bool = False,
        max_bytes: int = FETCH_BYTES,
        retry_ms: int = RETRY_MS,
    ) -> Iterator[FetchedBatches]:
        """All record batches with offsets from `start` up to `end`, fetched ahead.

        The first and the last may hold records outside of the range.  Raises `OffsetOutOfRange`
        when retention has taken what is to be read, or the log ends before `end` for `patience_ms`.
        """
        reader = RangeFetcher(
            self._leaders,
            topic,
            partition,
            start,
            end,
            read_committed=read_committed,
            fetch_bytes=max_bytes,
            retry_ms=retry_ms,
        )
        try:
            while not reader.is_done and (fetched := self._loop.run(reader.next())) is not None:
                yield fetched
        finally:
            self._loop.call(reader.close)

    # -- groups ------------------------------------------------------------------------------

    def committed(
        self,
        group: str,
        partitions: Sequence[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Offset and metadata that a group has committed; what it has not is left out.

        `require_stable` waits for open transactions that commit offsets of the named partitions.
        """
        found = self._loop.run(
            self._admin.groups.committed(group, stable=require_stable, partitions=partitions)
        )
        return {key: (commit.offset, commit.metadata) for key, commit in found.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int | tuple[int, str]]) -> None:
        """Commit in the name of a group that has no members."""
        told = self._loop.run(self._admin.groups.commit(group, offsets))
        for refusal in told.values():
            if refusal is not None:
                raise refusal

    # -- writing -----------------------------------------------------------------------------

    def producer(self, transactional_id: str | None = None, timeout_ms: int = 60_000) -> Identity:
        """A producer id and epoch.  With a transactional id this fences all who had it before,
        aborts what they left open, and returns when what they committed is complete."""
        return self._loop.run(self._transactional.init_producer(transactional_id, timeout_ms))

    def writer(
        self,
        topic: str,
        partition: int,
        *,
        identity: Identity | None = None,
        transactional_id: str | None = None,
        acks: int = -1,
        first_sequence: int = 0,
    ) -> PartitionWriter:
        """A way into one partition.  Batches carry the identity and `next_sequence` already."""
        if transactional_id is not None and identity is None:
            raise ValueError("Who writes in a transaction needs the identity of its producer.")
        begin = None
        if transactional_id is not None and identity is not None:
            begin = partial(
                self._transactional.add_partition, transactional_id, identity, (topic, partition)
            )
        producer = PartitionProducer(
            self._leaders,
            topic,
            partition,
            transactional_id=transactional_id,
            acks=acks,
            begin=begin,
        )
        return PartitionWriter(self._loop, producer, first_sequence)

    def commit_offsets_in_transaction(
        self,
        transactional_id: str,
        identity: Identity,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
    ) -> None:
        """Offsets of a group without members that count if and when the transaction commits."""
        self._loop.run(
            self._transactional.commit_in_transaction(transactional_id, identity, group, offsets)
        )

    def end_transaction(self, transactional_id: str, identity: Identity, *, commit: bool) -> None:
        """Commit or abort.  `Fenced` if another has taken over; then nothing was committed here,
        unless an earlier attempt was, whose answer was lost: the group's offsets tell."""
        self._loop.run(
            self._transactional.end_transaction(transactional_id, identity, commit=commit)
        )


class PartitionWriter:
    """Writes batches to one partition, in order and each once; made by `BlockingClient.writer`."""

    def __init__(self, loop: _Loop, producer: PartitionProducer, first_sequence: int) -> None:
        self._loop = loop
        self._producer = producer
        self.next_sequence = first_sequence

    @property
    def written(self) -> int:
        """How many records are acknowledged by now, in the order in which they were given."""
        return self._producer.written

    def append(self, batch: bytes, count: int) -> None:
        """Take a batch of `count` records; returns before it is acknowledged."""
        self.next_sequence = (self.next_sequence + count) % SEQUENCES
        self._loop.run(self._producer.append(batch, count))

    def flush(self) -> int:
        """Wait until all is acknowledged; how many records that are."""
        self._loop.run(self._producer.flush())
        return self._producer.written

    def close(self) -> None:
        """Stop; what was not flushed may or may not be written."""
        self._loop.call(self._producer.close)

    # A task of the loop is all that would be left of a writer that nobody closed.
    __del__ = close

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
