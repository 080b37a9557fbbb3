"""Producers and consumers, which know what real ones know and tell the checker what they saw."""

from __future__ import annotations

from typing import Any

from checkers import Checker
from messages import Fetch, Fetched, Partition, Produce, Produced, WhoLeads
from world import Process, World

from hightide.core.partition import NOBODY
from hightide.wire.errors import ErrorCode

CALL_MS = 1500


class Client(Process):
    """Finds leaders by asking any broker."""

    def __init__(self, world: World, name: str, brokers: list[str], checker: Checker) -> None:
        super().__init__(world, name)
        self.checker = checker
        self._brokers = brokers
        self._leaders: dict[Partition, int] = {}

    def find(self, partition: Partition, then: Any) -> None:
        """Call `then` with the name of the leader, sooner or later."""
        if partition in self._leaders:
            then(f"broker-{self._leaders[partition]}")
            return

        def answered(leader: int | None) -> None:
            if leader is None or leader == NOBODY:
                self.after(50, self.find, partition, then)
            else:
                self._leaders[partition] = leader
                then(f"broker-{leader}")

        self.ask(self.world.random.choice(self._brokers), WhoLeads(partition), 500, answered)

    def forget(self, partition: Partition) -> None:
        self._leaders.pop(partition, None)


class Producer(Client):
    """Sends one value after the other.  What got no clear answer may or may not be there."""

    def __init__(
        self,
        world: World,
        name: str,
        brokers: list[str],
        checker: Checker,
        partitions: list[Partition],
        acks: int,
    ) -> None:
        super().__init__(world, name, brokers, checker)
        self._partitions = partitions
        self._acks = acks
        self._count = 0
        self.is_stopping = False
        self.answered_ms = 0

    def begin(self) -> None:
        self.after(self.world.random.randint(1, 50), self._next)

    def _next(self) -> None:
        if self.is_stopping:
            return
        self._count += 1
        partition = self.world.random.choice(self._partitions)
        self.find(partition, lambda leader: self._send(partition, leader))

    def _send(self, partition: Partition, leader: str) -> None:
        value = f"{self.name}/{self._count}"
        self.checker.sends(partition, value, self.world.now_ms)

        def answered(answer: Produced | None) -> None:
            if answer is None or answer.code != ErrorCode.NONE:
                self.forget(partition)
                self.after(20, self._next)
                return
            self.answered_ms = self.world.now_ms
            if self._acks == -1:
                self.checker.acks(partition, value, answer.offset, self.world.now_ms)
            self.after(self.world.random.randint(0, 30), self._next)

        self.ask(leader, Produce(partition, value, self._acks), CALL_MS, answered)


class Consumer(Client):
    """Reads a partition from its beginning, over and over, from its leader or from any replica."""

    def __init__(
        self,
        world: World,
        name: str,
        brokers: list[str],
        checker: Checker,
        partition: Partition,
        from_followers: bool,
    ) -> None:
        super().__init__(world, name, brokers, checker)
        self._partition = partition
        self._from_followers = from_followers
        self._offset = 0

    def begin(self) -> None:
        self._offset = 0
        self.after(self.world.random.randint(1, 50), self._next)

    def _next(self) -> None:
        if self._from_followers and self.world.random.random() < 0.7:
            self._fetch(self.world.random.choice(self._brokers))
        else:
            self.find(self._partition, self._fetch)

    def _fetch(self, broker: str) -> None:
        def answered(answer: Fetched | None) -> None:
            if answer is None or answer.code != ErrorCode.NONE:
                self.forget(self._partition)
            else:
                self.checker.reads(self._partition, self._offset, answer.entries)
                self._offset += len(answer.entries)
                if self.world.random.random() < 0.02:
                    self._offset = 0
            self.after(self.world.random.randint(20, 120), self._next)

        self.ask(broker, Fetch(self._partition, self._offset), CALL_MS, answered)
