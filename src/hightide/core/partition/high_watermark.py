"""The high watermark (HW): the offset below which every record is committed.

    HW = min(log end offset) over the maximal ISR

             leader    ┃ 0 ┃ 1 ┃ 2 ┃ 3 ┃ 4 ┃      log end offset 5
    ISR      replica 2 ┃ 0 ┃ 1 ┃ 2 ┃ 3 ┃                         4   ◀ HW = 4
    proposed replica 3 ┃ 0 ┃ 1 ┃ 2 ┃ 3 ┃ 4 ┃                     5

**A commit must hold under every outcome.**  While a proposal to the controller is unanswered, the
controller may already count the members that the proposal adds, and still count those that it
removes.  So the high watermark waits for the *maximal ISR*: the ISR of the last known decision, and
every replica that the controller may have added since (KIP-497).  A follower whose end is not known
in this leader epoch counts as having nothing.

**Nothing is committed with too few replicas.**  While the ISR of the last known decision is smaller
than `min.insync.replicas` the high watermark stands still, for any acks.  This makes the replicas
that left such an ISR eligible to lead (KIP-966).  The controller may know a different value of the
setting than the leader at the moment: while the decision has eligible leader replicas, the ISR
counts as too small as well.
"""

from __future__ import annotations

from collections.abc import Iterable

from hightide.core.partition.follower_progress import RemoteReplica
from hightide.core.partition.isr import IsrRules, Proposal
from hightide.core.partition.state import PartitionState, effective_min_isr

NO_COMMIT = -1


def maximal_isr(
    state: PartitionState, proposal: Proposal | None, in_doubt: Iterable[int]
) -> frozenset[int]:
    """Return every replica that the controller may count as a member of the ISR.

    `in_doubt` are replicas that a lost copy of an earlier proposal may still add.
    """
    proposed = proposal.isr if proposal else ()
    return frozenset((*state.isr, *proposed, *in_doubt))


def is_under_min_isr(state: PartitionState, min_isr: int) -> bool:
    """Return whether the ISR is too small for the high watermark to move."""
    return len(state.isr) < effective_min_isr(min_isr, state.replicas) or bool(state.elr)


def commit_offset(
    end_offset: int,
    followers: Iterable[RemoteReplica],
    is_too_small: bool,
    rules: IsrRules,
    now_ms: int,
) -> int:
    """Return the least log end offset that counts: the high watermark moves there, never back.

    `end_offset` is the leader's.  Return `NO_COMMIT` while the ISR is too small.  `is_counted`
    marks the followers in the maximal ISR.  A follower that is caught up and about to join counts
    as well: otherwise the high watermark of a busy partition would always be ahead of it, and it
    could never join.
    """
    if is_too_small:
        return NO_COMMIT
    least = end_offset
    for follower in followers:
        if follower.end_offset < least and (
            follower.is_counted
            or (
                follower.is_caught_up(end_offset, now_ms, rules.lag_ms)
                and rules.is_eligible(follower)
            )
        ):
            least = follower.end_offset
    return least
