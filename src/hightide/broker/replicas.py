"""All replicas on this broker, found by topic name or topic id, and the waits on them."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterator

from hightide.broker.replica import Replica, Waiter
from hightide.log.log import Log

# Serving a woken fetch takes some 25 µs; after this many the other connections get a turn.
_WOKEN_PER_TURN = 100


class Replicas:
    """The replicas, and the fetches that wait for them to grow."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[bytes, int], Replica] = {}
        self._by_id: dict[tuple[bytes, int], Replica] = {}
        self._topic_ids: dict[str, bytes] = {}
        self.grown: list[Replica] = []
        self._woken: deque[Waiter] = deque()
        self._serving = False
        # Produce remembers what it found out about a request's shape; a change makes it forget.
        self.on_change: Callable[[], None] = lambda: None

    def add(self, log: Log, topic_id: uuid.UUID, leader_epoch: int) -> Replica:
        replica = Replica(log, leader_epoch, self)
        self._by_name[log.topic.encode(), log.partition] = replica
        self._by_id[topic_id.bytes, log.partition] = replica
        self._topic_ids[log.topic] = topic_id.bytes
        self.on_change()
        return replica

    def remove(self, topic: str, partition: int) -> None:
        replica = self._by_name.pop((topic.encode(), partition), None)
        if replica is not None:
            del self._by_id[self._topic_ids[topic], partition]
            replica.wake_all()
            self.on_change()

    def get(self, topic: bytes, partition: int) -> Replica | None:
        return self._by_name.get((topic, partition))

    def get_by_id(self, topic_id: bytes, partition: int) -> Replica | None:
        return self._by_id.get((topic_id, partition))

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._by_name.values())

    def wake(self) -> None:
        """Serve the waiters that have enough now.  Called after the answers of a turn have left."""
        for replica in self.grown:
            fresh, replica.fresh_bytes = replica.fresh_bytes, 0
            for waiter in replica.waiters:
                waiter.need_bytes -= fresh
                if waiter.need_bytes <= 0:
                    self._woken.append(waiter)
        self.grown.clear()
        if self._woken and not self._serving:
            self._serve_some()

    def _serve_some(self) -> None:
        self._serving = False
        for _ in range(min(len(self._woken), _WOKEN_PER_TURN)):
            self._woken.popleft().serve()
        if self._woken:
            self._serving = True
            asyncio.get_running_loop().call_soon(self._serve_some)
