"""What is done to whole groups: looking at them, deleting them, forgetting them when they are old.

A group that is deleted is gone at once; whoever joins founds another, and its records come after
the tombstones.  If these could not be written it is there again.
"""

from __future__ import annotations

from collections.abc import Sequence

from hightide.core.groups.classic import describe as looking
from hightide.core.groups.classic.classic_group import ClassicGroup, Rebalance
from hightide.core.groups.consumer import consumer_group_describe as consumer_looking
from hightide.core.groups.consumer.consumer_group import ConsumerGroup
from hightide.core.groups.consumer.consumer_groups import ConsumerGroups
from hightide.core.groups.deadlines import Deadline, Kind
from hightide.core.groups.offset_retention import GroupsDeleted, expired, is_empty, is_forgettable
from hightide.core.groups.offsets import Offsets
from hightide.core.groups.turn import Ticket, Turn
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import DescribedConsumerGroup
from hightide.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    ListedGroup,
    ListGroupsRequest,
)
from hightide.wire.records.consumer_offsets import GroupMetadataKey, GroupRecord


class Administration:
    """Of the groups of one coordinator, of both kinds."""

    def __init__(
        self, classic: dict[str, ClassicGroup], consumers: ConsumerGroups, offsets: Offsets
    ) -> None:
        self._classic = classic
        self._consumers = consumers
        self._offsets = offsets

    def find(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        return self._classic.get(group_id) or self._consumers.get(group_id)

    def last_rebalance(self, group_id: str) -> Rebalance | None:
        """Why the group last shared out its work anew, as far as this coordinator has seen."""
        group = self.find(group_id)
        return None if group is None else group.last_rebalance

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        return looking.described(group_id, self._classic.get(group_id), version)

    def describe_consumers(self, group_id: str, default_assignor: str) -> DescribedConsumerGroup:
        group = self._consumers.get(group_id)
        return consumer_looking.described(group_id, group, default_assignor)

    def all(self) -> list[ClassicGroup | ConsumerGroup]:
        groups: list[ClassicGroup | ConsumerGroup] = [*self._classic.values()]
        return [*groups, *self._consumers.groups.values()]

    def listed(self, request: ListGroupsRequest) -> list[ListedGroup]:
        return looking.listed(self.all(), request)

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
        if not self._dissolve(deleted, turn, ticket, results):
            turn.answer(ticket, DeleteGroupsResponse(results=results))

    def _dissolve(
        self,
        groups: list[ClassicGroup | ConsumerGroup],
        turn: Turn,
        ticket: Ticket | None = None,
        results: Sequence[DeletableGroupResult] = (),
    ) -> bool:
        """Take out empty groups, and take them and their offsets out of the log.

        False if the log has nothing of them.
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
                records += self.dissolve_classic(group, turn)
        if records:
            purpose = GroupsDeleted(tuple(groups), tuple(decisions), ticket, results)
            turn.write(purpose, *records)
        return bool(records)

    def dissolve_classic(self, group: ClassicGroup, turn: Turn) -> list[GroupRecord]:
        for member_id in group.pending:
            turn.deadlines.cancel(Deadline(Kind.SESSION, group.id, member_id))
        del self._classic[group.id]
        if not group.is_stored:
            return []
        return [GroupRecord(GroupMetadataKey(group=group.id), None)]

    def restore(self, group: ClassicGroup) -> None:
        """Its tombstones could not be written."""
        if self._consumers.get(group.id) is None:
            group.pending.clear()
            # If another was founded, the log has a record of the one before it.
            there = self._classic.setdefault(group.id, group)
            there.is_stored = there.is_stored or group.is_stored

    def expire(self, turn: Turn) -> None:
        interval_ms = turn.rules.offsets_retention_check_interval_ms
        turn.deadlines.set(Deadline(Kind.EXPIRY), turn.now_ms + interval_ms)
        for group in self.all():
            old = expired(group, self._offsets, turn.now_ms, turn.rules.offsets_retention_ms)
            if is_forgettable(group, self._offsets, len(old)):
                self._dissolve([group], turn)
            elif old:
                turn.write(None, *old)
