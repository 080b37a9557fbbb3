"""Mistakes that others made, switched back in for a test: the simulator must find each of them.

Each is a function that patches the machines or their wiring through pytest's MonkeyPatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import broker as wiring
import control
import pytest

from hightide.core import alteration, controller, election
from hightide.core.picture import Picture, Received
from hightide.core.replica import Leader
from hightide.wire.errors import ErrorCode

Mutant = Callable[[pytest.MonkeyPatch], None]


def truncates_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """B1: a follower begins by cutting its log to its own, stale high watermark (KIP-101)."""
    change_role = wiring.SimBroker._change_role

    def cutting(self: wiring.SimBroker, change: Any) -> None:
        partition = (change.topic, change.index)
        if isinstance(change, wiring.Follow) and partition in self.logs:
            self.logs[partition].truncate(self.high_watermarks.get(partition, 0))
        change_role(self, change)

    patch.setattr(wiring.SimBroker, "_change_role", cutting)


def looks_for_divergence_once(patch: pytest.MonkeyPatch) -> None:
    """B2: one question by epoch when following begins, and none afterwards (KIP-279)."""
    real = wiring.divergence
    asked: set[tuple[int, int]] = set()

    def once(epochs: Any, end_offset: int, offset: int, last_epoch: int) -> Any:
        key = (id(epochs), last_epoch)
        if key in asked:
            return None if offset <= end_offset else (last_epoch, end_offset)
        asked.add(key)
        # The end of the epoch asked for, though this log may know only smaller ones.
        found = real(epochs, end_offset, offset, last_epoch)
        return None if found is None or found[1] >= offset else (last_epoch, found[1])

    patch.setattr(wiring, "divergence", once)


def takes_fetches_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """B3: a fetch does not name an epoch, and the leader believes it (KIP-320)."""
    fetched = wiring.SimBroker._fetched

    def believing(self: wiring.SimBroker, request: Any) -> Any:
        role = self.roles.get(request.partition)
        if isinstance(role, wiring.Leading):
            end_offset = self.logs[request.partition].end_offset
            request = request._replace(
                leader_epoch=role.machine.state.leader_epoch,
                last_epoch=-1,
                offset=min(request.offset, end_offset),
            )
        return fetched(self, request)

    patch.setattr(wiring.SimBroker, "_fetched", believing)


def lets_join_below_the_start_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """B4: whoever has reached the new leader's stale high watermark is in sync."""

    def may_join(self: Leader, follower: Any) -> bool:
        return follower.end_offset >= self.high_watermark and self._is_eligible(follower)

    patch.setattr(Leader, "_may_join", may_join)


def counts_new_members_when_answered(patch: pytest.MonkeyPatch) -> None:
    """B5: members that were proposed count only once the controller has answered (KIP-497)."""
    recount = Leader._recount

    def early(self: Leader) -> None:
        proposal, self.proposal = self.proposal, None
        recount(self)
        self.proposal = proposal

    patch.setattr(Leader, "_recount", early)
    patch.setattr(Leader, "check", lambda _self: None)


def takes_members_of_any_life(patch: pytest.MonkeyPatch) -> None:
    """B6: a proposal that names a member's former life is accepted (KIP-903)."""
    judge = alteration.judge

    def trusting(proposal: Any, sender: int, state: Any, brokers: Any) -> ErrorCode:
        verdict = judge(proposal, sender, state, brokers)
        if verdict == ErrorCode.INELIGIBLE_REPLICA and all(m in brokers for m in proposal.isr):
            return ErrorCode.NONE
        return verdict

    patch.setattr(controller, "judge", trusting)


def trusts_every_restart(patch: pytest.MonkeyPatch) -> None:
    """B7: a sole member that lost its page cache leads again (KIP-966)."""
    patch.setattr(election, "distrusted", lambda _state, _brokers: frozenset())


def commits_with_too_few(patch: pytest.MonkeyPatch) -> None:
    """B8: the high watermark moves while fewer than min.insync.replicas are in sync."""
    advance = Leader._advance

    def careless(self: Leader) -> bool:
        under, self.is_under_min_isr = self.is_under_min_isr, False
        moved = advance(self)
        self.is_under_min_isr = under
        return moved

    patch.setattr(Leader, "_advance", careless)


def obeys_messages_to_a_former_life(patch: pytest.MonkeyPatch) -> None:
    """B9: a broker acts on what was meant for it before it restarted (KIP-380)."""
    receive = Picture.receive

    def obedient(self: Picture, message: Any, own_epoch: int) -> Received:
        return receive(self, message, message.broker_epoch)

    patch.setattr(Picture, "receive", obedient)


def writes_without_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """B10: a controller that was replaced goes on writing, and compares no versions."""

    def check(_path: str, _version: int) -> Any:
        return control.SetData("/brokers", b"")

    def overwrite(path: str, data: bytes, _version: int) -> Any:
        return control.SetData.__new__(control.SetData, path, data)

    patch.setattr(control, "Check", check)
    patch.setattr(control, "Overwrite", overwrite)


QUICK: tuple[Mutant, ...] = (
    truncates_to_the_high_watermark,
    looks_for_divergence_once,
    takes_fetches_of_any_epoch,
    commits_with_too_few,
)
"""Found within a few seeds, so that every run can prove that the simulator sees."""

SLOW: tuple[Mutant, ...] = (
    lets_join_below_the_start_of_the_epoch,
    counts_new_members_when_answered,
    takes_members_of_any_life,
    trusts_every_restart,
    obeys_messages_to_a_former_life,
    writes_without_the_epoch,
)
