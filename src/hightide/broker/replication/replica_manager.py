"""All replicas on this broker, found by topic name or topic id, and the waits on them."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from hightide.broker.replication.purgatory import Waiter
from hightide.broker.replication.replica import Replica
from hightide.core.partition.fetch_session import TopicPartition
from hightide.core.partition.leader import Proposal
from hightide.log.log import Log

# Serving a woken fetch takes some 25 µs; after this many the other connections get a turn.
_WOKEN_PER_TURN = 100
# A follower hears of a new high watermark with the next records. Without any it hears this much
# later: sooner, each commit would cost every follower another fetch.
_NEWS_S = 0.01


class ReplicaManager:
    """The replicas, and the fetches that wait for them to grow."""

    def __init__(self) -> None:
        self.by_name: dict[TopicPartition, Replica] = {}
        self.by_id: dict[TopicPartition, Replica] = {}
        self.grown: list[Replica] = []
        self._committed: dict[Replica, None] = {}
        self._woken: deque[Waiter] = deque()
        self._serving = False
        self._is_waking = False
        # Produce remembers what it found out about a request's shape; a change makes it forget.
        self.on_change: Callable[[], None] = lambda: None
        # A replica of an internal topic has another role now, or none.
        self.on_role: Callable[[Replica], None] = lambda _replica: None
        self.on_proposal: Callable[[Replica, Proposal], None] = lambda _replica, _proposal: None

    def add(self, log: Log, topic_id: uuid.UUID, high_watermark: int) -> Replica:
        replica = Replica(log, topic_id, high_watermark, self)
        self.by_name[log.topic.encode(), log.partition] = replica
        self.by_id[topic_id.bytes, log.partition] = replica
        self.on_change()
        return replica

    def remove(self, replica: Replica) -> None:
        """Serve a partition no more."""
        del self.by_name[replica.topic.encode(), replica.partition]
        del self.by_id[replica.topic_id.bytes, replica.partition]
        replica.rest(None)

    def get(self, topic: bytes, partition: int) -> Replica | None:
        return self.by_name.get((topic, partition))

    def get_by_id(self, topic_id: bytes, partition: int) -> Replica | None:
        return self.by_id.get((topic_id, partition))

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.by_name.values())

    # -- waking ----------------------------------------------------------------------------

    def wake_soon(self) -> None:
        """Serve those who have been woken by something else than a request."""
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self.wake)

    def wake(self) -> None:
        """Serve the waiters that have enough now.  Called after the answers of a turn have left."""
        self._is_waking = False
        for replica in self.grown:
            if replica.fresh_bytes:
                self._count(replica.waiters, replica.fresh_bytes)
                replica.fresh_bytes = 0
            if replica.fresh_stable_bytes:
                self._count(replica.stable_waiters, replica.fresh_stable_bytes)
                replica.fresh_stable_bytes = 0
            if replica.fresh_end_bytes:
                for waiter in replica.follower_waiters:
                    waiter.fresh[replica.key] = None
                self._count(replica.follower_waiters, replica.fresh_end_bytes)
                replica.fresh_end_bytes = 0
        self.grown.clear()
        if self._woken and not self._serving:
            self._serve_some()

    def end_waits(self) -> None:
        """Answer everybody with what there is."""
        for replica in self:
            readers = [*replica.waiters, *replica.stable_waiters, *replica.follower_waiters]
            for waiter in readers:
                waiter.serve(is_last_try=True)

    def _count(self, waiters: Iterable[Waiter], byte_count: int) -> None:
        for waiter in waiters:
            waiter.need_bytes -= byte_count
            if waiter.need_bytes <= 0:
                self._woken.append(waiter)

    def _serve_some(self) -> None:
        self._serving = False
        for _ in range(min(len(self._woken), _WOKEN_PER_TURN)):
            self._woken.popleft().serve()
        if self._woken:
            self._serving = True
            asyncio.get_running_loop().call_soon(self._serve_some)

    def tell_followers(self, replica: Replica) -> None:
        """Let followers know of a new high watermark or start, if no records do so first."""
        if not self._committed:
            asyncio.get_running_loop().call_later(_NEWS_S, self._tell_followers)
        self._committed[replica] = None

    def _tell_followers(self) -> None:
        replicas, self._committed = self._committed, {}
        for replica in replicas:
            for waiter in list(replica.follower_waiters):
                waiter.tell(replica)
