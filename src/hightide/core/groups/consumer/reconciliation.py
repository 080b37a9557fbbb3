"""Reconciliation of a member with its target assignment: first revoke, then assign.

                    must revoke partitions                   has revoked them
        Stable ───────────────────────────▶ UnrevokedPartitions ─────────────┐
          ▲  │                                                               │
          │  └── waits for other owners ────────▶ UnreleasedPartitions ◀─────┤
          │                                               │                  │
          └───────────── owns its whole target ◀──────────┴──────────────────┘

A partition is assigned to its new owner only when the old owner has reported that it does not own
the partition any more, or has left.  A member stays in its epoch until it has revoked what it must.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hightide.core.groups.consumer.assignors import Assignment, Partition
from hightide.core.groups.consumer.consumer_group import NO_PARTITIONS, ConsumerMember, MemberState


def reconciled(
    member: ConsumerMember,
    target: Assignment,
    target_epoch: int,
    owners: Mapping[Partition, str],
    owned: Assignment | None,
) -> ConsumerMember:
    """Move a member one step.  `owned` is what its heartbeat reports to own, if it does."""
    epoch = member.epoch
    match member.state:
        case MemberState.STABLE:
            if epoch == target_epoch:
                return member
        case MemberState.UNREVOKED_PARTITIONS:
            if owned is None or owned & member.revoking:
                return member
            # The member has revoked what this epoch required.
            epoch = min(epoch + 1, target_epoch)
    return _next(member, epoch, target, target_epoch, owners, owned)


def _next(
    member: ConsumerMember,
    epoch: int,
    target: Assignment,
    target_epoch: int,
    owners: Mapping[Partition, str],
    owned: Assignment | None,
) -> ConsumerMember:
    kept = member.assigned & target
    revoking = member.assigned - target
    if revoking and (owned is None or owned & revoking):
        return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    wanted = target - kept
    # A partition that the member itself has just revoked is free.
    unreleased = {
        partition for partition in wanted if owners.get(partition, member.id) != member.id
    }
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return _moved(member, target_epoch, state, kept | (wanted - unreleased), NO_PARTITIONS)


def _moved(
    member: ConsumerMember,
    epoch: int,
    state: MemberState,
    assigned: Assignment,
    revoking: Assignment,
) -> ConsumerMember:
    previous = member.epoch if epoch != member.epoch else member.previous_epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=previous,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )
