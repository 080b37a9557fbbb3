"""The election of a controller, on a tree in this process: one session is one candidate."""

import asyncio
import contextlib
import random

import pytest

from hightide.broker.controller.controller_election import (
    NO_BROKER,
    ControllerElection,
    NotController,
)
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import ConnectionLoss, MultiFailed, NoNode, SessionLost
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.operation import Create, SetData


class Field:
    """Candidates on one tree."""

    def __init__(self, first: InMemoryZooKeeper) -> None:
        self._first = first
        self.elections: dict[int, ControllerElection] = {}
        self.sessions: dict[int, InMemoryZooKeeper] = {}

    async def enter(self, broker_id: int) -> ControllerElection:
        session = await self._first.new_session()
        election = ControllerElection(session, broker_id, lambda: 1234)
        self.sessions[broker_id] = session
        self.elections[broker_id] = election
        await election.check()
        election.watch_loop.start()
        return election

    async def expire(self, broker_id: int) -> None:
        await self.sessions[broker_id].close()

    def living(self) -> list[int]:
        return [each for each in self.sessions if self.sessions[each].state.value != "lost"]

    async def settled(self) -> None:
        """Let everybody hear what there is to hear."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for election in self.elections.values():
            await election.watch_loop.stop()


def on_a_field(test):
    def run():
        async def main():
            first = await InMemoryZooKeeper.open()
            field = Field(first)
            try:
                await test(field, first)
            finally:
                await field.close()
                await first.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def tree_of(tree: InMemoryZooKeeper) -> tuple[int, int]:
    """(controller, epoch) as everybody can read them."""
    data, _ = await tree.get(znodes.CONTROLLER)
    epoch, _ = await tree.get(znodes.CONTROLLER_EPOCH)
    return znodes.Controller.decode(data).broker_id, znodes.decode_controller_epoch(epoch)


@on_a_field
async def test_the_first_to_look_is_the_controller_and_the_others_see_it(field, tree):
    one, two = await field.enter(1), await field.enter(2)
    assert (one.is_controller, two.is_controller) == (True, False)
    assert (one.controller_id, two.controller_id) == (1, 1)
    assert await tree_of(tree) == (1, 1)


@on_a_field
async def test_the_next_one_takes_over_in_a_higher_epoch(field, tree):
    await field.enter(1)
    two = await field.enter(2)
    await field.expire(1)
    await field.settled()
    assert two.is_controller
    assert await tree_of(tree) == (2, 2)


@on_a_field
async def test_who_was_replaced_can_write_no_more_and_learns_of_it(field, tree):
    one = await field.enter(1)
    await one.fenced([Create("/a", b"1")])
    # As after a long sleep: another was elected, and this one has not heard of it.
    await one.watch_loop.stop()
    await tree.delete(znodes.CONTROLLER)
    two = await field.enter(2)
    with pytest.raises(NotController):
        await one.fenced([SetData("/a", b"by a ghost")])
    assert not one.is_controller
    assert (await tree.get("/a"))[0] == b"1"
    await two.fenced([SetData("/a", b"2")])
    with pytest.raises(NotController):
        await one.fenced([SetData("/a", b"by a ghost")])
    assert (await tree.get("/a"))[0] == b"2"


@on_a_field
async def test_a_refused_write_is_told_as_it_was_asked(field, tree):
    one = await field.enter(1)
    with pytest.raises(MultiFailed) as failed:
        await one.fenced([Create("/a"), SetData("/missing", b"")])
    assert (failed.value.index, failed.value.count) == (1, 2)
    assert isinstance(failed.value.cause, NoNode)
    assert one.is_controller


@on_a_field
async def test_an_election_whose_answer_was_lost_is_found_to_be_won(field, tree):
    session = await tree.new_session()
    election = ControllerElection(session, 7, lambda: 0)
    real = session.multi

    async def deaf(operations):
        await real(operations)
        raise ConnectionLoss

    session.multi = deaf
    with pytest.raises(ConnectionLoss):
        await election.check()
    assert not election.is_controller
    session.multi = real
    await election.check()
    assert election.is_controller
    assert election.epoch == 1
    await election.fenced([Create("/a")])


@on_a_field
async def test_who_stood_down_in_doubt_takes_up_the_same_epoch_if_nobody_replaced_him(field, tree):
    one = await field.enter(1)
    one.stand_down("for a test")
    with pytest.raises(NotController):
        await one.fenced([Create("/a")])
    await one.check()
    assert one.is_controller
    assert (one.epoch, await tree_of(tree)) == (1, (1, 1))
    await one.fenced([Create("/a")])


@on_a_field
async def test_resigning_hands_the_task_to_another(field, tree):
    one, two = await field.enter(1), await field.enter(2)
    assert await one.resign(timeout_s=5) == 2
    assert (one.is_controller, two.is_controller) == (False, True)
    assert await tree_of(tree) == (2, 2)
    assert await two.resign(timeout_s=5) == 1


@on_a_field
async def test_who_resigns_with_nobody_else_there_becomes_the_controller_again(field, tree):
    one = await field.enter(1)
    assert await one.resign(timeout_s=0.05) == NO_BROKER
    await field.settled()
    assert one.is_controller
    assert await tree_of(tree) == (1, 2)


@on_a_field
async def test_only_the_controller_can_resign(field, tree):
    await field.enter(1)
    two = await field.enter(2)
    with pytest.raises(NotController):
        await two.resign(timeout_s=0.01)
    assert await tree_of(tree) == (1, 1)


@on_a_field
async def test_a_controller_znode_that_makes_no_sense_is_waited_out(field, tree):
    await tree.create(znodes.CONTROLLER, b"not json", ephemeral=True)
    one = await field.enter(1)
    assert (one.is_controller, one.controller_id) == (False, NO_BROKER)
    await tree.delete(znodes.CONTROLLER)
    await field.settled()
    assert one.is_controller


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_only_the_latest_controller_writes(seed):
    """Sessions end, candidates sleep and wake, and everybody who believes to be it writes."""

    async def main():
        rng = random.Random(seed)
        tree = await InMemoryZooKeeper.open()
        await tree.create("/log", b"0")
        field = Field(tree)
        newcomers = iter(range(1, 100))
        accepted: list[int] = []

        async def write(election: ControllerElection) -> None:
            epoch = election.epoch
            try:
                await election.fenced([SetData("/log", str(epoch).encode())])
            except (NotController, SessionLost):
                return
            # Nobody was elected after the one whose write was accepted.
            assert accepted == [] or epoch >= accepted[-1]
            _, latest = await tree.get(znodes.CONTROLLER_EPOCH)
            assert latest.version == epoch
            accepted.append(epoch)

        for _ in range(80):
            living = [
                each for each in field.elections if field.sessions[each].state.value != "lost"
            ]
            match rng.choice(
                ["enter", "expire", "sleep", "wake", "write", "write", "resign", "run"]
            ):
                case "enter" if len(living) < 4:
                    await field.enter(next(newcomers))
                case "expire" if living:
                    await field.expire(rng.choice(living))
                case "sleep" if living:
                    await field.elections[rng.choice(living)].watch_loop.stop()
                case "wake" if living:
                    reading = field.elections[rng.choice(living)].watch_loop
                    await reading.stop()
                    reading.start()
                    reading.wake()
                case "write" if field.elections:
                    await write(rng.choice(list(field.elections.values())))
                case "resign" if living:
                    with contextlib.suppress(NotController, SessionLost):
                        await field.elections[rng.choice(living)].resign(timeout_s=0.001)
                case "run":
                    await field.settled()
        for each in field.elections.values():
            await each.watch_loop.stop()
            each.watch_loop.start()
            each.watch_loop.wake()
        await field.settled()
        living = field.living()
        if living:
            leaders = [each for each in living if field.elections[each].is_controller]
            assert len(leaders) == 1
            assert (await tree_of(tree))[0] == leaders[0]
            assert {field.elections[each].controller_id for each in living} == set(leaders)
        await field.close()
        await tree.close()

    asyncio.run(main())
