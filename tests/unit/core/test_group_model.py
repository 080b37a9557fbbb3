"""A classic group keeps its invariants, whatever happens to it.

The moves below act on the world of `group_world.py`.  Hypothesis plays them and shrinks failures; a
plain random walk plays far more of them in the same time.  Then each rule in turn is removed from
the coordinator, and the model must notice.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hightide.core.groups import offset_requests
from hightide.core.groups.classic import join_group, rebalance
from hightide.core.groups.classic.classic_group import ClassicGroup
from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.offsets import Offsets
from hightide.core.groups.turn import Turn, Write
from hightide.wire.errors import ErrorCode
from hightide.wire.records.consumer_offsets import OffsetCommitKey
from tests.unit.core.group_world import Violation, World

ANY_CONSUMER = range(5)
ANY = range(4)
SELDOM = (False,) * 4 + (True,)


class Move(NamedTuple):
    """An event, its weight, and its choices."""

    play: Callable[..., None]
    weight: float
    choices: dict[str, Any]


MOVES: list[Move] = []


def move(weight: float, **choices: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(play: Callable[..., None]) -> Callable[..., None]:
        MOVES.append(Move(play, weight, choices))
        return play

    return add


@move(10, who=ANY_CONSUMER, version=(3, 5, 9), topics=(("t",), ("t",), ("t",), ("t", "u")))
def a_consumer_joins(world: World, who: int, version: int, topics: tuple[str, ...]) -> None:
    consumer = world.consumers[who]
    if consumer.waits is None and consumer.must_join:
        world.join(consumer, version, topics)


@move(8, who=ANY_CONSUMER, rotation=ANY, again=SELDOM)
def a_consumer_syncs(world: World, who: int, rotation: int, again: bool) -> None:
    consumer = world.consumers[who]
    is_free = consumer.waits is None or again
    if is_free and not consumer.must_join and consumer.owned is None:
        world.sync(consumer, rotation)


@move(6, who=ANY_CONSUMER)
def a_consumer_heartbeats(world: World, who: int) -> None:
    consumer = world.consumers[who]
    if consumer.waits is None and consumer.generation >= 0:
        world.heartbeat(consumer)


@move(10, who=ANY_CONSUMER, count=(1, 2, 5), is_late=SELDOM)
def a_consumer_works(world: World, who: int, count: int, is_late: bool) -> None:
    world.work(world.consumers[who], count, is_late)


@move(2, which=ANY)
def a_late_commit_arrives(world: World, which: int) -> None:
    world.deliver(which)


@move(6, first=ANY_CONSUMER, count=(2, 3), rounds=(1, 5))
def some_consumers_make_progress(world: World, first: int, count: int, rounds: int) -> None:
    for _ in range(rounds):
        world.make_progress([world.consumers[(first + n) % 5] for n in range(count)])
        world.pass_time(2)


@move(1, who=ANY_CONSUMER)
def a_consumer_leaves(world: World, who: int) -> None:
    if world.consumers[who].member_id:
        world.leave(world.consumers[who])


@move(1.5, who=ANY_CONSUMER)
def a_consumer_restarts(world: World, who: int) -> None:
    world.consumers[who].reset()


@move(0.5, who=ANY_CONSUMER)
def a_consumer_joins_again(world: World, who: int) -> None:
    world.consumers[who].must_join = True


@move(12)
def a_batch_is_committed(world: World) -> None:
    if world.in_flight:
        world.commit_batch()


@move(4)
def all_batches_are_committed(world: World) -> None:
    while world.in_flight:
        world.commit_batch()


@move(1, refuses=(True, False, False))
def writes_are_refused_from_now_on(world: World, refuses: bool) -> None:
    world.refuses = refuses


@move(6, passed_ms=(1, 3, 3, 6, 12, 45))
def time_passes(world: World, passed_ms: int) -> None:
    world.pass_time(passed_ms)


@move(0.1)
def much_time_passes(world: World) -> None:
    world.pass_time(700)


@move(0.7, kept_count=(0, 1, 1, 5))
def the_coordinator_moves(world: World, kept_count: int) -> None:
    world.fail_over(kept_count)


@move(0.3)
def the_group_is_deleted(world: World) -> None:
    world.delete_group()


@move(0.5, producer_id=(7, 8), offset=(1, 2, 3))
def a_transaction_commits_offsets(world: World, producer_id: int, offset: int) -> None:
    world.commit_in_transaction(producer_id, offset)


@move(0.5, producer_id=(7, 8), is_commit=(True, False))
def a_transaction_ends(world: World, producer_id: int, is_commit: bool) -> None:
    world.end_transaction(producer_id, is_commit)


@move(0.05)
def everything_heals(world: World) -> None:
    world.heal()


class OneGroup(RuleBasedStateMachine):
    """Up to five consumers."""

    world: World

    @initialize(seed=st.integers(0, 9))
    def begin(self, seed: int) -> None:
        self.world = World(seed)

    @invariant()
    def all_responses_are_consistent(self) -> None:
        if hasattr(self, "world"):
            self.world.check()


def as_rule(move_: Move) -> Any:
    def play(self: OneGroup, **chosen: Any) -> None:
        move_.play(self.world, **chosen)

    play.__name__ = move_.play.__name__
    chosen: dict[str, Any] = {name: st.sampled_from(of) for name, of in move_.choices.items()}
    return rule(**chosen)(play)


for one in MOVES:
    setattr(OneGroup, one.play.__name__, as_rule(one))

OneGroup.TestCase.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestOneGroup = OneGroup.TestCase


def walk(seed: int, step_count: int = 120) -> None:
    random = Random(seed)
    world = World(seed)
    weights = [one.weight for one in MOVES]
    for _ in range(step_count):
        (one,) = random.choices(MOVES, weights)
        one.play(world, **{name: random.choice(of) for name, of in one.choices.items()})
        world.check()
    world.heal()


def test_a_long_random_walk() -> None:
    for seed in range(60):
        walk(seed)


# -- removed rules ---------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def commits_of_any_generation(patch: Patch) -> None:
    """B18: a former member may still commit."""
    patch.setattr(offset_requests, "classic_commit_error", lambda *_, **__: ErrorCode.NONE)


def commits_of_an_old_generation(patch: Patch) -> None:
    """B18, for a current member."""
    real = offset_requests.classic_commit_error

    def generous(group: ClassicGroup, member_id: str, *how: Any, **more: Any) -> ErrorCode:
        error = real(group, member_id, *how, **more)
        return ErrorCode.NONE if error is ErrorCode.ILLEGAL_GENERATION else error

    patch.setattr(offset_requests, "classic_commit_error", generous)


def answering_before_it_is_written(patch: Patch) -> None:
    def write(self: Turn, purpose: object, *records: Any) -> None:
        self.writes.append(Write(records, purpose))
        if isinstance(purpose, rebalance.AssignmentWritten):
            rebalance.assignment_written(purpose, self)

    patch.setattr(Turn, "write", write)


def offsets_count_before_they_are_written(patch: Patch) -> None:
    def finish(self: GroupCoordinator, turn: Turn, *groups: str) -> Any:
        for write in turn.writes:
            for key, value in write.records:
                if isinstance(key, OffsetCommitKey):
                    self._apply_offset(key, value, 0, write.producer_id)
        return real(self, turn, *groups)

    real = GroupCoordinator._finish
    patch.setattr(GroupCoordinator, "_finish", finish)


def assigning_twice(patch: Patch) -> None:
    """The leader's second assignment for a generation is written as well."""
    real = rebalance.sync

    def again(group: ClassicGroup, *how: Any) -> None:
        group.assigning = None
        real(group, *how)

    patch.setattr(rebalance, "sync", again)


