"""The state of a group of the consumer protocol: an immutable value, built from its records.

    group epoch         grows when members, subscriptions or topics change
    assignment epoch    the group epoch that the target assignment was computed for
    target              the partitions that each member should own
    member epoch        the assignment epoch that a member has reconciled to

Nothing changes in place: `with_records` returns the group after some records.  So a decision is a
list of records, and a decision that could not be written is undone by dropping it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from hightide.core.groups.classic.classic_group import Protocol, Rebalance
from hightide.core.groups.consumer.assignors import Assignment, Partition
from hightide.wire.records.consumer_offsets import (
    AssignedPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupRecord,
    SubscribedTopic,
)

STATIC_LEAVE = -2
"""The epoch of a static member that is restarting."""
NO_PARTITIONS: Assignment = frozenset()


class GroupState(Enum):
    """The state of a group, named as clients see it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(IntEnum):
    """The state of a member, numbered as in the log."""

    STABLE = 0
    """The member owns its target of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """The member must revoke partitions, and has not reported that it did."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that other members still own."""


class Topic(NamedTuple):
    """A topic as it was when the target assignment was computed."""

    id: uuid.UUID
    partition_count: int


class ClassicMember(NamedTuple):
    """What only members of the classic protocol have."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    """All carry the same subscription; the choice between them has no effect here."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a consumer group."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None
    """Set if the member uses JoinGroup, SyncGroup and Heartbeat."""
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NO_PARTITIONS
    revoking: Assignment = NO_PARTITIONS

    @property
    def holds(self) -> Assignment:
        """The partitions that no other member may own yet."""
        return self.assigned | self.revoking

    def metadata(self, group_id: str) -> GroupRecord:
        key = ConsumerGroupMemberMetadataKey(group=group_id, member_id=self.id)
        value = ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=[*self.topic_names],
            subscribed_topic_regex=self.topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=_classic_metadata(self.classic),
        )
        return GroupRecord(key, value)

    def current(self, group_id: str) -> GroupRecord:
        key = ConsumerGroupCurrentMemberAssignmentKey(group=group_id, member_id=self.id)
        value = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=by_topic(self.assigned),
            partitions_pending_revocation=by_topic(self.revoking),
        )
        return GroupRecord(key, value)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A group of the consumer protocol."""

    id: str
    epoch: int = 0
    assignment_epoch: int = 0
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    target: Mapping[str, Assignment] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    expressions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The topics that each regular expression of a subscription matches."""
    last_rebalance: Rebalance | None = field(default=None, compare=False)
    """When and why the group epoch last grew.  Not in the log."""

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        for member in self.members.values():
            if member.state is not MemberState.STABLE or member.epoch != self.assignment_epoch:
                return GroupState.RECONCILING
        return GroupState.STABLE

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        members = self.members.values()
        return next((member for member in members if member.instance_id == instance_id), None)

    def owners(self) -> dict[Partition, str]:
        return {
            partition: member.id for member in self.members.values() for partition in member.holds
        }

    def is_waiting(self, member: ConsumerMember) -> bool:
        """Whether another member still owns a partition of this member's target."""
        owners = self.owners()
        missing = self.target.get(member.id, NO_PARTITIONS) - member.assigned
        return any(owners.get(partition, member.id) != member.id for partition in missing)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topics

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor that most members request."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(sorted(votes), key=votes.__getitem__) if votes else default

    # -- the log ---------------------------------------------------------------------------

    def with_records(self, records: Iterable[GroupRecord]) -> ConsumerGroup | None:
        """Return the group after these records, or None if they delete it."""
        draft = _Draft(self)
        for record in records:
            draft.apply(record)
        return draft.group()

    def records(self) -> list[GroupRecord]:
        """Return the records that create the group."""
        members = self.members.values()
        return [
            *(member.metadata(self.id) for member in members),
            *(expression_record(self.id, *item, 0) for item in self.expressions.items()),
            *([topics_record(self.id, self.topics)] if self.topics else []),
            epoch_record(self.id, self.epoch),
            *(target_record(self.id, *item) for item in self.target.items()),
            assignment_epoch_record(self.id, self.assignment_epoch),
            *(member.current(self.id) for member in members),
        ]

    def tombstones(self) -> list[GroupRecord]:
        """Return the records that delete the group."""
        records = [
            record for member in self.members for record in member_tombstones(self.id, member)
        ]
        return [
            *records,
            *(expression_record(self.id, expression, None, 0) for expression in self.expressions),
            GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group=self.id), None),
            GroupRecord(ConsumerGroupPartitionMetadataKey(group=self.id), None),
            GroupRecord(ConsumerGroupMetadataKey(group=self.id), None),
        ]

    def check(self) -> None:
        """Assert the invariants that hold between any two facts."""
        assert self.assignment_epoch <= self.epoch
        assert self.target.keys() <= self.members.keys()
        held = [partition for member in self.members.values() for partition in member.holds]
        assert len(held) == len(set(held)), "a partition has one owner"
        shared = [partition for assignment in self.target.values() for partition in assignment]
        assert len(shared) == len(set(shared))
        for member in self.members.values():
            assert not member.assigned & member.revoking
            assert member.epoch <= self.assignment_epoch
            is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
            assert bool(member.revoking) == is_revoking


