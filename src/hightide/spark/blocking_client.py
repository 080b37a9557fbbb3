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
from hightide.client.connection import CLIENT_ID, TIMEOUT_MS, ConnectionFailed
from hightide.client.leaders import Leaders
from hightide.client.partition_producer import PartitionProducer
from hightide.client.range_fetcher import FETCH_BYTES, Fetched, OffsetOutOfRange, RangeReader
from hightide.client.record_admin import offsets_question
from hightide.client.retry import PATIENCE_MS, Backoff
from hightide.client.security import FAMILIES, security_of
from hightide.client.transactional import Fenced, Identity, Transactional
from hightide.wire.errors import ErrorCode, KafkaError

__all__ = [
    "BlockingClient",
    "Fenced",
    "Fetched",
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
DOUBT_MS = 2_000
"""A topic is looked for this long, since not all brokers hear of a new one at once."""


def brokers(options: Mapping[str, str]) -> BlockingClient:
    """The brokers that the options lead to; they are named as for Kafka's clients."""
    return _KEPT.get(options)


def ignored(options: Mapping[str, str]) -> list[str]:
    """Those of the options that change nothing here; whoever set them may want to know."""
    return sorted(each for each in options if each not in HEEDED and not each.startswith(FAMILIES))


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
        for each in self._known.values():
            each.close()
        self._known.clear()


_KEPT = _Kept()
os.register_at_fork(after_in_child=_KEPT.begin_anew)
atexit.register(_KEPT.close)


class _Client(Transactional, Admin):
    """All that is asked of brokers here."""

    def leaders(self) -> Leaders:
        return Leaders(self._routes, timeout_ms=self._timeout_ms)

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it succeeds or there is no hope."""
        patience = Backoff(doubt_ms=DOUBT_MS)
        while True:
            try:
                return await attempt()
            except (KafkaError, ConnectionFailed) as error:
                await patience.after(error, doubtful=not self._routes.nodes)


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
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class BlockingClient:
    """A cluster.  Everything blocks, and may be called from any thread."""

    def __init__(self, options: Mapping[str, str]) -> None:
        bootstrap = options.get("bootstrap.servers", "")
        if not bootstrap:
            raise ValueError("bootstrap.servers is not set; it should be host:port,host:port.")
        self._timeout_ms = int(options.get("request.timeout.ms", TIMEOUT_MS))
        self._client = _Client(
            bootstrap,
            client_id=options.get("client.id", CLIENT_ID),
            timeout_ms=self._timeout_ms,
            security=security_of(options),
        )
        self._leaders = self._client.leaders()
        self._loop = _Loop()

    def close(self) -> None:
        self._loop.call(self._client.close)
        self._loop.stop()

    # -- topics ------------------------------------------------------------------------------

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """How many partitions topics have; without names all topics that are not internal."""

        async def ask() -> dict[str, int]:
            if names is None:
                found = [each for each in await self._client.list_topics() if not each.internal]
            else:
                found = await self._client.describe_topics(names)
            return {each.name: len(each.partitions) for each in found}

        return self._loop.run(self._client.patiently(ask))

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
                await self._client.create_topic(
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

        made = self._loop.run(self._client.patiently(ask))
        self.topics([name])
        return made

    # -- reading -----------------------------------------------------------------------------

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """The first offset at or after a timestamp, -1 if there is none; the timestamp -1 stands
        for the end and -2 for the beginning."""
        question = offsets_question(self._timeout_ms, read_committed=read_committed)
        found = self._loop.run(self._leaders.ask(wanted, question))
        return {each: at.offset for each, at in found.items()}

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        read_committed: bool = False,
        max_bytes: int = FETCH_BYTES,
        patience_ms: int = PATIENCE_MS,
    ) -> Iterator[Fetched]:
        """All record batches with offsets from `start` up to `end`, fetched ahead.

        The first and the last may hold records outside of the range.  Raises `OffsetOutOfRange`
        when retention has taken what is to be read, or the log ends before `end` for `patience_ms`.
        """
        reader = RangeReader(
            self._leaders,
            topic,
            partition,
            start,
            end,
            read_committed=read_committed,
            fetch_bytes=max_bytes,
            patience_ms=patience_ms,
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
            self._client.committed(group, stable=require_stable, partitions=partitions)
        )
        return {key: (each.offset, each.metadata) for key, each in found.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int | tuple[int, str]]) -> None:
        """Commit in the name of a group that has no members."""
        told = self._loop.run(self._client.commit_for(group, offsets))
        for refusal in told.values():
            if refusal is not None:
                raise refusal

    # -- writing -----------------------------------------------------------------------------

    def producer(self, transactional_id: str | None = None, timeout_ms: int = 60_000) -> Identity:
        """A producer id and epoch.  With a transactional id this fences all who had it before,
        aborts what they left open, and returns when what they committed is complete."""
        return self._loop.run(self._client.init_producer(transactional_id, timeout_ms))

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
                self._client.add_partition, transactional_id, identity, (topic, partition)
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
            self._client.commit_in_transaction(transactional_id, identity, group, offsets)
        )

    def end_transaction(self, transactional_id: str, identity: Identity, *, commit: bool) -> None:
        """Commit or abort.  `Fenced` if another has taken over; then nothing was committed here,
        unless an earlier attempt was, whose answer was lost: the group's offsets tell."""
        self._loop.run(self._client.end_transaction(transactional_id, identity, commit=commit))


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
