"""The leader of a partition: how far the log is committed, and which replicas are in sync.

    appended ────────┐                 ┌─ high_watermark ─▶ wake produce and fetch waits
    fetched, tick ───┼──▶  Leader  ────┤
    published ───────┘       ▲         └─ proposal ─▶ ask the controller (AlterPartition)
                             │                            │
                             └─ accepted, refused, unanswered

One `Leader` lasts for one leader epoch.  `high_watermark.py` computes the high watermark, `isr.py`
has the rules for joining and leaving the ISR, `follower_progress.py` keeps what a follower's
fetches say.  This module joins the three, and sees a proposal through to the controller's decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from hightide.core.events import Event
from hightide.core.partition.follower_progress import (
    NEVER,
    UNKNOWN_BROKER_EPOCH,
    UNKNOWN_OFFSET,
    Progress,
    RemoteReplica,
    Standing,
)
from hightide.core.partition.high_watermark import commit_offset, is_under_min_isr, maximal_isr
from hightide.core.partition.isr import IsrRules, Proposal, isr_event
from hightide.core.partition.state import PartitionState, effective_min_isr
from hightide.wire.errors import ErrorCode


class Changes(NamedTuple):
    """What follows from a fact."""

    high_watermark: int | None = None
    """The new high watermark, if it moved."""
    proposal: Proposal | None = None
    """To send to the controller, and to send again while no answer comes."""


NOTHING = Changes()


class Leader:
    """One partition led in one leader epoch."""

    __slots__ = (
        "_check_ms",
        "_followers",
        "_has_members",
        "_in_doubt",
        "_is_unanswered",
        "_min_isr",
        "_now_ms",
        "_remotes",
        "_rules",
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
        # Replicas that a lost copy of a proposal may still add to the ISR, by broker epoch.
        self._in_doubt: dict[int, int] = {}
        self._rules = IsrRules(live, shutting_down, lag_ms)
        # The time of the last fact that has one, for facts that have none.
        self._now_ms = now_ms
        self._followers: dict[int, RemoteReplica] = {}
        # The same followers, for the hot path.
        self._remotes: tuple[RemoteReplica, ...] = ()
        self._set_limits(min_isr, lag_ms)
        self._adopt(state)
        self._advance()

    # Facts ------------------------------------------------------------------------------------

    def appended(self, end_offset: int) -> int:
        """The leader's log was appended to and ends at `end_offset` now.

        Return the new high watermark, or -1 if it did not move.  This is a number and no `Changes`,
        because every append comes here.
        """
        assert end_offset >= self.end_offset
        self.end_offset = end_offset
        # Other members have not moved, so an append commits only where there are none.
        if self._has_members:
            return -1
        committed = commit_offset(
            end_offset, self._remotes, self.is_under_min_isr, self._rules, self._now_ms
        )
        if committed <= self.high_watermark:
            return -1
        self.high_watermark = committed
        return committed

    def fetched(
        self,
        replica: int,
        offset: int,
        broker_epoch: int,
        now_ms: int,
        log_start_offset: int = 0,
        own_log_start_offset: int = 0,
    ) -> Changes:
        """A follower fetched from `offset`: its log has everything before it.

        This holds only for a fetch that `fetch_error` allows, in this leader epoch, whose last
        epoch does not diverge.  Fetches of removed replicas and of former broker epochs are
        ignored.
        """
        follower = self._followers.get(replica)
        if follower is None:
            return NOTHING
        if broker_epoch != follower.broker_epoch:
            if broker_epoch < follower.broker_epoch:
                return NOTHING
            follower.restarted(broker_epoch)
        end_offset = self.end_offset
        assert 0 <= offset <= end_offset, "a follower has records that the leader lacks"
        follower.fetched(offset, log_start_offset, end_offset, now_ms)
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        else:
            now_ms = self._now_ms
        if follower.is_counted:
            if offset <= self.high_watermark:
                return NOTHING
            committed = commit_offset(
                end_offset, self._remotes, self.is_under_min_isr, self._rules, now_ms
            )
            if committed <= self.high_watermark:
                return NOTHING
            self.high_watermark = committed
            return Changes(committed)
        if follower.compared_from_offset == UNKNOWN_OFFSET:
            follower.compared_from_offset = own_log_start_offset
        # Propose before the high watermark moves: from then on it waits for this follower.
        if self.proposal is None and self._may_join(follower):
            return self._changes(self._propose({*self.state.isr, replica}))
        return self._changes()

    def tick(self, now_ms: int) -> Changes:
        """Propose to remove the members that have been behind for too long."""
        self._now_ms = max(now_ms, self._now_ms)
        self._check_ms = self._now_ms + max(1, self._rules.lag_ms // 2)
        if self.proposal is not None:
            return self._changes()
        late = {member.id for member in self._members() if not self._is_caught_up(member)}
        # Proposing the replicas in doubt again gets an answer that ends the doubt.
        again = {replica for replica in self._in_doubt if self._may_join(self._followers[replica])}
        if not late and not again:
            return self._changes()
        return self._changes(self._propose((set(self.state.isr) - late) | again))

    def deadline_ms(self) -> int | None:
        """Return when to `tick`: every half of `lag_ms`, so that a late member leaves in time."""
        return self._check_ms if self._followers else None

    def accepted(self, state: PartitionState) -> Changes:
        """The controller carried out the proposal; `state` is its whole decision.

        A decision without its ELR must not be passed here: wait until it is published.  The
        controller may also answer with a later decision that has the proposed ISR; that one is
        ignored here and arrives when it is published.
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
        """The controller refused: INELIGIBLE_REPLICA or OPERATION_NOT_ATTEMPTED.

        `proposal` is the very object that was sent, so that a late answer to an earlier proposal
        is not taken for an answer to this one.  If a copy of it was lost before, that copy may
        still arrive and be accepted.  So the replicas that it adds keep counting until a newer
        decision voids it or their broker epochs end.
        """
        if proposal is not self.proposal:
            return NOTHING
        if self._is_unanswered:
            for replica in proposal.isr:
                epoch = proposal.broker_epochs[replica]
                if replica not in self.state.isr and self._rules.live.get(replica) == epoch:
                    self._in_doubt[replica] = epoch
        self._settle()
        return self._changes()

    def unanswered(self) -> None:
        """No answer came, and the proposal will be sent again: a copy of it may still arrive at
        any time.  Other answers (a fenced epoch, an old version) need no call: they precede a newer
        decision, and until then everything stays as it is."""
        self._is_unanswered = self.proposal is not None

    def published(self, state: PartitionState) -> Changes:
        """The controller published a decision in this leader epoch."""
        assert state.leader_epoch == self.state.leader_epoch, "a new epoch needs a new Leader"
        if state.partition_epoch < self.state.partition_epoch:
            return NOTHING
        if state.partition_epoch == self.state.partition_epoch:
            # The answer to the proposal came first, without what does not concern a leader.
            assert (set(state.isr), state.replicas) == (set(self.state.isr), self.state.replicas)
            self.state = state
            return NOTHING
        self._adopt(state)
        return self._changes()

    def brokers_changed(self, live: Mapping[int, int], shutting_down: Set[int]) -> Changes:
        """The live brokers changed: `live` has their broker epochs."""
        self._rules.brokers_changed(live, shutting_down)
        for follower in self._followers.values():
            if live.get(follower.id, UNKNOWN_BROKER_EPOCH) > follower.broker_epoch:
                follower.restarted(live[follower.id])
        # A broker epoch never returns, so no replica can be added in one that has ended.
        self._in_doubt = {r: epoch for r, epoch in self._in_doubt.items() if live.get(r) == epoch}
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
        """Whether the high watermark covers everything that former leaders committed.  Until then
        the end of the partition is unknown: OFFSET_NOT_AVAILABLE."""
        return self.high_watermark >= self.epoch_start_offset

    def is_certain(
        self, heard_ms: Mapping[int, int], since_ms: int, *, any_replica: bool = False
    ) -> bool:
        """Return whether no other replica can have led since before `since_ms`.

        A broker asks this when its ZooKeeper session may have ended, and another replica may have
        been elected.  `heard_ms` says for each follower at which time it certainly still followed
        this leader, in this leader epoch.  The next leader is a member of ISR or ELR, or, with
        unclean elections, `any_replica`.  A replica that is elected stops following before it
        leads, so a member that followed at a time had not led until then.
        """
        electable = self.state.replicas if any_replica else {*self.maximal_isr, *self.state.elr}
        return all(
            heard_ms.get(replica, NEVER) >= since_ms
            for replica in electable
            if replica != self.broker_id
        )

    def write_error(self) -> ErrorCode:
        """Return whether a write with acks=all may be appended."""
        return ErrorCode.NOT_ENOUGH_REPLICAS if self.is_under_min_isr else ErrorCode.NONE

    def commit_result(self, end_offset: int) -> ErrorCode | None:
        """Return the answer to a write with acks=all up to `end_offset`; None while it waits."""
        if self.high_watermark < end_offset:
            return None
        if len(self.maximal_isr) < effective_min_isr(self._min_isr, self.state.replicas):
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def fetch_error(self, replica: int, broker_epoch: int) -> ErrorCode:
        """Return whether this follower may fetch.

        A replica that is not assigned has heard of an assignment that this leader has not heard
        of yet, or has not heard yet that its assignment ended.
        """
        follower = self._followers.get(replica)
        if follower is None:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        is_stale = broker_epoch < follower.broker_epoch
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if is_stale else ErrorCode.NONE

    def readable_from(self, offset: int) -> list[int]:
        """Return the followers that a consumer at `offset` may read from (KIP-392), the furthest
        first."""
        found = [
            member
            for member in self._members()
            if member.log_start_offset <= offset <= member.end_offset
            and self._rules.is_eligible(member)
        ]
        found.sort(key=lambda member: (-member.end_offset, -member.caught_up_ms))
        return [member.id for member in found]

    def low_watermark(self, log_start_offset: int) -> int:
        """Return the least log start offset of the leader and the live replicas; -1 if a live
        replica has not reported one."""
        live = self._rules.live
        starts = [f.log_start_offset for f in self._followers.values() if f.id in live]
        return min([log_start_offset, *starts])

    def progress(self, replica: int, now_ms: int) -> Progress:
        """Return how far `replica` is, for tools and people."""
        if replica == self.broker_id:
            return Progress(replica, Standing.LEADER, self.end_offset, 0, 0)
        follower = self._followers[replica]
        return follower.progress(self._standing(follower), self.end_offset, now_ms)

    def isr_event(self, topic: str, partition: int, decided: PartitionState) -> Event | None:
        """Return the event of a decision that accepts this leader's proposal, before `published`.

        Any other change of the ISR is the controller's own, which records it.
        """
        proposal = self.proposal
        if proposal is None or set(decided.isr) != set(proposal.isr):
            return None
        before, now_ms = self.state.isr, self._now_ms
        progress = {
            member: self.progress(member, now_ms) for member in before if member in self._followers
        }
        return isr_event(topic, partition, before, decided.isr, self.broker_id, progress)

    def held_back(self, now_ms: int) -> tuple[tuple[int, ...], str]:
        """Return which replicas hold the high watermark back, and why."""
        if self.is_under_min_isr:
            needed = effective_min_isr(self._min_isr, self.state.replicas)
            missing = tuple(r for r in self.state.replicas if r not in self.state.isr)
            return missing, (
                f"the ISR has {len(self.state.isr)} of the {needed} replicas that"
                " min.insync.replicas needs"
            )
        slow = tuple(
            follower.id
            for follower in self._remotes
            if follower.is_counted and follower.end_offset <= self.high_watermark
        )
        texts = (f"replica {member} {self.progress(member, now_ms).lag}" for member in slow)
        return slow, "; ".join(texts) or "the leader's disk has not confirmed them"

    def _standing(self, follower: RemoteReplica) -> Standing:
        live = self._rules.live
        if follower.id in self.state.isr:
            return Standing.IN_SYNC
        if follower.id not in live:
            return Standing.NOT_ALIVE
        if follower.id in self._rules.shutting_down:
            return Standing.SHUTTING_DOWN
        if follower.broker_epoch != live[follower.id]:
            return Standing.RESTARTED
        if follower.end_offset == UNKNOWN_OFFSET:
            return Standing.RESTARTED if follower.is_restarted else Standing.NEVER_FETCHED
        return Standing.JOINING if self._may_join(follower) else Standing.BEHIND

    # Proposals and decisions ------------------------------------------------------------------

    def _is_caught_up(self, follower: RemoteReplica) -> bool:
        return self._rules.is_caught_up(follower, self.end_offset, self._now_ms)

    def _may_join(self, follower: RemoteReplica) -> bool:
        return self._rules.may_join(follower, self.high_watermark, self.epoch_start_offset)

    def _members(self) -> list[RemoteReplica]:
        return [self._followers[member] for member in self.state.isr if member != self.broker_id]

    def _advance(self) -> bool:
        """Move the high watermark if possible, and return whether it moved."""
        committed = commit_offset(
            self.end_offset,
            self._remotes,
            self.is_under_min_isr,
            self._rules,
            self._now_ms,
        )
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def _changes(self, proposal: Proposal | None = None) -> Changes:
        if self._advance():
            return Changes(self.high_watermark, proposal)
        return Changes(None, proposal) if proposal else NOTHING

    def _propose(self, isr: set[int]) -> Proposal:
        assert self.proposal is None, "one proposal at a time"
        epochs = {
            follower.id: follower.broker_epoch
            if follower.end_offset != UNKNOWN_OFFSET
            else UNKNOWN_BROKER_EPOCH
            for follower in self._followers.values()
            if follower.id in isr
        }
        epochs[self.broker_id] = self.broker_epoch
        members = tuple(replica for replica in self.state.replicas if replica in isr)
        self.proposal = Proposal(
            members, epochs, self.state.leader_epoch, self.state.partition_epoch
        )
        self._recount()
        return self.proposal

    def _settle(self) -> None:
        """End the proposal, if there is one."""
        self.proposal = None
        self._is_unanswered = False
        self._recount()

    def _adopt(self, state: PartitionState) -> None:
        """Take a newer decision.  It voids a proposal that was made upon an older one.

        A replica that was removed and added again has an empty log.  If decisions were skipped,
        that may have happened unseen, but not to a member: a replica joins only by a proposal that
        was made here upon the decision before.
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
                epoch = self._rules.live.get(replica, UNKNOWN_BROKER_EPOCH)
                follower = RemoteReplica(replica, epoch)
            elif has_skipped and replica not in state.isr:
                follower = RemoteReplica(replica, follower.broker_epoch)
            if replica in state.isr and follower.caught_up_ms == NEVER:
                follower.caught_up_ms = self._now_ms
            elif self._is_removed(follower, state):
                # The high watermark must not wait for it as for one that is about to join.
                follower.caught_up_ms = NEVER
            self._followers[replica] = follower
        self._remotes = tuple(self._followers.values())
        self.state = state
        self._in_doubt.clear()
        self._settle()

    def _is_removed(self, follower: RemoteReplica, state: PartitionState) -> bool:
        """Whether the controller removed a live member by itself: the replica has failed."""
        return (
            follower.id in self.state.isr
            and follower.id not in state.isr
            and self._rules.live.get(follower.id) == follower.broker_epoch
            and (self.proposal is None or follower.id in self.proposal.isr)
        )

    def _recount(self) -> None:
        """Update which replicas count, and whether the ISR is large enough."""
        self.maximal_isr = maximal_isr(self.state, self.proposal, self._in_doubt)
        for follower in self._followers.values():
            follower.is_counted = follower.id in self.maximal_isr
        self._has_members = len(self.maximal_isr) > 1
        self.is_under_min_isr = is_under_min_isr(self.state, self._min_isr)

    def _set_limits(self, min_isr: int, lag_ms: int) -> None:
        assert min_isr >= 1
        assert lag_ms >= 1
        self._min_isr = min_isr
        self._rules.lag_ms = lag_ms
        self._check_ms = self._now_ms + max(1, lag_ms // 2)

    def check(self) -> None:
        """Assert what must hold between any two facts."""
        self.state.check()
        state, isr, live = self.state, set(self.state.isr), self._rules.live
        assert state.leader == self.broker_id
        assert 0 <= self.high_watermark <= self.end_offset
        assert self.epoch_start_offset <= self.end_offset
        assert [*self._followers] == [r for r in state.replicas if r != self.broker_id]
        assert self._remotes == tuple(self._followers.values())
        assert all(f.end_offset <= self.end_offset for f in self._followers.values())
        assert isr <= self.maximal_isr <= set(state.replicas)
        assert {r for r, follower in self._followers.items() if follower.is_counted} == (
            self.maximal_isr - {self.broker_id}
        )
        assert self._has_members == (len(self.maximal_isr) > 1)
        least = effective_min_isr(self._min_isr, state.replicas)
        assert self.is_under_min_isr == (len(isr) < least or bool(state.elr))
        assert not self._in_doubt.keys() & isr
        assert all(live.get(r) == epoch for r, epoch in self._in_doubt.items())
        proposal = self.proposal
        if proposal is None:
            assert not self._is_unanswered
            return
        assert self.broker_id in proposal.isr
        assert proposal.broker_epochs.keys() == set(proposal.isr)
        assert set(proposal.isr) <= self.maximal_isr
        assert set(proposal.isr) != isr, "a proposal must change something"
        assert (proposal.leader_epoch, proposal.partition_epoch) == (
            state.leader_epoch,
            state.partition_epoch,
        )
