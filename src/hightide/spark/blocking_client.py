"""A synchronous client for Spark's driver and executors.

    task's thread ── read(…) ──▶ ┌ event loop in its own thread ┐ ──▶ brokers
                  ◀── batches ── └ one per process and options ─┘

Spark calls Python sources and sinks from ordinary threads, and keeps its Python workers from one
micro-batch to the next. So metadata and connections are kept with the process. Workers are forked
from a daemon, and a fork copies no threads: a process does not touch clients from before its own
fork, and makes new ones.
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
from hightide.client.broker_connection import CLIENT_ID, TIMEOUT_MS, ConnectionFailed
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
    "ignored_options",
    "shared_client",
]

T = TypeVar("T")
TopicPartition = tuple[str, int]

USED_OPTIONS = ("bootstrap.servers", "client.id", "enable.metrics.push", "request.timeout.ms")
SEQUENCES = 2**31
STOP_S = 5.0
DOUBT_S = 2.0
"""How long to look for a topic: a new topic does not reach all brokers at once."""


def shared_client(options: Mapping[str, str]) -> BlockingClient:
    """Return this process's client for these options, which have the names of Kafka's clients."""
    return _CLIENTS.get(options)


def ignored_options(options: Mapping[str, str]) -> list[str]:
    """Return the options that have no effect here, so that the user can be warned."""
    return sorted(
        option
        for option in options
        if option not in USED_OPTIONS and not option.startswith(FAMILIES)
    )


class _SharedClients:
    """The clients of this process, by their options."""

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

    def reset_after_fork(self) -> None:
        """Start empty in a forked child.

        The inherited clients are not used, closed or freed: their sockets belong to the parent
        process, and another thread of the parent may have held the lock.
        """
        self._inherited.append(self._known)
        self._lock, self._known = threading.Lock(), {}

    def close(self) -> None:
        for client in self._known.values():
            client.close()
        self._known.clear()


_CLIENTS = _SharedClients()
os.register_at_fork(after_in_child=_CLIENTS.reset_after_fork)
atexit.register(_CLIENTS.close)


class _Loop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="hightide-client", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; interrupting the caller cancels the coroutine."""
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def call(self, work: Callable[[], None]) -> None:
        """Call a function there without waiting; does nothing once the loop is closed."""
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
    """A client of one cluster. All methods block, and any thread may call them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        bootstrap = options.get("bootstrap.servers", "")
        if not bootstrap:
            raise ValueError("bootstrap.servers is not set; expected host:port,host:port.")
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
        """Call until it succeeds or fails with an error that cannot be retried."""
        backoff = Backoff(limit_s=RETRY_MS / 1000, doubt_s=DOUBT_S)
        while True:
            try:
                return await attempt()
            except (KafkaError, ConnectionFailed) as error:
                await backoff.after(error, doubtful=not self._admin.router.nodes)

    # -- topics ------------------------------------------------------------------------------

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """Return the partition counts of topics; without names, of all topics that are not
        internal.
        """

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
        """Create a topic; return False if it exists."""

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
        """Return the first offset at or after each timestamp, -1 if there is none.

        Timestamp -1 means the end of the log and -2 its beginning.
        """
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
        """Yield all record batches with offsets from `start` up to `end`, fetched ahead.

        The first and the last batch may hold records outside of the range. Raises
        `OffsetOutOfRange` if retention has deleted part of the range, or if the log ends before
        `end` for `retry_ms`.
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
        """Return the offsets and metadata that a group has committed, without missing ones.

        `require_stable` waits for open transactions that commit offsets of the named partitions.
        """
        found = self._loop.run(
            self._admin.groups.committed(group, stable=require_stable, partitions=partitions)
        )
        return {key: (commit.offset, commit.metadata) for key, commit in found.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int | tuple[int, str]]) -> None:
        """Commit offsets for a group without members."""
        results = self._loop.run(self._admin.groups.commit(group, offsets))
        for error in results.values():
            if error is not None:
                raise error

    # -- writing -----------------------------------------------------------------------------

    def producer(self, transactional_id: str | None = None, timeout_ms: int = 60_000) -> Identity:
        """Return a producer id and epoch (InitProducerId).

        With a transactional id, this fences earlier producers, aborts their open transaction, and
        returns when their committed transaction is complete.
        """
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
        """Return a writer for a partition; batches must carry the identity and `next_sequence`."""
        if transactional_id is not None and identity is None:
            raise ValueError("A transactional writer needs the identity of its producer.")
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
        """Commit offsets of a group without members as part of a transaction."""
        self._loop.run(
            self._transactional.commit_in_transaction(transactional_id, identity, group, offsets)
        )

    def end_transaction(self, transactional_id: str, identity: Identity, *, commit: bool) -> None:
        """Commit or abort a transaction.

        Raises `Fenced` if another producer has taken over. Then nothing was committed here, unless
        an earlier attempt committed and its response was lost: the offsets of the group tell.
        """
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
        """How many records are acknowledged, counted in the order of `append`."""
        return self._producer.written

    def append(self, batch: bytes, count: int) -> None:
        """Send a batch of `count` records, without waiting for the acknowledgement."""
        self.next_sequence = (self.next_sequence + count) % SEQUENCES
        self._loop.run(self._producer.append(batch, count))

    def flush(self) -> int:
        """Wait until all batches are acknowledged, and return how many records that are."""
        self._loop.run(self._producer.flush())
        return self._producer.written

    def close(self) -> None:
        """Stop; batches that were not flushed may or may not be written."""
        self._loop.call(self._producer.close)

    # A writer that is not closed would leave a task in the loop.
    __del__ = close

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
