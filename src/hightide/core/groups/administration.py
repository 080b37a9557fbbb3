"""Requests about whole groups: describe, list and delete them, and expire old ones.

A deleted group is gone at once.  A member that joins afterwards creates another group, and its
records follow the tombstones.  If the tombstones cannot be written, the group is restored.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hightide.core.groups.classic.classic_group import CONSUMER, ClassicGroup, Rebalance, State
from hightide.core.groups.consumer.assignors import Assignment
from hightide.core.groups.consumer.consumer_group import NO_PARTITIONS, ConsumerGroup, by_topic
from hightide.core.groups.consumer.consumer_groups import ConsumerGroups, ConsumerGroupWritten
from hightide.core.groups.deadlines import Deadline, Kind
from hightide.core.groups.offset_retention import expired, is_empty, is_forgettable
from hightide.core.groups.offsets import Offsets
from hightide.core.groups.turn import Ticket, Turn
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import (
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)
from hightide.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
    ListGroupsRequest,
)
from hightide.wire.records.consumer_offsets import GroupMetadataKey, GroupRecord

GROUP_TYPES = {ClassicGroup: "classic", ConsumerGroup: "consumer"}
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
# Before this version of DescribeGroups, a group that does not exist is described as dead.
GROUP_ID_NOT_FOUND_VERSION = 6


@dataclass(frozen=True, slots=True)
class GroupsDeleted:
    """Tombstones of whole groups, requested by a client or due to expiry."""

    groups: tuple[ClassicGroup | ConsumerGroup, ...]
    decisions: tuple[ConsumerGroupWritten, ...] = ()
    """The decisions about consumer groups."""
    ticket: Ticket | None = None
    results: Sequence[DeletableGroupResult] = ()

    def response(self, error: ErrorCode = ErrorCode.NONE) -> DeleteGroupsResponse:
        """Build the response, with the error if the tombstones could not be written."""
        deleted = {group.id for group in self.groups}
        results = [
            DeletableGroupResult(
                group_id=result.group_id,
                error_code=error if result.group_id in deleted else result.error_code,
            )
            for result in self.results
        ]
        return DeleteGroupsResponse(results=results)


class Administration:
    """The groups of one coordinator, of both protocols."""

    def __init__(
        self, classic: dict[str, ClassicGroup], consumers: ConsumerGroups, offsets: Offsets
    ) -> None:
        self._classic = classic
        self._consumers = consumers
        self._offsets = offsets

    def find(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        return self._classic.get(group_id) or self._consumers.get(group_id)

    def last_rebalance(self, group_id: str) -> Rebalance | None:
        """Return the last rebalance of the group that this coordinator has seen."""
        group = self.find(group_id)
        return None if group is None else group.last_rebalance

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        return describe_classic(group_id, self._classic.get(group_id), version)

    def describe_consumers(self, group_id: str, default_assignor: str) -> DescribedConsumerGroup:
        group = self._consumers.get(group_id)
        return describe_consumer(group_id, group, default_assignor)

    def all(self) -> list[ClassicGroup | ConsumerGroup]:
        groups: list[ClassicGroup | ConsumerGroup] = [*self._classic.values()]
        return [*groups, *self._consumers.groups.values()]

    def listed(self, request: ListGroupsRequest) -> list[ListedGroup]:
        return list_groups(self.all(), request)

    # -- deleting --------------------------------------------------------------------------

    def delete(self, ticket: Ticket, request: DeleteGroupsRequest, turn: Turn) -> None:
        results = []
        deleted: list[ClassicGroup | ConsumerGroup] = []
        for group_id in dict.fromkeys(request.groups_names):
            group = self.find(group_id)
            error = ErrorCode.NONE
            if group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif not is_empty(group):
                error = ErrorCode.NON_EMPTY_GROUP
            else:
                deleted.append(group)
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        if not self._delete_groups(deleted, turn, ticket, results):
            turn.answer(ticket, DeleteGroupsResponse(results=results))

    def _delete_groups(
        self,
        groups: list[ClassicGroup | ConsumerGroup],
        turn: Turn,
        ticket: Ticket | None = None,
        results: Sequence[DeletableGroupResult] = (),
    ) -> bool:
        """Remove empty groups, and write tombstones for them and their offsets.

        Return False if the log has no record of them.
        """
        records: list[GroupRecord] = []
        decisions = []
        for group in groups:
            records += self._offsets.tombstones(group.id)
            if isinstance(group, ConsumerGroup):
                decision = self._consumers.dissolve(group)
                decisions.append(decision)
                records += decision.records
            else:
                records += self.delete_classic(group, turn)
        if records:
            purpose = GroupsDeleted(tuple(groups), tuple(decisions), ticket, results)
            turn.write(purpose, *records)
        return bool(records)

    def delete_classic(self, group: ClassicGroup, turn: Turn) -> list[GroupRecord]:
        for member_id in group.pending:
            turn.deadlines.cancel(Deadline(Kind.SESSION, group.id, member_id))
        del self._classic[group.id]
        if not group.is_stored:
            return []
        return [GroupRecord(GroupMetadataKey(group=group.id), None)]

    def restore(self, group: ClassicGroup) -> None:
        """Restore a group whose tombstones could not be written."""
        if self._consumers.get(group.id) is None:
            group.pending.clear()
            # If another group was created, the log still has the record of the old one.
            present = self._classic.setdefault(group.id, group)
            present.is_stored = present.is_stored or group.is_stored

    def expire(self, turn: Turn) -> None:
        interval_ms = turn.rules.offsets_retention_check_interval_ms
        turn.deadlines.set(Deadline(Kind.EXPIRY), turn.now_ms + interval_ms)
        for group in self.all():
            old = expired(group, self._offsets, turn.now_ms, turn.rules.offsets_retention_ms)
            if is_forgettable(group, self._offsets, len(old)):
                self._delete_groups([group], turn)
            elif old:
                turn.write(None, *old)


# -- responses -----------------------------------------------------------------------------


def describe_classic(group_id: str, group: ClassicGroup | None, version: int) -> DescribedGroup:
    if group is None:
        has_error = version >= GROUP_ID_NOT_FOUND_VERSION
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if has_error else ErrorCode.NONE,
            error_message=f"group {group_id} not found" if has_error else None,
            group_id=group_id,
            group_state=State.DEAD.value,
            protocol_type="",
            protocol_data="",
            members=[],
        )
    # Before the group is stable, metadata and assignments of members do not belong together.
    is_stable = group.state is State.STABLE
    members = [
        DescribedGroupMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if is_stable else b"",
            member_assignment=member.assignment if is_stable else b"",
        )
        for member in group.members.values()
    ]
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=members,
    )


def list_groups(
    groups: Iterable[ClassicGroup | ConsumerGroup], request: ListGroupsRequest
) -> list[ListedGroup]:
    """Return the groups in one of the requested states and types; an empty filter means any."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    found = []
    for group in groups:
        state, kind = group.state.value, GROUP_TYPES[type(group)]
        is_wanted = not states or state.lower() in states
        if is_wanted and (not types or kind.lower() in types):
            protocol = CONSUMER if isinstance(group, ConsumerGroup) else group.protocol_type
            found.append(
                ListedGroup(
                    group_id=group.id,
                    protocol_type=protocol or "",
                    group_state=state,
                    group_type=kind,
                )
            )
    return found


def describe_consumer(
    group_id: str, group: ConsumerGroup | None, default_assignor: str
) -> DescribedConsumerGroup:
    if group is None:
        return DescribedConsumerGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"consumer group {group_id} not found",
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=[],
        )
    names = {topic.id: name for name, topic in group.topics.items()}
    members = [
        DescribedConsumer(
            member_id=member.id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=[*member.topic_names],
            subscribed_topic_regex=member.topic_regex,
            assignment=_described(member.assigned, names),
            target_assignment=_described(group.target.get(member.id, NO_PARTITIONS), names),
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )
        for member in group.members.values()
    ]
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(default_assignor),
        members=members,
    )


def _described(assignment: Assignment, names: Mapping[uuid.UUID, str]) -> DescribedAssignment:
    """Describe an assignment, without the partitions of deleted topics: these have no name."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(
                topic_id=topic.topic_id,
                topic_name=names[topic.topic_id],
                partitions=topic.partitions,
            )
            for topic in by_topic(assignment)
            if topic.topic_id in names
        ]
    )
