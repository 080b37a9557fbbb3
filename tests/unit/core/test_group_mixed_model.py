"""A group that changes its protocol gives each partition to one at a time, whatever happens to it.

What can happen are the moves below, on the world of `mixed_world.py`, played by a random walk.
Then one rule after the other is taken out, and each time that must be noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from hightide.core.groups import migration, offset_requests
from hightide.core.groups.administration import Administration
from hightide.core.groups.classic.classic_group import ClassicGroup
from hightide.core.groups.consumer import classic_members
from hightide.core.groups.consumer.consumer_group import ConsumerGroup
from hightide.core.groups.consumer.consumer_groups import ConsumerGroups
from hightide.core.groups.responses import error_response
from hightide.core.groups.turn import Write
from hightide.wire.errors import ErrorCode
from hightide.wire.records.consumer_protocol import ConsumerSubscription
from tests.unit.core.consumer_world import Consumer, Wrong
from tests.unit.core.mixed_world import ClassicConsumer, World

MOVES: list[tuple[Callable[[World, Random], None], float]] = []


def move(weight: float) -> Callable[[Callable[[World, Random], None]], Any]:
    def add(play: Callable[[World, Random], None]) -> Any:
        MOVES.append((play, weight))
        return play

    return add


def somebody(world: World, random: Random, kind: type) -> Any:
    found = [consumer for consumer in world.consumers if isinstance(consumer, kind)]
    return random.choice(found) if found else None


@move(8)
def a_consumer_beats(world: World, random: Random) -> None:
    consumer = somebody(world, random, Consumer)
    if consumer is not None and consumer.waits is None:
        world.beat(consumer)


@move(14)
def a_classic_consumer_goes_on(world: World, random: Random) -> None:
    consumer = somebody(world, random, ClassicConsumer)
    if consumer is not None and consumer.waits is None:
        world.go_on_classic(consumer)


@move(3)
def a_classic_consumer_heartbeats(world: World, random: Random) -> None:
    consumer = somebody(world, random, ClassicConsumer)
    if consumer is not None and consumer.waits is None and consumer.generation >= 0:
        world.heartbeat(consumer)


@move(4)
def a_consumer_gives_up(world: World, random: Random) -> None:
    world.give_up(random.choice(world.consumers))


@move(6)
def a_consumer_works(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    world.work(consumer, random.choice([1, 2, 5]), is_late=random.random() < 0.3)


@move(2)
def a_late_commit_arrives(world: World, random: Random) -> None:
    if world.late:
        world.commit(world.late.pop(random.randrange(len(world.late))))


@move(6)
def some_go_on(world: World, random: Random) -> None:
    consumers = random.sample(world.consumers, 3)
    for _ in range(random.choice([1, 4, 8])):
        world.go_on(consumers)
        world.pass_time(2)


@move(4)
def those_of_one_protocol_go_on(world: World, random: Random) -> None:
    kind = random.choice([Consumer, ClassicConsumer, ClassicConsumer])
    consumers = [consumer for consumer in world.consumers if isinstance(consumer, kind)]
    if kind is ClassicConsumer and random.random() < 0.4:
        for consumer in consumers:
            consumer.must_join = True
    for _ in range(random.choice([1, 2, 8])):
        world.go_on(consumers)
        world.pass_time(2)


@move(1)
def an_answer_is_lost(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    consumer.waits = None
    if isinstance(consumer, ClassicConsumer):
        consumer.must_join = True
    else:
        consumer.says_all = True


@move(5)
def a_request_comes_late(world: World, random: Random) -> None:
    for consumer in world.consumers:
        if consumer.shall_own is not None and consumer.owned - consumer.shall_own:
            if isinstance(consumer, ClassicConsumer):
                world.deliver_late_join(consumer)
            else:
                world.deliver_late(consumer, random)


@move(1)
def a_consumer_leaves(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    if isinstance(consumer, Consumer):
        world.leave(consumer, random.choice([-1, -2]))
    elif consumer.member_id:
        is_static = consumer.instance_id is not None
        world.leave_classic(consumer, by_instance=is_static and random.random() < 0.5)


@move(1)
def a_consumer_restarts(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    if isinstance(consumer, Consumer):
        world.restart(consumer)
    else:
        consumer.reset()


@move(1.5)
def a_consumer_changes_its_protocol(world: World, random: Random) -> None:
    world.switch(random.randrange(len(world.consumers)))


@move(0.7)
def a_consumer_subscribes(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    if consumer.waits is not None:
        return
    consumer.names = random.choice([["t"], ["u"], ["t", "u"]])
    if isinstance(consumer, Consumer):
        consumer.says_all = True
    else:
        consumer.must_join = True


@move(10)
def something_is_committed(world: World, _: Random) -> None:
    if world.in_flight:
        world.commit_batch()


@move(1)
def writes_are_refused(world: World, random: Random) -> None:
    world.refuses = random.random() < 0.3


@move(2)
def a_request_is_refused(world: World, random: Random) -> None:
    consumer = random.choice(world.consumers)
    if consumer.waits is None:
        world.refuses, before = True, world.refuses
        if isinstance(consumer, Consumer):
            world.beat(consumer)
        else:
            world.go_on_classic(consumer)
        world.refuses = before


@move(5)
def time_passes(world: World, random: Random) -> None:
    world.pass_time(random.choice([1, 3, 5, 12, 35, 60]))


@move(0.4)
def topics_change(world: World, random: Random) -> None:
    # One that came again would have another id, which consumers of the classic protocol do not say.
    world.change_topics(t=random.randint(1, 5), u=random.randint(1, 5))


@move(0.7)
def the_coordinator_moves(world: World, random: Random) -> None:
    world.fail_over(random.choice([0, 1, 5]))


def walk(seed: int, step_count: int = 80) -> None:
    random = Random(seed)
    world = World(seed)
    plays, weights = zip(*MOVES, strict=True)
    for _ in range(step_count):
        (play,) = random.choices(plays, weights)
        play(world, random)
        world.check()
    world.heal()


def test_a_long_random_walk() -> None:
    # The last has found that a group which could not be converted missed nobody any more.
    for seed in [*range(25), 2567]:
        walk(seed)


# -- rules taken out -------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def a_converted_group_has_nothing(patch: Patch) -> None:
    def nothing(_: Any, members: Any, *__: Any) -> Any:
        return {member.id: frozenset() for member in members}

    patch.setattr(migration, "_assignments", nothing)


def what_is_not_assigned_is_free(patch: Patch) -> None:
    """While the leader shares out, members have what they said that they have."""
    real = migration._assignments

    def forgetful(classic: Any, members: Any, said: Any, topics: Any) -> Any:
        silent = {each: ConsumerSubscription(topics=said[each].topics) for each in said}
        return real(classic, members, silent, topics)

    patch.setattr(migration, "_assignments", forgetful)


def what_is_said_late_is_believed(patch: Patch) -> None:
    """B18: what was said in a generation before is taken for the present one."""
    real = classic_members._as_heartbeat

    def gullible(groups: Any, asked: Any, said: Any, member: Any, now_ms: int) -> Any:
        beat = real(groups, asked, said, member, now_ms)
        beat.request.member_epoch = member.epoch
        return beat

    patch.setattr(classic_members, "_as_heartbeat", gullible)


def telling_before_it_is_written(patch: Patch) -> None:
    def answer(_: ConsumerGroups, ticket: int, __: str, response: Any, turn: Any) -> None:
        turn.answer(ticket, response)

    patch.setattr(ConsumerGroups, "answer", answer)


def a_group_is_lost_if_it_cannot_be_converted(patch: Patch) -> None:
    patch.setattr(Administration, "restore", lambda *_: None)
    patch.setattr(migration, "restore_classic", lambda *_: None)


def a_group_is_converted_though_it_cannot_be_written(patch: Patch) -> None:
    def kept(self: ConsumerGroups, purpose: Any, error: Any, turn: Any) -> None:
        self._ended(purpose)
        for answer in purpose.answers:
            turn.answer(answer.ticket, error_response(answer.response, error))

    patch.setattr(ConsumerGroups, "write_failed", kept)


def the_newer_kind_stays_in_the_log(patch: Patch) -> None:
    """The tombstones are left out when a group becomes classic."""
    real = ConsumerGroups._write_decision

    def lazy(self: Any, group_id: str, records: Any, *how: Any, **more: Any) -> Any:
        after = real(self, group_id, records, *how, **more)
        if more.get("founded") is not None:
            (*_, turn) = how
            write = turn.writes.pop()
            records = tuple(record for record in write.records if record.value is not None)
            turn.writes.append(Write(records, write.purpose))
        return after

    patch.setattr(ConsumerGroups, "_write_decision", lazy)


def nobody_is_called_together(patch: Patch) -> None:
    """After a move a group that has just become classic is taken for one at work."""
    patch.setattr(ClassicGroup, "is_converted", property(lambda _: False, lambda *_: None))


def who_waits_is_forgotten(patch: Patch) -> None:
    """Whoever waits to join a group that is converted is told when that is over: never."""
    patch.setattr(migration, "release_waiting", lambda *_: None)


def commits_of_any_epoch(patch: Patch) -> None:
    """B18.  Whoever was a member once may still commit."""
    patch.setattr(offset_requests, "offset_commit_error", lambda *_: ErrorCode.NONE)


# With a seed from which on each is noticed soon: some take long histories.
BUGS = [
    (commits_of_any_epoch, 225),
    (a_converted_group_has_nothing, 12),
    (what_is_not_assigned_is_free, 172),
    (what_is_said_late_is_believed, 404),
    (telling_before_it_is_written, 5),
    (a_group_is_lost_if_it_cannot_be_converted, 12),
    (a_group_is_converted_though_it_cannot_be_written, 0),
    (the_newer_kind_stays_in_the_log, 7),
    (nobody_is_called_together, 221),
    (who_waits_is_forgotten, 1),
]


@pytest.mark.parametrize(("bug", "first"), BUGS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_rule_that_is_missing_is_missed(
    bug: Callable[[Patch], None], first: int, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    monkeypatch.setattr(ConsumerGroup, "check", lambda _: None)
    monkeypatch.setattr(ClassicGroup, "check", lambda _: None)
    monkeypatch.setattr(World, "looks_for_wrong_only", True)

    def walk_many() -> None:
        for seed in range(first, first + 1000):
            walk(seed)

    with pytest.raises(Wrong):
        walk_many()
