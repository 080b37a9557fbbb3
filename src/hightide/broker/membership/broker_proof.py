"""The proof that the other side of a connection is a broker of this cluster.

Requests between brokers move high watermarks, change ISRs and delete logs.  Anyone who reaches a
broker's port could send them, so a broker serves them only over a connection whose other side has
proved to know a secret that the brokers share through ZooKeeper:

    proof = HMAC-SHA256(secret, side, both nonces, broker id and epoch, receiver's id and address,
                        cluster id)

Both sides choose a nonce, so an old proof is worth nothing, and both sides prove, so that a broker
knows that it does not follow, or obey, a stranger at another broker's address.  The address is the
one that was connected to, and the receiver accepts only its own: a stranger at the address of a
broker that is down cannot pass the proof on to another broker.  The proof does not encrypt: a
network in which connections are taken over needs TLS.

The secret is a random key that the first broker creates in ZooKeeper.  Each broker keeps it in
memory, and reads it again when a proof is wrong: the znode may have been replaced.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.proof import ProveBrokerRequest, ProveBrokerResponse
from hightide.zookeeper import acl, znodes
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.node import OPEN_ACL
from hightide.zookeeper.operation import Create
from hightide.zookeeper.zookeeper_errors import MultiFailed, NodeExists, NoNode, ZooKeeperError

log = logging.getLogger(__name__)

NONCE_BYTES = 32
_KEY_BYTES = 32
_READ_AGAIN_S = 1.0  # strangers must not make a broker read ZooKeeper at each of their attempts
_NUMBERS = Struct(">iqi")
_SENDER, _RECEIVER = b"hightide broker proof, sender", b"hightide broker proof, receiver"
_CREATOR_ONLY = acl.encode([acl.Entry(acl.ALL, "auth", "")])


class ClusterSecret:
    """The secret of the cluster's brokers, as last read from ZooKeeper."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        secret_bytes: Callable[[int], bytes],
        *,
        is_authenticated: bool,
    ) -> None:
        """With `is_authenticated`, the session has credentials, and only they open the znode."""
        self._zookeeper = zookeeper
        self._secret_bytes = secret_bytes
        self._acl = _CREATOR_ONLY if is_authenticated else OPEN_ACL
        self._read_s = -_READ_AGAIN_S
        self.key = b""

    async def read(self) -> None:
        """Read the secret; create it if there is none."""
        zookeeper = self._zookeeper
        while True:
            try:
                data, _ = await zookeeper.get(znodes.BROKER_SECRET)
                break
            except NoNode:
                # The parent's ACL counts too: it says who may delete the secret.
                await self._create(znodes.SECRETS, b"")
                made = znodes.BrokerSecret(self._secret_bytes(_KEY_BYTES))
                await self._create(znodes.BROKER_SECRET, made.encode())
        self.key = znodes.BrokerSecret.decode(data).key

    async def _create(self, path: str, data: bytes) -> None:
        try:
            await self._zookeeper.multi([Create(path, data, acl=self._acl)])
        except MultiFailed as failed:
            if not isinstance(failed.cause, NodeExists):  # another broker was faster
                raise failed.cause from failed

    async def read_again(self) -> bool:
        """Read the secret after a wrong proof; return whether it is another one.

        It is read at most once a second, and not while ZooKeeper is away.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._read_s < _READ_AGAIN_S:
            return False
        self._read_s, before = now_s, self.key
        try:
            await self.read()
        except ZooKeeperError as failure:
            log.warning("cannot read the secret of the brokers again: %s", failure)
        return self.key != before

    def new_nonce(self) -> bytes:
        return self._secret_bytes(NONCE_BYTES)


class Claim(NamedTuple):
    """What one connection's proofs are about."""

    cluster_id: str
    broker_id: int
    broker_epoch: int
    receiver_id: int
    receiver_address: str
    nonce: bytes
    receiver_nonce: bytes

    def of_sender(self, key: bytes) -> bytes:
        """The proof of the broker that has opened the connection."""
        return self._proof(key, _SENDER)

    def of_receiver(self, key: bytes) -> bytes:
        """The proof of the broker that was connected to."""
        return self._proof(key, _RECEIVER)

    def _proof(self, key: bytes, side: bytes) -> bytes:
        numbers = _NUMBERS.pack(self.broker_id, self.broker_epoch, self.receiver_id)
        # Lengths are fixed, and no name has a zero byte: no two claims have the same bytes.
        assert len(self.nonce) == len(self.receiver_nonce) == NONCE_BYTES
        names = (self.receiver_address.encode(), self.cluster_id.encode())
        said = b"\0".join((side, self.nonce + self.receiver_nonce + numbers, *names))
        return hmac.digest(key, said, "sha256")


class BrokerProof:
    """Proves this broker to other brokers, first thing on every connection to them."""

    def __init__(
        self,
        secret: ClusterSecret,
        cluster_id: str,
        broker_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._secret = secret
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self.broker_epoch = broker_epoch

    async def prove(self, connection: Connection, timeout_ms: int) -> int:
        """Prove this broker, and let the other side prove itself; return the broker epoch proved.

        ConnectionFailed if one of the two does not accept the other's proof.
        """
        nonce, epoch = self._secret.new_nonce(), self.broker_epoch()
        request = ProveBrokerRequest(broker_id=self._broker_id, broker_epoch=epoch, nonce=nonce)
        response: ProveBrokerResponse = await connection.send(
            request, version=0, timeout_ms=timeout_ms
        )
        if response.error_code != ErrorCode.NONE or len(response.nonce) != NONCE_BYTES:
            raise ConnectionFailed(f"{connection.address} takes no connections of brokers.")
        claim = Claim(
            self._cluster_id,
            self._broker_id,
            epoch,
            response.broker_id,
            connection.address,
            nonce,
            response.nonce,
        )
        # One key for both proofs: another connection's failure may change it meanwhile.
        key = self._secret.key
        request.proof = claim.of_sender(key)
        response = await connection.send(request, version=0, timeout_ms=timeout_ms)
        if response.error_code != ErrorCode.NONE:
            await self._secret.read_again()
            raise ConnectionFailed(
                f"{connection.address} does not accept that this is broker {self._broker_id} of"
                f" cluster {self._cluster_id}."
            )
        if not hmac.compare_digest(response.proof, claim.of_receiver(key)):
            await self._secret.read_again()
            raise ConnectionFailed(
                f"{connection.address} has not proved to be a broker of cluster {self._cluster_id}."
            )
        return epoch
