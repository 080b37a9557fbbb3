"""The election of a controller, on an in-memory ZooKeeper: one session is one candidate."""

import asyncio
import contextlib
import random

import pytest

from hightide.broker.controller.controller_election import (  # type: ignore[attr-defined]
    NO_BROKER,
    ControllerElection,
    NotController,
)
from hightide.zookeeper import znodes
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.operation import Create, SetData
from hightide.zookeeper.zookeeper_errors import ConnectionLoss, MultiFailed, NoNode, SessionLost
from tests.support.eventually import eventually_async


class Candidates:
    """Candidates with sessions at one ZooKeeper."""

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

    def live(self) -> list[int]:
        return [
            broker_id
            for broker_id, session in self.sessions.items()
            if session.state.value != "lost"
        ]

    async def settled(self) -> None:
        """Let all candidates handle their watch events."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for election in self.elections.values():
            await election.watch_loop.stop()


def with_candidates(test):
    def run():
        async def main():
            first = await InMemoryZooKeeper.open()
            candidates = Candidates(first)
            try:
                await test(candidates, first)
            finally:
                await candidates.close()
                await first.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def stored_controller(zookeeper: InMemoryZooKeeper) -> tuple[int, int]:
    """Return (controller, epoch) as ZooKeeper has them."""
    data, _ = await zookeeper.get(znodes.CONTROLLER)
    epoch, _ = await zookeeper.get(znodes.CONTROLLER_EPOCH)
    return znodes.Controller.decode(data).broker_id, znodes.decode_controller_epoch(epoch)


@with_candidates
async def test_the_first_to_look_is_the_controller_and_the_others_see_it(candidates, zookeeper):
    one, two = await candidates.enter(1), await candidates.enter(2)
    assert (one.is_controller, two.is_controller) == (True, False)
    assert (one.controller_id, two.controller_id) == (1, 1)
    assert await stored_controller(zookeeper) == (1, 1)


@with_candidates
async def test_the_next_one_takes_over_in_a_higher_epoch(candidates, zookeeper):
    await candidates.enter(1)
    two = await candidates.enter(2)
    await candidates.expire(1)
    await candidates.settled()
    assert two.is_controller
    assert await stored_controller(zookeeper) == (2, 2)


@with_candidates
async def test_a_replaced_controller_cannot_write_and_notices(candidates, zookeeper):
    one = await candidates.enter(1)
    await one.fenced([Create("/a", b"1")])
    # As after a long suspension: another broker is elected, and this one has not noticed.
    await one.watch_loop.stop()
    await zookeeper.delete(znodes.CONTROLLER)
    two = await candidates.enter(2)
    with pytest.raises(NotController):
        await one.fenced([SetData("/a", b"stale")])
    assert not one.is_controller
    assert (await zookeeper.get("/a"))[0] == b"1"
    await two.fenced([SetData("/a", b"2")])
    with pytest.raises(NotController):
        await one.fenced([SetData("/a", b"stale")])
    assert (await zookeeper.get("/a"))[0] == b"2"


@with_candidates
async def test_a_refused_write_has_its_own_index(candidates, zookeeper):
    one = await candidates.enter(1)
    with pytest.raises(MultiFailed) as failed:
        await one.fenced([Create("/a"), SetData("/missing", b"")])
    assert (failed.value.index, failed.value.count) == (1, 2)
    assert isinstance(failed.value.cause, NoNode)
    assert one.is_controller


@with_candidates
async def test_an_election_whose_response_was_lost_is_found_to_be_won(candidates, zookeeper):
    session = await zookeeper.new_session()
    election = ControllerElection(session, 7, lambda: 0)
    real = session.multi

    async def lose_response(operations):
        await real(operations)
        raise ConnectionLoss

    session.multi = lose_response
    with pytest.raises(ConnectionLoss):
        await election.check()
    assert not election.is_controller
    session.multi = real
    await election.check()
    assert election.is_controller
    assert election.epoch == 1
    await election.fenced([Create("/a")])


@with_candidates
async def test_a_controller_that_stood_down_in_doubt_returns_in_the_same_epoch(
    candidates, zookeeper
):
    one = await candidates.enter(1)
    one.stand_down("for a test")
    with pytest.raises(NotController):
        await one.fenced([Create("/a")])
    await one.check()
    assert one.is_controller
    assert (one.epoch, await stored_controller(zookeeper)) == (1, (1, 1))
    await one.fenced([Create("/a")])


@with_candidates
async def test_resigning_hands_the_task_to_another(candidates, zookeeper):
    one, two = await candidates.enter(1), await candidates.enter(2)
    assert await one.resign(timeout_s=5) == 2
    assert (one.is_controller, two.is_controller) == (False, True)
    assert await stored_controller(zookeeper) == (2, 2)
    assert await two.resign(timeout_s=5) == 1


@with_candidates
async def test_a_controller_that_resigns_without_another_candidate_is_elected_again(
    candidates, zookeeper
):
    one = await candidates.enter(1)
    assert await one.resign(timeout_s=0.05) == NO_BROKER
    await candidates.settled()
    assert one.is_controller
    assert await stored_controller(zookeeper) == (1, 2)


@with_candidates
async def test_only_the_controller_can_resign(candidates, zookeeper):
    await candidates.enter(1)
    two = await candidates.enter(2)
    with pytest.raises(NotController):
        await two.resign(timeout_s=0.01)
    assert await stored_controller(zookeeper) == (1, 1)


@with_candidates
async def test_an_invalid_controller_znode_is_waited_out(candidates, zookeeper):
    await zookeeper.create(znodes.CONTROLLER, b"not json", ephemeral=True)
    one = await candidates.enter(1)
    assert (one.is_controller, one.controller_id) == (False, NO_BROKER)
    await zookeeper.delete(znodes.CONTROLLER)
    await candidates.settled()
    assert one.is_controller


@with_candidates
async def test_a_broker_pauses_longer_each_time_before_it_stands_again(candidates, zookeeper):
    loop = asyncio.get_running_loop()
    one = await candidates.enter(1)
    pauses = []
    for _ in range(5):
        one.stand_down("a test")
        stood_down_s = loop.time()
        one.watch_loop.wake()
        await eventually_async(lambda: one.is_controller)
        pauses.append(loop.time() - stood_down_s)
    # The first time there is no pause; a busy machine only makes the others longer.
    for pause, least in zip(pauses, [0, 0.05, 0.1, 0.2, 0.4], strict=True):
        assert pause >= least
    assert await stored_controller(zookeeper) == (1, 1), "the same controller epoch"


@with_candidates
async def test_resigning_again_and_again_is_slowed_down(candidates, zookeeper):
    loop = asyncio.get_running_loop()
    both = [await candidates.enter(1), await candidates.enter(2)]
    began_s = loop.time()
    for _ in range(8):
        (elected,) = await eventually_async(lambda: [one for one in both if one.is_controller])
        await elected.resign()
    # Four times each: at once, after 50, 100 and 200 ms in office.
    assert loop.time() - began_s >= 2 * (0.05 + 0.1) + 0.2


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_only_the_latest_controller_writes(seed):
    """Sessions end, candidates pause and resume, and every broker that believes it is the
    controller writes."""

    async def main():
        rng = random.Random(seed)
        zookeeper = await InMemoryZooKeeper.open()
        await zookeeper.create("/log", b"0")
        candidates = Candidates(zookeeper)
        newcomers = iter(range(1, 100))
        accepted: list[int] = []

        async def write(election: ControllerElection) -> None:
            epoch = election.epoch
            try:
                await election.fenced([SetData("/log", str(epoch).encode())])
            except (NotController, SessionLost):
                return
            # The controller whose write was accepted is the latest one.
            assert accepted == [] or epoch >= accepted[-1]
            _, latest = await zookeeper.get(znodes.CONTROLLER_EPOCH)
            assert latest.version == epoch
            accepted.append(epoch)

        for _ in range(80):
            live = candidates.live()
            match rng.choice(
                ["enter", "expire", "sleep", "wake", "write", "write", "resign", "run"]
            ):
                case "enter" if len(live) < 4:
                    await candidates.enter(next(newcomers))
                case "expire" if live:
                    await candidates.expire(rng.choice(live))
                case "sleep" if live:
                    await candidates.elections[rng.choice(live)].watch_loop.stop()
                case "wake" if live:
                    watch_loop = candidates.elections[rng.choice(live)].watch_loop
                    await watch_loop.stop()
                    watch_loop.start()
                    watch_loop.wake()
                case "write" if candidates.elections:
                    await write(rng.choice(list(candidates.elections.values())))
                case "resign" if live:
                    with contextlib.suppress(NotController, SessionLost):
                        await candidates.elections[rng.choice(live)].resign(timeout_s=0.001)
                case "run":
                    await candidates.settled()
        for election in candidates.elections.values():
            await election.watch_loop.stop()
            election.watch_loop.start()
            election.watch_loop.wake()
        live = candidates.live()
        if live:
            # A candidate that stood down several times pauses before it stands again.
            elected = await eventually_async(
                lambda: [one for one in live if candidates.elections[one].is_controller]
            )
            assert len(elected) == 1
            assert (await stored_controller(zookeeper))[0] == elected[0]
            assert {candidates.elections[one].controller_id for one in live} == set(elected)
        await candidates.close()
        await zookeeper.close()

    asyncio.run(main())
