"""Mistakes in the shell around the machines, put in for a test: the simulator must find each.

The machines' own are in `tests/sim/mutants.py`; here is what only the shipped broker can get wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hightide.broker.handlers import follower_fetch
from hightide.broker.handlers.fetch_plan import Plan
from hightide.broker.isr import IsrProposals
from hightide.broker.replica import Replica
from hightide.broker.waiting import WaitingWrite
from hightide.log import checkpoint
from hightide.wire.errors import ErrorCode
from shipped.running import run

Mutant = Callable[[pytest.MonkeyPatch], None]


def answers_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """acks=all is answered when the leader has it."""

    def at_once(self: Replica, end_offset: int, write: WaitingWrite) -> None:
        asyncio.get_running_loop().call_soon(write.settle, ErrorCode.NONE)

    patch.setattr(Replica, "when_committed", at_once)


def shows_the_uncommitted(patch: pytest.MonkeyPatch) -> None:
    """Consumers read to the end of the log."""
    slice_ = Plan.slice

    def to_the_end(self: Plan, replica: Replica, wanted: Any, end_offset: int) -> Any:
        return slice_(self, replica, wanted, replica.log.end_offset)

    patch.setattr(Plan, "slice", to_the_end)


def keeps_writes_of_a_role_that_is_over(patch: pytest.MonkeyPatch) -> None:
    """Who waits for a commit goes on waiting when the broker leads no more, and is answered when
    it leads again and commits that many records, whosever they are."""

    def end_role(self: Replica) -> None:
        self.leader = self.follower = None

    patch.setattr(Replica, "_end_role", end_role)


def does_not_compare_epochs(patch: pytest.MonkeyPatch) -> None:
    """A leader gives a follower what it asks for, whatever its log ends with."""
    patch.setattr(follower_fetch, "parting", lambda *_arguments: None)


def takes_every_restart_for_clean(patch: pytest.MonkeyPatch) -> None:
    """The file that says that all is on disk outlives the next start, and the crash after it."""
    patch.setattr(checkpoint, "remove_clean_shutdown", lambda _disk: None)


def proposes_once(patch: pytest.MonkeyPatch) -> None:
    """A proposal that the controller did not answer is not made again."""
    due = IsrProposals._due
    sent: dict[Any, None] = {}

    def once(self: IsrProposals) -> Any:
        found = {key: each for key, each in due(self).items() if id(each) not in sent}
        sent.update(dict.fromkeys(map(id, found.values())))
        kept.extend(found.values())
        return found

    kept: list[Any] = []
    patch.setattr(IsrProposals, "_due", once)


MUTANTS: tuple[Mutant, ...] = (
    answers_before_the_commit,
    shows_the_uncommitted,
    keeps_writes_of_a_role_that_is_over,
    does_not_compare_epochs,
    takes_every_restart_for_clean,
    proposes_once,
)


def detected(mutant: Mutant, first: int, most: int) -> tuple[int, str] | None:
    """How many seeds it took to find a mistake, and what was seen of it."""
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for count in range(most):
            try:
                run(first + count, 1)
            except AssertionError as found:
                return count + 1, str(found).splitlines()[0]
    return None
