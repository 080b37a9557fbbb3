"""How a member comes from what it has to what it shall have: give up first, then take.

                    must give something up                     has given it up
        Stable ───────────────────────────▶ UnrevokedPartitions ─────────────┐
          ▲  │                                                               │
          │  └── wants what others still have ──▶ UnreleasedPartitions ◀─────┤
          │                                               │                  │
          └───────────── has all that it shall have ◀─────┴──────────────────┘

A partition is told to its new owner only when the old one has said that it owns it no more, or has
gone.  While a member has not given up what it must, it stays in its epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hightide.core.groups.consumer.assignors import Partition, Share
from hightide.core.groups.consumer.consumer_group import NOTHING, ConsumerMember, MemberState


def reconciled(
    member: ConsumerMember,
    target: Share,
    target_epoch: int,
    owners: Mapping[Partition, str],
    owned: Share | None,
) -> ConsumerMember:
    """One step of a member, which says that it owns this; None: it does not say."""
    epoch = member.epoch
    match member.state:
        case MemberState.STABLE:
            if epoch == target_epoch:
                return member
        case MemberState.UNREVOKED_PARTITIONS:
            if owned is None or owned & member.revoking:
                return member
            # It has done what this epoch asked of it.
            epoch = min(epoch + 1, target_epoch)
    return _next(member, epoch, target, target_epoch, owners, owned)


def _next(
    member: ConsumerMember,
    epoch: int,
    target: Share,
    target_epoch: int,
    owners: Mapping[Partition, str],
    owned: Share | None,
) -> ConsumerMember:
    kept = member.assigned & target
    revoking = member.assigned - target
    if revoking and (owned is None or owned & revoking):
        return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    wanted = target - kept
    # What the member itself has given up just now is free.
    unreleased = {each for each in wanted if owners.get(each, member.id) != member.id}
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return _moved(member, target_epoch, state, kept | (wanted - unreleased), NOTHING)


def _moved(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Share, revoking: Share
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
