"""Clients of tests that prove to be a broker, as brokers do (see `broker_proof.py`)."""

from __future__ import annotations

from kazoo.client import KazooClient

from hightide.broker.broker import Broker
from hightide.broker.membership.broker_proof import NONCE_BYTES, Claim
from hightide.client.broker_connection import Connection
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.proof import ProveBrokerRequest, ProveBrokerResponse
from hightide.zookeeper import znodes

NONCE = bytes(range(NONCE_BYTES))


class NoProof:
    """For a test whose other broker is a script that asks for no proof."""

    @staticmethod
    def broker_epoch() -> int:
        return 0

    async def prove(self, _connection: Connection, _timeout_ms: int) -> int:
        return 0


def first_step(broker_id: int, broker_epoch: int = 0) -> ProveBrokerRequest:
    return ProveBrokerRequest(broker_id=broker_id, broker_epoch=broker_epoch, nonce=NONCE)


def second_step(
    key: bytes,
    cluster_id: str,
    address: str,
    first: ProveBrokerRequest,
    answer: ProveBrokerResponse,
) -> ProveBrokerRequest:
    assert answer.error_code == ErrorCode.NONE
    claim = Claim(
        cluster_id,
        first.broker_id,
        first.broker_epoch,
        answer.broker_id,
        address,
        first.nonce,
        answer.nonce,
    )
    return ProveBrokerRequest(
        broker_id=first.broker_id,
        broker_epoch=first.broker_epoch,
        nonce=first.nonce,
        proof=claim.of_sender(key),
    )


async def prove(
    connection: Connection, broker: Broker, broker_id: int, broker_epoch: int = 0
) -> None:
    """Prove a connection to `broker` to be that of another broker."""
    first = first_step(broker_id, broker_epoch)
    answer = await connection.send(first, version=0)
    key, cluster_id = broker.cluster_secret.key, broker.metadata.cluster_id
    second = second_step(key, cluster_id, connection.address, first, answer)
    answer = await connection.send(second, version=0)
    assert answer.error_code == ErrorCode.NONE


def secret_at(hosts: str) -> tuple[bytes, str]:
    """Return the key of the brokers and the cluster id that a running ZooKeeper has."""
    zookeeper = KazooClient(hosts)
    zookeeper.start()
    try:
        secret, _ = zookeeper.get(znodes.BROKER_SECRET)
        cluster, _ = zookeeper.get(znodes.CLUSTER_ID)
    finally:
        zookeeper.stop()
        zookeeper.close()
    return znodes.BrokerSecret.decode(secret).key, znodes.ClusterId.decode(cluster).id
