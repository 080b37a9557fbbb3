"""A model of a consumer group (KIP-848): consumers, a log that commits late, time, failover.

A consumer owns a partition from the response that assigns it until it revokes the partition.  A
partition must never have two owners among the consumers whose sessions have not expired.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hightide.broker.groups.re2_patterns import compile_pattern
from hightide.core.groups.consumer.consumer_group import ConsumerGroup, GroupState, Topic
from hightide.core.groups.deadlines import Deadline, Kind
from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.turn import Client, Outcome, Write
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from hightide.wire.records.consumer_offsets import decode, encode

GROUP = "g"
SESSION_MS = 50
RULES = Rules(
    consumer_session_timeout_ms=SESSION_MS,
    consumer_max_size=4,
    offsets_retention_check_interval_ms=10_000,
)
Owned = frozenset[tuple[uuid.UUID, int]]


class Violation(AssertionError):
    """A response or a state that breaks an invariant."""


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def topics(**counts: int) -> dict[str, Topic]:
    return {name: Topic(topic_id(name), count) for name, count in counts.items()}


@dataclass
class Consumer:
    """A client, and its view of the group."""

    name: str
    instance_id: str | None
    number: int = 0
    epoch: int = 0
    owned: Owned = frozenset()
    target: Owned | None = None
    waits: int | None = None
    sent_ms: int = 0
    heard_ms: int = 0
    """When it sent the last heartbeat that was answered: its session starts there."""
    says_all: bool = True
    names: list[str] = field(default_factory=lambda: ["t"])
    regex: str | None = None

    @property
    def member_id(self) -> str:
        return f"{self.name}-{self.number}"

    def restart_as(self, number: int | None = None) -> None:
        self.number = self.number if number is None else number
        self.epoch, self.owned, self.target, self.waits = 0, frozenset(), None, None
        self.says_all = True


class World:
    """One group, and one coordinator at a time."""

    looks_for_wrong_only = False
    rules = RULES

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.now_ms = 1000
        self.topics = topics(t=4, u=2)
        self.log: list[list[tuple[bytes, bytes | None]]] = []
        self.in_flight: list[tuple[Write, list[tuple[bytes, bytes | None]]]] = []
        self.refuses = False
        self.tickets = 0
        self.outstanding: dict[int, tuple[Any, Any]] = {}
        self.consumers: list[Any] = [
            Consumer(f"c{n}", f"i{n}" if n % 2 else None) for n in range(5)
        ]
        self.sent: list[ConsumerGroupHeartbeatRequest] = []
        self.epoch = 0
        self.reader = GroupCoordinator(self.rules, Random(0), compile_pattern)
        self.coordinator = self.start()

    def start(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(
            self.rules, Random(self.random.getrandbits(32)), compile_pattern
        )
        for batch in self.log:
            replay(coordinator, batch)
        coordinator.topics_changed(self.topics)
        self.epoch = epoch_of(coordinator)
        return coordinator

    def group(self) -> ConsumerGroup | None:
        return self.coordinator.consumer_groups.get(GROUP)

    # -- the coordinator -------------------------------------------------------------------

    def carry_out(self, outcome: Outcome) -> None:
        for ticket, response in outcome.answers:
            if ticket not in self.outstanding:
                raise Violation(f"{ticket} is answered twice")
            consumer, request = self.outstanding.pop(ticket)
            if consumer.waits == ticket and consumer.member_id == request.member_id:
                consumer.waits = None
                self.answered(consumer, request, response)
        for write in outcome.writes:
            if self.refuses:
                error = ErrorCode.NOT_ENOUGH_REPLICAS
                self.carry_out(self.coordinator.write_failed(write, error, self.now_ms))
            else:
                self.in_flight.append((write, [encode(record) for record in write.records]))

    def commit_batch(self) -> None:
        write, records = self.in_flight.pop(0)
        self.log.append(records)
        replay(self.reader, records)
        self.carry_out(self.coordinator.written(write, 0, self.now_ms))

    def fail_over(self, kept_count: int) -> None:
        for ticket, _ in self.coordinator.resigned().answers:
            consumer, _ = self.outstanding.pop(ticket)
            if consumer.waits == ticket:
                consumer.waits, consumer.says_all = None, True
        if self.outstanding and not self.looks_for_wrong_only:
            raise Violation(f"{self.outstanding} are never answered")
        self.outstanding.clear()
        for _, records in self.in_flight[:kept_count]:
            self.log.append(records)
            replay(self.reader, records)
        self.in_flight.clear()
        self.coordinator = self.start()
        self.carry_out(self.coordinator.loaded(self.now_ms))

    def pass_time(self, passed_ms: int) -> None:
        until_ms = self.now_ms + passed_ms
        while (at_ms := self.coordinator.deadline_ms) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.expire_sessions()
            self.carry_out(self.coordinator.time_passed(self.now_ms))
        self.now_ms = until_ms
        self.expire_sessions()

    def expire_sessions(self) -> None:
        """Reset consumers that missed a heartbeat or a revocation: they know that they are out."""
        for consumer in self.consumers:
            revocation = Deadline(Kind.REVOCATION, GROUP, consumer.member_id)
            at_ms = self.coordinator._deadlines.get(revocation)
            is_late = at_ms is not None and at_ms <= self.now_ms
            if consumer.owned and (is_late or self.now_ms - consumer.heard_ms >= SESSION_MS):
                consumer.restart_as(consumer.number + 1)

    def change_topics(self, **counts: int) -> None:
        self.topics = topics(**counts)
        self.coordinator.topics_changed(self.topics)

    # -- consumers -------------------------------------------------------------------------

    def beat(self, consumer: Consumer, epoch: int | None = None) -> None:
        says_all = consumer.says_all or consumer.epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=consumer.member_id,
            member_epoch=consumer.epoch if epoch is None else epoch,
            instance_id=consumer.instance_id,
            rebalance_timeout_ms=30 if says_all else -1,
            subscribed_topic_names=consumer.names if says_all else None,
            subscribed_topic_regex=consumer.regex if says_all else None,
            topic_partitions=owned(consumer.owned),
        )
        self.sent.append(request)
        consumer.sent_ms = self.now_ms
        consumer.waits = self.tickets + 1
        self.ask(consumer, request)

    def ask(self, consumer: Consumer, request: ConsumerGroupHeartbeatRequest) -> None:
        self.tickets += 1
        self.outstanding[self.tickets] = consumer, request
        client = Client(consumer.name, "/host")
        heartbeat = self.coordinator.consumer_heartbeat_asked
        self.carry_out(heartbeat(self.tickets, request, client, self.now_ms))

    def deliver_late(self, consumer: Consumer, random: Random) -> None:
        """Deliver a copy of a request that the consumer sent in an earlier epoch."""
        late = [
            request
            for request in self.sent
            if request.member_id == consumer.member_id and 0 < request.member_epoch < consumer.epoch
        ]
        if late:
            self.ask(consumer, random.choice(late))

    def answered(
        self,
        consumer: Consumer,
        request: ConsumerGroupHeartbeatRequest,
        response: ConsumerGroupHeartbeatResponse,
    ) -> None:
        if request.member_epoch < 0:
            return
        if self.now_ms - consumer.sent_ms >= SESSION_MS:
            consumer.restart_as(consumer.number + 1)  # The session has expired.
        elif response.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            consumer.restart_as(consumer.number + 1)
        elif response.error_code:
            consumer.says_all = True
            if consumer.epoch == 0:
                consumer.number += 1
        else:
            consumer.heard_ms, consumer.says_all = consumer.sent_ms, False
            consumer.epoch = response.member_epoch
            if response.assignment is not None:
                consumer.target = frozenset(
                    (topic_partition.topic_id, index)
                    for topic_partition in response.assignment.topic_partitions
                    for index in topic_partition.partitions
                )
                # Revoking takes time; new partitions are owned at once.
                self.take(consumer, consumer.owned | consumer.target)

    def take(self, consumer: Any, owned: Owned) -> None:
        consumer.owned = owned
        for other in self.consumers:
            if other is not consumer and other.owned & owned:
                raise Violation(f"{consumer} and {other} own {other.owned & owned}")

    def give_up(self, consumer: Consumer) -> None:
        """Revoke what the consumer must not own any more."""
        if consumer.target is not None:
            consumer.owned &= consumer.target

    def leave(self, consumer: Consumer, epoch: int) -> None:
        member_epoch = epoch if consumer.instance_id else -1
        consumer.owned = frozenset()
        if consumer.epoch:
            self.beat(consumer, member_epoch)
        consumer.restart_as(consumer.number + 1)

    def restart(self, consumer: Consumer) -> None:
        """Kill a consumer; it comes back as a new member."""
        consumer.restart_as(consumer.number + 1)

    # -- invariants ------------------------------------------------------------------------

    def check(self) -> None:
        if not self.looks_for_wrong_only:
            self.coordinator.check()
        epoch = epoch_of(self.coordinator)
        if epoch < self.epoch and epoch:
            raise Violation(f"group epoch {epoch} after {self.epoch}")
        self.epoch = epoch
        if (
            not self.in_flight
            and self.reader.consumer_groups.groups != self.coordinator.consumer_groups.groups
        ):
            raise Violation("the log has another group")
        group = self.group()
        if group is not None and group.state is GroupState.STABLE:
            held = [index for member in group.members.values() for index in member.assigned]
            wanted = [
                (topic.id, index)
                for topic in group.topics.values()
                for index in range(topic.partition_count)
            ]
            if sorted(held) != sorted(wanted):
                raise Violation(f"not all partitions are assigned: {held}")

    def make_progress(self, consumers: list[Consumer]) -> None:
        for consumer in consumers:
            if consumer.waits is None:
                self.give_up(consumer)
                self.beat(consumer)
        while self.in_flight:
            self.commit_batch()

    def heal(self) -> None:
        """Without further faults, the consumers that stay own all partitions, evenly."""
        self.refuses = False
        for consumer in self.consumers[3:]:
            self.leave(consumer, -1)
        staying = self.consumers[:3]
        for _ in range(80):
            self.make_progress(staying)
            self.pass_time(5)
            self.check()
            group = self.group()
            if group is not None and group.state is GroupState.STABLE and len(group.members) == 3:
                self.make_progress(staying)
                self.make_progress(staying)
                sizes = [len(consumer.owned) for consumer in staying]
                if sum(sizes) == sum(topic.partition_count for topic in group.topics.values()):
                    return
        raise Violation(f"the group does not become stable: {staying} {self.group()}")


def epoch_of(coordinator: GroupCoordinator) -> int:
    group: Any = coordinator.consumer_groups.get(GROUP)
    return group.epoch if group else 0


def owned(partitions: Owned) -> list[OwnedTopicPartitions]:
    found: dict[uuid.UUID, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return [OwnedTopicPartitions(topic_id=topic, partitions=of) for topic, of in found.items()]


def replay(coordinator: GroupCoordinator, records: list[tuple[bytes, bytes | None]]) -> None:
    for key, value in records:
        record = decode(key, value)
        assert record is not None
        coordinator.replay(record, 0)
