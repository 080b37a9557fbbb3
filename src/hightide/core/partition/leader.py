"""A leader's view of its partition: how far the log is committed, and who is in sync.

    appended ────────┐                 ┌─ high_watermark ─▶ wake produce and fetch waits
    fetched, tick ───┼──▶  Leader  ────┤
    published ───────┘       ▲         └─ proposal ─▶ ask the controller (AlterPartition)
                             │                            │
                             └─ accepted, refused, unanswered

One `Leader` lives as long as its leader epoch.  What it never forgets:

**A commit must hold under every outcome.**  While a proposal is under way the controller may
already count the members it adds, and still count those it removes, so the high watermark waits
for the *maximal ISR*: the ISR as last heard of, and everybody whom the controller may have added
since.  A follower whose end is not known in this epoch counts as having nothing.

**Nothing is committed with too few.**  While the ISR as last heard of is smaller than
`min.insync.replicas` the high watermark stands still, for any acks.  That is what makes those who
left such an ISR eligible to lead (KIP-966).  The controller may know another setting than the
leader at the moment: while it deems somebody eligible, the ISR is too small as well.

**Nobody joins who may lack something.**  A new leader's high watermark is normally stale, but what
is committed lies below the end its log had when it took over: `epoch_start_offset`.  A follower
joins when it has reached both, by a fetch of its present incarnation in this leader epoch, and is
alive and not shutting down.  It joins only in the moment of a fetch: one that merely stood in the
right place once would come and go for ever.  And it has deleted what the leader's log no longer
reaches back to: that could not be compared, and may be what was never committed.

**A slow member leaves.**  The leader proposes to remove a member that has not been caught up for
`lag_ms` (`follower_progress.py`).  The clock starts when the replica becomes a member.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from hightide.core.partition.follower_progress import (
    NEVER,
    UNKNOWN_BROKER_EPOCH,
    UNKNOWN_OFFSET,
    Progress,
    RemoteReplica,
    Standing,
)
from hightide.core.partition.state import PartitionState, effective_min_isr
from hightide.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Proposal:
    """The ISR that the controller is asked for."""

    isr: tuple[int, ...]
    """In the order of the assignment."""
    broker_epochs: dict[int, int]
    """Of each member, by its fetches; -1 of one who has not fetched, and so is no new member."""
    leader_epoch: int
    partition_epoch: int
    """The decision it builds upon; any newer one voids it."""


class Changes(NamedTuple):
    """What follows from a fact."""

    high_watermark: int | None = None
    """It has moved here."""
    proposal: Proposal | None = None
    """To be sent to the controller, and again while no answer comes."""


NOTHING = Changes()


class Leader:
    """One partition led in one leader epoch."""

    __slots__ = (
        "_check_ms",
        "_doubtful",
        "_followers",
        "_has_members",
        "_is_unanswered",
        "_lag_ms",
        "_live",
        "_min_isr",
        "_now_ms",
        "_shutting_down",
        "broker_epoch",
        "broker_id",
        "end_offset",
        "epoch_start_offset",
        "high_watermark",
        "is_under_min_isr",
        "maximal_isr",
        "proposal",
        "state",
    )

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        state: PartitionState,
        *,
        end_offset: int,
        high_watermark: int,
        min_isr: int,
        lag_ms: int,
        live: Mapping[int, int],
        shutting_down: Set[int],
        now_ms: int,
    ) -> None:
        assert state.leader == broker_id
        assert 0 <= high_watermark <= end_offset
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.state = state
        self.end_offset = self.epoch_start_offset = end_offset
        self.high_watermark = high_watermark
        self.proposal: Proposal | None = None
        self._is_unanswered = False
        # Whom a lost copy of a proposal may still add to the ISR, in which incarnation.
        self._doubtful: dict[int, int] = {}
        self._live = dict(live)
        self._shutting_down = frozenset(shutting_down)
        # The time of the last fact that told it. Kept, so that facts without one can be judged.
        self._now_ms = now_ms
        self._followers: dict[int, RemoteReplica] = {}
        self._set_limits(min_isr, lag_ms)
        self._adopt(state)
        self._advance()

    # Facts ------------------------------------------------------------------------------------

    def appended(self, end_offset: int) -> Changes:
        """The leader's log ends here now."""
        assert end_offset >= self.end_offset
        self.end_offset = end_offset
        # Members are where they were, so only without any does the log's end commit by itself.
        if self._has_members or not self._advance():
            return NOTHING
        return Changes(self.high_watermark)

    def fetched(
        self,
        replica: int,
        offset: int,
        broker_epoch: int,
        now_ms: int,
        log_start_offset: int = 0,
        own_log_start_offset: int = 0,
    ) -> Changes:
        """A follower asked for `offset`: everything before it is in its log.

        Only a fetch that `fetch_verdict` allows, in this leader epoch, whose last epoch does not
        diverge, tells that.  What a removed replica or a former incarnation says is passed over.
        """
        follower = self._followers.get(replica)
        if follower is None:
            return NOTHING
        if broker_epoch != follower.broker_epoch:
            if broker_epoch < follower.broker_epoch:
                return NOTHING
            follower.restarted(broker_epoch)
        end_offset = self.end_offset
        assert 0 <= offset <= end_offset, "it has what the leader has not"
        if now_ms > self._now_ms:  # noqa: PLR1730, max() takes three times as long
            self._now_ms = now_ms
        follower.fetched(offset, log_start_offset, end_offset, now_ms)
        if follower.is_counted:
            if offset <= self.high_watermark or not self._advance():
                return NOTHING
            return Changes(self.high_watermark)
        if follower.compared_from_offset == UNKNOWN_OFFSET:
            follower.compared_from_offset = own_log_start_offset
        # It is counted before the high watermark moves, lest that run away from it.
        if self.proposal is None and self._may_join(follower):
            return self._changes(self._propose({*self.state.isr, replica}))
        return self._changes()

    def tick(self, now_ms: int) -> Changes:
        """Look for members that have been behind for too long."""
        self._now_ms = max(now_ms, self._now_ms)
        self._check_ms = self._now_ms + max(1, self._lag_ms // 2)
        if self.proposal is not None:
            return self._changes()
        isr = set(self.state.isr)
        late = {each.id for each in self._members() if not self._is_caught_up(each)}
        # Asking again for those in doubt gets an answer that ends the doubt.
        again = {each for each in self._doubtful if self._may_join(self._followers[each])}
        if not late and not again:
            return self._changes()
        return self._changes(self._propose((isr - late) | again))

    def deadline_ms(self) -> int | None:
        """When to `tick`: every half of `lag_ms`, so nobody stays for more than half too long."""
        return self._check_ms if self._followers else None

    def accepted(self, state: PartitionState) -> Changes:
        """The controller carried out the proposal, and this is its whole decision: without its
        ELR it must not be told here, but be waited for.  It may also answer with a later one that
        is like what was proposed, which is left to be published.
        """
        proposal = self.proposal
        if (
            proposal is None
            or state.leader_epoch != proposal.leader_epoch
            or state.partition_epoch != proposal.partition_epoch + 1
            or set(state.isr) != set(proposal.isr)
        ):
            return NOTHING
        self._adopt(state)
        return self._changes()

    def refused(self, proposal: Proposal) -> Changes:
        """The controller will not carry out this proposal: INELIGIBLE_REPLICA or
        OPERATION_NOT_ATTEMPTED.  `proposal` is the very object that was sent, so that a late
        answer to a former one is not taken for an answer to this one.

        If a copy of it was lost before, that may still arrive and be accepted, and so whom it adds
        keeps being counted until a newer decision voids it or their incarnation is gone.
        """
        if proposal is not self.proposal:
            return NOTHING
        if self._is_unanswered:
            for each in proposal.isr:
                epoch = proposal.broker_epochs[each]
                if each not in self.state.isr and self._live.get(each) == epoch:
                    self._doubtful[each] = epoch
        self._settle()
        return self._changes()

    def unanswered(self) -> None:
        """No answer came, and the proposal will be sent again: a copy of it may still arrive at
        any time.  For other answers (a fenced epoch, an old version) nothing needs to be said:
        they come before a newer decision, and until then everything stays as it is."""
        self._is_unanswered = self.proposal is not None

    def published(self, state: PartitionState) -> Changes:
        """The controller made known a decision in this leader epoch."""
        assert state.leader_epoch == self.state.leader_epoch, "a new epoch is a new Leader"
        if state.partition_epoch < self.state.partition_epoch:
            return NOTHING
        if state.partition_epoch == self.state.partition_epoch:
            # The answer to the proposal came first; it left out what does not concern a leader.
            assert (set(state.isr), state.replicas) == (set(self.state.isr), self.state.replicas)
            self.state = state
            return NOTHING
        self._adopt(state)
        return self._changes()

    def brokers_changed(self, live: Mapping[int, int], shutting_down: Set[int]) -> Changes:
        """These brokers are alive, in these incarnations."""
        self._live = dict(live)
        self._shutting_down = frozenset(shutting_down)
        for follower in self._followers.values():
            if live.get(follower.id, UNKNOWN_BROKER_EPOCH) > follower.broker_epoch:
                follower.restarted(live[follower.id])
        # A broker epoch never returns, so nobody can be added in one that is gone.
        self._doubtful = {r: epoch for r, epoch in self._doubtful.items() if live.get(r) == epoch}
        self._recount()
        return self._changes()

    def configured(self, min_isr: int, lag_ms: int) -> Changes:
        """The settings of the topic or the broker changed."""
        self._set_limits(min_isr, lag_ms)
        self._recount()
        return self._changes()

    # Questions --------------------------------------------------------------------------------

    @property
    def is_hw_trusted(self) -> bool:
        """Whether all that former leaders committed is below the high watermark.  Before that the
        end of the partition cannot be told: OFFSET_NOT_AVAILABLE."""
        return self.high_watermark >= self.epoch_start_offset

    def write_verdict(self) -> ErrorCode:
        """May a write with acks=all be appended?"""
        return ErrorCode.NOT_ENOUGH_REPLICAS if self.is_under_min_isr else ErrorCode.NONE

    def commit_verdict(self, end_offset: int) -> ErrorCode | None:
        """What a write with acks=all up to `end_offset` is to be answered; None: nothing yet."""
        if self.high_watermark < end_offset:
            return None
        if len(self.maximal_isr) < effective_min_isr(self._min_isr, self.state.replicas):
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def fetch_verdict(self, replica: int, broker_epoch: int) -> ErrorCode:
        """May this follower fetch?  Whoever is not assigned knows of an assignment that is not
        known here yet, or does not know yet that it ended."""
        follower = self._followers.get(replica)
        if follower is None:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        is_stale = broker_epoch < follower.broker_epoch
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_stale else ErrorCode.NONE

    def readable_from(self, offset: int) -> list[int]:
        """The followers a consumer at `offset` may read from (KIP-392), the furthest first."""
        found = [
            each
            for each in self._members()
            if each.log_start_offset <= offset <= each.end_offset and self._is_eligible(each)
        ]
        found.sort(key=lambda each: (-each.end_offset, -each.caught_up_ms))
        return [each.id for each in found]

    def low_watermark(self, log_start_offset: int) -> int:
        """Where the log starts on all replicas whose brokers are alive, if it starts at
        `log_start_offset` here; -1 if one has not told."""
        starts = [f.log_start_offset for f in self._followers.values() if f.id in self._live]
        return min([log_start_offset, *starts])

    def progress(self, replica: int, now_ms: int) -> Progress:
        """How far `replica` is, for people."""
        if replica == self.broker_id:
            return Progress(replica, Standing.LEADER, self.end_offset, 0, 0)
        follower = self._followers[replica]
        return follower.progress(self._standing(follower), self.end_offset, now_ms)

    def _standing(self, follower: RemoteReplica) -> Standing:
        if follower.id in self.state.isr:
            return Standing.IN_SYNC
        if follower.id not in self._live:
            return Standing.NOT_ALIVE
        if follower.id in self._shutting_down:
            return Standing.SHUTTING_DOWN
        if follower.broker_epoch != self._live[follower.id]:
            return Standing.RESTARTED
        if follower.end_offset == UNKNOWN_OFFSET:
            return Standing.RESTARTED if follower.is_restarted else Standing.NEVER_FETCHED
        return Standing.JOINING if self._may_join(follower) else Standing.BEHIND

    # Rules ------------------------------------------------------------------------------------

    def _is_caught_up(self, follower: RemoteReplica) -> bool:
        return follower.is_caught_up(self.end_offset, self._now_ms, self._lag_ms)

    def _is_eligible(self, follower: RemoteReplica) -> bool:
        """Would the controller let it join?"""
        return (
            self._live.get(follower.id) == follower.broker_epoch
            and follower.id not in self._shutting_down
        )

    def _may_join(self, follower: RemoteReplica) -> bool:
        return (
            follower.end_offset >= self.high_watermark
            and follower.end_offset >= self.epoch_start_offset
            and follower.log_start_offset >= follower.compared_from_offset
            and self._is_eligible(follower)
        )

    def _members(self) -> list[RemoteReplica]:
        return [self._followers[each] for each in self.state.isr if each != self.broker_id]

    def _advance(self) -> bool:
        """Move the high watermark to the least end that counts.  Did it move?

        A follower that is caught up and about to join is waited for as well: otherwise the high
        watermark of a busy partition would always be ahead of it.
        """
        if self.is_under_min_isr:
            return False
        least = self.end_offset
        for each in self._followers.values():
            if each.end_offset < least and (
                each.is_counted or (self._is_caught_up(each) and self._is_eligible(each))
            ):
                least = each.end_offset
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True

    def _changes(self, proposal: Proposal | None = None) -> Changes:
        if self._advance():
            return Changes(self.high_watermark, proposal)
        return Changes(None, proposal) if proposal else NOTHING

    def _propose(self, isr: set[int]) -> Proposal:
        assert self.proposal is None, "one at a time"
        epochs = {
            each.id: each.broker_epoch
            if each.end_offset != UNKNOWN_OFFSET
            else UNKNOWN_BROKER_EPOCH
            for each in self._followers.values()
            if each.id in isr
        }
        epochs[self.broker_id] = self.broker_epoch
        members = tuple(each for each in self.state.replicas if each in isr)
        self.proposal = Proposal(
            members, epochs, self.state.leader_epoch, self.state.partition_epoch
        )
        self._recount()
        return self.proposal

    def _settle(self) -> None:
        self.proposal = None
        self._is_unanswered = False
        self._recount()

    def _adopt(self, state: PartitionState) -> None:
        """A newer decision.  It voids what was proposed upon an older one.

        A replica that was removed and added again has an empty log.  If decisions were skipped
        that may have happened unseen, but not to a member: nobody joins but on a proposal made
        here upon the decision before.
        """
        state.check()
        assert state.leader == self.broker_id
        has_skipped = state.partition_epoch > self.state.partition_epoch + 1
        known = self._followers
        self._followers = {}
        for replica in state.replicas:
            if replica == self.broker_id:
                continue
            follower = known.get(replica)
            if follower is None:
                epoch = self._live.get(replica, UNKNOWN_BROKER_EPOCH)
                follower = RemoteReplica(replica, epoch)
            elif has_skipped and replica not in state.isr:
                follower = RemoteReplica(replica, follower.broker_epoch)
            if replica in state.isr and follower.caught_up_ms == NEVER:
                follower.caught_up_ms = self._now_ms
            self._followers[replica] = follower
        self.state = state
        self._doubtful.clear()
        self._settle()

    def _recount(self) -> None:
        """Who counts, and whether the ISR is large enough."""
        proposed = self.proposal.isr if self.proposal else ()
        self.maximal_isr = frozenset((*self.state.isr, *proposed, *self._doubtful))
        for each in self._followers.values():
            each.is_counted = each.id in self.maximal_isr
        self._has_members = len(self.maximal_isr) > 1
        least = effective_min_isr(self._min_isr, self.state.replicas)
        self.is_under_min_isr = len(self.state.isr) < least or bool(self.state.elr)

    def _set_limits(self, min_isr: int, lag_ms: int) -> None:
        assert min_isr >= 1
        assert lag_ms >= 1
        self._min_isr = min_isr
        self._lag_ms = lag_ms
        self._check_ms = self._now_ms + max(1, lag_ms // 2)

    def check(self) -> None:
        """Assert what must hold between any two facts."""
        self.state.check()
        state, isr = self.state, set(self.state.isr)
        assert state.leader == self.broker_id
        assert 0 <= self.high_watermark <= self.end_offset
        assert self.epoch_start_offset <= self.end_offset
        assert [*self._followers] == [r for r in state.replicas if r != self.broker_id]
        assert all(each.end_offset <= self.end_offset for each in self._followers.values())
        assert isr <= self.maximal_isr <= set(state.replicas)
        assert {r for r, each in self._followers.items() if each.is_counted} == (
            self.maximal_isr - {self.broker_id}
        )
        assert self._has_members == (len(self.maximal_isr) > 1)
        least = effective_min_isr(self._min_isr, state.replicas)
        assert self.is_under_min_isr == (len(isr) < least or bool(state.elr))
        assert not self._doubtful.keys() & isr
        assert all(self._live.get(r) == epoch for r, epoch in self._doubtful.items())
        proposal = self.proposal
        if proposal is None:
            assert not self._is_unanswered
            return
        assert self.broker_id in proposal.isr
        assert proposal.broker_epochs.keys() == set(proposal.isr)
        assert set(proposal.isr) <= self.maximal_isr
        assert set(proposal.isr) != isr, "it would change nothing"
        assert (proposal.leader_epoch, proposal.partition_epoch) == (
            state.leader_epoch,
            state.partition_epoch,
        )
