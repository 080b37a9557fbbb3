"""Controllers under all faults at once: brokers, sessions and ZooKeeper come and go."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from hightide.broker.controller.context import decode_state
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import KafkaError
from hightide.zookeeper import znodes
from hightide.zookeeper.zookeeper_errors import ConnectionLoss
from tests.support.eventually import eventually_async
from tests.unit.broker.controller_world import World, in_a_world


async def something_happens(world: World) -> None:
    chance = world.random
    kind = chance.randrange(6)
    controllers = [
        broker_id for broker_id, election in world.elections.items() if election.is_controller
    ]
    topic = f"t{chance.randrange(4)}"
    if kind == 0 and len(world.peers) > 1:
        await world.down(chance.choice(sorted(world.peers)))
    elif kind == 1:
        missing = sorted({1, 2, 3} - world.peers.keys())
        await world.up(*missing[:1])
    elif kind == 2 and controllers:
        election = world.elections[controllers[0]]
        election.stand_down("in doubt")
        election.watch_loop.wake()
    elif kind == 3:
        if await world.zookeeper.exists("/controller") is not None:
            await world.zookeeper.delete("/controller")
    elif kind == 4 and controllers:
        assignment = {index: chance.sample([1, 2, 3], 2) for index in range(5)}
        await world.controllers[controllers[0]].create_topic(topic, assignment, {}, timeout_ms=200)
    elif kind == 5 and controllers:
        await world.controllers[controllers[0]].delete_topic(topic, timeout_ms=200)


async def check_agreement(world: World) -> None:
    """Check that ZooKeeper, the controller and all brokers have the same topics and states."""
    controller = world.controller()
    machine = await controller.state_machine()
    await eventually_async(lambda: sorted(machine.brokers) == [1, 2, 3] and not machine.audit())
    machine.check()
    names = await world.zookeeper.children("/brokers/topics")
    assert sorted(machine.topics) == names
    assert await world.zookeeper.children("/admin/delete_topics") == []
    for peer in world.peers.values():
        await eventually_async(
            lambda at=peer: sorted(topic.name for topic in at.metadata_image) == names
        )
    for name in names:
        data, _ = await world.zookeeper.get(znodes.topic_path(name))
        assignment = znodes.TopicAssignment.decode(data, name)
        for index in assignment.partitions:
            path = znodes.partition_state_path(name, index)
            data, stat = await world.zookeeper.get(path)
            state = decode_state(data, path, stat.version, assignment, index)
            assert machine.state(name, index) == state

            def is_seen(at=(name, index), state=state) -> bool:
                seen = world.seen(*at)
                return seen is not None and (seen.partition_epoch, seen.leader, seen.isr) == (
                    state.partition_epoch,
                    state.leader,
                    state.isr,
                )

            await eventually_async(is_seen)
            assert state.leader != NO_BROKER


@pytest.mark.parametrize("seed", range(4))
def test_after_any_fault_all_agree(seed, monkeypatch):
    monkeypatch.setattr("hightide.broker.controller.service._SHORTEST_TIMEOUT_MS", 200)
    monkeypatch.setattr("hightide.broker.controller.service._SHORTEST_PUBLISH_S", 0.05)

    @in_a_world(unclean_leader_election_enable=True)
    async def run(world):
        world.random.seed(seed)
        await world.up(1, 2, 3)
        await world.candidate(100)
        await world.candidate(101)

        def fails(_name, _about):
            return ConnectionLoss() if world.random.random() < 0.02 else None

        for session in world.sessions.values():
            session.fail = session.lose = fails
        for _ in range(40):
            # A request may have any result, but nothing may be left half done.
            with contextlib.suppress(KafkaError):
                await something_happens(world)
            await asyncio.sleep(world.random.random() * 0.01)
        for session in world.sessions.values():
            session.fail = session.lose = lambda _name, _about: None
        for election in world.elections.values():
            election.watch_loop.wake()
        await world.up(*({1, 2, 3} - world.peers.keys()))
        await eventually_async(
            lambda: (
                [election.is_controller for election in world.elections.values()].count(True) == 1
            )
        )
        for controller in world.controllers.values():
            controller.reconnected()
        await asyncio.sleep(0.3)  # a failed check is retried after a while
        await check_agreement(world)

    run()
