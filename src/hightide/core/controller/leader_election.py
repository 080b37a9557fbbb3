"""Who leads a partition, who is in sync and who is eligible: pure functions on a PartitionState.

    in ISR ── dies, restarts, lags ──▶ ELR, if the ISR that remains is too small to commit anything
      ▲                            └─▶ out, if it is not: more will be committed without it
      └── only by an accepted proposal of the leader, or by being elected

The next leader is the first, in the order of the assignment, that is alive and

    1. in ISR                                          has everything that is committed
    2. in ELR                                          has it too, for nothing was committed since
    3. the last known leader, if ISR and ELR are empty probably has most of it   ⎫ is_recovering:
    4. any replica, if the topic allows it             has something             ⎭ may lack some

so rules 3 and 4 are used only when no replica that is known to be whole can ever come back, or
when somebody prefers an answer to the right answer.

A member is trusted by the life (broker epoch) in which it was last known to be whole: the broker
lives that life still, or was shut down cleanly at its end and says so when it registers.  Any other
restart may have lost what had not reached the disk, so its replica is as good as a new one.

Every function returns the very same object if there is nothing to change; partition epochs are
given by whoever writes the result.  Deaths and restarts come first: all functions but `reelected`
expect a state in which `reelected` would change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace

from hightide.core.partition.state import NO_BROKER, PartitionState, effective_min_isr

UNCLEAN = -1
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker, as it registered."""

    epoch: int
    rack: str | None = None
    previous_epoch: int = UNCLEAN
    """The life that ended in the clean shutdown which it started from, or UNCLEAN."""
    is_shutting_down: bool = False


def distrusted(state: PartitionState, brokers: Mapping[int, Broker]) -> frozenset[int]:
    """Members of ISR and ELR that have restarted since, and may have lost data by it."""
    found = None
    for member in state.isr + state.elr:
        broker = brokers.get(member)
        if broker is not None:
            # A decision of a version that noted no lives is judged by the registration alone.
            whole_in = state.broker_epochs.get(member, broker.previous_epoch)
            if whole_in == UNCLEAN or whole_in not in (broker.epoch, broker.previous_epoch):
                found = {member} if found is None else found | {member}
    return _NONE if found is None else frozenset(found)


def first_state(
    replicas: tuple[int, ...], live: Mapping[int, int], shutting_down: Set[int]
) -> PartitionState | None:
    """The state of a partition that never had one; None while none of its replicas is alive.

    Nothing is committed yet, so all that are alive are in sync.
    """
    alive = [each for each in replicas if each in live]
    isr = tuple(each for each in alive if each not in shutting_down) or tuple(alive)
    if not isr:
        return None
    return PartitionState(
        replicas, isr[0], 0, isr, broker_epochs={each: live[each] for each in isr}
    )


def reelected(
    state: PartitionState,
    live: Mapping[int, int],
    shutting_down: Set[int],
    min_isr: int,
    unclean: bool,
    distrusted: Set[int] = _NONE,
) -> PartitionState:
    """The state after those who died, restarted or lost trust have left, with a leader if possible.

    A restart is a death and a start: who is in the ISR must fetch again to be in it.
    """
    lives = state.broker_epochs
    isr = tuple(
        each
        for each in state.isr
        if each in live and each not in distrusted and lives.get(each, live[each]) == live[each]
    )
    if state.leader in isr:
        return with_isr(state, isr, live, min_isr, distrusted)
    elr = tuple(
        each for each in state.isr + state.elr if each not in isr and each not in distrusted
    )
    last = state.leader if state.leader != NO_BROKER else state.last_known_leader
    leader = first_live(state.replicas, isr, live, shutting_down)
    if leader == NO_BROKER:
        leader = first_live(state.replicas, elr, live, shutting_down)
        isr = () if leader == NO_BROKER else (leader,)
    is_recovering = False
    if leader == NO_BROKER:
        whoever = (last,) if not elr else ()
        leader = first_live(state.replicas, whoever, live, shutting_down)
        if leader == NO_BROKER and unclean:
            leader = first_live(state.replicas, state.replicas, live, shutting_down)
        is_recovering = leader != NO_BROKER
    if is_recovering:
        return replace(
            state,
            leader=leader,
            leader_epoch=state.leader_epoch + 1,
            isr=(leader,),
            elr=(),
            last_known_leader=NO_BROKER,
            is_recovering=True,
            recovery_epoch=state.leader_epoch + 1,
            broker_epochs={leader: live[leader]},
        )
    remaining = with_isr(state, isr, live, min_isr, distrusted)
    if leader == state.leader == NO_BROKER:
        return remaining
    return replace(
        remaining,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        last_known_leader=last if leader == NO_BROKER else NO_BROKER,
        is_recovering=False,
    )


