"""A group that changes its protocol gives each partition to one owner at a time.

A random walk plays the moves below on the world of `mixed_world.py`.  Then each rule in turn is
removed from the coordinator, and the model must notice.
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
from tests.unit.core.consumer_world import Consumer, Violation
from tests.unit.core.mixed_world import ClassicConsumer, World

MOVES: list[tuple[Callable[[World, Random], None], float]] = []


def move(weight: float) -> Callable[[Callable[[World, Random], None]], Any]:
    def add(play: Callable[[World, Random], None]) -> Any:
        MOVES.append((play, weight))
        return play

    return add


def random_consumer(world: World, random: Random, kind: type) -> Any:
    found = [consumer for consumer in world.consumers if isinstance(consumer, kind)]
    return random.choice(found) if found else None


@move(8)
def a_consumer_sends_a_heartbeat(world: World, random: Random) -> None:
    consumer = random_consumer(world, random, Consumer)
    if consumer is not None and consumer.waits is None:
        world.beat(consumer)


@move(14)
def a_classic_consumer_makes_progress(world: World, random: Random) -> None:
    consumer = random_consumer(world, random, ClassicConsumer)
    if consumer is not None and consumer.waits is None:
        world.make_progress_classic(consumer)


@move(3)
def a_classic_consumer_heartbeats(world: World, random: Random) -> None:
    consumer = random_consumer(world, random, ClassicConsumer)
    if consumer is not None and consumer.waits is None and consumer.generation >= 0:
        world.heartbeat(consumer)


@move(4)
def a_consumer_revokes(world: World, random: Random) -> None:
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
def some_consumers_make_progress(world: World, random: Random) -> None:
    consumers = random.sample(world.consumers, 3)
    for _ in range(random.choice([1, 4, 8])):
        world.make_progress(consumers)
        world.pass_time(2)


@move(4)
def consumers_of_one_protocol_make_progress(world: World, random: Random) -> None:
    kind = random.choice([Consumer, ClassicConsumer, ClassicConsumer])
    consumers: list[Any] = [consumer for consumer in world.consumers if isinstance(consumer, kind)]
    if kind is ClassicConsumer and random.random() < 0.4:
        for consumer in consumers:
            consumer.must_join = True
    for _ in range(random.choice([1, 2, 8])):
        world.make_progress(consumers)
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
        if consumer.target is not None and consumer.owned - consumer.target:
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
def a_batch_is_committed(world: World, _: Random) -> None:
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
            world.make_progress_classic(consumer)
        world.refuses = before


@move(5)
def time_passes(world: World, random: Random) -> None:
    world.pass_time(random.choice([1, 3, 5, 12, 35, 60]))


@move(0.4)
def topics_change(world: World, random: Random) -> None:
    # A topic that is created again has another id, which classic consumers do not report.
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
    # The last seed found that a group which could not be converted had no sessions any more.
    for seed in [*range(25), 2567]:
        walk(seed)


# -- removed rules ---------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def a_converted_group_owns_nothing(patch: Patch) -> None:
    def nothing(_: Any, members: Any, *__: Any) -> Any:
        return {member.id: frozenset() for member in members}

    patch.setattr(migration, "_assignments", nothing)


def unassigned_partitions_are_free(patch: Patch) -> None:
    """Removed: during a rebalance members own what their subscriptions claim."""
    real = migration._assignments

    def forgetful(classic: Any, members: Any, subscriptions: Any, topics: Any) -> Any:
        silent = {
            key: ConsumerSubscription(topics=subscriptions[key].topics) for key in subscriptions
        }
        return real(classic, members, silent, topics)

    patch.setattr(migration, "_assignments", forgetful)


def stale_ownership_is_believed(patch: Patch) -> None:
    """B18: ownership reported in an earlier generation is taken for the current one."""
    real = classic_members._as_heartbeat

    def gullible(groups: Any, attempt: Any, subscriptions: Any, member: Any, now_ms: int) -> Any:
        beat = real(groups, attempt, subscriptions, member, now_ms)
        beat.request.member_epoch = member.epoch
        return beat

    patch.setattr(classic_members, "_as_heartbeat", gullible)


def answering_before_it_is_written(patch: Patch) -> None:
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


def the_consumer_group_stays_in_the_log(patch: Patch) -> None:
    """A group that becomes classic writes no tombstones."""
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


def a_converted_group_does_not_rebalance(patch: Patch) -> None:
    """After a failover, a group that has just become classic is taken for a stable one."""
    patch.setattr(ClassicGroup, "is_converted", property(lambda _: False, lambda *_: None))


def waiting_requests_are_forgotten(patch: Patch) -> None:
    """Requests that wait to join a converted group are never answered."""
    patch.setattr(migration, "release_waiting", lambda *_: None)


def commits_of_any_epoch(patch: Patch) -> None:
    """B18: a former member may still commit."""
    patch.setattr(offset_requests, "offset_commit_error", lambda *_: ErrorCode.NONE)


# Each with a seed that finds it soon: some need long histories.
BUGS = [
    (commits_of_any_epoch, 225),
    (a_converted_group_owns_nothing, 12),
    (unassigned_partitions_are_free, 172),
    (stale_ownership_is_believed, 404),
    (answering_before_it_is_written, 5),
    (a_group_is_lost_if_it_cannot_be_converted, 12),
    (a_group_is_converted_though_it_cannot_be_written, 0),
    (the_consumer_group_stays_in_the_log, 7),
    (a_converted_group_does_not_rebalance, 221),
    (waiting_requests_are_forgotten, 1),
]


@pytest.mark.parametrize(("bug", "first"), BUGS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_model_notices_a_missing_rule(
    bug: Callable[[Patch], None], first: int, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    monkeypatch.setattr(ConsumerGroup, "check", lambda _: None)
    monkeypatch.setattr(ClassicGroup, "check", lambda _: None)
    monkeypatch.setattr(World, "looks_for_wrong_only", True)

    def walk_many() -> None:
        for seed in range(first, first + 1000):
            walk(seed)

    with pytest.raises(Violation):
        walk_many()