class _Draft:
    """A group while records are applied to it.  Mappings without a change are not copied."""

    def __init__(self, group: ConsumerGroup) -> None:
        self._before = group
        self._is_gone = False
        self._changed: dict[str, Any] = {}

    def group(self) -> ConsumerGroup | None:
        if self._is_gone:
            return None
        return replace(self._before, **self._changed) if self._changed else self._before

    def _own(self, name: str) -> dict[str, Any]:
        """Return a mapping of the group as a copy that can be written to."""
        if name not in self._changed:
            self._changed[name] = {**getattr(self._before, name)}
        found: dict[str, Any] = self._changed[name]
        return found

    def apply(self, record: GroupRecord) -> None:
        self._is_gone = False
        match record:
            case GroupRecord(ConsumerGroupMetadataKey(), None):
                self._before = ConsumerGroup(self._before.id)
                self._changed = {}
                self._is_gone = True
            case GroupRecord(ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue() as value):
                self._changed["epoch"] = value.epoch
            case GroupRecord(ConsumerGroupPartitionMetadataKey(), value):
                topics: dict[str, Topic] = {}
                if isinstance(value, ConsumerGroupPartitionMetadataValue):
                    for topic in value.topics:
                        topics[topic.topic_name] = Topic(topic.topic_id, topic.num_partitions)
                self._changed["topics"] = topics
            case GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(), value):
                self._changed["assignment_epoch"] = 0
                if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
                    self._changed["assignment_epoch"] = value.assignment_epoch
            case GroupRecord(ConsumerGroupTargetAssignmentMemberKey() as key, value):
                target = self._own("target")
                target.pop(key.member_id, None)
                if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
                    target[key.member_id] = as_assignment(value.topic_partitions)
            case GroupRecord(ConsumerGroupRegularExpressionKey() as key, value):
                expressions = self._own("expressions")
                expressions.pop(key.regular_expression, None)
                if isinstance(value, ConsumerGroupRegularExpressionValue):
                    expressions[key.regular_expression] = frozenset(value.topics)
            case _:
                self._apply_member(record)

    def _apply_member(self, record: GroupRecord) -> None:
        members: dict[str, ConsumerMember] = self._own("members")
        match record:
            case GroupRecord(ConsumerGroupMemberMetadataKey(member_id=member_id), None):
                members.pop(member_id, None)
            case GroupRecord(
                ConsumerGroupMemberMetadataKey(member_id=member_id),
                ConsumerGroupMemberMetadataValue() as value,
            ):
                members[member_id] = replace(
                    members.get(member_id, ConsumerMember(member_id)),
                    instance_id=value.instance_id,
                    rack_id=value.rack_id,
                    client_id=value.client_id,
                    client_host=value.client_host,
                    topic_names=tuple(value.subscribed_topic_names),
                    topic_regex=value.subscribed_topic_regex,
                    rebalance_timeout_ms=value.rebalance_timeout_ms,
                    assignor=value.server_assignor,
                    classic=_as_classic(value.classic_member_metadata),
                )
            case GroupRecord(
                ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id),
                ConsumerGroupCurrentMemberAssignmentValue() as current,
            ):
                members[member_id] = replace(
                    members.get(member_id, ConsumerMember(member_id)),
                    epoch=current.member_epoch,
                    previous_epoch=current.previous_member_epoch,
                    state=_as_state(current),
                    assigned=as_assignment(current.assigned_partitions),
                    revoking=as_assignment(current.partitions_pending_revocation),
                )
            case GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id), None):
                if member_id in members:
                    members[member_id] = replace(
                        members[member_id],
                        epoch=0,
                        previous_epoch=0,
                        state=MemberState.STABLE,
                        assigned=NO_PARTITIONS,
                        revoking=NO_PARTITIONS,
                    )


