"""Old bugs of replication protocols, switched back in: the simulator must find each of them.

Each is a function that patches the state machines or their wiring through pytest's MonkeyPatch.
The numbers are those of the notes on replication, which also say what each bug cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hightide.core.controller import alter_partition, controller, leader_election, reassignment
from hightide.core.metadata.image import Follow, ImageUpdate, MetadataImage
from hightide.core.partition import leader
from hightide.core.partition.follower import Follower, FollowerChanges, divergence
from hightide.core.partition.leader import Leader
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import ErrorCode
from hightide.zookeeper.operation import SetData
from tests.simulation import broker as wiring
from tests.simulation import controller_shell, leading_shell
from tests.simulation.simulation import Simulation

Mutant = Callable[[pytest.MonkeyPatch], None]


def truncates_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """B1: a new follower truncates its log to its stale high watermark (KIP-101)."""
    change_role = wiring.SimBroker.change_role

    def cutting(self: wiring.SimBroker, change: Any) -> None:
        partition = (change.topic, change.index)
        if isinstance(change, Follow) and partition in self.logs:
            self.logs[partition].truncate(self.high_watermark(partition))
        change_role(self, change)

    patch.setattr(wiring.SimBroker, "change_role", cutting)


def looks_for_divergence_once(patch: pytest.MonkeyPatch) -> None:
    """B2: a follower looks up the leader epoch once, and not again after a truncation (KIP-279)."""
    real = divergence
    asked: dict[tuple[Any, int], None] = {}

    def once(epochs: Any, end_offset: int, offset: int, last_epoch: int) -> Any:
        key = (epochs, last_epoch)
        if key in asked:
            return None if offset <= end_offset else (last_epoch, end_offset)
        asked[key] = None
        # The end of the epoch asked for, though this log may know only smaller ones.
        found = real(epochs, end_offset, offset, last_epoch)
        return None if found is None or found[1] >= offset else (last_epoch, found[1])

    patch.setattr(leading_shell, "divergence", once)


def takes_fetches_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """B3: a fetch names no epoch, and the leader trusts its offset (KIP-320)."""
    fetch = leading_shell.Leading.fetch

    def believing(self: leading_shell.Leading, request: Any, answer: Any) -> None:
        epoch, end = self.machine.state.leader_epoch, self.log.end_offset
        request = request._replace(
            leader_epoch=epoch, last_epoch=-1, offset=min(request.offset, end)
        )
        fetch(self, request, answer)

    patch.setattr(leading_shell.Leading, "fetch", believing)


def lets_join_below_the_start_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """B4: a replica that has reached the new leader's stale high watermark is in sync."""

    def may_join(self: Leader, follower: Any) -> bool:
        return follower.end_offset >= self.high_watermark and self._rules.is_eligible(follower)

    patch.setattr(Leader, "_may_join", may_join)


def counts_new_members_when_answered(patch: pytest.MonkeyPatch) -> None:
    """B5: proposed ISR members count only after the controller's response (KIP-497)."""
    recount = Leader._recount

    def early(self: Leader) -> None:
        proposal, self.proposal = self.proposal, None
        recount(self)
        self.proposal = proposal

    patch.setattr(Leader, "_recount", early)
    patch.setattr(Leader, "check", lambda _self: None)


def takes_members_of_any_life(patch: pytest.MonkeyPatch) -> None:
    """B6: a proposal that names a member's former broker epoch is accepted (KIP-903)."""
    proposal_error = alter_partition.proposal_error

    def trusting(proposal: Any, sender: int, state: Any, brokers: Any, *others: Any) -> ErrorCode:
        verdict = proposal_error(proposal, sender, state, brokers, *others)
        if verdict == ErrorCode.INELIGIBLE_REPLICA and all(m in brokers for m in proposal.isr):
            return ErrorCode.NONE
        return verdict

    patch.setattr(controller, "proposal_error", trusting)


def trusts_every_restart(patch: pytest.MonkeyPatch) -> None:
    """B7: a sole member that lost its page cache leads again (KIP-966)."""
    patch.setattr(leader_election, "distrusted", lambda _state, _brokers: frozenset())


def commits_with_too_few(patch: pytest.MonkeyPatch) -> None:
    """B8: the high watermark moves while fewer than min.insync.replicas are in sync."""
    commit_offset = leader.commit_offset  # type: ignore[attr-defined]

    def careless(end_offset: int, followers: Any, _is_too_small: bool, *rest: Any) -> int:
        return commit_offset(end_offset, followers, False, *rest)

    patch.setattr(leader, "commit_offset", careless)


