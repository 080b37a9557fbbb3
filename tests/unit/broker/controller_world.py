"""A controller with real elections and metadata images on an in-memory ZooKeeper, but no network.

A broker is a session, a registration and a `MetadataImage`.  Messages of the controller go through
the codec, so a broker receives what would arrive over the network.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from hightide.broker.controller import ControllerService
from hightide.broker.controller.controller_election import ControllerElection
from hightide.broker.membership.registration import register
from hightide.client.broker_connection import ConnectionFailed
from hightide.core.metadata.image import MetadataImage
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.settings import Broker as Settings
from hightide.wire.codec import decode, encode
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
    ControlledShutdownRequest,
    LogInfoResponseTopic,
    PartitionLogInfo,
    PublishedEndpoint,
    PublishStateRequest,
    PublishStateResponse,
    ReplicaLogInfoRequest,
    ReplicaLogInfoResponse,
)
from hightide.zookeeper import znodes
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.interface import ensure_path
from hightide.zookeeper.zookeeper_errors import ConnectionLoss, ZooKeeperError

LISTENER = "PLAINTEXT"
PATIENCE_S = 10.0


class Flaky:
    """A ZooKeeper session whose calls can fail, before or after the server has executed them."""

    def __init__(self, zookeeper: InMemoryZooKeeper) -> None:
        self.under = zookeeper
        self.fail: Callable[[str, Any], ZooKeeperError | None] = lambda _name, _about: None
        """Called before each request; a returned error is raised instead of sending it."""
        self.lose: Callable[[str, Any], ZooKeeperError | None] = lambda _name, _about: None
        """Called after each request; a returned error is raised instead of the response."""
        self.calls: list[str] = []

    @property
    def session_id(self) -> int:
        return self.under.session_id

    @property
    def timeout_ms(self) -> int:
        return self.under.timeout_ms

    @property
    def state(self) -> Any:
        return self.under.state

    def on_state(self, listener: Any) -> None:
        self.under.on_state(listener)

    async def close(self) -> None:
        await self.under.close()

    async def _call(self, name: str, about: Any, *more: Any, **how: Any) -> Any:
        self.calls.append(name)
        await asyncio.sleep(0)  # other tasks run meanwhile, as over a network
        if error := self.fail(name, about):
            raise error
        result = await getattr(self.under, name)(about, *more, **how)
        if error := self.lose(name, about):
            raise error
        return result

    async def get(self, path: str, watch: Any = None) -> Any:
        return await self._call("get", path, watch)

    async def exists(self, path: str, watch: Any = None) -> Any:
        return await self._call("exists", path, watch)

    async def children(self, path: str, watch: Any = None) -> Any:
        return await self._call("children", path, watch)

    async def create(self, path: str, data: bytes = b"", **how: bool) -> Any:
        return await self._call("create", path, data, **how)

    async def set(self, path: str, data: bytes, version: int = -1) -> Any:
        return await self._call("set", path, data, version)

    async def delete(self, path: str, version: int = -1) -> Any:
        return await self._call("delete", path, version)

    async def multi(self, operations: Sequence[Any]) -> Any:
        return await self._call("multi", operations)


def once(error: ZooKeeperError | None = None, *, of: str = "multi", after: int = 0) -> Any:
    """Fail one call of a kind, after so many that succeed."""
    left = [after]

    def fail(name: str, _about: Any) -> ZooKeeperError | None:
        if name != of:
            return None
        left[0] -= 1
        return (error or ConnectionLoss()) if left[0] == -1 else None

    return fail


class Peer:
    """A broker that receives messages of the controller."""

    def __init__(self, broker_id: int, session: InMemoryZooKeeper, epoch: int) -> None:
        self.id = broker_id
        self.session = session
        self.epoch = epoch
        self.metadata_image = MetadataImage(broker_id, LISTENER)
        self.messages: list[PublishStateRequest] = []
        self.is_reachable = True
        self.knows_its_epoch = True
        self.pause: asyncio.Event | None = None
        self.in_flight = 0
        self.log_end = 0

    def log_info(self, topic_id: uuid.UUID, index: int) -> PartitionLogInfo:
        topic = self.metadata_image.topic_by_id(topic_id)
        state = None if topic is None else topic.partitions.get(index)
        if state is None or state.leader != NO_BROKER:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return PartitionLogInfo(partition_index=index, error_code=code)
        return PartitionLogInfo(
            partition_index=index,
            leader_epoch=state.leader_epoch,
            last_epoch=0,
            end_offset=self.log_end,
        )


class World:
    """Brokers, and candidates for controller."""

    def __init__(self, zookeeper: InMemoryZooKeeper, settings: Settings, seed: int = 1) -> None:
        self.zookeeper = zookeeper
        self.settings = settings
        self.random = Random(seed)
        self.peers: dict[int, Peer] = {}
        self.controllers: dict[int, ControllerService] = {}
        self.elections: dict[int, ControllerElection] = {}
        self.sessions: dict[int, Flaky] = {}

    @classmethod
    async def open(cls, **values: Any) -> World:
        zookeeper = await InMemoryZooKeeper.open()
        for path in (*znodes.PERSISTENT_ROOTS, "/controller_root"):
            await ensure_path(zookeeper, path)
        return cls(zookeeper, Settings(**values))

    async def close(self) -> None:
        for controller in self.controllers.values():
            await controller.stop()
        for election in self.elections.values():
            await election.watch_loop.stop()

    def new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128))

    # -- brokers ---------------------------------------------------------------------------

    async def up(self, *broker_ids: int, rack: str | None = None, previous: int = -1) -> None:
        for broker_id in broker_ids:
            session = await self.zookeeper.new_session()
            registration = znodes.BrokerRegistration(
                (znodes.Endpoint(LISTENER, f"host-{broker_id}", 9092),),
                1,
                rack,
                previous_epoch=previous,
            )
            epoch = await register(session, broker_id, registration)
            self.peers[broker_id] = Peer(broker_id, session, epoch)

    async def down(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            peer = self.peers.pop(broker_id)
            peer.is_reachable = False
            await peer.session.close()

    async def deliver(
        self, broker_id: int, endpoint: PublishedEndpoint | None, message: PublishStateRequest
    ) -> PublishStateResponse:
        peer = self.peers.get(broker_id)
        if peer is None or not peer.is_reachable:
            raise ConnectionFailed(f"host-{broker_id} cannot be reached")
        assert endpoint is not None
        assert endpoint.host == f"host-{broker_id}"
        assert peer.in_flight == 0, "one message at a time"
        peer.in_flight += 1
        try:
            await asyncio.sleep(0)
            if peer.pause is not None:
                await peer.pause.wait()
            if not peer.is_reachable:
                raise ConnectionFailed(f"host-{broker_id} cannot be reached")
        finally:
            peer.in_flight -= 1
        arrived = decode(PublishStateRequest, encode(message, 0), 0)
        own_epoch = peer.epoch if peer.knows_its_epoch else -2
        received = peer.metadata_image.receive(arrived, own_epoch)
        if received.error_code == ErrorCode.NONE:
            peer.messages.append(arrived)
            peer.metadata_image.check()
        return PublishStateResponse(error_code=received.error_code)

    async def read_logs(
        self, broker_id: int, _endpoint: PublishedEndpoint | None, request: ReplicaLogInfoRequest
    ) -> ReplicaLogInfoResponse:
        """Answer like a broker; its logs end at `Peer.log_end`."""
        peer = self.peers.get(broker_id)
        if peer is None or not peer.is_reachable:
            raise ConnectionFailed(f"host-{broker_id} cannot be reached")
        topics = [
            LogInfoResponseTopic(
                topic_id=topic.topic_id,
                partitions=[peer.log_info(topic.topic_id, index) for index in topic.partitions],
            )
            for topic in request.topics
        ]
        return ReplicaLogInfoResponse(broker_epoch=peer.epoch, topics=topics)

    # -- controllers -----------------------------------------------------------------------

    async def candidate(self, broker_id: int = 100) -> ControllerService:
        """Add a candidate; the first one is elected."""
        session = Flaky(await self.zookeeper.new_session())
        election = ControllerElection(session, broker_id, lambda: 1)
        controller = ControllerService(
            session,
            election,
            broker_id,
            lambda: self.settings,
            self.deliver,
            self.read_logs,
            LISTENER,
            random=self.random,
            new_id=self.new_id,
        )
        election.on_change = controller.election_changed
        self.sessions[broker_id] = session
        self.elections[broker_id] = election
        self.controllers[broker_id] = controller
        await election.check()
        election.watch_loop.start()
        return controller

    # -- reading state ---------------------------------------------------------------------

    async def json(self, path: str) -> Any:
        import json

        return json.loads((await self.zookeeper.get(path))[0])

    async def state(self, topic: str, index: int) -> dict[str, Any]:
        found = await self.json(znodes.partition_state_path(topic, index))
        assert isinstance(found, dict)
        return found

    def seen(self, topic: str, index: int) -> PartitionState | None:
        """Return a partition as all brokers know it; None while they differ or do not know it."""
        states = [peer.metadata_image.state(topic, index) for peer in self.peers.values()]
        return states[0] if all(state == states[0] for state in states) else None

    def leaders(self, topic: str, count: int) -> list[int]:
        found = [self.seen(topic, index) for index in range(count)]
        return [state.leader for state in found if state is not None]

    def controller(self) -> ControllerService:
        return next(
            self.controllers[broker_id]
            for broker_id, election in self.elections.items()
            if election.is_controller
        )

    # -- requests --------------------------------------------------------------------------

    async def create(
        self, topic: str, *assignment: Sequence[int], config: dict[str, str] | None = None
    ) -> uuid.UUID:
        return await self.controller().create_topic(
            topic, dict(enumerate(assignment)), config or {}, timeout_ms=5000
        )

    def proposal(self, topic: str, index: int, isr: Sequence[int]) -> AlterPartitionRequest:
        """Build the AlterPartition of a leader to whose end these replicas have fetched."""
        state = self.seen(topic, index)
        assert state is not None
        leader = self.peers[state.leader]
        found = leader.metadata_image.topic(topic)
        assert found is not None
        return AlterPartitionRequest(
            broker_id=leader.id,
            broker_epoch=leader.epoch,
            topics=[
                AlterPartitionRequestTopic(
                    topic_id=found.topic_id,
                    partitions=[
                        AlterPartitionRequestPartition(
                            partition_index=index,
                            leader_epoch=state.leader_epoch,
                            new_isr_with_epochs=[
                                BrokerState(broker_id=member, broker_epoch=self.peers[member].epoch)
                                for member in isr
                            ],
                            partition_epoch=state.partition_epoch,
                        )
                    ],
                )
            ],
        )

    def shutdown(self, broker_id: int) -> ControlledShutdownRequest:
        return ControlledShutdownRequest(
            broker_id=broker_id, broker_epoch=self.peers[broker_id].epoch
        )


def in_a_world(test: Callable[[World], Awaitable[None]] | None = None, **settings: Any) -> Any:
    """Run a test in a world with these settings."""

    def decorated(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                world = await World.open(**settings)
                try:
                    await test(world)
                finally:
                    await world.close()

            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return decorated if test is None else decorated(test)
