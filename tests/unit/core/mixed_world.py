"""A model of a group that migrates between the protocols, with consumers of both.

In one world all classic consumers are eager, or all are cooperative: they revoke everything before
they join again, or only what they must.  No two consumers may own a partition at the same time, and
committed offsets do not go back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from hightide.broker.groups.re2_patterns import compile_pattern
from hightide.core.groups.classic.classic_group import State
from hightide.core.groups.deadlines import Deadline, Kind
from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.offsets import TopicPartition
from hightide.core.groups.turn import Client, Outcome
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from hightide.wire.records.consumer_offsets import GroupMetadataKey, decode
from hightide.wire.records.consumer_protocol import (
    ConsumerAssignment,
    ConsumerPartitions,
    ConsumerSubscription,
    read,
    write,
)
from tests.unit.core import consumer_world
from tests.unit.core.consumer_world import GROUP, SESSION_MS, Consumer, Owned, Violation, topic_id
from tests.unit.core.group_world import meaning

REBALANCE_MS = 30
RULES = Rules(
    initial_rebalance_delay_ms=3,
    min_session_timeout_ms=1,
    max_size=5,
    new_member_join_timeout_ms=60,
    consumer_session_timeout_ms=SESSION_MS,
    consumer_max_size=5,
    offsets_retention_check_interval_ms=10_000,
)
NO_BROKER: Owned = frozenset()
NAMES = {topic_id(name): name for name in ("t", "u")}
FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION)


@dataclass
class ClassicConsumer:
    """A client of the classic protocol, and its view of the group."""

    name: str
    instance_id: str | None
    keeps: bool
    """Cooperative: it keeps its partitions until it must revoke them."""
    member_id: str = ""
    generation: int = -1
    owned: Owned = NO_BROKER
    target: Owned | None = None
    must_join: bool = True
    must_sync: bool = False
    leads: list[Any] = field(default_factory=list)
    waits: int | None = None
    sent_ms: int = 0
    heard_ms: int = 0
    names: list[str] = field(default_factory=lambda: ["t"])

    def reset(self, *, keeps_id: bool = False) -> None:
        self.member_id = self.member_id if keeps_id else ""
        self.generation, self.owned, self.target, self.waits = -1, NO_BROKER, None, None
        self.must_join, self.must_sync = True, False

    @property
    def subscription(self) -> bytes:
        subscription = ConsumerSubscription(
            topics=self.names,
            owned_partitions=by_name(self.owned),
            generation_id=self.generation,
        )
        return write(subscription, 3 if self.keeps else 0)


class World(consumer_world.World):
    """One group with consumers of both protocols, and one coordinator at a time."""

    rules = RULES

    def __init__(self, seed: int = 0) -> None:
        self.keeps = seed % 3 > 0
        self.joins: list[JoinGroupRequest] = []
        # The positions of consumers, late commits, and the offsets that have been committed.
        self.positions: dict[str, dict[TopicPartition, int]] = {}
        self.late: list[OffsetCommitRequest] = []
        self.progress: dict[TopicPartition, int] = {}
        # A record of a classic group could not be written: the log has another state.
        self.is_dirty = False
        self.before_that: list[Any] = []
        self.was_empty = True
        self.depth = 0
        super().__init__(seed)
        self.consumers = [
            Consumer("c0", None),
            Consumer("c1", "i1"),
            ClassicConsumer("k2", None, self.keeps),
            ClassicConsumer("k3", "i3", self.keeps),
            ClassicConsumer("k4", None, self.keeps),
        ]
        self.epoch = number(self.coordinator)

    def start(self) -> GroupCoordinator:
        coordinator = super().start()
        self.epoch = number(coordinator)
        return coordinator

    # -- the coordinator -------------------------------------------------------------------

    def carry_out(self, outcome: Outcome) -> None:
        self.forget_positions()
        for ticket, response in outcome.answers:
            if ticket not in self.outstanding:
                raise Violation(f"{ticket} is answered twice")
            consumer, request = self.outstanding.pop(ticket)
            self.response_received(ticket, consumer, request, response)
        for decided in outcome.writes:
            is_classic = any(isinstance(key, GroupMetadataKey) for key, _ in decided.records)
            if is_classic and self.refuses:
                self.is_dirty = True
                self.before_that = [write for write, _ in self.in_flight]
        self.depth += 1
        super().carry_out(Outcome([], outcome.writes))
        self.depth -= 1
        if not self.depth:
            self.check_number()

    def commit_batch(self) -> None:
        write, encoded = self.in_flight[0]
        records = [decode(*pair) for pair in encoded]
        is_classic = any(record and isinstance(record.key, GroupMetadataKey) for record in records)
        if is_classic and write not in self.before_that:
            self.is_dirty = False
        super().commit_batch()

    def fail_over(self, kept_count: int) -> None:
        for ticket, response in self.coordinator.resigned().answers:
            consumer, request = self.outstanding.pop(ticket)
            self.response_received(ticket, consumer, request, response)
        if self.outstanding and not self.looks_for_wrong_only:
            raise Violation(f"{self.outstanding} are never answered")
        self.outstanding.clear()
        for _, records in self.in_flight[:kept_count]:
            self.log.append(records)
            consumer_world.replay(self.reader, records)
        self.in_flight.clear()
        self.is_dirty = False
        self.coordinator = self.start()
        self.carry_out(self.coordinator.loaded(self.now_ms))

    def expire_sessions(self) -> None:
        super_consumers = self.consumers
        self.consumers = [
            super_consumer
            for super_consumer in super_consumers
            if isinstance(super_consumer, Consumer)
        ]
        super().expire_sessions()
        self.consumers = super_consumers
        for consumer in self.consumers:
            if isinstance(consumer, ClassicConsumer) and consumer.owned and self.is_late(consumer):
                consumer.reset()

    def is_late(self, consumer: ClassicConsumer) -> bool:
        """Whether the consumer missed a heartbeat or a join, and so knows that it is out."""
        kinds = (Kind.REVOCATION, Kind.MEMBER_JOIN, Kind.MEMBER_SYNC)
        deadlines = [Deadline(kind, GROUP, consumer.member_id) for kind in kinds]
        group = self.coordinator.classic_groups.get(GROUP)
        member = group.members.get(consumer.member_id) if group else None
        if member is not None and group is not None:
            if member.joining is None and group.state is State.PREPARING_REBALANCE:
                deadlines.append(Deadline(Kind.JOIN, GROUP))
            if member.id in group.awaiting_sync:
                deadlines.append(Deadline(Kind.SYNC, GROUP))
        times = [self.coordinator._deadlines.get(deadline) for deadline in deadlines]
        is_out = any(time is not None and time <= self.now_ms for time in times)
        return is_out or self.now_ms - consumer.heard_ms >= SESSION_MS

    def change_topics(self, **counts: int) -> None:
        super().change_topics(**counts)
        for consumer in self.consumers:
            if isinstance(consumer, ClassicConsumer) and consumer.generation >= 0:
                consumer.must_join = True

    # -- classic consumers -----------------------------------------------------------------

    def ask_classic(self, consumer: ClassicConsumer, method: str, request: Any, *how: Any) -> None:
        self.tickets += 1
        self.outstanding[self.tickets] = consumer, request
        consumer.waits = self.tickets
        consumer.sent_ms = self.now_ms
        ask = getattr(self.coordinator, method)
        self.carry_out(ask(self.tickets, request, *how, self.now_ms))

    def join(self, consumer: ClassicConsumer, version: int = 9) -> None:
        if not consumer.keeps:
            consumer.owned = NO_BROKER
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=consumer.member_id,
            group_instance_id=consumer.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="one", metadata=consumer.subscription)],
        )
        self.joins.append(request)
        self.ask_classic(consumer, "join_asked", request, version, Client(consumer.name, "/host"))

    def deliver_late_join(self, consumer: ClassicConsumer) -> None:
        """Deliver a copy of a JoinGroup of an earlier generation, when the consumer owned less.

        No client reads the response.
        """
        late = [
            join
            for join in self.joins
            if join.member_id == consumer.member_id
            and 0 <= subscription_of(join).generation_id < consumer.generation
        ]
        if late and self.coordinator.consumer_groups.get(GROUP) is not None:
            self.tickets += 1
            request = min(late, key=lambda join: sum(len(o.partitions) for o in owned_by(join)))
            self.outstanding[self.tickets] = consumer, request
            client = Client(consumer.name, "/host")
            join = self.coordinator.join_asked
            self.carry_out(join(self.tickets, request, 9, client, self.now_ms))

    def sync(self, consumer: ClassicConsumer) -> None:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=consumer.generation,
            member_id=consumer.member_id,
            group_instance_id=consumer.instance_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in self.leader_assignments(consumer).items()
            ],
        )
        self.ask_classic(consumer, "sync_asked", request)

    def leader_assignments(self, leader: ClassicConsumer) -> dict[str, bytes]:
        """Compute a leader's assignment: a partition moves only after its owner has revoked it."""
        subscriptions = {
            member_id.member_id: read(ConsumerSubscription, member_id.metadata)
            for member_id in leader.leads
        }
        owners: dict[tuple[str, int], str] = {}
        for member_id in sorted(
            subscriptions, key=lambda member_id: subscriptions[member_id].generation_id
        ):
            for owned in subscriptions[member_id].owned_partitions:
                owners |= {(owned.topic, index): member_id for index in owned.partitions}
        shares: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in subscriptions}
        for name, topic in self.topics.items():
            takers = sorted(key for key in subscriptions if name in subscriptions[key].topics)
            for index in range(topic.partition_count if takers else 0):
                taker = takers[index % len(takers)]
                if owners.get((name, index), taker) == taker:
                    shares[taker].setdefault(name, []).append(index)
        return {key: write(assignment(share), 3) for key, share in shares.items()}

    def heartbeat(self, consumer: ClassicConsumer) -> None:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=consumer.generation,
            member_id=consumer.member_id,
            group_instance_id=consumer.instance_id,
        )
        self.ask_classic(consumer, "heartbeat_asked", request)

    def leave_classic(self, consumer: ClassicConsumer, *, by_instance: bool = False) -> None:
        identity = MemberIdentity(
            member_id="" if by_instance else consumer.member_id,
            group_instance_id=consumer.instance_id,
        )
        consumer.reset()
        request = LeaveGroupRequest(group_id=GROUP, members=[identity])
        self.ask_classic(consumer, "leave_asked", request, 5)
        consumer.waits = None

    def make_progress_classic(self, consumer: ClassicConsumer) -> None:
        """Take the consumer's next step."""
        if consumer.target is not None and consumer.owned - consumer.target:
            self.give_up(consumer)
        elif consumer.must_join:
            self.join(consumer)
        elif consumer.must_sync:
            self.sync(consumer)
        else:
            self.heartbeat(consumer)

    def give_up(self, consumer: Any) -> None:
        if isinstance(consumer, ClassicConsumer):
            if consumer.target is not None and consumer.owned - consumer.target:
                consumer.owned &= consumer.target
                consumer.must_join = True
        else:
            super().give_up(consumer)

    # -- responses -------------------------------------------------------------------------

    def response_received(self, ticket: int, consumer: Any, request: Any, response: Any) -> None:
        if consumer is None or consumer.waits != ticket:
            return
        if isinstance(consumer, Consumer):
            if consumer.member_id == request.member_id:
                consumer.waits = None
                self.answered(consumer, request, response)
                # Clients treat this error as fatal, and must be restarted.
                if response.error_code == ErrorCode.GROUP_ID_NOT_FOUND and consumer.epoch:
                    consumer.restart_as(consumer.number + 1)
            return
        consumer.waits = None
        if self.now_ms - consumer.sent_ms >= SESSION_MS:
            consumer.reset()
            return
        error = ErrorCode(response.error_code)
        if error in FENCED:
            is_illegal = error is ErrorCode.ILLEGAL_GENERATION
            consumer.reset(keeps_id=is_illegal)
        elif error is ErrorCode.MEMBER_ID_REQUIRED:
            consumer.member_id = response.member_id
        elif error is not ErrorCode.NONE:
            is_heartbeat = isinstance(response, HeartbeatResponse)
            # A later coordinator may know more than the one that sent this.
            if not is_heartbeat or error is ErrorCode.REBALANCE_IN_PROGRESS:
                consumer.must_join = True
        else:
            consumer.heard_ms = consumer.sent_ms
            self.accepted(consumer, response)

    def accepted(self, consumer: ClassicConsumer, response: Any) -> None:
        match response:
            case JoinGroupResponse():
                consumer.member_id = response.member_id
                consumer.generation = response.generation_id
                consumer.must_join, consumer.must_sync = False, True
                is_leader = response.leader == response.member_id
                consumer.leads = response.members if is_leader else []
            case SyncGroupResponse():
                consumer.must_sync = False
                found = read(ConsumerAssignment, response.assignment).assigned_partitions
                consumer.target = frozenset(
                    (topic_id(topic.topic), index) for topic in found for index in topic.partitions
                )
                self.take(consumer, consumer.owned | consumer.target)

    # -- progress --------------------------------------------------------------------------

    def forget_positions(self) -> None:
        """A consumer that loses a partition starts at the committed offset if it gets it again."""
        for consumer in self.consumers:
            owned = {TopicPartition(NAMES[topic], index) for topic, index in consumer.owned}
            known = self.positions.get(consumer.name, {})
            self.positions[consumer.name] = {key: known[key] for key in known if key in owned}

    def work(self, consumer: Any, count: int, *, is_late: bool) -> None:
        """Consume some of the owned partitions, and commit; the commit may be late."""
        self.forget_positions()
        positions = self.positions[consumer.name]
        for topic, index in consumer.owned:
            partition = TopicPartition(NAMES[topic], index)
            found = positions.get(partition, self.committed(partition))
            if found is not None:
                positions[partition] = found + count
        if not positions:
            return
        is_classic = isinstance(consumer, ClassicConsumer)
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=consumer.generation if is_classic else consumer.epoch,
            member_id=consumer.member_id,
            group_instance_id=consumer.instance_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=partition.topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition.partition,
                            committed_offset=position,
                            committed_metadata=None,
                        )
                    ],
                )
                for partition, position in positions.items()
            ],
        )
        # Requests of one client do not overtake each other.
        self.late = [late for late in self.late if late.member_id != request.member_id]
        if is_late:
            self.late.append(request)
        else:
            self.commit(request)

    def commit(self, request: OffsetCommitRequest) -> None:
        self.tickets += 1
        self.outstanding[self.tickets] = None, request
        self.carry_out(self.coordinator.commit_asked(self.tickets, request, 9, self.now_ms))

    def committed(self, partition: TopicPartition) -> int | None:
        topic = OffsetFetchRequestTopics(
            name=partition.topic, partition_indexes=[partition.partition]
        )
        request = OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
        found = self.coordinator.fetch_asked(request, require_stable=True).topics[0].partitions[0]
        return None if found.error_code else max(0, found.committed_offset)

    def check_progress(self) -> None:
        """I19."""
        for partition, known in self.coordinator.offsets.of(GROUP).items():
            if known.offset < self.progress.get(partition, 0):
                raise Violation(f"{partition} went back to {known.offset}")
            self.progress[partition] = known.offset

    # -- invariants ------------------------------------------------------------------------

    def check_number(self) -> None:
        """Epochs and generations grow, unless an empty group was replaced by another."""
        found = number(self.coordinator)
        if 0 < found < self.epoch and not self.was_empty:
            raise Violation(f"{found} after {self.epoch}")
        self.epoch = found
        self.was_empty = not self.member_ids()

    def member_ids(self) -> set[str]:
        found = self.coordinator.administration.find(GROUP)
        return {*found.members} if found else set()

    def check(self) -> None:
        self.check_number()
        self.check_progress()
        if not self.looks_for_wrong_only:
            self.coordinator.check()
        if not self.in_flight and not self.is_dirty:
            self.check_log()
        group = self.group()
        if group is not None and group.state.value == "Stable":
            held = [index for member in group.members.values() for index in member.assigned]
            counts = [topic.partition_count for topic in group.topics.values()]
            if len(held) != sum(counts):
                raise Violation(f"not all partitions are assigned: {held}")

    def check_log(self) -> None:
        """The committed log means the same as the state of the coordinator."""
        ours, theirs = self.coordinator, self.reader
        if {*ours.offsets.of(GROUP)} != {*theirs.offsets.of(GROUP)}:
            raise Violation("the log has other offsets")
        if ours.consumer_groups.groups != theirs.consumer_groups.groups:
            raise Violation("the log has another group")
        classic = ours.classic_groups.get(GROUP)
        self.check_compacted()
        is_settled = classic is not None and classic.state in (State.STABLE, State.EMPTY)
        if is_settled and meaning(classic) != meaning(theirs.classic_groups.get(GROUP)):
            raise Violation(f"the log says {theirs.classic_groups.get(GROUP)}, not {classic}")

    def check_compacted(self) -> None:
        """The compacted log means the same, with its tombstones and without."""
        latest: dict[bytes, bytes | None] = {}
        for key, value in (pair for batch in self.log for pair in batch):
            latest.pop(key, None)
            latest[key] = value
        for has_tombstones in (True, False):
            left = [item for item in latest.items() if has_tombstones or item[1] is not None]
            reader = GroupCoordinator(self.rules, Random(0), compile_pattern)
            consumer_world.replay(reader, left)
            if state_of(reader) != state_of(self.reader):
                raise Violation(f"compacted, the log says {state_of(reader)}")

    def make_progress(self, consumers: list[Any]) -> None:
        for consumer in consumers:
            if consumer.waits is not None:
                continue
            if isinstance(consumer, ClassicConsumer):
                self.make_progress_classic(consumer)
            else:
                self.give_up(consumer)
                self.beat(consumer)
        while self.in_flight:
            self.commit_batch()

    def switch(self, which: int) -> None:
        """Kill a consumer; it comes back with the other protocol."""
        old = self.consumers[which]
        new: Any = ClassicConsumer(old.name, old.instance_id, self.keeps, names=old.names)
        if isinstance(old, ClassicConsumer):
            new = Consumer(old.name, old.instance_id, number=self.tickets + 1, names=old.names)
        self.consumers[which] = new

    def heal(self) -> None:
        """Without further faults, the consumers that stay own all partitions."""
        self.refuses = False
        newer = [consumer for consumer in self.consumers if isinstance(consumer, Consumer)]
        classic = [consumer for consumer in self.consumers if isinstance(consumer, ClassicConsumer)]
        staying: list[Any] = self.random.choice([newer, classic, self.consumers]) or self.consumers
        for consumer in self.consumers:
            if consumer not in staying:
                if isinstance(consumer, Consumer):
                    self.leave(consumer, -1)
                else:
                    self.leave_classic(consumer)
        if self.random.random() < 0.5:
            self.fail_over(len(self.in_flight))
        for _ in range(150):
            self.make_progress(staying)
            self.pass_time(3)
            self.check()
            if self.is_converged(staying):
                return
        raise Violation(f"the group does not become stable: {staying} {self.group()}")

    def is_converged(self, staying: list[Any]) -> bool:
        wanted = {
            (topic_id(name), index)
            for name in {name for consumer in staying for name in consumer.names}
            for index in range(self.topics[name].partition_count if name in self.topics else 0)
        }
        owned = [partition for consumer in staying for partition in consumer.owned]
        knows = {consumer.member_id for consumer in staying} == self.member_ids()
        is_idle = not any(getattr(consumer, "must_join", False) for consumer in staying)
        return knows and is_idle and len(owned) == len(wanted) and {*owned} == wanted


def number(coordinator: GroupCoordinator) -> int:
    """Return the group epoch, or the generation."""
    classic, group = coordinator.classic_groups.get(GROUP), coordinator.consumer_groups.get(GROUP)
    return classic.generation if classic else group.epoch if group else 0


def state_of(coordinator: GroupCoordinator) -> Any:
    classic = {key: meaning(group) for key, group in coordinator.classic_groups.items()}
    return coordinator.consumer_groups.groups, classic


def by_name(partitions: Owned) -> list[ConsumerPartitions]:
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(NAMES[topic], []).append(index)
    return [ConsumerPartitions(topic=topic, partitions=of) for topic, of in found.items()]


def assignment(share: dict[str, list[int]]) -> ConsumerAssignment:
    partitions = [ConsumerPartitions(topic=name, partitions=of) for name, of in share.items()]
    return ConsumerAssignment(assigned_partitions=partitions)


def owned_by(request: JoinGroupRequest) -> list[ConsumerPartitions]:
    return subscription_of(request).owned_partitions


def subscription_of(request: JoinGroupRequest) -> ConsumerSubscription:
    return read(ConsumerSubscription, request.protocols[0].metadata)