def unstable_offsets_are_shown(patch: Patch) -> None:
    patch.setattr(Offsets, "unstable", lambda *_: set())


def a_generation_is_not_counted(patch: Patch) -> None:
    real = ClassicGroup.begin_generation

    def stuck(self: ClassicGroup, now_ms: int) -> None:
        real(self, now_ms)
        self.generation = max(1, self.generation - 1)

    patch.setattr(ClassicGroup, "begin_generation", stuck)


def a_restarted_member_is_answered_too_soon(patch: Patch) -> None:
    def write(self: Turn, purpose: object, *records: Any) -> None:
        self.writes.append(Write(records, purpose))
        if isinstance(purpose, join_group.ReplacementWritten):
            join_group.replacement_written(purpose, self)

    patch.setattr(Turn, "write", write)


def sessions_never_expire(patch: Patch) -> None:
    patch.setattr(rebalance, "session_ended", lambda *_: None)


BUGS = [
    commits_of_any_generation,
    commits_of_an_old_generation,
    answering_before_it_is_written,
    offsets_count_before_they_are_written,
    assigning_twice,
    unstable_offsets_are_shown,
    a_generation_is_not_counted,
    a_restarted_member_is_answered_too_soon,
    sessions_never_expire,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_model_notices_a_missing_rule(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    monkeypatch.setattr(ClassicGroup, "check", lambda _: None)
    monkeypatch.setattr(World, "looks_for_wrong_only", True)

    def walk_many() -> None:
        for seed in range(2000):
            walk(seed)

    with pytest.raises(Violation):
        walk_many()
