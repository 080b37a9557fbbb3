"""Bugs in the shell around the state machines, put in for a test: the simulator must find each.

Bugs of the state machines are in `tests/simulation/mutants.py`; these are possible only in the
shipped broker.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hightide.broker.handlers import follower_fetch
from hightide.broker.handlers.fetch_plan import FetchPlan
from hightide.broker.membership.contact import Contact
from hightide.broker.replication.isr_changes import IsrChanges
from hightide.broker.replication.purgatory import DelayedWrite, PartitionPurgatory
from hightide.broker.replication.replica import Replica
from hightide.broker.transactions.transaction_partition import TransactionPartition
from hightide.core.groups import group_coordinator as groups
from hightide.core.groups import offset_requests
from hightide.core.transactions.transaction import State
from hightide.core.transactions.transaction_coordinator import (
    Answer,
    Changes,
    TransactionCoordinator,
)
from hightide.log import checkpoint
from hightide.log.log import Log
from hightide.wire.errors import ErrorCode
from tests.simulation.shipped.pipeline import Pipeline
from tests.simulation.shipped.running import run

Mutant = Callable[[pytest.MonkeyPatch], None]


def answers_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """acks=all is acknowledged when only the leader has the records."""

    def at_once(self: PartitionPurgatory, end_offset: int, write: DelayedWrite) -> None:
        asyncio.get_running_loop().call_soon(write.complete, ErrorCode.NONE)

    patch.setattr(PartitionPurgatory, "when_committed", at_once)


def shows_the_uncommitted(patch: pytest.MonkeyPatch) -> None:
    """Consumers read to the end of the log."""
    slice_ = FetchPlan.slice

    def to_the_end(self: FetchPlan, replica: Replica, wanted: Any, end_offset: int) -> Any:
        return slice_(self, replica, wanted, replica.log.end_offset)

    patch.setattr(FetchPlan, "slice", to_the_end)


def keeps_writes_of_a_role_that_is_over(patch: pytest.MonkeyPatch) -> None:
    """A delayed produce survives the end of a leadership, and is acknowledged when the broker leads
    again and commits up to the same offset, whichever records are there."""

    def end_role(self: Replica) -> None:
        self.leader = self.follower = None

    patch.setattr(Replica, "_end_role", end_role)


def does_not_compare_epochs(patch: pytest.MonkeyPatch) -> None:
    """A leader serves a follower's fetch offset without a check of the last epoch."""
    patch.setattr(follower_fetch, "parting", lambda *_arguments: None)


def takes_every_restart_for_clean(patch: pytest.MonkeyPatch) -> None:
    """The clean-shutdown file survives the next start, and the crash after it."""
    patch.setattr(checkpoint, "remove_clean_shutdown", lambda _disk: None)


def proposes_once(patch: pytest.MonkeyPatch) -> None:
    """A proposal without a response of the controller is not repeated."""
    due = IsrChanges._due
    sent: dict[Any, None] = {}

    def once(self: IsrChanges) -> Any:
        found = {
            key: partition for key, partition in due(self).items() if id(partition) not in sent
        }
        sent.update(dict.fromkeys(map(id, found.values())))
        kept.extend(found.values())
        return found

    kept: list[Any] = []
    patch.setattr(IsrChanges, "_due", once)


# -- bugs that only transactions show ----------------------------------------------------------


def forgets_sequences_when_it_leads(patch: pytest.MonkeyPatch) -> None:
    """B13: a new leader does not know the batches in its log, and appends a repeated one again."""
    lead = Replica.lead

    def forgetful(self: Replica, *how: Any, **more: Any) -> None:
        for _, state in self.log.producers:
            state.batches.clear()
            state.next_sequence = -1
        lead(self, *how, **more)

    patch.setattr(Replica, "lead", forgetful)


