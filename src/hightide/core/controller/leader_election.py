"""Leader election: which replica leads, which are in sync, which are eligible, as pure functions.

    in ISR ── dies, restarts, lags ──▶ ELR, if the remaining ISR is too small to commit anything
      ▲                            └─▶ out, if it is not: more is committed without the replica
      └── only by an accepted proposal of the leader, or by being elected

The next leader is the first replica, in the order of the assignment, that is alive and

    1. in ISR                                          has every committed record
    2. in ELR                                          has them too: nothing was committed since
    3. the last known leader, if ISR and ELR are empty probably has most of them  ⎫ is_recovering:
    4. any replica, if the topic allows it             has some of them           ⎭ may lack some

Rules 3 and 4 apply only if no replica that is known to have every committed record can ever come
back, or if `unclean.leader.election.enable` prefers availability to durability.

A member is trusted by the broker epoch in which it was last known to have every committed record:
the broker still has that epoch, or it was shut down cleanly at the end of that epoch and says so
when it registers.  Any other restart may have lost records that had not reached the disk, so its
replica counts as a new one.

Every function returns the same object if nothing changes; the caller that writes the result assigns
the partition epoch.  Deaths and restarts come first: all functions but `reelected` expect a state
that `reelected` would not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace

from hightide.core.partition.state import NO_BROKER, PartitionState, effective_min_isr

UNCLEAN = -1
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker, as registered."""

    epoch: int
    rack: str | None = None
    previous_epoch: int = UNCLEAN
    """The broker epoch that ended with a clean shutdown before this start, or UNCLEAN."""
    is_shutting_down: bool = False


def distrusted(state: PartitionState, brokers: Mapping[int, Broker]) -> frozenset[int]:
    """Return the members of ISR and ELR that restarted since and may have lost records."""
    found = None
    for member in state.isr + state.elr:
        broker = brokers.get(member)
        if broker is not None:
            # A state without broker epochs (of an older version) is judged by the registration.
            epoch = state.broker_epochs.get(member, broker.previous_epoch)
            if epoch == UNCLEAN or epoch not in (broker.epoch, broker.previous_epoch):
                found = {member} if found is None else found | {member}
    return _NONE if found is None else frozenset(found)


def first_state(
    replicas: tuple[int, ...], live: Mapping[int, int], shutting_down: Set[int]
) -> PartitionState | None:
    """Return the first state of a partition; None while none of its replicas is alive.

    Nothing is committed yet, so all live replicas are in sync.
    """
    alive = [replica for replica in replicas if replica in live]
    isr = tuple(replica for replica in alive if replica not in shutting_down) or tuple(alive)
    if not isr:
        return None
    return PartitionState(
        replicas, isr[0], 0, isr, broker_epochs={replica: live[replica] for replica in isr}
    )


def reelected(
    state: PartitionState,
    live: Mapping[int, int],
    shutting_down: Set[int],
    min_isr: int,
    unclean: bool,
    distrusted: Set[int] = _NONE,
) -> PartitionState:
    """Remove replicas that died, restarted or lost trust, and elect a leader if possible.

    A restart counts as a death and a start: the replica must fetch again to rejoin the ISR.
    """
    epochs = state.broker_epochs
    isr = tuple(
        member
        for member in state.isr
        if member in live
        and member not in distrusted
        and epochs.get(member, live[member]) == live[member]
    )
    if state.leader in isr:
        return with_isr(state, isr, live, min_isr, distrusted)
    elr = tuple(
        member for member in state.isr + state.elr if member not in isr and member not in distrusted
    )
    last = state.leader if state.leader != NO_BROKER else state.last_known_leader
    leader = first_live(state.replicas, isr, live, shutting_down)
    if leader == NO_BROKER:
        leader = first_live(state.replicas, elr, live, shutting_down)
        isr = () if leader == NO_BROKER else (leader,)
    is_recovering = False
    if leader == NO_BROKER:
        candidates = (last,) if not elr else ()
        leader = first_live(state.replicas, candidates, live, shutting_down)
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
    """Elect the preferred leader, if it is in sync and not shutting down."""
    preferred = state.replicas[0]
    if preferred in state.isr and preferred in live and preferred not in shutting_down:
        return _led_by(state, preferred)
    return state


def relieved(
    state: PartitionState, live: Mapping[int, int], shutting_down: Set[int], min_isr: int
) -> PartitionState:
    """Remove the members of the ISR that are shutting down, if another member is left.

    A sole member stays: a leader that is about to leave is better than none.
    """
    staying = tuple(m for m in state.isr if m not in shutting_down and m in live)
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
    """Apply the ISR that the leader proposed; `proposal_error` has checked its members.

    A proposal may be applied before a known death or restart has been written, so `distrusted`
    counts here too.  The recovery of a leader ends when it proposes an ISR.
    """
    return replace(with_isr(state, isr, live, min_isr, distrusted), is_recovering=False)


def first_live(
    replicas: tuple[int, ...],
    candidates: Collection[int],
    live: Mapping[int, int],
    shutting_down: Set[int] = _NONE,
) -> int:
    """Return the first live candidate; one that is shutting down only if there is no other."""
    alive = [replica for replica in replicas if replica in candidates and replica in live]
    staying = (replica for replica in alive if replica not in shutting_down)
    return next(staying, alive[0] if alive else NO_BROKER)


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
    """Set the ISR, and the ELR and broker epochs that follow from it.

    Replicas that leave ISR or ELR keep every committed record for as long as nothing more can be
    committed.
    """
    in_order = tuple(replica for replica in state.replicas if replica in isr)
    elr: tuple[int, ...] = ()
    if len(in_order) < effective_min_isr(min_isr, state.replicas):
        elr = tuple(
            replica
            for replica in state.replicas
            if (replica in state.elr or replica in state.isr)
            and replica not in in_order
            and replica not in distrusted
        )
    known = state.broker_epochs
    epochs = {member: live[member] for member in in_order}
    for member in elr:
        # After a clean restart the new broker epoch is as good as the old one.
        if member in live:
            epochs[member] = live[member]
        elif member in known:
            epochs[member] = known[member]
    if in_order == state.isr and elr == state.elr and epochs == known:
        return state
    return replace(state, isr=in_order, elr=elr, broker_epochs=epochs)
