"""Expiry of committed offsets, and of groups without offsets (`offsets.retention.minutes`).

Retention counts from the moment the group lost its last member.  While the group has members, only
offsets of topics without a subscriber expire, counted from their commit.  The offsets of a simple
group also count from their commit: the coordinator cannot know whether its consumers still run.
"""

from __future__ import annotations

from hightide.core.groups.classic.classic_group import NO_TIMESTAMP, ClassicGroup, State
from hightide.core.groups.consumer.consumer_group import ConsumerGroup
from hightide.core.groups.offsets import CommittedOffset, Offsets, tombstone
from hightide.wire.records.consumer_offsets import GroupRecord


def expired(
    group: ClassicGroup | ConsumerGroup, offsets: Offsets, now_ms: int, retention_ms: int
) -> list[GroupRecord]:
    """Return tombstones for the expired offsets of the group."""
    empty_since_ms = NO_TIMESTAMP
    if isinstance(group, ClassicGroup):
        is_subscription_known = group.is_consumer and group.subscribed is not None
        is_stable = group.state is State.STABLE and is_subscription_known
        if group.state is not State.EMPTY and not is_stable:
            return []
        if group.state is State.EMPTY and group.protocol_type is not None:
            empty_since_ms = group.state_ms

    def since_ms(committed: CommittedOffset) -> int:
        return committed.committed_ms if empty_since_ms == NO_TIMESTAMP else empty_since_ms

    old = [
        partition
        for partition, committed in sorted(offsets.of(group.id).items())
        if not group.is_subscribed_to(partition.topic)
        and committed.is_expired(since_ms(committed), now_ms, retention_ms)
    ]
    unstable = offsets.unstable(group.id) if old else ()
    return [tombstone(group.id, partition) for partition in old if partition not in unstable]


def is_forgettable(
    group: ClassicGroup | ConsumerGroup, offsets: Offsets, expired_count: int
) -> bool:
    """Whether an empty group has nothing left once its expired offsets are gone."""
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
