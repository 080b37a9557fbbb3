"""A group of the newer protocol gives each partition to one at a time, whatever happens to it.

What can happen are the moves below, on the world of `consumer_world.py`, played by a random walk.
Then one rule after the other is taken out, and each time that must be noticed.
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
from tests.unit.core.consumer_world import World, Wrong

MOVES: list[tuple[Callable[[World, Random], None], float]] = []


def move(weight: float) -> Callable[[Callable[[World, Random], None]], Any]:
    def add(play: Callable[[World, Random], None]) -> Any:
        MOVES.append((play, weight))
        return play

    return add


@move(12)
def a_consumer_beats(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    if consumer.waits is None:
        world.beat(consumer)


@move(6)
def a_consumer_gives_up(world: World, random: Random) -> None:
    world.give_up(random.choice(world.consumers))


@move(6)
def some_go_on(world: World, random: Random) -> None:
    consumers = random.sample(world.consumers, 3)
    for _ in range(random.choice([1, 4])):
        world.go_on(consumers)
        world.pass_time(2)


@move(1)
def an_answer_is_lost(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    consumer.waits, consumer.says_all = None, True


@move(4)
def a_heartbeat_comes_late(world: World, random: Random) -> None:
    for consumer in world.consumers:
        if consumer.shall_own is not None and consumer.owned - consumer.shall_own:
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
def something_is_committed(world: World, _: Random) -> None:
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


# -- rules taken out -------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def taking_before_it_is_given_up(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "owners", lambda _: {})


def believing_that_all_is_given_up(patch: Patch) -> None:
    real = reconciliation._next

    def hasty(member: ConsumerMember, *how: Any) -> ConsumerMember:
        return real(member, *how[:-1], frozenset())

    patch.setattr(reconciliation, "_next", hasty)


def what_is_being_given_up_is_free(patch: Patch) -> None:
    patch.setattr(ConsumerMember, "holds", property(lambda self: self.assigned))


def telling_before_it_is_written(patch: Patch) -> None:
    def answer(_: ConsumerGroups, ticket: int, __: str, response: Any, turn: Any) -> None:
        turn.answer(ticket, response)

    patch.setattr(ConsumerGroups, "answer", answer)


def what_was_not_written_is_kept(patch: Patch) -> None:
    def kept(self: ConsumerGroups, purpose: Any, error: Any, turn: Any) -> None:
        self._ended(purpose)
        for answer in purpose.answers:
            turn.answer(answer.ticket, error_response(answer.response, error))

    patch.setattr(ConsumerGroups, "write_failed", kept)


def any_epoch_will_do(patch: Patch) -> None:
    """B18, for member epochs: what was sent in an epoch before is taken for the present one."""
    real = heartbeat.decide

    def generous(
        group: ConsumerGroup, beat: Any, member: ConsumerMember, *how: Any, **more: Any
    ) -> Any:
        beat.request.member_epoch = member.epoch
        return real(group, beat, member, *how, **more)

    patch.setattr(heartbeat, "_check_epoch", lambda *_: None)
    patch.setattr(heartbeat, "decide", generous)


def nobody_is_missed(patch: Patch) -> None:
    patch.setattr(ConsumerGroups, "timed_out", lambda *_: None)


BUGS = [
    taking_before_it_is_given_up,
    believing_that_all_is_given_up,
    what_is_being_given_up_is_free,
    telling_before_it_is_written,
    what_was_not_written_is_kept,
    any_epoch_will_do,
    nobody_is_missed,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_rule_that_is_missing_is_missed(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    monkeypatch.setattr(group.ConsumerGroup, "check", lambda _: None)
    monkeypatch.setattr(World, "looks_for_wrong_only", True)

    def walk_many() -> None:
        for seed in range(2000):
            walk(seed)

    with pytest.raises(Wrong):
        walk_many()
