"""DescribeConnections, which Kafka does not have: the open connections of a broker.

ApiVersions does not list it, since clients do not know it.
"""

from __future__ import annotations

from hightide.wire.types import i16, i32, i64, message, part


@message(key=30009, versions=(0, 0), flexible=0)
class DescribeConnectionsRequest:
    """Request a page of a broker's open connections, in the order of their numbers."""

    after: i64 = 0
    """The number of the last connection that the sender has; 0 for the first page."""
    limit: i32 = 1000


@part
class DescribedConnection:
    """One open connection.  Names are what the client says; they may be empty."""

    number: i64
    """Counts the connections of this broker from 1 at each start."""
    client_id: str
    """That of the last request that was not Produce or Fetch."""
    software_name: str
    software_version: str
    address: str
    port: i32
    listener: str
    connected_ms: i64
    idle_ms: i64
    """How long nothing has arrived, in steps of half a second."""
    requests: i64
    last_api: i16
    """The API key of the last request; -1 if there was none."""
    broker_id: i32
    """The broker that the other side has proved to be; -1 for every other client."""


@message(key=30009, versions=(0, 0), flexible=0)
class DescribeConnectionsResponse:
    """A page of connections, and how many are open."""

    error_code: i16 = 0
    error_message: str | None = None
    open_connections: i32 = 0
    has_more: bool = False
    connections: list[DescribedConnection]
