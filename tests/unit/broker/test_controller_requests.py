"""Requests to the controller: ISRs, shutdowns, elections, reassignments, settings."""

from __future__ import annotations

import asyncio

import pytest

from hightide.broker.controller.topic_changes import default_counts
from hightide.broker.membership.dynamic_configs import change_config
from hightide.core.controller.controller import ElectionKind
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.zookeeper import znodes
from tests.support.eventually import eventually_async
from tests.unit.broker.controller_world import in_a_world, once


def refused(code: ErrorCode):
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


async def published(world, topic: str, index: int, **fields) -> None:
    """Wait until all brokers know a partition with these fields."""

    def is_published() -> bool:
        seen = world.seen(topic, index)
        return seen is not None and all(getattr(seen, name) == fields[name] for name in fields)

    await eventually_async(is_published)


# -- ISRs -----------------------------------------------------------------------------------------


@in_a_world
async def test_a_leader_changes_its_isr(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2, 3])
    answer = await controller.alter_partition(world.proposal("t", 0, [1, 3]))
    (partition,) = answer.topics[0].partitions
    assert (answer.error_code, partition.error_code) == (0, 0)
    assert (partition.leader_id, partition.leader_epoch, partition.isr) == (1, 0, [1, 3])
    assert partition.partition_epoch == 1
    await published(world, "t", 0, isr=(1, 3), partition_epoch=1)
    assert (await world.state("t", 0))["isr"] == [1, 3]


@in_a_world
async def test_a_proposal_that_is_refused_says_why(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2, 3])
    stale = world.proposal("t", 0, [1, 2])
    await controller.alter_partition(world.proposal("t", 0, [1, 3]))
    answer = await controller.alter_partition(stale)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_UPDATE_VERSION
    await published(world, "t", 0, isr=(1, 3))
    unknown = world.proposal("t", 0, [1, 2, 3])
    unknown.topics[0].topic_id = world.new_id()
    answer = await controller.alter_partition(unknown)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    other_replica_epoch = world.proposal("t", 0, [1, 2, 3])
    other_replica_epoch.topics[0].partitions[0].new_isr_with_epochs[1].broker_epoch -= 1
    answer = await controller.alter_partition(other_replica_epoch)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    former_leader_epoch = world.proposal("t", 0, [1, 2, 3])
    former_leader_epoch.broker_epoch -= 1
    with refused(ErrorCode.STALE_BROKER_EPOCH):
        await controller.alter_partition(former_leader_epoch)


@in_a_world
async def test_a_proposal_with_an_unknown_outcome_gets_the_right_response(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2, 3])
    world.sessions[100].lose = once()
    answer = await controller.alter_partition(world.proposal("t", 0, [1, 3]))
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.isr, partition.partition_epoch) == (0, [1, 3], 1)


# -- controlled shutdown --------------------------------------------------------------------------


@in_a_world
async def test_a_broker_that_leaves_hands_over_what_it_can(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2, 3], [2, 1, 3])
    await world.create("alone", [1])
    await controller.alter_partition(world.proposal("t", 1, [2]))
    await world.create("u", [1, 2])
    await controller.alter_partition(world.proposal("u", 0, [1]))
    answer = await controller.controlled_shutdown(world.shutdown(1))
    # u-0 has no other in-sync replica; alone-0 has no other replica, so it is not listed.
    assert [(left.topic_name, left.partition_index) for left in answer.remaining_partitions] == [
        ("u", 0)
    ]
    assert world.seen("t", 0).leader == 2, "all brokers know it before the response"
    assert world.seen("t", 0).isr == (2, 3)
    assert all(peer.metadata_image.shutting_down == {1} for peer in world.peers.values())
    before = world.peers[1].epoch
    await world.down(1)
    await world.up(1, previous=before)
    await eventually_async(lambda: world.peers[1].metadata_image.is_complete)
    assert world.peers[1].metadata_image.shutting_down == frozenset()


