"""A model of a classic group: consumers, a log that commits late, time, failover.

The consumers behave as clients do, except that each may be slow, restart, or keep working in an old
generation.  The world records every response and checks that they are consistent:

- I18: in a generation a partition has one owner, across coordinators
- I19: the committed offsets of a group do not go back
- I20: generations grow, and a stable group has all partitions assigned
- no request is answered twice, and none before what the answer says is committed
- the committed log means the same as the state of the coordinator
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from hightide.broker.groups.re2_patterns import compile_pattern
from hightide.core.groups.classic.classic_group import ClassicGroup, State
from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.offsets import TopicPartition
from hightide.core.groups.turn import Client, Outcome, Write
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    DeleteGroupsRequest,
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
from hightide.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from hightide.wire.records.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    decode,
    encode,
)

GROUP = "g"
TOPIC = "t"
PARTITIONS = range(4)
RULES = Rules(
    initial_rebalance_delay_ms=5,
    min_session_timeout_ms=1,
    max_session_timeout_ms=1000,
    max_size=4,
    offsets_retention_ms=500,
    offsets_retention_check_interval_ms=50,
    new_member_join_timeout_ms=60,
)


class Violation(AssertionError):
    """A response or a state that breaks an invariant."""


def subscription(*topics: str) -> bytes:
    """Encode a consumer's subscription in version 0 of its protocol."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


@dataclass
class Consumer:
    """A client, and its view of the group."""

    name: str
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    waits: int | None = None
    must_join: bool = True
    leads: list[str] | None = None
    owned: list[int] | None = None
    positions: dict[int, int] = field(default_factory=dict)

    def reset(self) -> None:
        self.member_id, self.generation = "", -1
        self.forget()

    def forget(self) -> None:
        self.waits, self.leads, self.owned, self.must_join = None, None, None, True
        self.positions.clear()

    @property
    def identity(self) -> str:
        return self.instance_id or self.member_id


@dataclass
class Batch:
    """A batch that is appended and not committed yet."""

    write: Write | None
    records: list[tuple[bytes, bytes | None]]
    producer_id: int = -1
    is_commit: bool | None = None
    """For a marker: whether the transaction commits."""
    groups: set[str] = field(default_factory=set)


