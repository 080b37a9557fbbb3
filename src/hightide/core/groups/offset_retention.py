"""Which offsets are old enough to be forgotten, and which groups with them.

Retention counts from when the group lost its last member.  While it has members, only offsets of
topics are forgotten that nobody subscribes to any more, counted from their commit; as are those of
a simple group, of which it cannot be known whether anybody is still at work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hightide.core.groups.classic.classic_group import NO_TIME, ClassicGroup, State
from hightide.core.groups.consumer.consumer_group import ConsumerGroup
from hightide.core.groups.consumer.consumer_groups import ConsumerGroupWritten
from hightide.core.groups.offsets import Committed, Offsets, tombstone
from hightide.core.groups.turn import Ticket
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import DeletableGroupResult, DeleteGroupsResponse
from hightide.wire.records.consumer_offsets import GroupRecord


@dataclass(frozen=True, slots=True)
class GroupsDeleted:
    """Tombstones of whole groups, asked for by somebody or not."""

    groups: tuple[ClassicGroup | ConsumerGroup, ...]
    decisions: tuple[ConsumerGroupWritten, ...] = ()
    """Those about consumer groups."""
    ticket: Ticket | None = None
    results: Sequence[DeletableGroupResult] = ()

    def response(self, error: ErrorCode = ErrorCode.NONE) -> DeleteGroupsResponse:
        """The answer; with an error if the tombstones could not be written."""
        deleted = {group.id for group in self.groups}
        results = [
            DeletableGroupResult(
                group_id=each.group_id,
                error_code=error if each.group_id in deleted else each.error_code,
            )
            for each in self.results
        ]
        return DeleteGroupsResponse(results=results)


def expired(
    group: ClassicGroup | ConsumerGroup, offsets: Offsets, now_ms: int, retention_ms: int
) -> list[GroupRecord]:
    """Tombstones for the offsets of the group that have outlived their use."""
    empty_since_ms = NO_TIME
    if isinstance(group, ClassicGroup):
        knows_subscribed = group.is_consumer and group.subscribed is not None
        is_at_work = group.state is State.STABLE and knows_subscribed
        if group.state is not State.EMPTY and not is_at_work:
            return []
        if group.state is State.EMPTY and group.protocol_type is not None:
            empty_since_ms = group.state_ms

    def since_ms(committed: Committed) -> int:
        return committed.committed_ms if empty_since_ms == NO_TIME else empty_since_ms

    old = [
        partition
        for partition, committed in sorted(offsets.of(group.id).items())
        if not group.is_subscribed_to(partition.topic)
        and committed.is_expired(since_ms(committed), now_ms, retention_ms)
    ]
    unstable = offsets.unstable(group.id) if old else ()
    return [tombstone(group.id, each) for each in old if each not in unstable]


def is_forgettable(
    group: ClassicGroup | ConsumerGroup, offsets: Offsets, expired_count: int
) -> bool:
    """Whether nothing of an empty group is left after that."""
    return (
        is_empty(group)
        and not (isinstance(group, ClassicGroup) and group.pending)
        and expired_count == len(offsets.of(group.id))
        and not offsets.unstable(group.id)
    )


def is_empty(group: ClassicGroup | ConsumerGroup) -> bool:
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.state is State.EMPTY
