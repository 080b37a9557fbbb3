"""Transactions are atomic, whatever happens to producers, coordinators and partitions.

The moves below are the events of the world in `transaction_world.py`.  Hypothesis plays them and
shrinks a failure; a random walk plays far more of them in the same time.  Then the known ways of
breaking transactions are put in one by one, and each must be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hightide.core.controller.cluster_state import Partition
from hightide.core.transactions.transaction import Producer, State
from hightide.core.transactions.transaction_coordinator import (
    Answer,
    Changes,
    Ending,
    TransactionCoordinator,
    Write,
)
from hightide.core.transactions.verification import Verification, VerificationGuard
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.transactions import WritableTxnMarker
from tests.unit.core.transaction_world import (
    PARTITIONS,
    Add,
    Broken,
    Client,
    DataPartition,
    Delivery,
    End,
    Init,
    Produce,
    Request,
    World,
)

ANY = range(12)
FEW = range(3)
NAMES = PARTITIONS
# The transactional id of each client: alone, side by side, and one fencing the other.
CLIENTS = ("x", "xy", "xxy")


class Move(NamedTuple):
    """An event, its frequency, and its arguments."""

    play: Callable[..., None]
    weight: float
    needs: str
    choices: dict[str, Any]

    def can_happen(self, world: World) -> bool:
        return not self.needs or bool(getattr(world, self.needs))


MOVES: list[Move] = []


def move(
    weight: float, needs: str = "", **choices: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(play: Callable[..., None]) -> Callable[..., None]:
        MOVES.append(Move(play, weight, needs, choices))
        return play

    return add


@move(10, which=ANY, choice=ANY)
def a_client_goes_on_and_everything_works(world: World, which: int, choice: int) -> None:
    request = world.client(which).next_request(choice)
    if request is not None:
        world.send(request)
        world.arrive(request)
        world.calm(request)


@move(7, which=ANY, choice=ANY)
def a_client_goes_on(world: World, which: int, choice: int) -> None:
    request = world.client(which).next_request(choice)
    if request is not None:
        world.send(request)
        world.arrive(request)


@move(2, which=ANY, choice=ANY)
def a_client_sends_something(world: World, which: int, choice: int) -> None:
    request = world.client(which).next_request(choice)
    if request is not None:
        world.send(request)


@move(4, "requests", which=ANY)
def a_request_arrives(world: World, which: int) -> None:
    world.arrive(world.requests[which % len(world.requests)])


@move(4, "replies")
def all_answers_arrive(world: World) -> None:
    while world.replies:
        world.reply_arrives(0)


@move(1, "replies", which=ANY)
def an_answer_arrives(world: World, which: int) -> None:
    world.reply_arrives(which % len(world.replies))


@move(1, "replies", which=ANY)
def an_answer_is_lost(world: World, which: int) -> None:
    del world.replies[which % len(world.replies)]


@move(3, "writes")
def the_records_of_transactions_are_committed(world: World) -> None:
    world.commit_records()


@move(1, "writes")
def a_record_is_refused(world: World) -> None:
    world.refuse_record()


@move(0.5, "writes", which=ANY)
def a_record_takes_long(world: World, which: int) -> None:
    world.delay_record(which % len(world.writes))


@move(2, kept=FEW)
def another_broker_coordinates(world: World, kept: int) -> None:
    world.fail_over(kept)


@move(2, name=NAMES)
def a_partition_commits(world: World, name: Partition) -> None:
    world.partitions[name].commit()


@move(2, name=NAMES, kept=FEW)
def another_broker_leads(world: World, name: Partition, kept: int) -> None:
    world.partition_fails_over(name, kept)


@move(4, "questions", which=ANY)
def a_question_is_answered(world: World, which: int) -> None:
    world.answer_question(world.questions[which % len(world.questions)])


@move(4, "questions", which=ANY)
def a_verification_arrives(world: World, which: int) -> None:
    world.verification_arrives(which % len(world.questions))


@move(1)
def markers_are_sent(world: World) -> None:
    world.send_markers()


@move(5, "deliveries", which=ANY)
def markers_arrive(world: World, which: int) -> None:
    world.markers_arrive(world.deliveries[which % len(world.deliveries)])


@move(4, "deliveries", which=ANY, is_lost=(False, False, True))
def the_delivery_of_markers_ends(world: World, which: int, is_lost: bool) -> None:
    world.delivery_ends(world.deliveries[which % len(world.deliveries)], is_lost=is_lost)


@move(2, duration_ms=(1, 60, 120))
def time_passes(world: World, duration_ms: int) -> None:
    world.now_ms += duration_ms
    world.tick()


@move(1, which=ANY)
def a_client_restarts(world: World, which: int) -> None:
    gone = world.clients.pop(which % len(world.clients))
    world.start(gone.transactional_id)


# -- playing -------------------------------------------------------------------------------------


class EveryMove(RuleBasedStateMachine):
    """All moves above; `World` checks the invariants after each."""

    @initialize(version=st.sampled_from([1, 2]), ids=st.sampled_from(CLIENTS))
    def begin(self, version: int, ids: str) -> None:
        self.world = World(version, ids)

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


def _as_rule(event: Move) -> Any:
    def play(self: EveryMove, **chosen: Any) -> None:
        event.play(self.world, **chosen)

    play.__name__ = event.play.__name__
    chosen: dict[str, Any] = {
        name: st.sampled_from(list(values)) for name, values in event.choices.items()
    }
    can_happen = precondition(lambda self: event.can_happen(self.world))
    return can_happen(rule(**chosen)(play))


for _each in MOVES:
    setattr(EveryMove, _each.play.__name__, _as_rule(_each))

TestEveryMove = EveryMove.TestCase
TestEveryMove.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def walk(make: type[World], version: int, seed: int, steps: int = 120) -> World:
    """Play moves at random.  Each walk has its own frequencies, so that some go far without a
    fault and some see the same fault again and again."""
    random = Random(seed)
    world = make(version, random.choice(CLIENTS))
    weights = [event.weight * random.choice((0.1, 0.5, 1, 1, 3)) for event in MOVES]
    for event in random.choices(MOVES, weights, k=2 * steps):
        if not event.can_happen(world):
            continue
        event.play(world, **{name: random.choice(of) for name, of in event.choices.items()})
        world.check()
    world.finish()
    return world


@pytest.mark.parametrize("version", [1, 2])
def test_transactions_are_whole_on_long_walks(version: int) -> None:
    told: list[bool] = []
    for seed in range(25):
        told += walk(World, version, seed).told.values()
    assert told.count(True) > 25, "walks that commit nothing prove nothing"
    assert told.count(False) > 20


# -- old mistakes ----------------------------------------------------------------------------------


class AcknowledgedBeforeReplicated(World):
    """B13: a repeated batch is acknowledged because it is in the log, committed or not."""

    class PartitionModel(DataPartition):
        def repeated(self, request: Produce, offset: int) -> None:
            self.world.reply(request, Answer(ErrorCode.NONE))


class SequencesForgotten(World):
    """B13: a new leader does not know the sequences in its log, and appends a batch twice."""

    class PartitionModel(DataPartition):
        def rebuild(self) -> None:
            super().rebuild()
            for _, state in self.producers:
                state.batches.clear()
                state.next_sequence = -1


class PartitionsInMemory(World):
    """B14: the partitions of a transaction are written only when it ends."""

    compares_replay = False

    class TransactionCoordinator(TransactionCoordinator):
        def partitions_asked(
            self,
            transactional_id: str,
            producer: Producer,
            partitions: Iterable[Partition],
            now_ms: int,
        ) -> Changes:
            asked = super().partitions_asked(transactional_id, producer, partitions, now_ms)
            if asked.write is None:
                return asked
            del self._writes[transactional_id]
            self.apply(transactional_id, asked.write.after)
            return Changes(answer=Answer(ErrorCode.NONE))


class EndAnsweredTooSoon(World):
    """B14: a commit is acknowledged before it is written."""

    def follow(self, changes: Changes, request: Any = None) -> None:
        write = changes.write
        after = write.after if write is not None else None
        if after is not None and after.state == State.PREPARE_COMMIT and request is not None:
            assert write is not None
            assert write.answer is not None
            self.reply(request, write.answer)
        super().follow(changes, request)


class NoVerification(World):
    """B15: every transactional batch opens a transaction, verified or not."""

    class PartitionModel(DataPartition):
        verifies = False


class _AnyGuard(Verification):
    def holds(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        return guard is not None


class GuardsAreAllAlike(World):
    """B15: a verification from before a marker admits a batch after it."""

    class PartitionModel(DataPartition):
        def rebuild(self) -> None:
            super().rebuild()
            self.transactions.verification = _AnyGuard()


class OldCoordinatorsAreObeyed(World):
    """A marker of a replaced coordinator ends the next transaction."""

    class PartitionModel(DataPartition):
        def mark(self, marker: WritableTxnMarker) -> ErrorCode:
            state = self.producers.get(marker.producer_id)
            newest = state.coordinator_epoch if state else 0
            epoch = max(newest, marker.coordinator_epoch)
            return super().mark(replace(marker, coordinator_epoch=epoch))


class LateMarkersAreObeyed(World):
    """With version 2, a late copy of a marker ends the next transaction."""

    class PartitionModel(DataPartition):
        def mark(self, marker: WritableTxnMarker) -> ErrorCode:
            return super().mark(replace(marker, transaction_version=1))


class OneMarkerIsEnough(World):
    """A transaction is complete when the first of its partitions has the marker."""

    class TransactionCoordinator(TransactionCoordinator):
        def marked(self, ending: Ending, partitions: Iterable[Partition], now_ms: int) -> Changes:
            return super().marked(ending, ending.partitions, now_ms)


class LostMarkersAreForgotten(World):
    """Unanswered markers are not sent again."""

    def delivery_ends(self, delivery: Delivery, *, is_lost: bool) -> None:
        if not (is_lost and delivery.is_awaited):
            super().delivery_ends(delivery, is_lost=is_lost)
            return
        delivery.is_awaited = False
        for ending, partitions in self.pending_markers._sent.pop(delivery.broker):
            self.follow(self.machine.marked(ending, partitions, self.now_ms))


class TimeoutsDoNotFence(World):
    """A slow producer continues in a transaction of which a part was aborted."""

    class TransactionCoordinator(TransactionCoordinator):
        def tick(self, now_ms: int) -> list[Write]:
            return [self._unfenced(write) for write in super().tick(now_ms)]

        def _unfenced(self, write: Write) -> Write:
            if write.after is None or write.after.state != State.PREPARE_ABORT:
                return write
            assert write.before is not None
            after = replace(write.after, producer=write.before.producer)
            changed = replace(write, after=after)
            self._writes[write.transactional_id] = changed
            return changed


class EpochsAreGivenTwice(World):
    """InitProducerId hands out an epoch that is in use."""

    class TransactionCoordinator(TransactionCoordinator):
        def init_asked(self, transactional_id: str, *args: Any) -> Changes:
            changes = super().init_asked(transactional_id, *args)
            write = changes.write
            known = self.transactions.get(transactional_id)
            if write is None or known is None or write.after is None or write.answer is None:
                return changes
            if write.after.state != State.EMPTY:
                return changes
            after = replace(write.after, producer=known.producer)
            answer = Answer(ErrorCode.NONE, known.producer)
            changed = replace(write, after=after, answer=answer)
            self._writes[transactional_id] = changed
            return Changes(write=changed)


class AbortsAreNotIndexed(World):
    """Consumers do not learn which transactions were aborted."""

    class PartitionModel(DataPartition):
        def visible(self) -> list[Any]:
            self.index.truncate_to(0)
            return super().visible()


# -- finding them ----------------------------------------------------------------------------------


def ask(world: World, client: Client, kind: type[Request], **wanted: Any) -> Request:
    """Let a client send its next request."""
    options = client.options()
    at = next(
        at
        for at, option in enumerate(options)
        if type(option) is kind and all(getattr(option, k) == v for k, v in wanted.items())
    )
    request = client.next_request(at)
    assert request is not None
    world.send(request)
    world.arrive(request)
    return request


def answered(world: World, client: Client, kind: type[Request], **wanted: Any) -> None:
    world.calm(ask(world, client, kind, **wanted))


def begun(world: World, *partitions: Partition) -> Client:
    """Return a client with a record in each of these partitions, in an open transaction."""
    (client,) = world.clients
    answered(world, client, Init)
    for name in partitions:
        answered(world, client, Add, partition=name)
        answered(world, client, Produce, partition=name)
    assert len(world.acked) == len(partitions)
    return client


A, B = PARTITIONS


def a_batch_is_sent_again_and_its_leader_lost(world: World) -> None:
    client = begun(world, A)
    request = ask(world, client, Produce, partition=A)
    world.arrive(request)
    all_answers_arrive(world)
    another_broker_leads(world, A, 0)


def a_marker_of_a_former_coordinator_comes_late(world: World) -> None:
    client = begun(world, A)
    ask(world, client, End, is_commit=True)
    world.commit_records()
    (late,) = world.deliveries
    world.fail_over(0)
    world.calm()
    answered(world, client, Add, partition=A)
    answered(world, client, Produce, partition=A)
    world.markers_arrive(late)
    a_partition_commits(world, A)


def a_marker_is_lost(world: World) -> None:
    client = begun(world, A, B)
    ask(world, client, End, is_commit=True)
    world.commit_records()
    world.delivery_ends(world.deliveries[0], is_lost=True)
    world.calm()


def a_producer_is_too_slow(world: World) -> None:
    client = begun(world, A)
    time_passes(world, 120)
    world.calm()
    answered(world, client, Add, partition=B)
    if client.phase == "open":
        answered(world, client, Produce, partition=B)
        answered(world, client, End, is_commit=True)


SCRIPTED: list[tuple[Callable[[World], None], type[World]]] = [
    (a_batch_is_sent_again_and_its_leader_lost, AcknowledgedBeforeReplicated),
    (a_marker_of_a_former_coordinator_comes_late, OldCoordinatorsAreObeyed),
    (a_marker_is_lost, LostMarkersAreForgotten),
    (a_producer_is_too_slow, TimeoutsDoNotFence),
]


@pytest.mark.parametrize(("play", "mistake"), SCRIPTED)
def test_an_old_mistake_breaks_a_promise(
    play: Callable[[World], None], mistake: type[World]
) -> None:
    for make in (World, mistake):
        world = make(1, "x")
        try:
            play(world)
            world.check()
            world.finish()
        except Broken:
            assert make is mistake
        else:
            assert make is World, mistake.__doc__


MISTAKES: list[tuple[type[World], int]] = [
    (SequencesForgotten, 1),
    (PartitionsInMemory, 1),
    (EndAnsweredTooSoon, 1),
    (NoVerification, 1),
    (GuardsAreAllAlike, 1),
    (LateMarkersAreObeyed, 2),
    (OneMarkerIsEnough, 1),
    (EpochsAreGivenTwice, 1),
    (AbortsAreNotIndexed, 1),
]
MOST_WALKS = 300


@pytest.mark.parametrize(("mistake", "version"), MISTAKES)
def test_an_old_mistake_is_found(mistake: type[World], version: int) -> None:
    for seed in range(MOST_WALKS):
        try:
            walk(mistake, version, seed)
        except Broken:
            return
    pytest.fail(f"{mistake.__doc__} was not found in {MOST_WALKS} walks")
