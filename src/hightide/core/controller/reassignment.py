"""Reassignment: a partition moves to other brokers by adding replicas, then removing the old ones.

    [1 2 3] ──begun: to [3 4]──▶ [3 4 1 2], adding 4, removing 1 2 ──all of 3 4 in ISR──▶ [3 4]
                                        └──cancelled──▶ [3 1 2]

The intermediate state contains both target and origin, so any later controller can finish the move
or undo it.  The target comes first and in its given order, which sets the preferred leader; of the
origin's order only its membership is kept.  Each step is one change of the state and the assignment
together.  The last step takes the leadership from a broker that leaves, its place in the ISR and
its replica all at once: by then every replica of the target has every committed record.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from hightide.core.controller.leader_election import first_live, with_isr
from hightide.core.partition.state import NO_BROKER, PartitionState


def target_of(state: PartitionState) -> tuple[int, ...]:
    """Return the assignment after a running move; without a move, the assignment."""
    return _without(state.replicas, state.removing)


def origin_of(state: PartitionState) -> tuple[int, ...]:
    """Return the assignment before a running move."""
    return _without(state.replicas, state.adding)


def problem(state: PartitionState, target: tuple[int, ...], live: Mapping[int, int]) -> str | None:
    """Return why a partition cannot move to `target`, or None."""
    if not target:
        return "a partition needs at least one replica"
    if len(set(target)) != len(target):
        return f"a broker is named twice: {list(target)}"
    if dead := [b for b in target if b not in origin_of(state) and b not in live]:
        return f"replicas can be added on live brokers only, these are not alive: {dead}"
    return None


def begun(
    state: PartitionState,
    target: tuple[int, ...],
    live: Mapping[int, int],
    shutting_down: Set[int],
    min_isr: int,
) -> PartitionState | None:
    """Start a move to `target`; it replaces a running move.

    Return None if no replica with every committed record would be left: the new move may have to
    drop the only one, which the former move had added.
    """
    origin = origin_of(state)
    return _assigned(
        state,
        target + _without(origin, target),
        _without(target, origin),
        _without(origin, target),
        live,
        shutting_down,
        min_isr,
    )


def cancelled(
    state: PartitionState, live: Mapping[int, int], shutting_down: Set[int], min_isr: int
) -> PartitionState | None:
    """Undo a move; return None if no replica with every committed record would be left."""
    return _assigned(state, origin_of(state), (), (), live, shutting_down, min_isr)


def finished(
    state: PartitionState, live: Mapping[int, int], shutting_down: Set[int], min_isr: int
) -> PartitionState:
    """Finish a move, if all replicas of its target are in sync."""
    target = target_of(state)
    if not state.is_reassigning or not set(target) <= set(state.isr):
        return state
    return _assigned(state, target, (), (), live, shutting_down, min_isr) or state


def _assigned(
    state: PartitionState,
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    live: Mapping[int, int],
    shutting_down: Set[int],
    min_isr: int,
) -> PartitionState | None:
    """Set the assignment; return None if no replica with every committed record would be left.

    A removed replica deletes its log.  It might be assigned again before the leader notices that
    it was gone, so the leader must forget what it knows of its followers: the leader epoch grows
    with every removal, even if the leader stays.
    """
    isr = tuple(member for member in state.isr if member in replicas)
    elr = tuple(member for member in state.elr if member in replicas)
    if not _keeps_one(state, replicas, isr, elr):
        return None
    has_lost_one = not set(state.replicas) <= set(replicas)
    stays = state.leader == NO_BROKER or state.leader in isr
    moved = replace(
        state,
        replicas=replicas,
        adding=adding,
        removing=removing,
        isr=isr,
        elr=elr,
        leader=state.leader if stays else first_live(replicas, isr, live, shutting_down),
        leader_epoch=state.leader_epoch + 1 if has_lost_one else state.leader_epoch,
        is_recovering=state.is_recovering and stays,
        broker_epochs={
            member: epoch for member, epoch in state.broker_epochs.items() if member in isr + elr
        },
    )
    moved = with_isr(moved, isr, live, min_isr)
    return state if moved == state else moved


def _keeps_one(
    state: PartitionState,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
) -> bool:
    """Return whether one of the best replicas that there are now is left."""
    if state.isr:
        return bool(isr)
    if state.elr:
        return bool(elr)
    if state.last_known_elr:
        return not set(state.last_known_elr).isdisjoint(replicas)
    return state.last_known_leader in (NO_BROKER, *replicas)


def _without(brokers: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in others)
