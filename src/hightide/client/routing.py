"""The way to the broker that can answer: connections, roles, and trying again when they move.

`Routes` keeps one connection per broker and the last Metadata answer's view of who is who.
It knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from hightide.client.connection import Connection, ConnectionFailed
from hightide.client.model import Node
from hightide.client.security import PLAINTEXT, Security
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

T = TypeVar("T")
ATTEMPTS = 6
PAUSE_S = 0.1
MOVED = {
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    # A new leader does not know yet how far its log is committed.
    ErrorCode.OFFSET_NOT_AVAILABLE,
}


def addresses(bootstrap: str) -> list[tuple[str, int]]:
    """`host:port,host:port` as pairs; an IPv6 address stands in brackets."""
    found = []
    for text in filter(None, (part.strip() for part in bootstrap.split(","))):
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
            raise ValueError(f"{text!r} is not an address; it should be host:port")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not found:
        raise ValueError("the bootstrap address is empty; it should be host:port")
    return found


class Routes:
    """Connections to the brokers of one cluster."""

    def __init__(
        self, bootstrap: str, client_id: str, timeout_ms: int, security: Security = PLAINTEXT
    ) -> None:
        self._bootstrap = addresses(bootstrap)
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._security = security
        self._connections: dict[tuple[str, int], Connection] = {}
        # Who asks for the same broker meanwhile waits for the connection that is being made.
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self.controller_id = -1
        self.nodes: dict[int, Node] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def metadata(self, names: Sequence[str] | None, *, create: bool = False) -> Any:
        topics = None
        if names is not None:
            topics = [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
        connection = await self.any()
        try:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
        except ConnectionFailed:
            # One that hangs is still open, and would be asked again before all others.
            connection.close()
            raise
        self.nodes = {
            each.node_id: Node(each.node_id, each.host, each.port, each.rack)
            for each in answer.brokers
        }
        self.controller_id = answer.controller_id
        return answer

    async def persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again, a few times, while the answer says that a role has moved."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await attempt()
            except KafkaError as error:
                if error.code not in MOVED:
                    raise
            await asyncio.sleep(PAUSE_S)
            await self.metadata([])
        return await attempt()

    async def any(self) -> Connection:
        """A connection to whichever broker can be reached."""
        for connection in self._connections.values():
            if connection.is_open():
                return connection
        known = [(node.host, node.port) for node in self.nodes.values()]
        failures = []
        for address in dict.fromkeys([*self._bootstrap, *known]):
            try:
                return await self._connect(address)
            except ConnectionFailed as error:
                failures.append(str(error))
        raise ConnectionFailed(" ".join(failures))

    async def broker(self, broker_id: int) -> Connection:
        if broker_id not in self.nodes:
            await self.metadata([])
        node = self.nodes.get(broker_id)
        if node is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"There is no broker {broker_id}.")
        return await self._connect((node.host, node.port))

    async def controller(self) -> Connection:
        if self.controller_id not in self.nodes:
            await self.metadata([])
        if self.controller_id not in self.nodes:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "The cluster has no controller now.")
        return await self.broker(self.controller_id)

    async def _connect(self, address: tuple[str, int]) -> Connection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_open():
            return connection
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or not connection.is_open():
                connection = await Connection.open(
                    *address,
                    client_id=self._client_id,
                    timeout_ms=self._timeout_ms,
                    security=self._security,
                )
                self._connections[address] = connection
            return connection