def _as_state(current: ConsumerGroupCurrentMemberAssignmentValue) -> MemberState:
    """Read a member's state; map one of a later version to one that the next heartbeat resolves."""
    try:
        return MemberState(current.state)
    except ValueError:
        if current.partitions_pending_revocation:
            return MemberState.UNREVOKED_PARTITIONS
        return MemberState.UNRELEASED_PARTITIONS


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """Return the records that delete a member."""
    return [
        GroupRecord(
            ConsumerGroupCurrentMemberAssignmentKey(group=group_id, member_id=member_id), None
        ),
        GroupRecord(
            ConsumerGroupTargetAssignmentMemberKey(group=group_id, member_id=member_id), None
        ),
        GroupRecord(ConsumerGroupMemberMetadataKey(group=group_id, member_id=member_id), None),
    ]


def epoch_record(group_id: str, epoch: int) -> GroupRecord:
    key = ConsumerGroupMetadataKey(group=group_id)
    return GroupRecord(key, ConsumerGroupMetadataValue(epoch=epoch))


def topics_record(group_id: str, topics: Mapping[str, Topic]) -> GroupRecord:
    value = ConsumerGroupPartitionMetadataValue(
        topics=[
            SubscribedTopic(
                topic_id=topic.id,
                topic_name=name,
                num_partitions=topic.partition_count,
                partition_metadata=[],
            )
            for name, topic in sorted(topics.items())
        ]
    )
    return GroupRecord(ConsumerGroupPartitionMetadataKey(group=group_id), value)


def target_record(group_id: str, member_id: str, assignment: Assignment) -> GroupRecord:
    key = ConsumerGroupTargetAssignmentMemberKey(group=group_id, member_id=member_id)
    value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=by_topic(assignment))
    return GroupRecord(key, value)


def assignment_epoch_record(group_id: str, epoch: int) -> GroupRecord:
    key = ConsumerGroupTargetAssignmentMetadataKey(group=group_id)
    return GroupRecord(key, ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch))


def expression_record(
    group_id: str, expression: str, topics: Iterable[str] | None, now_ms: int
) -> GroupRecord:
    """Return the record of the topics that an expression matches; None: it is not used any more."""
    key = ConsumerGroupRegularExpressionKey(group=group_id, regular_expression=expression)
    if topics is None:
        return GroupRecord(key, None)
    # The version of Kafka's metadata image.  An unknown version makes Kafka match again.
    value = ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=0, timestamp=now_ms)
    return GroupRecord(key, value)


def _classic_metadata(classic: ClassicMember | None) -> ClassicMemberMetadata | None:
    if classic is None:
        return None
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=protocol.name, metadata=protocol.metadata)
            for protocol in classic.protocols
        ],
    )


def _as_classic(metadata: ClassicMemberMetadata | None) -> ClassicMember | None:
    if metadata is None:
        return None
    protocols = (
        Protocol(protocol.name, protocol.metadata) for protocol in metadata.supported_protocols
    )
    return ClassicMember(metadata.session_timeout_ms, tuple(protocols))


def by_topic(assignment: Iterable[Partition]) -> list[AssignedPartitions]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic, index in sorted(assignment):
        topics.setdefault(topic, []).append(index)
    return [
        AssignedPartitions(topic_id=topic, partitions=indexes) for topic, indexes in topics.items()
    ]


def as_assignment(topics: Iterable[AssignedPartitions]) -> Assignment:
    return frozenset((topic.topic_id, index) for topic in topics for index in topic.partitions)
