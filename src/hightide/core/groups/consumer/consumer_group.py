"""What is known of a group of the newer protocol: a value, made of its records.

    group epoch         grows when members or what they subscribe to change
    assignment epoch    the group epoch that the target was made for
    target              who shall have what
    member epoch        the assignment epoch that a member has come to

Nothing is changed in place: `with_records` gives the group that records lead to.  What is decided
is therefore a list of records, and a decision that could not be written is undone by forgetting it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from hightide.core.groups.classic.classic_group import Protocol, Rebalance
from hightide.core.groups.consumer.assignors import Partition, Share
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

LEFT_FOR_NOW = -2
"""The epoch of a static member that is restarting."""
NOTHING: Share = frozenset()


class GroupState(Enum):
    """Named as clients see it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(IntEnum):
    """Numbered as in the log."""

    STABLE = 0
    """It has what it shall have in its epoch."""
    UNREVOKED_PARTITIONS = 1
    """It has been told to give something up, and has not yet said that it did."""
    UNRELEASED_PARTITIONS = 2
    """It waits for something that others have not given up yet."""


class Topic(NamedTuple):
    """A topic as it was when the work was shared out."""

    id: uuid.UUID
    partition_count: int


class SpeaksClassic(NamedTuple):
    """What is known of a member that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    """All of them say the same; which of them is used means nothing here."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: SpeaksClassic | None = None
    """Set if it sends JoinGroup, SyncGroup and Heartbeat."""
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Share = NOTHING
    revoking: Share = NOTHING

    @property
    def holds(self) -> Share:
        """What nobody else may have yet."""
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
    """One group."""

    id: str
    epoch: int = 0
    assignment_epoch: int = 0
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    target: Mapping[str, Share] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    expressions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """What each regular expression of a subscription stands for."""
    last_rebalance: Rebalance | None = field(default=None, compare=False)
    """When the group epoch last grew, and why.  Not in the log."""

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
        return next((each for each in members if each.instance_id == instance_id), None)

    def owners(self) -> dict[Partition, str]:
        return {each: member.id for member in self.members.values() for each in member.holds}

    def is_waiting(self, member: ConsumerMember) -> bool:
        """Whether something that it shall have has not been given up by others yet."""
        owners = self.owners()
        missing = self.target.get(member.id, NOTHING) - member.assigned
        return any(owners.get(each, member.id) != member.id for each in missing)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topics

    def preferred_assignor(self, default: str) -> str:
        """What most members ask for."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(sorted(votes), key=votes.__getitem__) if votes else default

    # -- the log ---------------------------------------------------------------------------

    def with_records(self, records: Iterable[GroupRecord]) -> ConsumerGroup | None:
        """What they lead to; None if they take the group away."""
        draft = _Draft(self)
        for record in records:
            draft.take(record)
        return draft.group()

    def records(self) -> list[GroupRecord]:
        """What makes the group."""
        members = self.members.values()
        return [
            *(each.metadata(self.id) for each in members),
            *(expression_record(self.id, *each, 0) for each in self.expressions.items()),
            *([topics_record(self.id, self.topics)] if self.topics else []),
            epoch_record(self.id, self.epoch),
            *(target_record(self.id, *each) for each in self.target.items()),
            assignment_epoch_record(self.id, self.assignment_epoch),
            *(each.current(self.id) for each in members),
        ]

    def tombstones(self) -> list[GroupRecord]:
        """What takes the group out of the log."""
        records = [each for member in self.members for each in gone(self.id, member)]
        return [
            *records,
            *(expression_record(self.id, each, None, 0) for each in self.expressions),
            GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group=self.id), None),
            GroupRecord(ConsumerGroupPartitionMetadataKey(group=self.id), None),
            GroupRecord(ConsumerGroupMetadataKey(group=self.id), None),
        ]

    def check(self) -> None:
        """Assert what must hold between any two facts."""
        assert self.assignment_epoch <= self.epoch
        assert self.target.keys() <= self.members.keys()
        held = [each for member in self.members.values() for each in member.holds]
        assert len(held) == len(set(held)), "a partition has one owner"
        shared = [each for share in self.target.values() for each in share]
        assert len(shared) == len(set(shared))
        for member in self.members.values():
            assert not member.assigned & member.revoking
            assert member.epoch <= self.assignment_epoch
            is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
            assert bool(member.revoking) == is_revoking


class _Draft:
    """A group while records are applied to it.  What they do not touch is not copied."""

    def __init__(self, group: ConsumerGroup) -> None:
        self._before = group
        self._is_gone = False
        self._changed: dict[str, Any] = {}

    def group(self) -> ConsumerGroup | None:
        if self._is_gone:
            return None
        return replace(self._before, **self._changed) if self._changed else self._before

    def _own(self, name: str) -> dict[str, Any]:
        """A mapping of the group that can be written to."""
        if name not in self._changed:
            self._changed[name] = {**getattr(self._before, name)}
        found: dict[str, Any] = self._changed[name]
        return found

    def take(self, record: GroupRecord) -> None:
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
                    for each in value.topics:
                        topics[each.topic_name] = Topic(each.topic_id, each.num_partitions)
                self._changed["topics"] = topics
            case GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(), value):
                self._changed["assignment_epoch"] = 0
                if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
                    self._changed["assignment_epoch"] = value.assignment_epoch
            case GroupRecord(ConsumerGroupTargetAssignmentMemberKey() as key, value):
                target = self._own("target")
                target.pop(key.member_id, None)
                if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
                    target[key.member_id] = as_share(value.topic_partitions)
            case GroupRecord(ConsumerGroupRegularExpressionKey() as key, value):
                expressions = self._own("expressions")
                expressions.pop(key.regular_expression, None)
                if isinstance(value, ConsumerGroupRegularExpressionValue):
                    expressions[key.regular_expression] = frozenset(value.topics)
            case _:
                self._take_member(record)

    def _take_member(self, record: GroupRecord) -> None:
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
                    assigned=as_share(current.assigned_partitions),
                    revoking=as_share(current.partitions_pending_revocation),
                )
            case GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id), None):
                if member_id in members:
                    members[member_id] = replace(
                        members[member_id],
                        epoch=0,
                        previous_epoch=0,
                        state=MemberState.STABLE,
                        assigned=NOTHING,
                        revoking=NOTHING,
                    )


def _as_state(current: ConsumerGroupCurrentMemberAssignmentValue) -> MemberState:
    """A state that later versions may add is one that the next heartbeat leads out of."""
    try:
        return MemberState(current.state)
    except ValueError:
        if current.partitions_pending_revocation:
            return MemberState.UNREVOKED_PARTITIONS
        return MemberState.UNRELEASED_PARTITIONS


def gone(group_id: str, member_id: str) -> list[GroupRecord]:
    """What takes a member out of the log."""
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


def target_record(group_id: str, member_id: str, share: Share) -> GroupRecord:
    key = ConsumerGroupTargetAssignmentMemberKey(group=group_id, member_id=member_id)
    value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=by_topic(share))
    return GroupRecord(key, value)


def assignment_epoch_record(group_id: str, epoch: int) -> GroupRecord:
    key = ConsumerGroupTargetAssignmentMetadataKey(group=group_id)
    return GroupRecord(key, ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch))


def expression_record(
    group_id: str, expression: str, topics: Iterable[str] | None, now_ms: int
) -> GroupRecord:
    """The topics that it stands for now; None: nobody subscribes by it any more."""
    key = ConsumerGroupRegularExpressionKey(group=group_id, regular_expression=expression)
    if topics is None:
        return GroupRecord(key, None)
    # Kafka's version of the metadata.  One that is not known says: look again.
    value = ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=0, timestamp=now_ms)
    return GroupRecord(key, value)


def _classic_metadata(classic: SpeaksClassic | None) -> ClassicMemberMetadata | None:
    if classic is None:
        return None
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=each.name, metadata=each.metadata) for each in classic.protocols
        ],
    )


def _as_classic(metadata: ClassicMemberMetadata | None) -> SpeaksClassic | None:
    if metadata is None:
        return None
    protocols = (Protocol(each.name, each.metadata) for each in metadata.supported_protocols)
    return SpeaksClassic(metadata.session_timeout_ms, tuple(protocols))


def by_topic(share: Iterable[Partition]) -> list[AssignedPartitions]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic, index in sorted(share):
        topics.setdefault(topic, []).append(index)
    return [
        AssignedPartitions(topic_id=topic, partitions=indexes) for topic, indexes in topics.items()
    ]


def as_share(topics: Iterable[AssignedPartitions]) -> Share:
    return frozenset((each.topic_id, index) for each in topics for index in each.partitions)
