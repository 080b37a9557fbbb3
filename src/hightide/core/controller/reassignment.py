"""Moving a partition to other brokers: the assignment grows, replicas fill, the assignment shrinks.

    [1 2 3] ──begun: to [3 4]──▶ [3 4 1 2], adding 4, removing 1 2 ──all of 3 4 in ISR──▶ [3 4]
                                        └──cancelled──▶ [3 1 2]

Target and origin can both be read off the state in between, so any later controller can end the
move or undo it.  The target comes first and in its own order, which says who is preferred as
leader; of the origin, only who belonged to it survives.  Each step is one change of the state and
of the assignment together: the end takes the leadership from a broker that leaves, its place in
the ISR and its replica all at once, since by then every replica of the target is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from hightide.core.controller.leader_election import first_live, with_isr
from hightide.core.partition.state import NO_BROKER, PartitionState


def target_of(state: PartitionState) -> tuple[int, ...]:
    """The assignment that a move under way leads to; without one, the assignment."""
    return _without(state.replicas, state.removing)


def origin_of(state: PartitionState) -> tuple[int, ...]:
    """The assignment that a move under way began with."""
    return _without(state.replicas, state.adding)


def problem(state: PartitionState, target: tuple[int, ...], live: Mapping[int, int]) -> str | None:
    """Why a partition cannot be moved there, in words."""
    if not target:
        return "a partition needs a replica"
    if len(set(target)) != len(target):
        return f"a broker is named twice: {list(target)}"
    if dead := [each for each in target if each not in origin_of(state) and each not in live]:
        return f"replicas can be added on live brokers only, these are not: {dead}"
    return None


def begun(
    state: PartitionState,
    target: tuple[int, ...],
    live: Mapping[int, int],
    shutting_down: Set[int],
    min_isr: int,
) -> PartitionState | None:
    """On its way to `target`; a move that was under way is given up for it.

    None if that would leave no whole replica: the new move may have to drop the only one, which the
    former move had added.
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
    """Back where the move began; None if that would leave no whole replica."""
    return _assigned(state, origin_of(state), (), (), live, shutting_down, min_isr)


def finished(
    state: PartitionState, live: Mapping[int, int], shutting_down: Set[int], min_isr: int
) -> PartitionState:
    """At its target, if a move is under way and everybody there is in sync."""
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
    """The state with another assignment; None if no whole replica would be left.

    Whoever is no replica any more deletes what it has.  It might come back as a replica before the
    leader notices that it was gone, so the leader must forget all it knows of its followers: the
    leader epoch grows, though the leader may stay.
    """
    isr = tuple(each for each in state.isr if each in replicas)
    elr = tuple(each for each in state.elr if each in replicas)
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
            each: epoch for each, epoch in state.broker_epochs.items() if each in isr + elr
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
    """Whether those who are left include one of the best that there are now."""
    if state.isr:
        return bool(isr)
    if state.elr:
        return bool(elr)
    return state.last_known_leader in (NO_BROKER, *replicas)


def _without(brokers: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(each for each in brokers if each not in others)
