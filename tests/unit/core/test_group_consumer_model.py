"""A consumer group gives each partition to one owner at a time, whatever happens to it.

A random walk plays the moves below on the world of `consumer_world.py`.  Then each rule in turn is
removed from the coordinator, and the model must notice.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from hightide.core.groups.consumer import consumer_group as group
from hightide.core.groups.consumer import heartbeat, reconciliation
from hightide.core.groups.consumer.consumer_group import ConsumerGroup, ConsumerMember
from hightide.core.groups.consumer.consumer_groups import ConsumerGroups
from hightide.core.groups.responses import error_response
from tests.unit.core.consumer_world import Violation, World

MOVES: list[tuple[Callable[[World, Random], None], float]] = []


def move(weight: float) -> Callable[[Callable[[World, Random], None]], Any]:
    def add(play: Callable[[World, Random], None]) -> Any:
        MOVES.append((play, weight))
        return play

    return add


@move(12)
def a_consumer_sends_a_heartbeat(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    if consumer.waits is None:
        world.beat(consumer)


@move(6)
def a_consumer_revokes(world: World, random: Random) -> None:
    world.give_up(random.choice(world.consumers))


@move(6)
def some_consumers_make_progress(world: World, random: Random) -> None:
    consumers = random.sample(world.consumers, 3)
    for _ in range(random.choice([1, 4])):
        world.make_progress(consumers)
        world.pass_time(2)


@move(1)
def an_answer_is_lost(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    consumer.waits, consumer.says_all = None, True


@move(4)
def a_heartbeat_comes_late(world: World, random: Random) -> None:
    for consumer in world.consumers:
        if consumer.target is not None and consumer.owned - consumer.target:
            world.deliver_late(consumer, random)


@move(1)
def a_consumer_leaves(world: World, random: Random) -> None:
    world.leave(random.choice(world.consumers), random.choice([-1, -2]))


@move(1)
def a_consumer_restarts(world: World, random: Random) -> None:
    world.restart(random.choice(world.consumers))


@move(1)
def a_consumer_subscribes(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    consumer.names = random.choice([["t"], ["u"], ["t", "u"], ["t", "nowhere"]])
    consumer.regex = random.choice([None, "", "[tu]", "u.*"])
    consumer.says_all = True


@move(10)
def a_batch_is_committed(world: World, _: Random) -> None:
    if world.in_flight:
        world.commit_batch()


@move(1)
def writes_are_refused(world: World, random: Random) -> None:
    world.refuses = random.random() < 0.3


@move(5)
def time_passes(world: World, random: Random) -> None:
    world.pass_time(random.choice([1, 5, 12, 35, 60]))


@move(0.5)
def topics_change(world: World, random: Random) -> None:
    counts = {name: random.randint(1, 5) for name in ("t", "u", "uu") if random.random() < 0.8}
    world.change_topics(**counts)


@move(0.7)
def the_coordinator_moves(world: World, random: Random) -> None:
    world.fail_over(random.choice([0, 1, 5]))


def walk(seed: int, step_count: int = 100) -> None:
    random = Random(seed)
    world = World(seed)
    plays, weights = zip(*MOVES, strict=True)
    for _ in range(step_count):
        (play,) = random.choices(plays, weights)
        play(world, random)
        world.check()
    world.heal()


def test_a_long_random_walk() -> None:
    for seed in range(60):
        walk(seed)


# -- removed rules ---------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def assigning_before_it_is_revoked(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "owners", lambda _: {})


def assuming_that_all_is_revoked(patch: Patch) -> None:
    real: Any = reconciliation._next

    def hasty(member: ConsumerMember, *how: Any) -> ConsumerMember:
        return real(member, *how[:-1], frozenset())

    patch.setattr(reconciliation, "_next", hasty)


def partitions_being_revoked_are_free(patch: Patch) -> None:
    patch.setattr(ConsumerMember, "holds", property(lambda self: self.assigned))


def answering_before_it_is_written(patch: Patch) -> None:
    def answer(_: ConsumerGroups, ticket: int, __: str, response: Any, turn: Any) -> None:
        turn.answer(ticket, response)

    patch.setattr(ConsumerGroups, "answer", answer)


def failed_writes_are_kept(patch: Patch) -> None:
    def kept(self: ConsumerGroups, purpose: Any, error: Any, turn: Any) -> None:
        self._ended(purpose)
        for answer in purpose.answers:
            turn.answer(answer.ticket, error_response(answer.response, error))

    patch.setattr(ConsumerGroups, "write_failed", kept)


def any_epoch_is_accepted(patch: Patch) -> None:
    """B18, for member epochs: a request of an earlier epoch is taken for a current one."""
    real = heartbeat.decide

    def generous(
        group: ConsumerGroup, beat: Any, member: ConsumerMember, *how: Any, **more: Any
    ) -> Any:
        beat.request.member_epoch = member.epoch
        return real(group, beat, member, *how, **more)

    patch.setattr(heartbeat, "_check_epoch", lambda *_: None)
    patch.setattr(heartbeat, "decide", generous)


def sessions_never_expire(patch: Patch) -> None:
    patch.setattr(ConsumerGroups, "timed_out", lambda *_: None)


BUGS = [
    assigning_before_it_is_revoked,
    assuming_that_all_is_revoked,
    partitions_being_revoked_are_free,
    answering_before_it_is_written,
    failed_writes_are_kept,
    any_epoch_is_accepted,
    sessions_never_expire,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_model_notices_a_missing_rule(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    monkeypatch.setattr(group.ConsumerGroup, "check", lambda _: None)
    monkeypatch.setattr(World, "looks_for_wrong_only", True)

    def walk_many() -> None:
        for seed in range(2000):
            walk(seed)

    with pytest.raises(Violation):
        walk_many()
