"""ProveBroker (30007): the other side of a connection proves to be a broker of this cluster.

CLUSTER_AUTHORIZATION_FAILED   the proof is wrong, or the connection's listener is not for brokers
INVALID_REQUEST                the nonce has another length, or there was no request for a nonce

`BROKER_REQUESTS` are the requests that need the proof.  Others get CLUSTER_AUTHORIZATION_FAILED
before their request is decoded, and one log line in ten seconds names such a client.  A request
that names its sender must name the broker that was proved.
"""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hightide.broker.handlers.request_context import Context
from hightide.broker.membership.broker_proof import NONCE_BYTES, Claim
from hightide.broker.network.connection import Connection
from hightide.core.events import Event, Severity
from hightide.event_log import record
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.markers import OpenMarkerConnectionResponse
from hightide.wire.messages.proof import ProveBrokerRequest, ProveBrokerResponse
from hightide.wire.messages.replication import (
    AlterPartitionResponse,
    ControlledShutdownResponse,
    PublishStateResponse,
    ReplicaLogInfoResponse,
    ReportFailuresResponse,
)
from hightide.wire.messages.transactions import AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_WARNING_S = 10.0


class BrokerRequest(NamedTuple):
    """A request that only brokers may send."""

    refusal: Any
    """The response to others."""
    sender: str | None = None
    """The field with the sender's broker id."""
    since: int = 0
    """The first version that only brokers may send."""


BROKER_REQUESTS = {
    7: BrokerRequest(
        ControlledShutdownResponse(error_code=REFUSED, remaining_partitions=[]), "broker_id"
    ),
    24: BrokerRequest(AddPartitionsToTxnResponse(error_code=REFUSED), since=4),
    56: BrokerRequest(AlterPartitionResponse(error_code=REFUSED, topics=[]), "broker_id"),
    30001: BrokerRequest(PublishStateResponse(error_code=REFUSED), "controller_id"),
    30004: BrokerRequest(OpenMarkerConnectionResponse(error_code=REFUSED), "sender_id"),
    30005: BrokerRequest(ReportFailuresResponse(error_code=REFUSED), "broker_id"),
    30006: BrokerRequest(ReplicaLogInfoResponse(error_code=REFUSED, broker_epoch=-1, topics=[])),
}


async def prove_broker(
    broker: Broker, request: ProveBrokerRequest, context: Context
) -> ProveBrokerResponse:
    connection = context.connection
    if connection.listener != broker.settings.inter_broker_listener():
        broker.refusals.note(connection, context.client_id, "ProveBroker on a clients' listener")
        return ProveBrokerResponse(error_code=REFUSED)
    connection.peer_broker_id = connection.peer_broker_epoch = -1
    if not request.proof:
        return _nonce(broker, request, connection)
    nonces, connection.peer_nonces = connection.peer_nonces, None
    if nonces is None or request.nonce != nonces[0]:
        return ProveBrokerResponse(error_code=ErrorCode.INVALID_REQUEST)
    claim = Claim(
        broker.metadata.cluster_id,
        request.broker_id,
        request.broker_epoch,
        broker.broker_id,
        broker.address_among_brokers(),
        *nonces,
    )
    secret = broker.cluster_secret
    if not hmac.compare_digest(request.proof, claim.of_sender(secret.key)) and not (
        await secret.read_again()
        and hmac.compare_digest(request.proof, claim.of_sender(secret.key))
    ):
        what = f"a wrong proof to be broker {request.broker_id}"
        broker.refusals.note(connection, context.client_id, what)
        return ProveBrokerResponse(error_code=REFUSED)
    connection.peer_broker_id = request.broker_id
    connection.peer_broker_epoch = request.broker_epoch
    return ProveBrokerResponse(broker_id=broker.broker_id, proof=claim.of_receiver(secret.key))


def _nonce(
    broker: Broker, request: ProveBrokerRequest, connection: Connection
) -> ProveBrokerResponse:
    if len(request.nonce) != NONCE_BYTES or request.broker_id < 0:
        return ProveBrokerResponse(error_code=ErrorCode.INVALID_REQUEST)
    nonce = broker.cluster_secret.new_nonce()
    connection.peer_nonces = (request.nonce, nonce)
    return ProveBrokerResponse(broker_id=broker.broker_id, nonce=nonce)


@dataclass(frozen=True, slots=True)
class RequestDenied(Event):
    """A client sent what only a broker of this cluster may send."""

    severity: ClassVar[Severity] = Severity.WARNING
    what: str
    sender: str
    others: int
    """Requests that were denied since the last such event."""

    def __str__(self) -> str:
        return (
            f"refused {self.what} from {self.sender}, which has not proved to be that broker of"
            f" this cluster; {self.others} more were refused since the last such line"
        )


class Refusals:
    """Logs requests that only a broker may send, from clients that have not proved to be one."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._logged_s = -math.inf
        self._unlogged = 0

    def note(self, connection: Connection, client_id: str | None, what: str) -> None:
        """Log a refusal, at most once in ten seconds: a stranger must not fill the disk."""
        now_s = self._now_s()
        if now_s - self._logged_s < _WARNING_S:
            self._unlogged += 1
            return
        sender = Context(connection, 0, client_id).sender
        record(log, RequestDenied(what, sender, self._unlogged))
        self._logged_s, self._unlogged = now_s, 0