class World:
    """One group, and one coordinator at a time."""

    looks_for_wrong_only = False

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.now_ms = 1000
        self.log: list[Batch] = []
        self.in_flight: list[Batch] = []
        self.refuses = False
        self.tickets = 0
        self.outstanding: dict[int, tuple[Consumer | None, Any]] = {}
        self.consumers = [Consumer(f"c{n}", f"i{n}" if n % 2 else None) for n in range(5)]
        # Assignments sent: (incarnation of the group, generation) → owner → partitions.
        self.shares: dict[tuple[int, int], dict[str, list[int]]] = {}
        self.incarnation = self.checked_incarnation = 0
        self.generation = 0
        self.late: list[OffsetCommitRequest] = []
        self.progress: dict[TopicPartition, int] = {}
        self.is_dirty = False
        # A coordinator that only replays the log.
        self.reader = GroupCoordinator(RULES, Random(0), compile_pattern)
        self.read_offset = 0
        self.coordinator = self.start()

    def start(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(RULES, Random(self.random.getrandbits(32)), compile_pattern)
        offset = 0
        for batch in self.log:
            offset = replay(coordinator, batch, offset)
        group = coordinator.classic_groups.get(GROUP)
        self.generation = group.generation if group else 0
        return coordinator

    def append(self, batch: Batch) -> int:
        """Append a batch to the committed log."""
        base_offset = self.read_offset
        self.log.append(batch)
        self.read_offset = replay(self.reader, batch, base_offset)
        return base_offset

    # -- the coordinator -------------------------------------------------------------------

    def ask(self, consumer: Consumer | None, method: str, request: Any, *how: Any) -> None:
        self.tickets += 1
        self.outstanding[self.tickets] = consumer, request
        if consumer is not None and method in ("join_asked", "sync_asked"):
            consumer.waits = self.tickets
        ask = getattr(self.coordinator, method)
        self.carry_out(ask(self.tickets, request, *how, self.now_ms))

    def carry_out(self, outcome: Outcome) -> None:
        for ticket, response in outcome.answers:
            if ticket not in self.outstanding:
                raise Violation(f"{ticket} is answered twice")
            consumer, request = self.outstanding.pop(ticket)
            self.answered(ticket, consumer, request, response)
        for write in outcome.writes:
            if self.refuses:
                self.is_dirty = True
                error = ErrorCode.NOT_ENOUGH_REPLICAS
                self.carry_out(self.coordinator.write_failed(write, error, self.now_ms))
                continue
            records = [encode(record) for record in write.records]
            groups = {key.group for key, _ in write.records if isinstance(key, GroupMetadataKey)}
            self.in_flight.append(Batch(write, records, write.producer_id, groups=groups))

    def commit_batch(self) -> None:
        """Commit the oldest batch in flight."""
        batch = self.in_flight.pop(0)
        base_offset = self.append(batch)
        if batch.is_commit is not None:
            ended = self.coordinator.transaction_ended(
                batch.producer_id, batch.is_commit, self.now_ms
            )
            self.carry_out(ended)
            return
        assert batch.write is not None
        for key, value in (decode(*record) or (None, None) for record in batch.records):
            if isinstance(key, GroupMetadataKey):
                self.is_dirty = False
                if value is None:
                    self.incarnation += 1
        self.carry_out(self.coordinator.written(batch.write, base_offset, self.now_ms))

    def fail_over(self, kept_count: int) -> None:
        """Move to another broker, which has some of the uncommitted batches."""
        for ticket, response in self.coordinator.resigned().answers:
            consumer, request = self.outstanding.pop(ticket)
            self.answered(ticket, consumer, request, response)
        if self.outstanding and not self.looks_for_wrong_only:
            raise Violation(f"{self.outstanding} are never answered")
        for batch in self.in_flight[:kept_count]:
            self.append(batch)
            for key, value in (decode(*record) or (None, None) for record in batch.records):
                if isinstance(key, GroupMetadataKey) and value is None:
                    self.incarnation += 1
        self.in_flight.clear()
        self.is_dirty = False
        self.coordinator = self.start()
        self.note_progress()
        self.carry_out(self.coordinator.loaded(self.now_ms))

    def pass_time(self, passed_ms: int) -> None:
        until_ms = self.now_ms + passed_ms
        while (at_ms := self.coordinator.deadline_ms) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.carry_out(self.coordinator.time_passed(self.now_ms))
        self.now_ms = until_ms

    # -- consumers -------------------------------------------------------------------------

    def join(self, consumer: Consumer, version: int, topics: tuple[str, ...] = (TOPIC,)) -> None:
        names = ("range", "roundrobin") if consumer.name < "c3" else ("roundrobin", "sticky")
        self.ask(
            consumer,
            "join_asked",
            JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=30,
                rebalance_timeout_ms=40,
                member_id=consumer.member_id,
                group_instance_id=consumer.instance_id,
                protocol_type="consumer",
                protocols=[
                    JoinGroupRequestProtocol(name=name, metadata=subscription(*topics))
                    for name in names
                ],
            ),
            version,
            Client(consumer.name, "/host"),
        )

    def sync(self, consumer: Consumer, rotation: int = 0) -> None:
        assignments = []
        if consumer.leads is not None:
            shares: dict[str, list[int]] = {member_id: [] for member_id in consumer.leads}
            for partition in PARTITIONS:
                owner = consumer.leads[(partition + rotation) % len(consumer.leads)]
                shares[owner].append(partition)
            assignments = [
                SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(share))
                for member_id, share in shares.items()
            ]
        self.ask(
            consumer,
            "sync_asked",
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=consumer.generation,
                member_id=consumer.member_id,
                group_instance_id=consumer.instance_id,
                assignments=assignments,
            ),
        )

    def heartbeat(self, consumer: Consumer) -> None:
        self.ask(
            consumer,
            "heartbeat_asked",
            HeartbeatRequest(
                group_id=GROUP,
                generation_id=consumer.generation,
                member_id=consumer.member_id,
                group_instance_id=consumer.instance_id,
            ),
        )

    def leave(self, consumer: Consumer) -> None:
        identity = MemberIdentity(
            member_id=consumer.member_id, group_instance_id=consumer.instance_id
        )
        request = LeaveGroupRequest(group_id=GROUP, members=[identity])
        self.ask(None, "leave_asked", request, 5)
        consumer.reset()

    def work(self, consumer: Consumer, count: int, is_late: bool = False) -> None:
        """Consume some of the owned partitions, and commit; the commit may be late."""
        for partition in consumer.owned or ():
            if partition not in consumer.positions:
                found = self.committed(partition)
                if found is None:
                    continue  # The position is unknown, so nothing can be read.
                consumer.positions[partition] = found
            consumer.positions[partition] += count
        if not consumer.positions:
            return
        request = commit(consumer)
        # Requests of one client do not overtake each other.
        self.late = [late for late in self.late if sender(late) != sender(request)]
        if is_late:
            self.late.append(request)
        else:
            self.ask(None, "commit_asked", request, 8)

    def deliver(self, which: int) -> None:
        if self.late:
            self.ask(None, "commit_asked", self.late.pop(which % len(self.late)), 8)

    def committed(self, partition: int) -> int | None:
        topic = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[partition])
        fetch = OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
        found = self.coordinator.fetch_asked(fetch, require_stable=True).topics[0].partitions[0]
        if found.error_code:
            return None
        return max(0, found.committed_offset)

    def delete_group(self) -> None:
        self.ask(None, "delete_groups_asked", DeleteGroupsRequest(groups_names=[GROUP]))

    def commit_in_transaction(self, producer_id: int, offset: int) -> None:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=producer_id % 2, committed_offset=offset, committed_metadata=None
        )
        topics = [TxnOffsetCommitRequestTopic(name="other", partitions=[partition])]
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=GROUP,
            producer_id=producer_id,
            producer_epoch=0,
            topics=topics,
        )
        self.ask(None, "transactional_commit_asked", request)

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        self.in_flight.append(Batch(None, [], producer_id, is_commit))

    # -- responses -------------------------------------------------------------------------

    def answered(self, ticket: int, consumer: Consumer | None, request: Any, response: Any) -> None:
        if isinstance(response, SyncGroupResponse) and not response.error_code:
            self.note_assignment(request, list(response.assignment))
        if consumer is None:
            return
        match response:
            case JoinGroupResponse() if consumer.waits == ticket:
                consumer.waits = None
                self.join_answered(consumer, response)
            case SyncGroupResponse() if consumer.waits == ticket:
                consumer.waits = None
                self.sync_answered(consumer, response)
            case HeartbeatResponse(error_code=code) if request.member_id == consumer.member_id:
                if code == ErrorCode.REBALANCE_IN_PROGRESS:
                    consumer.must_join = True
                elif code != ErrorCode.NONE:
                    consumer.reset()

    def join_answered(self, consumer: Consumer, response: JoinGroupResponse) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            consumer.member_id = response.member_id
        elif response.error_code:
            consumer.reset()
        else:
            consumer.forget()
            consumer.must_join = False
            consumer.member_id = response.member_id
            consumer.generation = response.generation_id
            if response.leader == consumer.member_id and not response.skip_assignment:
                consumer.leads = [member.member_id for member in response.members]

    def sync_answered(self, consumer: Consumer, response: SyncGroupResponse) -> None:
        if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            consumer.must_join = True
        elif response.error_code:
            consumer.reset()
        else:
            consumer.owned = list(response.assignment)
            consumer.leads = None

    def note_assignment(self, request: SyncGroupRequest, share: list[int]) -> None:
        """Record the assignment that a member got."""
        assignments = self.shares.setdefault((self.incarnation, request.generation_id), {})
        owner = request.group_instance_id or request.member_id
        if assignments.setdefault(owner, share) != share:
            raise Violation(f"{owner} got {assignments[owner]} and then {share}")
        owned = [share for shares in assignments.values() for share in shares]
        if len(owned) != len(set(owned)):
            raise Violation(f"two owners: {assignments}")
        if not any(is_assignment_of(batch, request, share) for batch in self.log):
            raise Violation(f"{owner} got {share} before it was committed")

    def note_progress(self) -> None:
        """I19."""
        committed = self.coordinator.offsets.of(GROUP)
        for partition, known in committed.items():
            if partition.topic == TOPIC:
                if known.offset < self.progress.get(partition, 0):
                    raise Violation(f"{partition} went back to {known.offset}")
                self.progress[partition] = known.offset
        # A deleted group starts over.
        for partition in self.progress.keys() - committed.keys():
            del self.progress[partition]

    # -- invariants ------------------------------------------------------------------------

    def check(self) -> None:
        self.note_progress()
        group = self.coordinator.classic_groups.get(GROUP)
        self.check_generation(group.generation if group else 0)
        if group is not None and group.state is State.STABLE:
            owned = sorted(
                index for member in group.members.values() for index in member.assignment
            )
            if owned != [*PARTITIONS]:
                raise Violation(f"not all partitions are assigned: {owned}")
        if not self.looks_for_wrong_only:
            self.coordinator.check()
        self.check_log()

    def check_generation(self, generation: int) -> None:
        """The generation grows, unless the group was deleted and another was created."""
        is_another = self.incarnation != self.checked_incarnation or self.is_dirty
        is_being_deleted = any(GROUP in batch.groups for batch in self.in_flight)
        if 0 < generation < self.generation and not is_another and not is_being_deleted:
            raise Violation(f"generation {generation} after {self.generation}")
        self.generation, self.checked_incarnation = generation, self.incarnation

    def check_log(self) -> None:
        """The committed log means the same as the state of the coordinator."""
        if self.reader.offsets != self.coordinator.offsets:
            raise Violation("the log has other offsets")
        if self.is_dirty or any(GROUP in batch.groups for batch in self.in_flight):
            return
        ours, theirs = (
            self.coordinator.classic_groups.get(GROUP),
            self.reader.classic_groups.get(GROUP),
        )
        if ours is not None and ours.state in (State.STABLE, State.EMPTY):
            if meaning(ours) != meaning(theirs):
                raise Violation(f"the log says {meaning(theirs)}, not {meaning(ours)}")
        elif ours is None and meaning(theirs) is not None:
            raise Violation("the coordinator does not know a group of the log")

    def make_progress(self, consumers: list[Consumer]) -> None:
        """Each consumer takes its next step, and all writes are committed."""
        for consumer in consumers:
            if consumer.waits is None:
                if consumer.must_join:
                    self.join(consumer, 9)
                elif consumer.owned is None:
                    self.sync(consumer)
                else:
                    self.heartbeat(consumer)
        while self.in_flight:
            self.commit_batch()

    def heal(self) -> None:
        """Without further faults, all consumers that stay get their assignments."""
        self.refuses = False
        staying = self.consumers[:3]
        for consumer in self.consumers[3:]:
            if consumer.member_id:
                self.leave(consumer)
        for _ in range(60):
            self.make_progress(staying)
            self.pass_time(5)
            self.check()
            group = self.coordinator.classic_groups.get(GROUP)
            is_ready = all(
                consumer.owned is not None and not consumer.must_join for consumer in staying
            )
            if is_ready and group is not None and len(group.members) == len(staying):
                return
        raise Violation(f"the group does not become stable: {staying}")


