"""AlterPartition: whether the ISR that a leader proposes may be written.

The leader knows who has fetched what; the controller knows who is alive, in which life, and who
leads.  A proposal is right only if both views fit together, so it names all it was based on: the
leader epoch, the partition epoch, and the life (broker epoch) in which each member has fetched.
A proposal that was under way while a member lost its disk and came back is refused by that last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hightide.core.controller.leader_election import Broker
from hightide.core.partition.state import PartitionState
from hightide.wire.errors import ErrorCode

_NOT_FETCHED = -1


class IsrProposal(Protocol):
    """What a leader wants to be written, and what it knew."""

    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def broker_epochs(self) -> Mapping[int, int]: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...


def proposal_error(
    proposal: IsrProposal, sender: int, state: PartitionState, brokers: Mapping[int, Broker]
) -> ErrorCode:
    """NONE, or the reason against the proposal, looked for in Kafka's order.

    An ISR that is in force already is fine whatever partition epoch the leader knew: it asks
    again for what it was not told.
    """
    isr = set(proposal.isr)
    if (
        proposal.leader_epoch > state.leader_epoch
        or proposal.partition_epoch > state.partition_epoch
    ):
        # The leader has seen what somebody wrote after us: we are the controller no more.
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
    if not all(_is_eligible(member, proposal, state, brokers.get(member)) for member in isr):
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
    # Who is in the ISR may be shutting down, if it is the leader: whoever joins can take over.  And
    # it may not have fetched from a new leader yet; then what counts is the life it came in with.
    if fetched_in == _NOT_FETCHED:
        fetched_in = state.broker_epochs.get(member, broker.epoch)
    return fetched_in == broker.epoch
