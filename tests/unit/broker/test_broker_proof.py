"""Brokers prove to each other that they belong to one cluster, and nothing else opens the door."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.handlers.configs import SET, TOPIC
from hightide.broker.handlers.request_context import in_one_line
from hightide.broker.membership.broker_proof import BrokerProof, Claim, ClusterSecret
from hightide.broker.replication.peers import Peers
from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.core.metadata.topic_names import INTERNAL_TOPICS
from hightide.log.disk import MemoryDisk
from hightide.settings import Broker as Settings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hightide.wire.messages.proof import ProveBrokerRequest, ProveBrokerResponse
from hightide.wire.messages.replication import (
    ControlledShutdownRequest,
    PublishedEndpoint,
    PublishStateRequest,
    ReplicaLogInfoRequest,
)
from hightide.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)
from hightide.zookeeper import acl, znodes
from hightide.zookeeper.client import ZooKeeperClient
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.kazoo_translation import Chroot, request
from hightide.zookeeper.operation import Create
from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.server_thread import ServerThread
from hightide.zookeeper.zookeeper_errors import ConnectionLoss, MalformedZnode, NoAuth
from tests.support.proving import first_step, prove, second_step

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
OTHER = 5
HUGE = 2**31 - 1


@asynccontextmanager
async def running(**overrides: Any) -> AsyncIterator[tuple[Broker, list[tuple[str, int]]]]:
    settings: dict[str, Any] = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "zookeeper_listen": "127.0.0.1:0",
        **overrides,
    }
    broker = Broker(Settings(**settings), environment=RealEnvironment(memory=MemoryDisk()))
    addresses = await broker.start()
    try:
        yield broker, addresses
    finally:
        await broker.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def peers_of(broker: Broker, epoch: Callable[[], int], key: bytes | None = None) -> Peers:
    """The connections of another broker, which knows the secret, or takes `key` for it."""
    secret = broker.cluster_secret
    if key is not None:
        secret = ClusterSecret(broker.zookeeper, bytes, is_authenticated=False)
        secret.key = key
    proof = BrokerProof(secret, broker.metadata.cluster_id, OTHER, epoch)
    return Peers("broker-5", proof, socket_timeout_ms=lambda: 5000)


def endpoint(address: tuple[str, int]) -> PublishedEndpoint:
    host, port = address
    return PublishedEndpoint(
        listener="PLAINTEXT", host=host, port=port, security_protocol="PLAINTEXT"
    )


# -- the secret --------------------------------------------------------------------------------


def test_the_first_broker_creates_the_secret_and_the_others_read_it():
    async def test():
        zookeeper = await InMemoryZooKeeper.open()
        keys = iter([b"a" * 32, b"b" * 32])
        first, second = (
            ClusterSecret(zookeeper, lambda _: next(keys), is_authenticated=False) for _ in range(2)
        )
        await asyncio.gather(first.read(), second.read())
        assert first.key == second.key
        await zookeeper.delete(znodes.BROKER_SECRET)
        await zookeeper.create(znodes.BROKER_SECRET, znodes.BrokerSecret(b"c" * 32).encode())
        assert await first.read_again()
        assert first.key == b"c" * 32
        assert not await first.read_again(), "at most once a second"

    run(test)


def test_a_session_with_credentials_keeps_the_secret_for_itself():
    made: list[Any] = []

    async def test():
        zookeeper = await InMemoryZooKeeper.open()
        real = zookeeper.multi

        async def multi(operations):
            made.extend(operations)
            return await real(operations)

        zookeeper.multi = multi  # type: ignore[method-assign]
        await ClusterSecret(zookeeper, bytes, is_authenticated=True).read()

    run(test)
    assert [create.path for create in made] == [znodes.SECRETS, znodes.BROKER_SECRET]
    create = made[1]
    assert made[0].acl == create.acl
    assert acl.decode(create.acl) == (acl.Entry(acl.ALL, "auth", ""),)
    (sent,) = request(Create("/a", b"", acl=create.acl), Chroot("")).acl
    assert (sent.perms, sent.id.scheme) == (acl.ALL, "auth")


def test_only_the_credentials_of_the_brokers_open_the_secret():
    async def test():
        server = ServerThread(ServerOptions(host="127.0.0.1", port=0, file=None))
        host, port = await asyncio.to_thread(server.start)
        hosts = f"{host}:{port}"
        try:
            broker = await ZooKeeperClient.connect(hosts, credentials="brokers:password")
            other = await ZooKeeperClient.connect(hosts, credentials="brokers:password")
            stranger = await ZooKeeperClient.connect(hosts)
            secrets = [
                ClusterSecret(client, os.urandom, is_authenticated=True)
                for client in (broker, other)
            ]
            for secret in secrets:
                await secret.read()
            assert secrets[0].key == secrets[1].key
            with pytest.raises(NoAuth):
                await stranger.get(znodes.BROKER_SECRET)
            with pytest.raises(NoAuth):
                await stranger.set(znodes.BROKER_SECRET, b"")
            with pytest.raises(NoAuth):
                await stranger.delete(znodes.BROKER_SECRET)
            for client in (broker, other, stranger):
                await client.close()
        finally:
            await asyncio.to_thread(server.stop)

    run(test)


def test_the_secret_is_in_no_text():
    key = b"k" * 32
    secret = znodes.BrokerSecret(key)
    assert "k" * 32 not in f"{secret} {secret!r}"
    assert znodes.BrokerSecret.decode(secret.encode()) == secret
    for data in (b"", b"{}", b'{"key": "AAAA"}', b'{"key": "?"}', b'{"key": 7}'):
        with pytest.raises(MalformedZnode):
            znodes.BrokerSecret.decode(data)


# -- the proof ---------------------------------------------------------------------------------


def test_every_part_of_a_claim_counts():
    claim = Claim("cluster", 1, 2, 3, "h:1", b"a" * 32, b"b" * 32)
    others = [
        claim._replace(cluster_id="other"),
        claim._replace(broker_id=9),
        claim._replace(broker_epoch=9),
        claim._replace(receiver_id=9),
        claim._replace(receiver_address="h:2"),
        claim._replace(nonce=b"c" * 32),
        claim._replace(receiver_nonce=b"c" * 32),
    ]
    proofs = {found.of_sender(b"key") for found in [claim, *others]}
    proofs |= {claim.of_receiver(b"key"), claim.of_sender(b"other")}
    assert len(proofs) == 10


def test_brokers_that_know_the_secret_are_served_and_make_new_connections_in_a_new_epoch():
    async def test():
        async with running() as (broker, (address,)):
            epoch = 3
            peers, there = peers_of(broker, lambda: epoch), endpoint(address)
            response = await peers.send(there, ReplicaLogInfoRequest(topics=[]), timeout_ms=5000)
            assert (response.error_code, response.broker_epoch) == (0, broker.broker_epoch)
            first = await peers.connection(there)
            assert await peers.connection(there) is first
            epoch = 4
            second = await peers.connection(there)
            assert second is not first
            assert not first.is_open()
            await peers.close()

    run(test)


def test_a_broker_with_another_secret_is_refused_and_reads_the_right_one():
    async def test():
        async with running() as (broker, (address,)):
            peers = peers_of(broker, lambda: 3, key=b"x" * 32)
            with pytest.raises(ConnectionFailed, match="does not accept"):
                await peers.connection(endpoint(address))
            await peers.connection(endpoint(address))
            await peers.close()

    run(test)


def test_a_broker_reads_a_secret_that_was_replaced():
    async def test():
        async with running() as (broker, (address,)):
            replaced = znodes.BrokerSecret(b"r" * 32)
            await broker.zookeeper.set(znodes.BROKER_SECRET, replaced.encode())
            peers = peers_of(broker, lambda: 3, key=replaced.key)
            await peers.connection(endpoint(address))
            assert broker.cluster_secret.key == replaced.key
            await peers.close()

    run(test)


def test_a_broker_sends_nothing_to_a_peer_that_does_not_know_the_secret():
    """The peer accepts every proof, and answers with one that it has made up."""

    class Stranger:
        address = "192.0.2.1:9092"

        async def send(self, asked: ProveBrokerRequest, **_options: object) -> Any:
            # It reflects what it got.
            return ProveBrokerResponse(broker_id=OTHER, nonce=asked.nonce, proof=asked.proof)

    async def test():
        async with running() as (broker, _):
            proof = BrokerProof(broker.cluster_secret, broker.metadata.cluster_id, OTHER, lambda: 1)
            with pytest.raises(ConnectionFailed, match="has not proved"):
                await proof.prove(Stranger(), 1000)  # type: ignore[arg-type]

    run(test)


def test_a_proof_that_is_passed_on_to_another_broker_is_worth_nothing():
    """A stranger has taken the port of a broker that is down, and relays what others send there."""

    async def test():
        async with running() as (broker, (address,)):
            relaying: list[asyncio.Task[None]] = []

            async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while data := await reader.read(65536):
                    writer.write(data)
                writer.close()

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                there, back = await asyncio.open_connection(*address)
                relaying.append(asyncio.create_task(copy(there, writer)))
                await copy(reader, back)

            stranger = await asyncio.start_server(relay, "127.0.0.1", 0)
            peers = peers_of(broker, lambda: 3)
            with pytest.raises(ConnectionFailed, match="does not accept"):
                await peers.connection(endpoint(stranger.sockets[0].getsockname()))
            await peers.connection(endpoint(address))
            await peers.close()
            stranger.close()
            await asyncio.gather(*relaying)

    run(test)


def test_a_peer_that_has_proved_nothing_gets_no_memory():
    async def test():
        async with running() as (broker, _):

            async def announce(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write((1 << 30).to_bytes(4, "big"))
                writer.close()

            stranger = await asyncio.start_server(announce, "127.0.0.1", 0)
            peers = peers_of(broker, lambda: 3)
            with pytest.raises(ConnectionFailed, match="announced a response of 1073741824 bytes"):
                await peers.connection(endpoint(stranger.sockets[0].getsockname()))
            await peers.close()
            stranger.close()

    run(test)


def test_a_proof_counts_once_and_on_its_own_connection():
    async def test():
        async with running() as (broker, (address,)):
            one, two = await Connection.open(*address), await Connection.open(*address)
            key, cluster = broker.cluster_secret.key, broker.metadata.cluster_id
            first = first_step(OTHER)
            answer = await one.send(first, version=0)
            second = second_step(key, cluster, one.address, first, answer)
            await two.send(first, version=0)
            assert (await two.send(second, version=0)).error_code == REFUSED
            assert (await one.send(second, version=0)).error_code == 0
            again = await one.send(second, version=0)
            assert again.error_code == ErrorCode.INVALID_REQUEST
            # The new attempt has ended the old proof.
            stop = ControlledShutdownRequest(broker_id=OTHER, broker_epoch=0)
            assert (await one.send(stop, version=3)).error_code == REFUSED
            short = ProveBrokerRequest(broker_id=1, broker_epoch=0, nonce=b"")
            assert (await one.send(short, version=0)).error_code == ErrorCode.INVALID_REQUEST

    run(test)


def test_only_the_listener_of_the_brokers_takes_proofs(caplog):
    async def test():
        async with running(
            listeners="PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
            inter_broker_listener_name="INSIDE",
        ) as (broker, (clients, brokers)):
            outside, inside = await Connection.open(*clients), await Connection.open(*brokers)
            assert (await outside.send(first_step(OTHER), version=0)).error_code == REFUSED
            await prove(inside, broker, OTHER)

    run(test)
    assert "refused ProveBroker on a clients' listener from 127.0.0.1" in caplog.text


# -- the controller epoch ----------------------------------------------------------------------


def published(broker: Broker, controller_id: int, controller_epoch: int) -> PublishStateRequest:
    """A message that says: there is no topic, and no broker."""
    return PublishStateRequest(
        controller_id=controller_id,
        controller_epoch=controller_epoch,
        broker_epoch=broker.broker_epoch,
        sequence=2**62,
        is_full=True,
        brokers=[],
        topics=[],
    )


def test_a_controller_epoch_that_zookeeper_does_not_have_changes_nothing(caplog):
    async def test():
        async with running() as (broker, (address,)):
            own = [broker.broker_id]
            await broker.controller.create_topic("t", {0: own}, {}, timeout_ms=5000)
            topic = broker.metadata_image.topic("t")
            assert topic is not None
            peer = await Connection.open(*address)
            await prove(peer, broker, OTHER)
            for epoch in (HUGE, broker.election.epoch, broker.election.epoch + 1):
                message = published(broker, OTHER, epoch)
                message.removed_topics = [topic.topic_id]
                code = ErrorCode((await peer.send(message, version=0)).error_code)
                assert code.retriable, code
            assert broker.metadata_image.topic("t") is topic
            assert ("t", 0) in broker.log_manager.logs
            assert broker.election.is_controller
            await broker.controller.create_topic("u", {0: own}, {}, timeout_ms=5000)
            stale = await peer.send(published(broker, OTHER, 0), version=0)
            assert stale.error_code == ErrorCode.STALE_CONTROLLER_EPOCH

    run(test)
    assert f"broker 5 says that it is the controller in epoch {HUGE}; nothing" in caplog.text


def test_a_controller_epoch_waits_while_zookeeper_cannot_be_read():
    async def test():
        async with running() as (broker, _):
            changes, real = broker._state_changes, broker._state_changes._zookeeper

            class Away:
                async def get(self, path: str, watch: object = None) -> Any:
                    raise ConnectionLoss(path)

            await real.set(znodes.CONTROLLER_EPOCH, b"7")
            await real.set(znodes.CONTROLLER, znodes.Controller(OTHER, 1).encode())
            message = published(broker, OTHER, 7)
            changes._zookeeper = Away()  # type: ignore[assignment]
            assert (await changes.receive(message)).retriable
            assert broker.metadata_image.controller_epoch < 7
            changes._zookeeper = real
            assert await changes.receive(message) == ErrorCode.NONE
            assert broker.metadata_image.controller_epoch == 7

    run(test)


# -- who asked ---------------------------------------------------------------------------------


def retention_of(topic: str, retention_ms: str) -> IncrementalAlterConfigsRequest:
    change = IncrementalAlterableConfig(
        name="retention.ms", config_operation=SET, value=retention_ms
    )
    resource = IncrementalAlterConfigsResource(
        resource_type=TOPIC, resource_name=topic, configs=[change]
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def one_record(topic: str) -> ProduceRequest:
    made = bytes(batch.build([batch.Record(0, 0, None, b"x", ())]))
    partition = PartitionProduceData(index=0, records=made)
    data = TopicProduceData(name=topic, partition_data=[partition])
    return ProduceRequest(acks=1, timeout_ms=5000, topic_data=[data])


def test_every_removal_of_data_is_logged_with_its_sender(caplog):
    caplog.set_level(logging.INFO)

    async def test():
        async with running() as (broker, (address,)):
            own = [broker.broker_id]
            await broker.controller.create_topic("t", {0: own}, {}, timeout_ms=5000)
            client = await Connection.open(*address, client_id="eraser")
            await client.send(one_record("t"), version=9)
            partition = DeleteRecordsPartition(partition_index=0, offset=1)
            topics = [DeleteRecordsTopic(name="t", partitions=[partition])]
            for _ in range(3):
                await client.send(DeleteRecordsRequest(topics=topics, timeout_ms=5000))
            await client.send(retention_of("t", "7\nforged line"))
            await client.send(retention_of("t", "7"))
            erase = DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
            await client.send(erase, version=5)

    run(test)
    sender = "127.0.0.1 (client id 'eraser')"
    assert caplog.text.count(f"t-0: deleted records before 1, asked by {sender}") == 1
    assert f"settings of topic t: retention.ms=7, asked by {sender}" in caplog.text
    assert "\nforged line" not in caplog.text
    assert f"topic t: deletion asked by {sender}" in caplog.text
    assert "t-0: deleting the log, offsets 1 to 1: its topic is deleted, says broker" in caplog.text
    assert "the controller in epoch 1" in caplog.text


def test_the_records_of_internal_topics_are_not_deleted():
    """A client may change cleanup.policy, but not make the coordinators forget."""

    async def test():
        async with running() as (broker, (address,)):
            policy = {"cleanup.policy": "delete"}
            for name in INTERNAL_TOPICS:
                replicas = {0: [broker.broker_id]}
                await broker.controller.create_topic(name, replicas, policy, timeout_ms=5000)
                partition = DeleteRecordsPartition(partition_index=0, offset=0)
                topics = [DeleteRecordsTopic(name=name, partitions=[partition])]
                client = await Connection.open(*address)
                answer = await client.send(DeleteRecordsRequest(topics=topics, timeout_ms=5000))
                (found,) = answer.topics[0].partitions
                assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    run(test)


def test_names_of_clients_forge_no_line_and_fill_no_disk():
    assert in_one_line(["a", "b"]) == "a, b"
    assert in_one_line(["a\nforged"]) == "a\\nforged"
    assert len(in_one_line(["x" * 1000] * 10_000)) == 500


def test_refusals_are_logged_once_in_ten_seconds(caplog):
    async def test():
        async with running() as (broker, (address,)):
            now_s = 100.0
            broker.refusals._now_s = lambda: now_s
            client = await Connection.open(*address, client_id="x" * 1000)
            stop = ControlledShutdownRequest(broker_id=1, broker_epoch=0)
            for _ in range(5):
                assert (await client.send(stop, version=3)).error_code == REFUSED
            now_s = 110.0
            await client.send(stop, version=3)

    run(test)
    lines = [r.getMessage() for r in caplog.records if "has not proved" in r.getMessage()]
    assert [line.partition(";")[2].split()[0] for line in lines] == ["0", "4"]
    assert all("ControlledShutdown from 127.0.0.1" in line and len(line) < 300 for line in lines)
