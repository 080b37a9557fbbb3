"""Brokers, the controller, and log directories."""

from __future__ import annotations

from hightide.client.broker_connection import CODES, Connection, ConnectionFailed, check
from hightide.client.model.cluster import (
    ClientConnection,
    ClientConnections,
    ClusterDescription,
    LogDir,
    LogDirs,
    ReplicaSize,
)
from hightide.client.routing import Router
from hightide.wire.errors import ErrorCode
from hightide.wire.messages import APIS
from hightide.wire.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResult
from hightide.wire.messages.connections import (
    DescribeConnectionsRequest,
    DescribeConnectionsResponse,
    DescribedConnection,
)
from hightide.wire.messages.controller import ResignControllerRequest
from hightide.wire.messages.replicas import DescribeReplicasRequest

PAGE = 1000
"""How many connections to ask a broker for at once."""


class ClusterAdmin:
    """Requests about the cluster as a whole."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def describe(self) -> ClusterDescription:
        """The live brokers and the controller, from any broker's metadata."""
        answer = await self._router.metadata([])
        return ClusterDescription(
            cluster_id=answer.cluster_id,
            controller=answer.controller_id,
            nodes=sorted(self._router.nodes.values(), key=lambda node: node.id),
        )

    async def resign_controller(self) -> tuple[int, int]:
        """Make the controller resign; return the ids of the old and the new controller.

        Only Hightide's brokers know this request, and they do not advertise it.
        """
        before = (await self.describe()).controller
        connection = await self._router.controller()
        try:
            answer = await connection.send(
                ResignControllerRequest(), version=0, timeout_ms=self._router.timeout_ms
            )
        except ConnectionFailed as failed:
            raise ConnectionFailed(f"{failed} Is it a broker of Hightide?") from failed
        check(answer.error_code, answer.error_message)
        return before, answer.controller_id

    async def log_dirs(self) -> LogDirs:
        """The log directories of every live broker, and the replicas in them."""

        async def ask(connection: Connection) -> list[LogDir]:
            broker = self._router.broker_of(connection)
            answer = await connection.send(
                DescribeLogDirsRequest(topics=None), timeout_ms=self._router.timeout_ms
            )
            check(answer.error_code, about=f"broker {broker}")
            return [_log_dir(broker, directory) for directory in answer.results]

        heard = await self._router.ask_every_broker(ask)
        found = [directory for _, listed in sorted(heard.answers.items()) for directory in listed]
        return LogDirs(found, heard.silent)

    async def connections(self, limit: int = 10_000) -> ClientConnections:
        """The open connections of every live broker, at most so many of each.

        DescribeConnections is Hightide's own request.
        """

        async def pages(connection: Connection) -> DescribeConnectionsResponse:
            broker = self._router.broker_of(connection)
            answer = page = await self._page(connection, broker, 0, limit)
            while page.has_more and page.connections and len(answer.connections) < limit:
                last = page.connections[-1].number
                page = await self._page(connection, broker, last, limit - len(answer.connections))
                answer.connections += page.connections
            return answer

        async def ask(connection: Connection) -> DescribeConnectionsResponse | None:
            broker = self._router.broker_of(connection)
            return await self._router.ask_hightide(broker, pages)

        heard = await self._router.ask_every_broker(ask)
        open_connections: dict[int, int] = {}
        found: list[ClientConnection] = []
        for broker, answer in sorted(heard.answers.items()):
            if answer is not None:
                open_connections[broker] = answer.open_connections
                found += (_client_connection(broker, one) for one in answer.connections)
        foreign = sorted({*self._router.nodes} - {*open_connections} - {*heard.silent})
        return ClientConnections(found, open_connections, foreign, heard.silent)

    async def _page(
        self, connection: Connection, broker: int, after: int, limit: int
    ) -> DescribeConnectionsResponse:
        request = DescribeConnectionsRequest(after=after, limit=min(limit, PAGE))
        answer: DescribeConnectionsResponse = await connection.send(
            request, version=0, timeout_ms=self._router.timeout_ms
        )
        check(answer.error_code, answer.error_message, about=f"broker {broker}")
        return answer

    async def versions(self) -> dict[int, str | None]:
        """The version of Hightide that each live broker runs; None if a broker does not say.

        DescribeReplicas is Hightide's own request, with no topics here.  Kafka's brokers close the
        connection on it, and Kafka's protocol has no place for their version.
        """

        async def ask(connection: Connection) -> str:
            request = DescribeReplicasRequest(topics=[])
            try:
                answer = await connection.send(request, version=0)
            except ConnectionFailed:
                return ""
            return str(answer.software_version)

        heard = await self._router.ask_every_broker(ask)
        return {broker: heard.answers.get(broker) or None for broker in self._router.nodes}


def _client_connection(broker: int, found: DescribedConnection) -> ClientConnection:
    return ClientConnection(
        broker=broker,
        number=found.number,
        client_id=found.client_id,
        software=found.software_name,
        version=found.software_version,
        address=found.address,
        port=found.port,
        listener=found.listener,
        connected_ms=found.connected_ms,
        idle_ms=found.idle_ms,
        requests=found.requests,
        last_api=APIS[found.last_api][0] if found.last_api in APIS else None,
        peer_broker=found.broker_id if found.broker_id >= 0 else None,
    )


def _log_dir(broker: int, directory: DescribeLogDirsResult) -> LogDir:
    code = directory.error_code
    return LogDir(
        broker=broker,
        log_dir=directory.log_dir,
        error=CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR) if code else None,
        total_bytes=directory.total_bytes if directory.total_bytes >= 0 else None,
        usable_bytes=directory.usable_bytes if directory.usable_bytes >= 0 else None,
        replicas=[
            ReplicaSize(
                topic=topic.name,
                partition=partition.partition_index,
                size_bytes=partition.partition_size,
                offset_lag=partition.offset_lag,
                is_future=partition.is_future_key,
            )
            for topic in directory.topics
            for partition in topic.partitions
        ],
    )
