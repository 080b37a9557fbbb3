"""Producers and consumers that know as much as real ones, and report to the checker."""

from __future__ import annotations

from typing import Any

from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import ErrorCode
from tests.simulation.checkers import Checker
from tests.simulation.messages import (
    DeleteRecords,
    Fetch,
    Fetched,
    Latest,
    Partition,
    Produce,
    Produced,
    WhoLeads,
)
from tests.simulation.world import Process, World

CALL_MS = 1500


class Client(Process):
    """Finds leaders by a Metadata request to any broker."""

    def __init__(self, world: World, name: str, brokers: list[str], checker: Checker) -> None:
        super().__init__(world, name)
        self.checker = checker
        self._brokers = brokers
        self._leaders: dict[Partition, int] = {}
        self.is_stopping = False

    def find(self, partition: Partition, then: Any) -> None:
        """Call `then` with the name of the leader when it is known."""
        if partition in self._leaders:
            then(f"broker-{self._leaders[partition]}")
            return

        def answered(leader: int | None) -> None:
            if leader is None or leader == NO_BROKER:
                self.after(50, self.find, partition, then)
            else:
                self._leaders[partition] = leader
                then(f"broker-{leader}")

        self.ask(self.world.random.choice(self._brokers), WhoLeads(partition), 500, answered)

    def forget(self, partition: Partition) -> None:
        self._leaders.pop(partition, None)


class Producer(Client):
    """Sends values, `depth` of them at a time.  A send without a clear response may be in the log
    or not; with acks=0 there is no response."""

    def __init__(
        self,
        world: World,
        name: str,
        brokers: list[str],
        checker: Checker,
        partitions: list[Partition],
        acks: int,
        depth: int,
        pace_ms: int,
    ) -> None:
        super().__init__(world, name, brokers, checker)
        self._partitions = partitions
        self._depth = depth
        self._pace_ms = pace_ms
        self.acks = acks
        self.sent = 0
        self.answered_ms = 0
        self.answered: dict[Partition, int] = {}
        """When a partition last accepted a record."""

    def begin(self) -> None:
        for _ in range(self._depth):
            self.after(self.world.random.randint(1, 50), self._next)

    def _next(self) -> None:
        if not self.is_stopping:
            self.sent += 1
            partition = self.world.random.choice(self._partitions)
            value = f"{self.name}/{self.sent}"
            self.find(partition, lambda leader: self._send(partition, value, leader))

    def _send(self, partition: Partition, value: str, leader: str) -> None:
        random = self.world.random
        request = Produce(partition, value, self.acks)
        self.checker.sends(partition, value, self.world.now_ms)
        if self.acks == 0:
            self.tell(leader, request)
            if random.random() < 0.05:
                self.forget(partition)
            self.after(random.randint(5, 2 * self._pace_ms), self._next)
            return

        def answered(answer: Produced | None) -> None:
            if answer is None or answer.code != ErrorCode.NONE:
                self.forget(partition)
                self.after(20, self._next)
                return
            self.answered[partition] = self.world.now_ms
            if self.acks == -1:
                self.checker.acks(partition, value, answer.offset, self.world.now_ms)
            self.after(random.randint(0, self._pace_ms), self._next)

        self.ask(leader, request, CALL_MS, answered)


class Consumer(Client):
    """Reads a partition from its beginning, over and over: from its leader, from the
    replica that the leader names (KIP-392), or from any replica."""

    def __init__(
        self,
        world: World,
        name: str,
        brokers: list[str],
        checker: Checker,
        partition: Partition,
        kind: str,
    ) -> None:
        super().__init__(world, name, brokers, checker)
        self.partition = partition
        self.kind = kind
        self.offset = 0
        self._preferred = NO_BROKER

    def begin(self) -> None:
        self.offset = 0
        self.after(self.world.random.randint(1, 50), self._next)

    def _next(self) -> None:
        random = self.world.random
        if self.kind == "any" and random.random() < 0.7:
            self._fetch(random.choice(self._brokers))
        elif self._preferred != NO_BROKER and random.random() < 0.95:
            self._fetch(f"broker-{self._preferred}")
        else:
            self.find(self.partition, self._ask_leader)

    def _ask_leader(self, leader: str) -> None:
        if self.world.random.random() < 0.1:
            self._look_at_end(leader)
        else:
            self._fetch(leader, is_leader=True)

    def _fetch(self, broker: str, is_leader: bool = False) -> None:
        def answered(answer: Fetched | None) -> None:
            if answer is None or answer.code not in (
                ErrorCode.NONE,
                ErrorCode.OFFSET_OUT_OF_RANGE,
            ):
                self.forget(self.partition)
                self._preferred = NO_BROKER
            elif answer.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                # Only the leader's response counts: another replica may lag behind.
                self._preferred = NO_BROKER
                if is_leader:
                    self.offset = max(answer.log_start_offset, 0)
            else:
                self._take(answer, is_leader)
            self.after(self.world.random.randint(20, 120), self._next)

        request = Fetch(self.partition, self.offset, may_be_sent_elsewhere=self.kind == "nominated")
        self.ask(broker, request, CALL_MS, answered)

    def _take(self, answer: Fetched, is_leader: bool) -> None:
        self.checker.reads(self.partition, self.offset, answer.entries)
        self.offset += len(answer.entries)
        if is_leader:
            self._preferred = answer.preferred
        if self.world.random.random() < 0.02 and not self.is_stopping:
            self.offset = 0

    def _look_at_end(self, leader: str) -> None:
        def answered(answer: Produced | None) -> None:
            if answer is None or answer.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self.forget(self.partition)
            self.after(self.world.random.randint(20, 120), self._next)

        self.ask(leader, Latest(self.partition), CALL_MS, answered)


class Deleter(Client):
    """Deletes the beginnings of partitions (DeleteRecords)."""

    def __init__(
        self,
        world: World,
        name: str,
        brokers: list[str],
        checker: Checker,
        partitions: list[Partition],
    ) -> None:
        super().__init__(world, name, brokers, checker)
        self._partitions = partitions

    def begin(self) -> None:
        for _ in range(3):
            self.after(self.world.random.randint(1, 500), self._next)

    def _next(self) -> None:
        if not self.is_stopping:
            partition = self.world.random.choice(self._partitions)
            self.find(partition, lambda leader: self._delete(partition, leader))

    def _delete(self, partition: Partition, leader: str) -> None:
        random = self.world.random
        committed = self.checker.committed_offset(partition)
        offset = random.choice((-1, -1, random.randint(0, committed)))

        def answered(answer: Produced | None) -> None:
            if answer is None or answer.code != ErrorCode.NONE:
                self.forget(partition)
            self.after(random.choice((30, 200, 800)), self._next)

        self.ask(leader, DeleteRecords(partition, offset), CALL_MS, answered)