def keeps_partitions_of_a_transaction_in_memory(patch: pytest.MonkeyPatch) -> None:
    """B14: the partitions of a transaction are written only when it ends."""
    asked = TransactionCoordinator.partitions_asked

    def not_written(self: TransactionCoordinator, transactional_id: str, *how: Any) -> Changes:
        changes = asked(self, transactional_id, *how)
        if changes.write is None:
            return changes
        del self._writes[transactional_id]
        self.apply(transactional_id, changes.write.after)
        return Changes(answer=Answer(ErrorCode.NONE))

    patch.setattr(TransactionCoordinator, "partitions_asked", not_written)


def answers_before_the_end_is_written(patch: pytest.MonkeyPatch) -> None:
    """B14: a commit is acknowledged before it is safe."""
    carry_out = TransactionPartition.carry_out

    def hasty(self: TransactionPartition, changes: Changes) -> Any:
        write, result = changes.write, carry_out(self, changes)
        after = None if write is None else write.after
        if write is None or after is None or after.state is not State.PREPARE_COMMIT:
            return result
        if asyncio.iscoroutine(result):
            result.close()
        return write.answer

    patch.setattr(TransactionPartition, "carry_out", hasty)


def verifies_nothing(patch: pytest.MonkeyPatch) -> None:
    """B15: any write to a partition opens a transaction in it."""
    more = Pipeline._more_settings
    patch.setattr(
        Pipeline,
        "_more_settings",
        lambda self: {**more(self), "transaction_partition_verification_enable": False},
    )


def takes_offsets_of_any_generation(patch: pytest.MonkeyPatch) -> None:
    """B18: a former member may still commit."""
    patch.setattr(offset_requests, "txn_offset_commit_error", lambda *_, **__: ErrorCode.NONE)


def tells_offsets_that_are_not_stable(patch: pytest.MonkeyPatch) -> None:
    """A new owner of a partition gets the committed offset from before the open transaction."""
    fetch = groups.GroupCoordinator.fetch_asked
    patch.setattr(
        groups.GroupCoordinator,
        "fetch_asked",
        lambda self, request, **_: fetch(self, request, require_stable=False),
    )


def shows_the_undecided(patch: pytest.MonkeyPatch) -> None:
    """Readers of committed records see open transactions."""
    patch.setattr(Log, "last_stable_offset", property(lambda self: self.committed_offset))


def names_no_aborted_transaction(patch: pytest.MonkeyPatch) -> None:
    """Readers of committed records get no list of aborted transactions."""
    patch.setattr(Log, "aborted_between", lambda *_: [])


def is_never_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """A leader serves until the controller says otherwise, whether or not it can be reached."""
    patch.setattr(Contact, "in_doubt", lambda _self: False)


OF_THE_PIPELINE: tuple[Mutant, ...] = (
    forgets_sequences_when_it_leads,
    keeps_partitions_of_a_transaction_in_memory,
    answers_before_the_end_is_written,
    verifies_nothing,
    takes_offsets_of_any_generation,
    tells_offsets_that_are_not_stable,
    shows_the_undecided,
    names_no_aborted_transaction,
)

MUTANTS: tuple[Mutant, ...] = (
    answers_before_the_commit,
    shows_the_uncommitted,
    keeps_writes_of_a_role_that_is_over,
    does_not_compare_epochs,
    takes_every_restart_for_clean,
    proposes_once,
    is_never_in_doubt,
)


def detected(mutant: Mutant, first: int, most: int) -> tuple[int, str] | None:
    """Return how many seeds it took to find a bug, and its violation."""
    story = "pipeline" if mutant in OF_THE_PIPELINE else "log"
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        for count in range(most):
            try:
                run(first + count, 1, story)
            except AssertionError as found:
                return count + 1, str(found).splitlines()[0]
    return None


if __name__ == "__main__":
    wanted, first, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for name in (*MUTANTS, *OF_THE_PIPELINE):
        if wanted in name.__name__:
            print(name.__name__, detected(name, first, most), flush=True)
