"""Group requests to a whole broker: coordinators, waiting requests, refusals."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hightide.broker.broker import Broker
from hightide.broker.controller.topic_changes import internal_overrides
from hightide.broker.environment import RealEnvironment
from hightide.broker.replication.replica import Replica
from hightide.client.broker_connection import Connection
from hightide.log.disk import MemoryDisk
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from hightide.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tests.support.eventually import eventually_async

OK, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class World:
    """A broker with a topic `t` of two partitions, and a client."""

    def __init__(self, broker: Broker, address: tuple[str, int], client: Connection) -> None:
        self.broker = broker
        self.address = address
        self.client = client

    async def ask(self, request: Any, version: int | None = None) -> Any:
        return await self.client.send(request, version=version)

    async def find(self, group: str = "g") -> None:
        found = await self.ask(FindCoordinatorRequest(coordinator_keys=[group]))
        assert [coordinator.error_code for coordinator in found.coordinators] == [OK]

    async def committed(self, group: str = "g") -> dict[int, int]:
        request = OffsetFetchRequestGroup(group_id=group, topics=None)
        answer = await self.ask(OffsetFetchRequest(groups=[request]))
        return {
            partition.partition_index: partition.committed_offset
            for topic in answer.groups[0].topics
            for partition in topic.partitions
        }


@asynccontextmanager
async def started(**settings: Any) -> AsyncIterator[World]:
    given = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 3, **settings}
    broker = Broker(
        Settings(listeners="PLAINTEXT://127.0.0.1:0", zookeeper_listen="127.0.0.1:0", **given),
        environment=RealEnvironment(memory=MemoryDisk()),
    )
    (address,) = await broker.start()
    client = await Connection.open(*address)
    try:
        if broker.metadata.get("t") is None:
            replicas = {0: [broker.broker_id], 1: [broker.broker_id]}
            await broker.controller.create_topic("t", replicas, {}, timeout_ms=5000)
        yield World(broker, address, client)
    finally:
        client.close()
        await broker.stop()


def served(
    **settings: Any,
) -> Callable[[Callable[[World], Awaitable[None]]], Callable[[], None]]:
    """Run a test against a broker with these settings."""

    def decorate(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            async with started(**settings) as world:
                await test(world)

        def decorated() -> None:
            asyncio.run(run())

        decorated.__name__ = test.__name__
        return decorated

    return decorate


def commit(*partitions: tuple[str, int], group: str = "g", **given: Any) -> OffsetCommitRequest:
    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=10 + index, committed_metadata=None
                )
            ],
        )
        for topic, index in partitions
    ]
    return OffsetCommitRequest(group_id=group, **{"member_id": "", "topics": topics, **given})


def codes(answer: Any) -> list[tuple[str, int, int]]:
    return [
        (topic.name, partition.partition_index, partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    ]


def join(member_id: str = "", group: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=300,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


# -- coordinators --------------------------------------------------------------------------------


@served()
async def test_the_offsets_topic_is_created_by_the_first_lookup(
    world: World,
) -> None:
    assert world.broker.metadata.get("__consumer_offsets") is None
    for version in range(4):
        key_type: dict[str, Any] = {"key_type": 0} if version else {}
        answer = await world.ask(FindCoordinatorRequest(key="g", **key_type), version)
        assert (answer.error_code, answer.node_id) == (OK, world.broker.broker_id)
        assert (answer.host, answer.port) == world.address
    topic = world.broker.metadata.get("__consumer_offsets")
    assert topic is not None
    assert len(topic.partitions) == 3
    assert world.broker.topic_configs.overrides("__consumer_offsets") == internal_overrides(
        world.broker.settings, "__consumer_offsets", 1
    )
    # The next lookup finds the topic ready.
    assert (await world.ask(commit(("t", 0)))).topics[0].partitions[0].error_code == OK


@served()
async def test_several_coordinators_are_found_at_once(world: World) -> None:
    keys = ["a", "b", "c"]
    answer = await world.ask(FindCoordinatorRequest(coordinator_keys=keys))
    assert [(coordinator.key, coordinator.error_code) for coordinator in answer.coordinators] == [
        (key, OK) for key in keys
    ]
    answer = await world.ask(FindCoordinatorRequest(coordinator_keys=["s"], key_type=2))
    assert answer.coordinators[0].error_code == ErrorCode.INVALID_REQUEST


@served(offsets_topic_replication_factor=2)
async def test_a_topic_that_cannot_be_created_has_no_coordinator(world: World) -> None:
    answer = await world.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
    (found,) = answer.coordinators
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (found.node_id, found.host, found.port) == (-1, "", -1)
    assert codes(await world.ask(commit(("t", 0)))) == [
        ("t", 0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    ]


# -- offsets -------------------------------------------------------------------------------------


@served()
async def test_offsets_are_committed_and_fetched_in_all_versions(world: World) -> None:
    await world.find()
    for version in range(2, 10):
        answer = await world.ask(commit(("t", 0), ("t", 1)), version)
        assert codes(answer) == [("t", 0, OK), ("t", 1, OK)]
    for version in range(1, 8):
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        answer = await world.ask(OffsetFetchRequest(group_id="g", topics=topics), version)
        found = [
            (partition.committed_offset, partition.error_code)
            for partition in answer.topics[0].partitions
        ]
        assert found == [(10, OK), (11, OK)]
    assert await world.committed() == {0: 10, 1: 11}


@served()
async def test_requests_behind_commits_find_them_done(world: World) -> None:
    await world.find()
    commits = [asyncio.create_task(world.ask(commit(("t", index)))) for index in (0, 1)]
    found = asyncio.create_task(world.committed())
    assert await found == {0: 10, 1: 11}
    assert [codes(await sent) for sent in commits] == [[("t", 0, OK)], [("t", 1, OK)]]


@served()
async def test_partitions_that_do_not_exist_have_no_offsets(world: World) -> None:
    await world.find()
    answer = await world.ask(commit(("t", 0), ("t", 2), ("nowhere", 0), ("t", 1)))
    assert codes(answer) == [
        ("t", 0, OK),
        ("t", 2, UNKNOWN),
        ("nowhere", 0, UNKNOWN),
        ("t", 1, OK),
    ]
    assert codes(await world.ask(commit(("nowhere", 0)))) == [("nowhere", 0, UNKNOWN)]
    assert await world.committed() == {0: 10, 1: 11}


@served()
async def test_offsets_in_a_topic_that_was_deleted_are_forgotten(world: World) -> None:
    await world.find()
    await world.ask(commit(("t", 0)))
    await world.broker.controller.delete_topic("t", timeout_ms=5000)
    assert await world.committed() == {}


@served()
async def test_a_coordinator_that_loads_again_knows_the_offsets(world: World) -> None:
    await world.find()
    await world.ask(commit(("t", 0)))
    partition = world.broker.groups.find("g")
    assert not isinstance(partition, ErrorCode)
    world.broker.groups._reload(partition, "it was asked to")
    assert world.broker.groups.find("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert (await world.ask(heartbeat)).error_code in (OK, ErrorCode.UNKNOWN_MEMBER_ID)
    for _ in range(100):
        if codes(await world.ask(commit(("t", 1)))) == [("t", 1, OK)]:
            break
        await asyncio.sleep(0.01)
    assert await world.committed() == {0: 10, 1: 11}


@served()
async def test_a_replica_of_a_deleted_topic_ends_no_coordinator_of_its_successor(
    world: World,
) -> None:
    """The replicas of a topic that was created again under its name outlive the old ones."""
    await world.find()
    partition = world.broker.groups.find("g")
    assert not isinstance(partition, ErrorCode)
    replica = partition.coordinator_log.replica
    deleted = Replica(replica.log, uuid.uuid4(), 0, world.broker.replica_manager)
    world.broker.groups.role_changed(deleted)
    assert world.broker.groups.find("g") is partition


# -- members -------------------------------------------------------------------------------------


@served()
async def test_members_join_sync_and_leave(world: World) -> None:
    await world.find()
    joined = await world.ask(join(), 3)
    assert (joined.error_code, joined.generation_id) == (OK, 1)
    member = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    synced = await world.ask(SyncGroupRequest(**member, assignments=[]), 3)
    assert synced.error_code == OK
    assert (await world.ask(HeartbeatRequest(**member), 3)).error_code == OK
    listed = await world.ask(ListGroupsRequest())
    assert [(group.group_id, group.group_state) for group in listed.groups] == [("g", "Stable")]
    described = await world.ask(
        DescribeGroupsRequest(groups=["g", "other"], include_authorized_operations=True), 5
    )
    assert [group.group_state for group in described.groups] == ["Stable", "Dead"]
    assert described.groups[0].members[0].client_host == "/127.0.0.1"
    assert described.groups[0].authorized_operations == 1 << 3 | 1 << 6 | 1 << 8
    deleted = await world.ask(DeleteGroupsRequest(groups_names=["g", "other", "g"]))
    assert [(result.group_id, result.error_code) for result in deleted.results] == [
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("other", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    left = await world.ask(LeaveGroupRequest(group_id="g", member_id=joined.member_id), 2)
    assert left.error_code == OK


@served()
async def test_a_group_needs_a_name(world: World) -> None:
    member: dict[str, Any] = {"group_id": "", "generation_id": 1, "member_id": "m"}
    for request in (
        join(group=""),
        SyncGroupRequest(**member, assignments=[]),
        HeartbeatRequest(**member),
        LeaveGroupRequest(group_id=""),
        OffsetDeleteRequest(group_id="", topics=[]),
    ):
        assert (await world.ask(request)).error_code == ErrorCode.INVALID_GROUP_ID


def waits(world: World) -> int:
    """Return the number of requests that wait for their group."""
    return sum(len(group._pending) for group in world.broker.groups)


@served()
async def test_a_connection_waits_while_its_join_does(world: World) -> None:
    await world.find()
    first = await world.ask(join(), 3)
    other = await Connection.open(*world.address)
    waiting = asyncio.create_task(other.send(join(), version=3))
    behind = asyncio.create_task(other.send(ListGroupsRequest()))
    await eventually_async(lambda: waits(world) == 1)
    assert [waiting.done(), behind.done()] == [False, False]
    again = asyncio.create_task(world.ask(join(first.member_id), 3))
    assert (await waiting).generation_id == (await again).generation_id == 2
    assert len((await behind).groups) == 1
    other.close()


@served()
async def test_a_client_that_disconnects_while_it_joins_leaves_nothing_behind(world: World) -> None:
    await world.find()
    await world.ask(join(), 3)
    other = await Connection.open(*world.address)
    waiting = asyncio.create_task(other.send(join(), version=3))
    await eventually_async(lambda: waits(world) == 1)
    other.close()
    await asyncio.gather(waiting, return_exceptions=True)
    # The first member does not join again, so the rebalance ends at its timeout.
    await eventually_async(lambda: waits(world) == 0 and not world.broker._dispatch._tasks)


@served(group_coordinator_rebalance_protocols=("classic",))
async def test_the_consumer_protocol_can_be_disabled(world: World) -> None:
    await world.find()
    beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
    assert (await world.ask(beat)).error_code == ErrorCode.UNSUPPORTED_VERSION
    request = ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    assert (await world.ask(request)).groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION


@served(group_max_count=5)
async def test_the_groups_of_all_partitions_count_together(world: World) -> None:
    await world.find()
    names = [f"g{n}" for n in range(5)]
    for name in names:
        assert codes(await world.ask(commit(("t", 0), group=name))) == [("t", 0, OK)]
    assert sum(partition.coordinator.group_count > 0 for partition in world.broker.groups) > 1
    for n in range(5, 15):
        refused = await world.ask(commit(("t", 0), group=f"g{n}"))
        assert codes(refused) == [("t", 0, ErrorCode.POLICY_VIOLATION)]
        assert (await world.ask(join(group=f"g{n}"))).error_code == ErrorCode.POLICY_VIOLATION
    for name in names:
        assert codes(await world.ask(commit(("t", 0), group=name))) == [("t", 0, OK)]
    await world.ask(DeleteGroupsRequest(groups_names=["g1"]))
    assert codes(await world.ask(commit(("t", 0), group="g9"))) == [("t", 0, OK)]


@served(group_member_metadata_max_bytes=100)
async def test_the_metadata_of_a_member_is_limited(world: World) -> None:
    await world.find()
    request = join()
    request.protocols[0].metadata = b"x" * 100
    assert (await world.ask(request)).error_code == ErrorCode.INVALID_REQUEST
    beat = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t" * 100],
        topic_partitions=[],
    )
    answer = await world.ask(beat)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "at most 100" in answer.error_message


def test_requests_that_wait_when_the_broker_stops_are_refused():
    async def scenario() -> None:
        async with started(group_initial_rebalance_delay_ms=60_000) as world:
            await world.find()
            waiting = asyncio.create_task(world.ask(join(), 3))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await world.broker.groups.stop()
            assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())


@pytest.mark.parametrize("is_set", [False, True])
def test_the_transaction_topic_can_be_written_with_one_broker(is_set: bool):
    settings = Settings.read({"transaction.state.log.min.isr": "2"} if is_set else {})
    overrides = internal_overrides(settings, "__transaction_state", 1)
    assert overrides["min.insync.replicas"] == ("2" if is_set else "1")
    assert overrides["cleanup.policy"] == "compact"
