"""The controller service: epochs, topics, failovers and failed writes; ZooKeeper is in memory."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from typing import Any

import pytest

from hightide.broker.controller import announce_topic
from hightide.core.controller.controller import ElectionKind
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replication import AlterPartitionRequest
from hightide.zookeeper import znodes
from hightide.zookeeper.zookeeper_errors import BadVersion, ConnectionLoss, NotConnected
from tests.support.eventually import eventually_async
from tests.unit.broker.controller_world import World, in_a_world, once


def refused(code: ErrorCode):
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


# -- controller epochs ----------------------------------------------------------------------------


@in_a_world
async def test_a_new_controller_loads_the_cluster_and_publishes_it(world):
    await world.up(1, 2, 3)
    await world.candidate()
    topic_id = await world.create("t", [1, 2], [2, 3], [3, 1])
    assert world.leaders("t", 3) == [1, 2, 3]
    world.elections[100].stand_down("the test says so")
    await world.candidate(101)
    await world.zookeeper.delete("/controller")
    await eventually_async(
        lambda: world.elections[101].is_controller or world.elections[100].is_controller
    )
    for peer in world.peers.values():
        await eventually_async(lambda at=peer: at.metadata_image.controller_epoch == 2)
        assert peer.metadata_image.topic("t").topic_id == topic_id
        assert sorted(peer.metadata_image.live) == [1, 2, 3]
    assert world.leaders("t", 3) == [1, 2, 3]


@in_a_world
async def test_only_the_controller_takes_requests(world):
    await world.up(1)
    await world.candidate()
    other = await world.candidate(101)
    with refused(ErrorCode.NOT_CONTROLLER):
        await other.create_topic("t", {0: [1]}, {}, timeout_ms=1000)
    with refused(ErrorCode.NOT_CONTROLLER):
        await other.alter_partition(AlterPartitionRequest(broker_id=1, topics=[]))
    with refused(ErrorCode.NOT_CONTROLLER):
        await other.controlled_shutdown(world.shutdown(1))


@in_a_world
async def test_requests_fail_when_the_controller_stands_down(world):
    await world.up(1)
    controller = await world.candidate()
    await controller.state_machine()
    world.sessions[100].fail = lambda _name, _about: NotConnected()
    pending = asyncio.gather(
        *(controller.create_topic(f"t{n}", {0: [1]}, {}, timeout_ms=60_000) for n in range(5)),
        return_exceptions=True,
    )
    await asyncio.sleep(0.02)
    # The first request has failed by now; the second waits while the controller rereads.
    world.elections[100].stand_down("the test says so")
    codes = {error.code for error in await pending}
    assert codes <= {ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT}


@in_a_world
async def test_a_controller_that_stood_down_in_doubt_continues_its_message_numbers(world):
    """In doubt about its session the controller stands down, then finds that it still is it."""
    await world.up(1)
    await world.candidate()
    await world.create("t", [1])
    election = world.elections[100]
    before = world.peers[1].messages[-1]
    election.stand_down("in doubt")
    await election.check()
    assert election.is_controller
    await eventually_async(lambda: world.peers[1].messages[-1].sequence > before.sequence)
    after = world.peers[1].messages[-1]
    assert (after.controller_epoch, after.is_full) == (before.controller_epoch, True)
    await world.create("u", [1])
    assert world.leaders("u", 1) == [1]


@in_a_world
async def test_a_controller_that_was_replaced_while_suspended_writes_nothing(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    # Another broker is elected, and the first one does not notice: its watch is lost.
    await world.elections[100].watch_loop.stop()
    await world.zookeeper.delete("/controller")
    other = await world.candidate(101)
    await other.state_machine()
    before = await world.state("t", 0)
    with refused(ErrorCode.NOT_CONTROLLER):
        await asyncio.wait_for(controller.create_topic("u", {0: [1]}, {}, timeout_ms=5000), 5)
    assert not world.elections[100].is_controller
    assert await world.state("t", 0) == before
    assert "u" not in await world.zookeeper.children("/brokers/topics")


@in_a_world
async def test_after_an_internal_error_the_controller_restarts(world):
    await world.up(1)
    controller = await world.candidate()
    machine = await controller.state_machine()
    machine.brokers_seen = lambda _found: 1 / 0
    await world.up(2)
    await eventually_async(lambda: world.peers[2].metadata_image.is_complete)
    await world.create("t", [2])
    assert world.leaders("t", 1) == [2]


# -- creation -------------------------------------------------------------------------------------


@in_a_world
async def test_a_topic_is_written_with_its_states_and_published_before_the_response(world):
    await world.up(1, 2, 3)
    await world.candidate()
    topic_id = await world.create("t", [1, 2, 3], [2, 3, 1], config={"retention.ms": "1"})
    found = await world.json("/brokers/topics/t")
    assert found == {
        "version": 3,
        "topic_id": znodes.id_text(topic_id),
        "partitions": {"0": [1, 2, 3], "1": [2, 3, 1]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    assert await world.json("/config/topics/t") == {"version": 1, "config": {"retention.ms": "1"}}
    state = await world.state("t", 1)
    epochs = {str(broker_id): str(world.peers[broker_id].epoch) for broker_id in (1, 2, 3)}
    assert state.pop("broker_epochs") == epochs
    assert state == {
        "version": 1,
        "leader": 2,
        "leader_epoch": 0,
        "isr": [2, 3, 1],
        "controller_epoch": 1,
    }
    assert world.leaders("t", 2) == [1, 2]
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
        await world.create("t", [1])


@in_a_world
async def test_a_topic_of_more_partitions_than_fit_into_one_change(world):
    await world.up(1, 2)
    await world.candidate()
    await world.create("x" * 249, *([[1, 2], [2, 1]] * 600))
    assert world.leaders("x" * 249, 1200) == [1, 2] * 600


@in_a_world
async def test_dead_brokers_are_not_in_sync_in_a_new_topic(world):
    await world.up(1, 2)
    await world.candidate()
    await world.create("t", [3, 2, 1], [3])
    state = world.seen("t", 0)
    assert (state.leader, state.isr) == (2, (2, 1))
    # No live broker holds the other partition: it has no leader, but brokers know it.
    assert world.seen("t", 1).leader == -1
    assert await world.zookeeper.exists(znodes.partition_state_path("t", 1)) is None
    await world.up(3)
    await eventually_async(lambda: world.leaders("t", 2) == [2, 3])


@in_a_world
async def test_a_topic_that_another_broker_creates_is_found_and_led(world):
    await world.up(1, 2)
    await world.candidate()
    await announce_topic(
        world.zookeeper, "t", {0: [1, 2], 1: [2, 1]}, {"retention.ms": "5"}, uuid.uuid4
    )
    await eventually_async(lambda: world.leaders("t", 2) == [1, 2])
    assert (await world.json("/config/topics/t"))["config"] == {"retention.ms": "5"}
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
        await announce_topic(world.zookeeper, "t", {0: [1]}, {}, uuid.uuid4)


@in_a_world
async def test_a_topic_of_an_old_tool_gets_an_id_and_states(world):
    await world.up(1, 2, 3)
    await world.candidate()
    old: dict[str, Any] = {"version": 1, "partitions": {"0": [1, 2], "1": [3, 2]}}
    await world.zookeeper.create("/brokers/topics/t", json.dumps(old).encode())
    await eventually_async(lambda: world.leaders("t", 2) == [1, 3])
    found = await world.json("/brokers/topics/t")
    assert (found["version"], found["partitions"]) == (3, old["partitions"])
    assert znodes.id_of(found["topic_id"]) == world.peers[1].metadata_image.topic("t").topic_id
    grown = found | {"partitions": {**old["partitions"], "2": [2]}}
    await world.zookeeper.set("/brokers/topics/t", json.dumps(grown).encode())
    await eventually_async(lambda: world.leaders("t", 3) == [1, 3, 2])


@in_a_world
async def test_an_invalid_znode_is_logged_once_and_left_alone(world):
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("hightide").addHandler(handler)
    try:
        await world.up(1)
        await world.zookeeper.create("/brokers/topics/junk", b"not json")
        await world.candidate()
        await world.create("t", [1], [1])
        await world.create("u", [1])
        path = znodes.partition_state_path("t", 1)
        await world.zookeeper.set(path, b"not json")
        world.elections[100].stand_down("again")
        await world.elections[100].check()
        await eventually_async(lambda: world.leaders("t", 2) == [1, -1])
        assert (await world.zookeeper.get(path))[0] == b"not json"
        assert sum("topic junk cannot be used" in text for text in messages) == 2, "once per epoch"
        assert sum("t-1 has no leader" in text for text in messages) == 1
    finally:
        logging.getLogger("hightide").removeHandler(handler)


# -- more partitions, deletion --------------------------------------------------------------------


@in_a_world
async def test_partitions_are_added(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    await controller.add_partitions("t", {1: [2, 1], 2: [1, 2]}, timeout_ms=5000)
    assert world.leaders("t", 3) == [1, 2, 1]
    assert (await world.json("/brokers/topics/t"))["partitions"] == {
        "0": [1, 2],
        "1": [2, 1],
        "2": [1, 2],
    }
    with refused(ErrorCode.INVALID_PARTITIONS):
        await controller.add_partitions("t", {1: [2, 1]}, timeout_ms=5000)
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        await controller.add_partitions("u", {1: [2, 1]}, timeout_ms=5000)


async def traces(world: World, topic: str) -> list[str]:
    parents = ("/brokers/topics", "/config/topics", "/admin/delete_topics")
    return [path for path in parents if topic in await world.zookeeper.children(path)]


@in_a_world
async def test_a_deleted_topic_is_gone_everywhere_and_can_be_made_again(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    for _ in range(3):
        topic_id = await world.create("t", *([[1, 2]] * 3))
        await world.down(3)
        await controller.delete_topic("t", timeout_ms=5000)
        assert await traces(world, "t") == []
        for peer in world.peers.values():
            assert peer.metadata_image.topic("t") is None
            assert peer.messages[-1].removed_topics == [topic_id]
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await controller.delete_topic("t", timeout_ms=5000)
        await world.up(3)


async def unmarked(world: World) -> None:
    """Wait until no topic is marked for deletion."""
    changed = asyncio.Event()
    while await world.zookeeper.children("/admin/delete_topics", lambda _event: changed.set()):
        await changed.wait()
        changed.clear()


@in_a_world
async def test_a_deletion_mark_of_any_client_is_followed(world):
    await world.up(1)
    await world.candidate()
    await world.create("t", [1], [1])
    await world.zookeeper.create("/admin/delete_topics/t")
    await world.zookeeper.create("/admin/delete_topics/never-was")
    await eventually_async(lambda: world.peers[1].metadata_image.topic("t") is None)
    await unmarked(world)
    assert await traces(world, "t") == []


@in_a_world(delete_topic_enable=False)
async def test_a_deletion_mark_is_removed_if_deletion_is_disabled(world):
    await world.up(1)
    await world.candidate()
    await world.create("t", [1])
    await world.zookeeper.create("/admin/delete_topics/t")
    await unmarked(world)
    assert world.leaders("t", 1) == [1]


@in_a_world
async def test_two_thousand_partitions_come_and_go(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", *([[1, 2]] * 2000))
    await controller.delete_topic("t", timeout_ms=20_000)
    assert await traces(world, "t") == []
    assert world.peers[1].metadata_image.topic("t") is None


@in_a_world
async def test_what_was_deleted_while_a_broker_was_away_is_missing_there(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    await world.create("u", [1, 2])
    gone = world.peers[2]
    await world.down(2)
    await controller.delete_topic("t", timeout_ms=5000)
    await world.up(2)
    world.peers[2].metadata_image = gone.metadata_image
    await eventually_async(lambda: world.peers[2].messages)
    assert world.peers[2].messages[0].is_full
    assert [topic.name for topic in world.peers[2].metadata_image] == ["u"]


# -- failover -------------------------------------------------------------------------------------


@in_a_world
async def test_others_lead_when_a_leader_dies_and_it_joins_again_by_fetching(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2, 3], [2, 3, 1], [3, 1, 2])
    await world.down(1)
    await eventually_async(lambda: world.leaders("t", 3) == [2, 2, 3])
    state = world.seen("t", 0)
    assert (state.leader_epoch, state.isr, state.partition_epoch) == (1, (2, 3), 1)
    assert (await world.state("t", 0))["isr"] == [2, 3]
    await world.up(1)
    await eventually_async(lambda: world.seen("t", 0))
    answer = await controller.alter_partition(world.proposal("t", 0, [1, 2, 3]))
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.isr, partition.partition_epoch) == (0, [1, 2, 3], 2)
    await eventually_async(lambda: (seen := world.seen("t", 0)) and seen.isr == (1, 2, 3))


def test_a_failover_is_logged_with_its_leaders_and_isrs(caplog):
    caplog.set_level(logging.INFO, "hightide.broker.controller")

    def logged(start: str) -> bool:
        return any(text.startswith(start) and text.endswith(" ms)") for text in caplog.messages)

    @in_a_world
    async def run(world):
        await world.up(1, 2, 3)
        await world.candidate()
        await world.create("t", [1, 2, 3], [1, 3, 2], [3, 1, 2], [1])
        await world.down(1)
        lost = "broker 1 is gone: 2 new leaders, 1 partition without a leader, 4 ISRs shrunk ("
        await eventually_async(lambda: logged(lost))
        await world.up(1)
        epoch = world.peers[1].epoch
        back = f"broker 1 is up (broker epoch {epoch}): 1 new leader ("
        await eventually_async(lambda: logged(back))
        await world.up(4)
        epoch = world.peers[4].epoch
        await eventually_async(
            lambda: logged(f"broker 4 is up (broker epoch {epoch}): no partition changes (")
        )

    run()


@in_a_world(min_insync_replicas=2)
async def test_the_last_in_sync_is_waited_for_and_trusted_when_it_ended_cleanly(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    await world.down(2)
    await eventually_async(lambda: (seen := world.seen("t", 0)) and seen.isr == (1,))
    assert world.seen("t", 0).elr == (2,)
    epoch = world.peers[1].epoch
    await world.down(1)
    await world.up(3)
    await eventually_async(lambda: world.leaders("t", 1) == [-1])
    assert (await world.state("t", 0))["elr"] == [1, 2]
    await world.up(1, previous=epoch)
    await eventually_async(lambda: world.leaders("t", 1) == [1])
    assert controller.unclean_elections == 0


@in_a_world(unclean_leader_election_enable=True)
async def test_an_unclean_election_is_logged_as_an_error_and_counted(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    await world.down(2)
    await eventually_async(lambda: (seen := world.seen("t", 0)) and seen.isr == (1,))
    await world.down(1)
    errors = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())
    logging.getLogger("hightide").addHandler(handler)
    await world.up(2)
    await eventually_async(lambda: world.leaders("t", 1) == [2])
    logging.getLogger("hightide").removeHandler(handler)
    assert controller.unclean_elections == 1
    assert any("broker 2 leads t/0" in text for text in errors)
    assert (await world.state("t", 0))["recovery_epoch"] == world.seen("t", 0).leader_epoch


@in_a_world
async def test_a_thousand_leaders_fail_over(world):
    """The time is printed but not asserted, because it depends on the computer."""
    await world.up(1, 2, 3)
    await world.candidate()
    for topic in range(10):
        await world.create(f"t{topic}", *([[1, 2, 3]] * 100))
    calls = world.sessions[100].calls
    calls.clear()
    began = time.perf_counter()
    await world.down(1)
    await eventually_async(
        lambda: all(world.leaders(f"t{topic}", 100) == [2] * 100 for topic in range(10))
    )
    took_ms = (time.perf_counter() - began) * 1000
    print(f"1,000 leaders failed over in {took_ms:.0f} ms, with {calls.count('multi')} multis")
    assert calls.count("multi") == 2


# -- failed writes --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fail", "lose"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_write_with_an_unknown_outcome_is_reread_and_completed(how, after):
    @in_a_world
    async def run(world):
        await world.up(1, 2, 3)
        await world.candidate()
        await world.create("t", *([[1, 2, 3]] * 700))
        setattr(world.sessions[100], how, once(after=after))
        await world.down(1)
        await eventually_async(lambda: world.leaders("t", 700) == [2] * 700)
        epochs = {world.seen("t", index).leader_epoch for index in range(700)}
        assert epochs == {1}, "each partition has one election"

    run()


@in_a_world
async def test_a_topic_whose_creation_got_no_response_is_found(world):
    await world.up(1)
    await world.candidate()
    await world.create("a", [1])
    world.sessions[100].lose = once()
    topic_id = await world.create("t", [1])
    assert world.peers[1].metadata_image.topic("t").topic_id == topic_id
    world.sessions[100].fail = once()
    with refused(ErrorCode.REQUEST_TIMED_OUT):
        await world.create("u", [1])
    assert "u" not in await world.zookeeper.children("/brokers/topics")


@in_a_world
async def test_partitions_whose_addition_got_no_response_are_found(world):
    await world.up(1)
    controller = await world.candidate()
    await world.create("t", [1])
    world.sessions[100].lose = once()
    await controller.add_partitions("t", {1: [1]}, timeout_ms=5000)
    assert world.leaders("t", 2) == [1, 1]


@in_a_world
async def test_a_state_that_another_client_wrote_is_read_again(world):
    await world.up(1, 2, 3)
    await world.candidate()
    await world.create("t", *([[1, 2, 3]] * 5))
    path = znodes.partition_state_path("t", 3)
    state = await world.state("t", 3)
    await world.zookeeper.set(path, json.dumps(state | {"isr": [1, 3], "leader_epoch": 7}).encode())
    await world.down(1)
    await eventually_async(lambda: world.leaders("t", 5) == [2, 2, 2, 3, 2])
    assert world.seen("t", 3).leader_epoch == 8


@in_a_world
async def test_an_invalid_state_delays_no_other_partition(world):
    await world.up(1, 2)
    await world.candidate()
    await world.create("t", *([[1, 2]] * 5))
    await world.zookeeper.set(znodes.partition_state_path("t", 3), b"junk")
    await world.down(1)
    await eventually_async(lambda: world.leaders("t", 5) == [2, 2, 2, 1, 2])


@in_a_world
async def test_a_deleted_state_is_restored(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2, 3], [2, 3, 1])
    for isr in ([1, 2], [1, 2, 3], [1, 3]):
        await controller.alter_partition(world.proposal("t", 0, isr))
        await eventually_async(lambda: world.seen("t", 0))
    await world.zookeeper.delete(znodes.partition_state_path("t", 0))
    await world.zookeeper.delete(znodes.partition_path("t", 0))
    await world.down(1)
    await eventually_async(lambda: world.leaders("t", 2) == [3, 2])
    state = await world.state("t", 0)
    assert (state["leader"], state["isr"], state["leader_epoch"]) == (3, [3], 1)


@in_a_world
async def test_no_event_is_lost_while_zookeeper_is_away(world):
    await world.up(1, 2, 3)
    await world.candidate()
    await world.create("t", [1, 2, 3])
    session = world.sessions[100]
    session.fail = lambda _name, _about: ConnectionLoss()
    await world.down(1)
    await world.zookeeper.create("/admin/delete_topics/never-was")
    await asyncio.sleep(0.05)
    assert world.peers[2].metadata_image.state("t", 0).leader == 1
    session.fail = lambda _name, _about: None
    await eventually_async(lambda: world.leaders("t", 1) == [2])
    await unmarked(world)


def test_requests_time_out_while_zookeeper_is_away(monkeypatch):
    monkeypatch.setattr("hightide.broker.controller.service._SHORTEST_TIMEOUT_MS", 50)
    monkeypatch.setattr("hightide.broker.controller.service._BROKER_TIMEOUT_MS", 50)

    @in_a_world
    async def run(world):
        await world.up(1, 2)
        controller = await world.candidate()
        await world.create("t", [1, 2])
        world.sessions[100].fail = lambda _name, _about: ConnectionLoss()
        proposal = world.proposal("t", 0, [1])
        await world.down(2)
        with refused(ErrorCode.REQUEST_TIMED_OUT):
            await controller.alter_partition(proposal)
        with refused(ErrorCode.REQUEST_TIMED_OUT):
            await controller.elect_leaders(ElectionKind.PREFERRED, [("t", 0)], timeout_ms=50)
        with refused(ErrorCode.REQUEST_TIMED_OUT):
            await controller.create_topic("u", {0: [1]}, {}, timeout_ms=50)

    run()


@pytest.mark.parametrize("seed", range(5))
def test_whatever_fails_zookeeper_and_all_brokers_agree_in_the_end(seed):
    @in_a_world
    async def run(world):
        world.random.seed(seed)
        chance = world.random
        await world.up(1, 2, 3)
        await world.candidate()
        for topic in range(4):
            await world.create(f"t{topic}", *([[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 5))
        session = world.sessions[100]

        def fails(_name, _about):
            return ConnectionLoss() if chance.random() < 0.15 else None

        session.fail = session.lose = fails
        for _ in range(12):
            broker_id = chance.choice([1, 2, 3])
            if broker_id in world.peers and len(world.peers) > 1:
                await world.down(broker_id)
            elif broker_id not in world.peers:
                await world.up(broker_id)
            await asyncio.sleep(chance.random() * 0.02)
        session.fail = session.lose = lambda _name, _about: None
        await world.up(*({1, 2, 3} - world.peers.keys()))
        machine = await world.controller().state_machine()
        await eventually_async(lambda: sorted(machine.brokers) == [1, 2, 3])
        await eventually_async(lambda: not machine.audit())
        machine.check()
        for topic in range(4):
            for index in range(15):
                seen = await eventually_async(
                    lambda at=(f"t{topic}", index): (
                        world.seen(*at)
                        if world.seen(*at) is not None
                        and world.seen(*at).partition_epoch == machine.state(*at).partition_epoch
                        else None
                    )
                )
                path = znodes.partition_state_path(f"t{topic}", index)
                data, stat = await world.zookeeper.get(path)
                found = znodes.PartitionState.decode(data, path)
                assert (stat.version, found.leader, found.leader_epoch, found.isr) == (
                    seen.partition_epoch,
                    seen.leader,
                    seen.leader_epoch,
                    seen.isr,
                )

    run()


@in_a_world
async def test_a_refused_write_does_not_end_the_controller_epoch(world):
    """Only a failed check of the controller epoch ends it."""
    await world.up(1, 2)
    await world.candidate()
    await world.create("t", [1, 2])
    world.sessions[100].fail = once(BadVersion(), of="get")
    await world.down(1)
    await eventually_async(lambda: world.leaders("t", 1) == [2])
