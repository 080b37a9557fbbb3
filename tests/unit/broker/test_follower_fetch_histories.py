"""Random histories: a follower learns of everything that happens to its leader's partitions.

The leader's handler is driven by the follower's half of a fetch session
(`core/partition/fetch_session_client.py`), over a connection that is a list.  The clock stands
still, so that the leader never looks at all partitions, which would hide what it missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from hightide.broker.handlers import fetch as handler
from hightide.broker.metrics.counters import Requests
from hightide.broker.network.connection import Slot
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.broker.replication.replication_throttle import ReplicationThrottle
from hightide.client.broker_connection import CODES
from hightide.core.partition.fetch_session import FetchSessions
from hightide.core.partition.fetch_session_client import FetchSessionClient, SessionRequest
from hightide.core.partition.follower import FetchPosition
from hightide.core.partition.state import PartitionState
from hightide.log.disk import MemoryDisk
from hightide.log.log_manager import LogManager
from hightide.settings import Broker as Settings
from hightide.settings import Topic
from hightide.wire.batch import Record, batches, build
from hightide.wire.hot import replica_fetch_codec
from hightide.wire.hot.fetch_codec import Fetch

NOW_MS = 1_700_000_000_000
LEADER, FOLLOWER = 1, 2
LIVE = {LEADER: 10, FOLLOWER: 20}
TOPIC = UUID(int=7)
PATIENT_MS = 60_000


class Wire:
    """The part of a connection that the handler uses."""

    peer_broker_id = FOLLOWER

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()
        self.responses: deque[bytes] = deque()

    def send(self, parts: Any) -> None:
        self.responses.append(
            b"".join(
                part if isinstance(part, bytes) else part.file.read(part.position, part.length)
                for part in parts
            )
        )

    def answered(self, parts: Any) -> None:
        """Send a response, in the order of requests."""
        if parts is not None and self._slots:
            slot = self.defer()
            self.complete(slot, parts)
        elif parts is not None:
            self.send(parts)

    def defer(self, cancel: Callable[[], object] | None = None) -> Slot:
        slot = Slot()
        slot.cancel = cancel
        self._slots.append(slot)
        return slot

    def complete(self, slot: Slot, parts: Any) -> None:
        slot.response, slot.cancel = parts, None
        while self._slots and self._slots[0].response is not None:
            self.send(self._slots.popleft().response)


class Copied:
    """A partition as the follower has it."""

    def __init__(self) -> None:
        self.end = self.high_watermark = self.start = 0
        self.epoch = 0
        self.is_wanted = False
        self.must_rejoin = False
        """A response was ignored, so the partition leaves the session and joins it again."""


class World:
    def __init__(self, partitions: int, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.replica_manager = ReplicaManager()
        store = LogManager([MemoryDisk()], self.settings, lambda _: Topic())
        store.open(NOW_MS)
        self.now_ms = NOW_MS
        self.broker: Any = SimpleNamespace(
            replica_manager=self.replica_manager,
            requests=Requests(),
            settings=self.settings,
            throttle=ReplicationThrottle(LEADER, lambda: self.settings),
            fetch_sessions=FetchSessions(10, 60_000, Random(1)),
            monotonic_ms=lambda: self.now_ms,
            metadata=SimpleNamespace(get_by_id=lambda _: None),
        )
        self.all = [
            self.replica_manager.add(store.create("t", number, TOPIC), TOPIC, 0)
            for number in range(partitions)
        ]
        for replica in self.all:
            self.lead(replica, 0)
        self.wire = Wire()
        self.session = FetchSessionClient()
        self.copied = [Copied() for _ in self.all]
        self.in_flight: deque[SessionRequest] = deque()

    # -- the leader ------------------------------------------------------------------------

    def lead(self, replica: Replica, epoch: int) -> None:
        state = PartitionState((LEADER, FOLLOWER), LEADER, epoch, (LEADER, FOLLOWER))
        replica.lead(state, LEADER, LIVE[LEADER], LIVE, frozenset(), 10_000, self.now_ms)
        self.replica_manager.purgatory.wake()

    def append(self, number: int, size: int = 10) -> None:
        buf = build([Record(0, NOW_MS, None, b"x" * size, ())])
        self.all[number].append(buf, memoryview(buf), 0, len(buf), self.now_ms)
        self.replica_manager.purgatory.wake()

    # -- the follower ----------------------------------------------------------------------

    def position(self, number: int) -> FetchPosition | None:
        mine = self.copied[number]
        if not mine.is_wanted:
            return None
        last = self.all[number].log.epochs.end_offset_for(mine.epoch, mine.end)[0]
        return FetchPosition(mine.end, last if mine.end else -1, mine.epoch, mine.start)

    def ask(self, *, max_wait_ms: int = PATIENT_MS, max_bytes: int = 1 << 20) -> None:
        positions: dict[tuple[bytes, int], FetchPosition | None] = {}
        for number, mine in enumerate(self.copied):
            positions[TOPIC.bytes, number] = None if mine.must_rejoin else self.position(number)
            mine.must_rejoin = False
        request = self.session.next_request(positions, 1 << 20)
        if request is None:
            return
        self.in_flight.append(request)
        fetch = Fetch(
            FOLLOWER,
            0 if request.is_full else max_wait_ms,
            1,
            max_bytes,
            0,
            request.session_id,
            request.session_epoch,
            request.topics,
            request.forgotten,
            None,
            LIVE[FOLLOWER],
        )
        frame = bytearray(replica_fetch_codec.encode(fetch, 1, b"c"))
        wire: Any = self.wire
        self.wire.answered(
            handler.fetch(self.broker, wire, frame, memoryview(frame), 4, len(frame))
        )
        self.replica_manager.purgatory.wake()

    def receive(self) -> replica_fetch_codec.ReplicaFetchResponse | None:
        """Apply the next response, if there is one."""
        if not self.wire.responses:
            return None
        response = replica_fetch_codec.decode(memoryview(self.wire.responses.popleft())[4:])
        request = self.in_flight.popleft()
        self.session.answered(request, CODES[response.error_code], response.session_id)
        for topic, results in response.topics:
            for received in results:
                asked = self.session.requested_position(request, (topic, received.partition))
                if asked == self.position(received.partition):
                    self._apply(received)
                else:
                    self.copied[received.partition].must_rejoin = True
        return response

    def _apply(self, received: replica_fetch_codec.ReceivedPartition) -> None:
        mine = self.copied[received.partition]
        if received.error_code:
            mine.is_wanted = False
            return
        assert received.diverging_epoch is None
        for _, header in batches(received.records):
            assert header.base_offset == mine.end
            mine.end = header.last_offset + 1
        mine.high_watermark = max(mine.high_watermark, min(received.high_watermark, mine.end))
        mine.start = max(mine.start, received.log_start_offset)

    def is_whole(self) -> bool:
        return all(
            (mine.end, mine.high_watermark) == (replica.log.end_offset, replica.high_watermark)
            for mine, replica in zip(self.copied, self.all, strict=True)
        )

    async def settle(self) -> None:
        """Fetch until the follower has and knows everything."""
        for number, mine in enumerate(self.copied):
            mine.is_wanted = True
            mine.epoch = self.all[number].leader_epoch
        deadline = asyncio.get_running_loop().time() + 3
        # A request may be parked; the next one ends its wait.
        if self.session.may_pipeline or not self.in_flight:
            self.ask(max_wait_ms=100)
        while not self.is_whole() or self.wire.responses or self.is_wanting():
            assert asyncio.get_running_loop().time() < deadline, "something was missed"
            if self.receive() is None:
                await asyncio.sleep(0.001)
            for mine in self.copied:
                mine.is_wanted = True
            if not self.in_flight or (self.session.may_pipeline and self.is_wanting()):
                self.ask(max_wait_ms=100)

    def is_wanting(self) -> bool:
        positions = {
            (TOPIC.bytes, number): self.position(number) for number in range(len(self.all))
        }
        return self.session.has_changes(positions)


def random_step(w: World, random: Random) -> None:
    number = random.randrange(len(w.all))
    match random.randrange(8):
        case 0 | 1 | 2:
            w.append(number, random.choice([10, 500]))
        case 3 | 4:
            if not w.in_flight or (w.session.may_pipeline and random.random() < 0.3):
                w.ask(max_bytes=random.choice([200, 1 << 20]))
        case 5:
            w.receive()
        case 6:
            w.copied[number].is_wanted = random.random() < 0.8
        case _ if random.random() < 0.2:
            w.lead(w.all[number], w.all[number].leader_epoch + 1)
        case _:
            w.copied[number].epoch = w.all[number].leader_epoch


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_missed_whatever_happens_in_whatever_order(seed: int) -> None:
    async def test() -> None:
        random = Random(seed)
        w = World(random.randrange(1, 6))
        for _ in range(random.randrange(150)):
            random_step(w, random)
            if random.random() < 0.1:
                await asyncio.sleep(random.choice([0, 0.001, 0.012]))
        await w.settle()

    asyncio.run(test())