def obeys_messages_to_a_former_life(patch: pytest.MonkeyPatch) -> None:
    """B9: a broker obeys a request for its former broker epoch (KIP-380)."""
    receive = MetadataImage.receive

    def obedient(self: MetadataImage, message: Any, own_epoch: int) -> ImageUpdate:
        return receive(self, message, message.broker_epoch)

    patch.setattr(MetadataImage, "receive", obedient)


def writes_without_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """B10: a controller that was replaced finishes its work over its new session, and neither
    checks the controller epoch nor compares versions."""

    def check(_path: str, _version: int) -> Any:
        return SetData("/brokers", b"")

    def overwrite(path: str, data: bytes, _version: int) -> Any:
        return SetData(path, data)

    patch.setattr(controller_shell, "Check", check)
    patch.setattr(controller_shell, "Overwrite", overwrite)
    patch.setattr(wiring.SimBroker, "_doubt", lambda _self: None)


def remembers_who_was_away(patch: pytest.MonkeyPatch) -> None:
    """B11: removing a replica begins no leader epoch, so a fetch of a replica that was removed and
    added back may be from before."""
    assigned = reassignment._assigned

    def same_epoch(state: Any, *rest: Any) -> Any:
        after = assigned(state, *rest)
        if after is None or after is state or after.leader != state.leader:
            return after
        return replace(after, leader_epoch=state.leader_epoch)

    patch.setattr(reassignment, "_assigned", same_epoch)


def tells_what_it_did_not_read(patch: pytest.MonkeyPatch) -> None:
    """B12: a response holds records of the time of the read, but the log start offset and high
    watermark of the time of sending; the follower starts its log there (KAFKA-7104)."""
    appended = Follower.appended

    def send(self: leading_shell.Leading, answer: Any, fetched: Any) -> None:
        def sent(fetched: Any) -> None:
            answer(
                fetched._replace(
                    high_watermark=self.machine.high_watermark,
                    log_start_offset=self.log.start_offset,
                )
            )

        self.broker.when_disk_is_done(sent, fetched)

    def obedient(self: Follower, high_watermark: int, log_start_offset: int) -> FollowerChanges:
        moved = appended(self, high_watermark, log_start_offset)
        if log_start_offset > self._log.start_offset:
            return moved._replace(log_start_offset=log_start_offset)
        return moved

    patch.setattr(leading_shell.Leading, "send", send)
    patch.setattr(Follower, "appended", obedient)


def lets_join_with_what_was_deleted(patch: pytest.MonkeyPatch) -> None:
    """H1, our bug: a replica joins the ISR with records below the leader's log start offset, which
    cannot be compared with the records that were committed there."""
    may_join = Leader._may_join

    def joins(self: Leader, follower: Any) -> bool:
        follower.compared_from_offset = -1
        return may_join(self, follower)

    patch.setattr(Leader, "_may_join", joins)


def elects_the_last_leader(patch: pytest.MonkeyPatch) -> None:
    """H2, our bug: if no replica is known to be whole, the last leader leads, however much of its
    log it has lost, and the others truncate theirs to it."""

    def last(state: Any, live: Any, *_others: Any) -> int:
        known: int = state.last_known_leader
        return known if known in live and not state.elr else NO_BROKER

    patch.setattr(leader_election, "longest_log", last)


def detected(name: str, most: int) -> tuple[int | None, str]:
    """Return how many seeds it took to find a bug, and its violation; None after `most` seeds."""
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name](patch)
        for count in range(1, most + 1):
            try:
                Simulation(count).run()
            except AssertionError as violation:
                return count, str(violation)[:100]
    return None, ""


MUTANTS: dict[str, Mutant] = {
    # Bugs that need the most seeds come first, so that a run with several processes ends sooner.
    "B12": tells_what_it_did_not_read,
    "B4": lets_join_below_the_start_of_the_epoch,
    "B6": takes_members_of_any_life,
    "B11": remembers_who_was_away,
    "H1": lets_join_with_what_was_deleted,
    "H2": elects_the_last_leader,
    "B1": truncates_to_the_high_watermark,
    "B2": looks_for_divergence_once,
    "B3": takes_fetches_of_any_epoch,
    "B5": counts_new_members_when_answered,
    "B7": trusts_every_restart,
    "B8": commits_with_too_few,
    "B9": obeys_messages_to_a_former_life,
    "B10": writes_without_the_epoch,
}