def commit(consumer: Consumer) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=position, committed_metadata=None
        )
        for index, position in consumer.positions.items()
    ]
    return OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=consumer.generation,
        member_id=consumer.member_id,
        group_instance_id=consumer.instance_id,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
    )


def sender(request: OffsetCommitRequest) -> tuple[str, int]:
    return request.member_id, request.generation_id_or_member_epoch


def replay(coordinator: GroupCoordinator, batch: Batch, offset: int) -> int:
    """Replay a batch; return the offset after it."""
    if batch.is_commit is not None:
        coordinator.replay_marker(batch.producer_id, batch.is_commit)
        return offset + 1
    for key, value in batch.records:
        record = decode(key, value)
        assert record is not None
        coordinator.replay(record, offset, batch.producer_id)
        offset += 1
    return offset


def is_assignment_of(batch: Batch, request: SyncGroupRequest, share: list[int]) -> bool:
    """Whether the batch assigns this to the sender, which may have had another id then."""
    for key, value in batch.records:
        record = decode(key, value)
        if record is not None and isinstance(record.value, GroupMetadataValue):
            for member in record.value.members:
                if (
                    record.value.generation == request.generation_id
                    and list(member.assignment) == share
                    and request.member_id == member.member_id
                ):
                    return True
    return False


def meaning(group: ClassicGroup | None) -> Any:
    """Return the part of a group's state that every coordinator agrees on."""
    if group is None or (group.state is State.EMPTY and not group.is_stored):
        return None
    value = group.record().value
    assert isinstance(value, GroupMetadataValue)
    if group.state is not State.EMPTY:
        value.current_state_timestamp = -1
    return value
