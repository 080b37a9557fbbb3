"""Which broker receives which message, and when: full ones, changes, slow and absent brokers."""

from __future__ import annotations

import asyncio

from hightide.zookeeper import znodes
from tests.support.eventually import eventually_async
from tests.unit.broker.controller_world import in_a_world


@in_a_world
async def test_the_first_message_to_each_broker_epoch_is_full_and_others_are_not(world):
    await world.up(1, 2)
    await world.candidate()
    await world.create("t", [1, 2])
    await world.create("u", [2, 1])
    one = world.peers[1]
    assert [message.is_full for message in one.messages].count(True) == 1
    assert one.messages[0].is_full
    assert [topic.name for topic in one.messages[-1].topics] == ["u"]
    await world.down(2)
    await world.up(2)
    await eventually_async(lambda: world.peers[2].messages)
    first = world.peers[2].messages[0]
    assert first.is_full
    assert first.broker_epoch == world.peers[2].epoch
    assert {topic.name for topic in first.topics} == {"t", "u"}


@in_a_world
async def test_messages_are_numbered_and_one_is_under_way_at_a_time(world):
    await world.up(1, 2, 3)
    await world.candidate()
    for number in range(20):
        await world.create(f"t{number}", [1, 2, 3])
    for peer in world.peers.values():
        numbers = [message.sequence for message in peer.messages]
        assert numbers == sorted(set(numbers))


@in_a_world
async def test_a_slow_broker_holds_up_no_other_and_then_gets_everything_at_once(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    slow, quick = world.peers[2], world.peers[1]
    slow.pause = asyncio.Event()
    count = len(slow.messages)
    began = asyncio.get_running_loop().time()
    pending = asyncio.gather(
        *(controller.create_topic(f"t{n}", {0: [1]}, {}, timeout_ms=700) for n in range(10))
    )
    await eventually_async(lambda: all(quick.metadata_image.topic(f"t{n}") for n in range(10)))
    assert asyncio.get_running_loop().time() - began < 0.6
    assert not pending.done(), "the slow broker has not received it yet"
    await pending  # the topic is written, so the request succeeds after its timeout
    slow.pause.set()
    await eventually_async(lambda: all(slow.metadata_image.topic(f"t{n}") for n in range(10)))
    assert len(slow.messages) - count <= 3


@in_a_world
async def test_an_unreachable_broker_is_not_waited_for_and_receives_changes_later(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    away = world.peers[2]
    away.is_reachable = False
    began = asyncio.get_running_loop().time()
    await controller.create_topic("u", {0: [1, 2]}, {}, timeout_ms=30_000)
    await controller.delete_topic("t", timeout_ms=30_000)
    assert asyncio.get_running_loop().time() - began < 5
    assert away.metadata_image.topic("u") is None
    away.is_reachable = True
    await eventually_async(
        lambda: away.metadata_image.topic("u") and not away.metadata_image.topic("t")
    )
    assert not away.messages[-1].is_full, "the missed changes are enough"


@in_a_world
async def test_a_broker_that_does_not_know_its_epoch_yet_is_sent_the_message_again(world):
    await world.up(1)
    await world.candidate()
    await world.create("t", [1])
    await world.up(2)
    world.peers[2].knows_its_epoch = False
    await asyncio.sleep(0.02)
    assert not world.peers[2].metadata_image.is_complete
    world.peers[2].knows_its_epoch = True
    await eventually_async(lambda: world.peers[2].metadata_image.is_complete)
    assert world.peers[2].metadata_image.topic("t")


@in_a_world
async def test_a_controller_asks_zookeeper_when_a_broker_knows_a_newer_one(world):
    await world.up(1)
    controller = await world.candidate()
    await world.create("t", [1])
    world.peers[1].metadata_image.controller_epoch = 9
    world.peers[1].metadata_image._newest = (9, 0, 0)
    election, session = world.elections[100], world.sessions[100]
    # As after a lost watch: another broker is elected, and this one has not noticed.
    await election.watch_loop.stop()
    await world.zookeeper.delete(znodes.CONTROLLER)
    await world.candidate(101)
    election.watch_loop.start()
    assert election.is_controller
    asked = len(session.calls)
    pending = asyncio.ensure_future(controller.create_topic("u", {0: [1]}, {}, timeout_ms=5000))
    await eventually_async(lambda: not election.is_controller)
    assert len(session.calls) > asked
    await asyncio.wait([pending])


@in_a_world
async def test_what_a_broker_says_ends_no_controller_epoch(world):
    await world.up(1)
    controller = await world.candidate()
    await world.create("t", [1])
    world.peers[1].metadata_image.controller_epoch = 2**31 - 1
    world.peers[1].metadata_image._newest = (2**31 - 1, 0, 0)
    election, session = world.elections[100], world.sessions[100]
    pending = asyncio.ensure_future(controller.create_topic("u", {0: [1]}, {}, timeout_ms=1000))
    await eventually_async(lambda: session.calls.count("exists") >= 4)
    assert election.is_controller
    assert election.epoch == 1
    assert not controller._queue.is_closed
    await asyncio.wait([pending])


@in_a_world
async def test_an_error_with_one_broker_does_not_affect_the_others(world):
    await world.up(1, 2)
    await world.candidate()
    await world.create("t", [1, 2])
    receive = world.peers[2].metadata_image.receive
    world.peers[2].metadata_image.receive = lambda *_message: 1 / 0
    await world.create("u", [1, 2])
    assert world.peers[1].metadata_image.topic("u")
    world.peers[2].metadata_image.receive = receive
    await eventually_async(lambda: world.peers[2].metadata_image.topic("u"))


@in_a_world
async def test_all_brokers_receive_the_live_brokers_and_their_addresses(world):
    await world.up(1, rack="a")
    await world.candidate()
    await world.up(2, rack="b")
    await eventually_async(
        lambda: all(len(peer.metadata_image.live) == 2 for peer in world.peers.values())
    )
    found = world.peers[1].metadata_image.brokers
    assert {broker_id: found[broker_id].rack for broker_id in found} == {1: "a", 2: "b"}
    assert world.peers[1].metadata_image.endpoint(2, "PLAINTEXT").host == "host-2"
    await world.down(2)
    await eventually_async(lambda: list(world.peers[1].metadata_image.live) == [1])
