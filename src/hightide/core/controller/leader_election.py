"""Leader election: which replica leads, which are in sync, which are eligible, as pure functions.

    in ISR ── dies, restarts, lags ──▶ ELR, if the remaining ISR is too small to commit anything
      ▲                            └─▶ out, if it is not: more is committed without the replica
      └── only by an accepted proposal of the leader, or by being elected

The next leader is the first replica, in the order of the assignment, that is alive and

    1. in ISR                                has every committed record
    2. in ELR                                has them too: nothing was committed since
    3. the longest log of the last known     has every committed record     ⎫ is_recovering:
       members, if ISR and ELR are empty     that any of them still has     ⎬ may lack some
    4. the longest log of all live replicas  if the topic prefers that      ⎭

In a recovery (3 and 4) the controller asks the brokers how far their logs reach.  The longest log
is the one with the newest leader epoch, and of these the one with the highest end: it has whatever
the others have.  A replica that lost its log is so never elected while another has one.

Balanced recovery (3, the default) waits until all members of the last ISR and ELR have answered.
Aggressive recovery (4, or `unclean.leader.election.enable`) asks the live replicas and waits for
no other.  Without a strategy an administrator decides.

A member is trusted by the broker epoch in which it was last known to have every committed record:
the broker still has that epoch, or it was shut down cleanly at the end of that epoch and says so
when it registers.  Any other restart may have lost records that had not reached the disk, so its
replica counts as a new one.

A replica may fail although its broker is alive.  An OFFLINE replica counts as one whose broker is
down.  A FULL or DAMAGED one leaves the ISR if another member can lead; a DAMAGED one, unless it is
the leader, is distrusted as well.  The last member of an ISR stays: it serves what it can read.

Every function returns the same object if nothing changes; the caller that writes the result assigns
the partition epoch.  Deaths and restarts come first: all functions but `reelected` expect a state
that `reelected` would not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from hightide.core.partition.state import (
    NO_BROKER,
    FailureKind,
    PartitionState,
    effective_min_isr,
)

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


class RecoveryStrategy(Enum):
    """What to do if no replica is known to have every committed record (KIP-966)."""

    NONE = "none"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"


class LogEnd(NamedTuple):
    """How far the log of a replica without a leader reaches; the longest log is the largest."""

    last_epoch: int
    """The leader epoch of its last record; -1 if it has none."""
    end_offset: int


NO_LOG = LogEnd(-1, -1)
"""The broker did not answer, or cannot read the log."""

Logs = Mapping[int, LogEnd]
"""What the brokers have answered, in their present broker epoch and the present leader epoch."""

_NO_LOGS: Logs = {}


class Fitness(NamedTuple):
    """The brokers as they count for one partition, of which some replicas may have failed."""

    live: Mapping[int, int]
    """The broker epochs of the live brokers, without those whose replica is OFFLINE."""
    leaving: Set[int]
    """Brokers that are shutting down, or whose replica is FULL or DAMAGED."""
    distrusted: Set[int]
    damaged: Set[int]


def fitness(
    state: PartitionState,
    brokers: Mapping[int, Broker],
    live: Mapping[int, int],
    shutting_down: Set[int],
    failures: Mapping[int, FailureKind],
) -> Fitness:
    """Return how the brokers count for a partition with these failed replicas."""
    restarted = distrusted(state, brokers)
    if not failures:
        return Fitness(live, shutting_down, restarted, _NONE)
    damaged = {broker for broker, kind in failures.items() if kind is FailureKind.DAMAGED}
    return Fitness(
        {b: epoch for b, epoch in live.items() if failures.get(b) is not FailureKind.OFFLINE},
        {*shutting_down, *(b for b, kind in failures.items() if kind is not FailureKind.OFFLINE)},
        restarted | (damaged - {state.leader}),
        damaged,
    )


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
    strategy: RecoveryStrategy,
    distrusted: Set[int] = _NONE,
    logs: Logs = _NO_LOGS,
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
    remaining = with_isr(state, isr, live, min_isr, distrusted)
    if leader == NO_BROKER:
        longest = longest_log(replace(remaining, leader=NO_BROKER), live, strategy, logs)
        if longest != NO_BROKER:
            return _recovered(remaining, longest, live)
        if state.leader == NO_BROKER:
            return remaining
    return replace(
        remaining,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        last_known_leader=last if leader == NO_BROKER else NO_BROKER,
        is_recovering=False,
    )


def recovery_candidates(
    state: PartitionState,
    live: Mapping[int, int],
    strategy: RecoveryStrategy,
    logs: Logs = _NO_LOGS,
) -> tuple[int, ...]:
    """Return the replicas whose logs decide who leads a partition without a leader.

    If all members of the last ISR and ELR have lost their logs, the others may still have one.
    """
    if state.leader != NO_BROKER or strategy is RecoveryStrategy.NONE:
        return ()
    if strategy is RecoveryStrategy.AGGRESSIVE:
        return tuple(replica for replica in state.replicas if replica in live)
    # A member of the ELR has every committed record, so waiting for it is better.
    if state.elr:
        return ()
    members = state.last_known_elr or state.replicas
    are_empty = all(member in logs and logs[member].last_epoch < 0 for member in members)
    return state.replicas if are_empty else members


def longest_log(
    state: PartitionState, live: Mapping[int, int], strategy: RecoveryStrategy, logs: Logs
) -> int:
    """Return the candidate with the longest log; NO_BROKER while an answer is missing.

    Of equal logs, a member of the last ISR and ELR wins, then the first in the order of the
    assignment.  A replica that has no other beside it is not asked.
    """
    candidates = recovery_candidates(state, live, strategy, logs)
    if candidates == state.replicas and len(candidates) == 1:
        return candidates[0] if candidates[0] in live else NO_BROKER
    if not all(candidate in live and candidate in logs for candidate in candidates):
        return NO_BROKER
    if strategy is RecoveryStrategy.BALANCED and NO_LOG in (logs[c] for c in candidates):
        return NO_BROKER
    members = state.last_known_elr
    return max(candidates, key=lambda c: (logs[c], c in members), default=NO_BROKER)


def _recovered(state: PartitionState, leader: int, live: Mapping[int, int]) -> PartitionState:
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=(leader,),
        elr=(),
        last_known_leader=NO_BROKER,
        last_known_elr=(),
        is_recovering=True,
        recovery_epoch=state.leader_epoch + 1,
        broker_epochs={leader: live[leader]},
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
    state: PartitionState,
    live: Mapping[int, int],
    leaving: Set[int],
    min_isr: int,
    damaged: Set[int] = _NONE,
) -> PartitionState:
    """Remove the members of the ISR that are leaving, if another member is left.

    A sole member stays: a leader that is about to leave is better than none.  But a live member of
    the ELR is better than a damaged leader, from which it may not be able to copy.
    """
    staying = tuple(m for m in state.isr if m not in leaving and m in live)
    if not state.isr or len(staying) == len(state.isr):
        return state
    leader = state.leader if state.leader in staying else first_live(state.replicas, staying, live)
    if leader == NO_BROKER and state.leader in damaged:
        eligible = [member for member in state.elr if member not in leaving]
        leader = first_live(state.replicas, eligible, live)
        staying = (leader,)
    if leader == NO_BROKER:
        return state
    return with_isr(_led_by(state, leader), staying, live, min_isr, damaged)


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
    last_known: tuple[int, ...] = ()
    if len(in_order) < effective_min_isr(min_isr, state.replicas):
        elr = tuple(
            replica
            for replica in state.replicas
            if (replica in state.elr or replica in state.isr)
            and replica not in in_order
            and replica not in distrusted
        )
        members = (*state.isr, *state.elr, *state.last_known_elr)
        last_known = tuple(
            replica
            for replica in state.replicas
            if replica in members and replica not in in_order and replica not in elr
        )
    known = state.broker_epochs
    epochs = {member: live[member] for member in in_order}
    for member in elr:
        # After a clean restart the new broker epoch is as good as the old one.
        if member in live:
            epochs[member] = live[member]
        elif member in known:
            epochs[member] = known[member]
    if (in_order, elr, last_known, epochs) == (
        state.isr,
        state.elr,
        state.last_known_elr,
        known,
    ):
        return state
    return replace(state, isr=in_order, elr=elr, last_known_elr=last_known, broker_epochs=epochs)