def with_preferred(
    state: PartitionState, live: Mapping[int, int], shutting_down: Set[int]
) -> PartitionState:
    """The state with the first of the assignment as leader, if it is in sync and stays."""
    preferred = state.replicas[0]
    if preferred in state.isr and preferred in live and preferred not in shutting_down:
        return _led_by(state, preferred)
    return state


def relieved(
    state: PartitionState, live: Mapping[int, int], shutting_down: Set[int], min_isr: int
) -> PartitionState:
    """The state without those in the ISR that are shutting down, if anybody else is in it.

    Whoever is alone stays: a leader that is about to go is better than none.
    """
    staying = tuple(each for each in state.isr if each not in shutting_down and each in live)
    if not staying or len(staying) == len(state.isr):
        return state
    leader = state.leader if state.leader in staying else first_live(state.replicas, staying, live)
    return with_isr(_led_by(state, leader), staying, live, min_isr)


def with_proposed_isr(
    state: PartitionState,
    isr: Collection[int],
    live: Mapping[int, int],
    min_isr: int,
    distrusted: Set[int] = _NONE,
) -> PartitionState:
    """The state with the ISR that the leader proposed; that the members are eligible is checked.

    This may come before a death or restart that is known has been written, so `distrusted` counts
    here too.  A leader that has come to judge its followers is over its recovery.
    """
    return replace(with_isr(state, isr, live, min_isr, distrusted), is_recovering=False)


def first_live(
    replicas: tuple[int, ...],
    candidates: Collection[int],
    live: Mapping[int, int],
    shutting_down: Set[int] = _NONE,
) -> int:
    """The first live candidate; one that is shutting down only if there is no other."""
    alive = [each for each in replicas if each in candidates and each in live]
    return next(
        (each for each in alive if each not in shutting_down), alive[0] if alive else NO_BROKER
    )


def _led_by(state: PartitionState, leader: int) -> PartitionState:
    if leader == state.leader:
        return state
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        last_known_leader=NO_BROKER,
        is_recovering=False,
    )


def with_isr(
    state: PartitionState,
    isr: Collection[int],
    live: Mapping[int, int],
    min_isr: int,
    distrusted: Set[int] = _NONE,
) -> PartitionState:
    """The state with this ISR, and with the ELR and the lives that follow from it.

    Everybody else who was in ISR or ELR remains whole for as long as nothing can be committed.
    """
    in_order = tuple(each for each in state.replicas if each in isr)
    elr: tuple[int, ...] = ()
    if len(in_order) < effective_min_isr(min_isr, state.replicas):
        elr = tuple(
            each
            for each in state.replicas
            if (each in state.elr or each in state.isr)
            and each not in in_order
            and each not in distrusted
        )
    known = state.broker_epochs
    lives = {each: live[each] for each in in_order}
    for each in elr:
        # A clean restart goes on as the next life.
        if each in live:
            lives[each] = live[each]
        elif each in known:
            lives[each] = known[each]
    if in_order == state.isr and elr == state.elr and lives == known:
        return state
    return replace(state, isr=in_order, elr=elr, broker_epochs=lives)
