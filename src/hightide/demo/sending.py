"""Traffic into topics: idempotent producers that follow the leaders, one for each partition.

What a partition's leader acknowledges comes in the order in which it was sent, so the count of
acknowledged records tells which of them those are.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from zlib import crc32

from hightide.demo.ledger import Ledger
from hightide.demo.traffic import Message, Traffic
from hightide.spark.blocking_client import Brokers, Identity, PartitionWriter
from hightide.wire import batch

TICK_S = 0.1


class Sender:
    """A thread that sends traffic until it is stopped."""

    def __init__(self, brokers: Brokers, traffic: Traffic, ledger: Ledger) -> None:
        self._brokers = brokers
        self._traffic = traffic
        self._ledger = ledger
        self._partitions: dict[str, int] = {}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-sender", daemon=True)
        self.failure: Exception | None = None
        self.last_acknowledged = time.monotonic()

    def start(self, partitions: dict[str, int]) -> None:
        """Begin; `partitions` are those of the topics that are sent to."""
        self._partitions = partitions
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Send nothing more, and wait for what is under way."""
        self._stopped.set()
        self._thread.join(timeout_s)

    @property
    def is_sending(self) -> bool:
        return self._thread.is_alive() and not self._stopped.is_set()

    def acknowledged(self, topic: str) -> int:
        """Records of a topic that its leaders have acknowledged."""
        return sum(lane.done for place, lane in [*self._lanes.items()] if place[0] == topic)

    def _run(self) -> None:
        try:
            identity = self._brokers.producer()
            self._send(self._traffic.users(), identity)
            before = self.last_acknowledged = time.monotonic()
            while not self._stopped.wait(TICK_S):
                now = time.monotonic()
                self._send(self._traffic.pass_time(now - before, _now_ms()), identity)
                self._count()
                before = now
            for lane in self._lanes.values():
                lane.writer.flush()
            self._count()
        except Exception as error:
            self.failure = error
        finally:
            for lane in self._lanes.values():
                lane.writer.close()

    def _send(self, messages: Iterable[Message], identity: Identity) -> None:
        parts: dict[tuple[str, int], list[Message]] = defaultdict(list)
        for each in messages:
            parts[each.topic, crc32(each.key) % self._partitions[each.topic]].append(each)
        for place, part in parts.items():
            lane = self._lanes.get(place)
            if lane is None:
                lane = self._lanes[place] = _Lane(self._brokers.writer(*place, identity=identity))
            lane.send(part, identity)

    def _count(self) -> None:
        for lane in self._lanes.values():
            for message in lane.acknowledged():
                self.last_acknowledged = time.monotonic()
                if message.number is not None:
                    self._ledger.acknowledge(message.number)


class _Lane:
    """What goes to one partition."""

    def __init__(self, writer: PartitionWriter) -> None:
        self.writer = writer
        self.done = 0
        self._waiting: deque[Message] = deque()

    def send(self, messages: list[Message], identity: Identity) -> None:
        now_ms = _now_ms()
        data = batch.build(
            [(nth, now_ms, each.key, each.value, ()) for nth, each in enumerate(messages)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self.writer.next_sequence,
        )
        self._waiting.extend(messages)
        self.writer.append(bytes(data), len(messages))

    def acknowledged(self) -> list[Message]:
        """The messages that are acknowledged since this was last asked."""
        fresh = self.writer.written - self.done
        self.done += fresh
        return [self._waiting.popleft() for _ in range(fresh)]


def _now_ms() -> int:
    return int(time.time() * 1000)
