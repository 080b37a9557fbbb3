"""AlterPartition: whether the controller accepts the ISR that a leader proposes.

The leader knows what each follower has fetched; the controller knows which brokers are alive, in
which broker epoch, and which one leads.  A proposal is right only if both views agree, so it names
everything that it is based on: the leader epoch, the partition epoch, and the broker epoch in which
each member has fetched (KIP-903).  The last one refuses a proposal that was in flight while a
member lost its disk and came back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from hightide.core.controller.leader_election import Broker
from hightide.core.partition.state import PartitionState
from hightide.wire.errors import ErrorCode

_NOT_FETCHED = -1


class IsrProposal(Protocol):
    """The ISR that a leader proposes, and what the proposal is based on."""

    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def broker_epochs(self) -> Mapping[int, int]: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...


def proposal_error(
    proposal: IsrProposal,
    sender: int,
    state: PartitionState,
    brokers: Mapping[int, Broker],
    failed: Collection[int] = (),
) -> ErrorCode:
    """Return NONE, or the first error in Kafka's order of checks.

    `failed` are the brokers whose replica has failed: it must recover before it joins.

    An ISR that is in force already is accepted with any partition epoch: the leader repeats a
    proposal whose response it did not get.
    """
    isr = set(proposal.isr)
    if (
        proposal.leader_epoch > state.leader_epoch
        or proposal.partition_epoch > state.partition_epoch
    ):
        # The leader knows a newer decision than this controller: another one has taken over.
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != state.leader:
        return ErrorCode.INVALID_REQUEST
    if isr == set(state.isr):
        return ErrorCode.NONE
    if proposal.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if len(isr) != len(proposal.isr) or sender not in isr or not isr <= set(state.replicas):
        return ErrorCode.INVALID_REQUEST
    joining = isr - set(state.isr)
    if not joining.isdisjoint(failed) or not all(
        _is_eligible(member, proposal, state, brokers.get(member)) for member in isr
    ):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _is_eligible(
    member: int, proposal: IsrProposal, state: PartitionState, broker: Broker | None
) -> bool:
    if broker is None:
        return False
    fetched_in = proposal.broker_epochs.get(member, _NOT_FETCHED)
    if member not in state.isr:
        return fetched_in == broker.epoch and not broker.is_shutting_down
    # A present member may be shutting down, if it is the leader: a replica that joins can take
    # over.  And it may not have fetched from a new leader yet; then the broker epoch counts in
    # which it was last known to have every committed record.
    if fetched_in == _NOT_FETCHED:
        fetched_in = state.broker_epochs.get(member, broker.epoch)
    return fetched_in == broker.epoch