@in_a_world
async def test_a_shutdown_waits_a_second_for_brokers_that_hang(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2, 3])
    world.peers[3].pause = asyncio.Event()
    began = asyncio.get_running_loop().time()
    await controller.controlled_shutdown(world.shutdown(1))
    assert 0.9 < asyncio.get_running_loop().time() - began < 5
    assert world.peers[2].metadata_image.state("t", 0).leader == 2


@in_a_world
async def test_a_shutdown_with_a_former_broker_epoch_is_refused(world):
    await world.up(1)
    controller = await world.candidate()
    request = world.shutdown(1)
    request.broker_epoch -= 1
    with refused(ErrorCode.STALE_BROKER_EPOCH):
        await controller.controlled_shutdown(request)


# -- elections ------------------------------------------------------------------------------------


@in_a_world
async def test_the_preferred_replica_is_elected_when_it_is_in_sync(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2], [2, 1])
    await world.down(1)
    await eventually_async(lambda: world.leaders("t", 2) == [2, 2])
    await world.up(1)
    await eventually_async(lambda: world.seen("t", 0))
    wanted = [("t", 0), ("t", 1), ("t", 7)]
    verdicts = await controller.elect_leaders(ElectionKind.PREFERRED, wanted, timeout_ms=5000)
    assert [verdicts[partition].error for partition in wanted] == [
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    await controller.alter_partition(world.proposal("t", 0, [1, 2]))
    verdicts = await controller.elect_leaders(ElectionKind.PREFERRED, None, timeout_ms=5000)
    assert {key: verdict.error for key, verdict in verdicts.items()} == {("t", 0): ErrorCode.NONE}
    assert world.leaders("t", 2) == [1, 2]


@in_a_world
async def test_an_unclean_election_on_request(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    await controller.alter_partition(world.proposal("t", 0, [1]))
    await world.down(1)
    await published(world, "t", 0, leader=-1)
    verdicts = await controller.elect_leaders(ElectionKind.UNCLEAN, [("t", 0)], timeout_ms=5000)
    assert verdicts["t", 0].error == ErrorCode.NONE
    assert world.leaders("t", 1) == [2]
    assert controller.unclean_elections == 1


@in_a_world(leader_imbalance_check_interval_seconds=0.05)
async def test_leadership_goes_back_by_itself(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await world.create("t", [1, 2], [2, 1])
    await world.down(1)
    await eventually_async(lambda: world.leaders("t", 2) == [2, 2])
    await world.up(1)
    for index in (0, 1):
        await eventually_async(lambda at=index: world.seen("t", at))
        await controller.alter_partition(world.proposal("t", index, [1, 2]))
    await eventually_async(lambda: world.leaders("t", 2) == [1, 2])


# -- reassignments --------------------------------------------------------------------------------


@in_a_world
async def test_a_partition_moves_and_its_assignment_with_it(world):
    await world.up(1, 2, 3, 4)
    controller = await world.candidate()
    await world.create("t", [1, 2], [2, 1])
    verdicts = await controller.alter_reassignments({("t", 0): (3, 4)}, timeout_ms=5000)
    assert verdicts["t", 0].error == ErrorCode.NONE
    found = await world.json("/brokers/topics/t")
    assert found["partitions"] == {"0": [3, 4, 1, 2], "1": [2, 1]}
    assert (found["adding_replicas"], found["removing_replicas"]) == ({"0": [3, 4]}, {"0": [1, 2]})
    moves = await controller.list_reassignments(None, timeout_ms=5000)
    assert {key: (state.adding, state.removing) for key, state in moves.items()} == {
        ("t", 0): ((3, 4), (1, 2))
    }
    assert await controller.list_reassignments([("t", 1)], timeout_ms=5000) == {}
    await published(world, "t", 0, adding=(3, 4))
    await controller.alter_partition(world.proposal("t", 0, [1, 2, 3, 4]))
    await published(world, "t", 0, replicas=(3, 4), leader=3, isr=(3, 4))
    found = await world.json("/brokers/topics/t")
    assert found["partitions"] == {"0": [3, 4], "1": [2, 1]}
    assert (found["adding_replicas"], found["removing_replicas"]) == ({}, {})
    assert await controller.list_reassignments(None, timeout_ms=5000) == {}


@in_a_world
async def test_the_next_controller_completes_or_cancels_a_reassignment(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    await controller.alter_reassignments({("t", 0): (3, 2)}, timeout_ms=5000)
    world.elections[100].stand_down("again")
    await world.elections[100].check()
    moves = await controller.list_reassignments([("t", 0)], timeout_ms=5000)
    assert moves["t", 0].replicas == (3, 2, 1)
    verdicts = await controller.alter_reassignments({("t", 0): None}, timeout_ms=5000)
    assert verdicts["t", 0].error == ErrorCode.NONE
    assert (await world.json("/brokers/topics/t"))["partitions"] == {"0": [2, 1]}
    verdicts = await controller.alter_reassignments({("t", 0): None}, timeout_ms=5000)
    assert verdicts["t", 0].error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@in_a_world
async def test_impossible_reassignments_are_refused(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    targets = {("t", 0): (1, 9), ("t", 1): (1,)}
    verdicts = await controller.alter_reassignments(targets, timeout_ms=5000)
    assert verdicts["t", 0].error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert verdicts["t", 1].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    target = {("t", 0): (1, 2, 3)}
    verdicts = await controller.alter_reassignments(target, keeps_counts=True, timeout_ms=5000)
    assert verdicts["t", 0].error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert (await controller.alter_reassignments(target, timeout_ms=5000))["t", 0].error == 0


@in_a_world
async def test_a_reassignment_while_another_client_writes_the_topic(world):
    """The topic's znode has a newer version than the controller knows, so it reads it again."""
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2])
    await controller.state_machine()
    data, _ = await world.zookeeper.get("/brokers/topics/t")
    topic = znodes.TopicAssignment.decode(data, "")
    grown = topic._replace(partitions={0: (1, 2), 1: (2, 1)})
    pending = asyncio.ensure_future(
        controller.alter_reassignments({("t", 0): (3, 2)}, timeout_ms=5000)
    )
    await world.zookeeper.set("/brokers/topics/t", grown.encode())
    assert (await pending)["t", 0].error == ErrorCode.NONE
    await eventually_async(lambda: world.leaders("t", 2) == [1, 2])
    assert (await world.json("/brokers/topics/t"))["partitions"] == {"0": [3, 2, 1], "1": [2, 1]}


# -- settings -------------------------------------------------------------------------------------


@in_a_world
async def test_elections_follow_the_topics_settings(world):
    await world.up(1, 2, 3)
    controller = await world.candidate()
    await world.create("t", [1, 2], config={"min.insync.replicas": "2"})
    await world.down(2)
    await published(world, "t", 0, isr=(1,), elr=(2,))
    await change_config(world.zookeeper, "topics/t", lambda _had: {"min.insync.replicas": "1"})
    controller.configuration_changed("topics/t")
    await published(world, "t", 0, elr=())
    await world.down(1)
    await published(world, "t", 0, leader=-1)
    await world.up(2)
    await eventually_async(lambda: world.peers[2].metadata_image.is_complete)
    assert world.seen("t", 0).leader == -1
    world.settings = Settings(unclean_leader_election_enable=True)
    controller.configuration_changed("brokers/<default>")
    await published(world, "t", 0, leader=2, is_recovering=True)


def test_internal_topics_have_one_replica_per_broker_up_to_three():
    for topic in ("__consumer_offsets", "__transaction_state"):
        assert [default_counts(Settings(), topic, brokers) for brokers in (1, 2, 3, 9)] == [
            (50, 1),
            (50, 2),
            (50, 3),
            (50, 3),
        ]
    assert default_counts(Settings(), "mine", 5) == (1, 1)
    configured = Settings.read({"offsets.topic.replication.factor": "3"})
    assert default_counts(configured, "__consumer_offsets", 1).replication_factor == 3
    assert default_counts(configured, "__transaction_state", 1).replication_factor == 1
    explicit = Settings(transaction_state_log_replication_factor=2, default_replication_factor=4)
    assert default_counts(explicit, "__transaction_state", 1).replication_factor == 2
    assert default_counts(explicit, "mine", 1).replication_factor == 4
