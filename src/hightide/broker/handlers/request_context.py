"""What a handler may need besides the request: its connection, version and client id."""

from __future__ import annotations

from dataclasses import dataclass

from hightide.broker.network.connection import Connection


@dataclass(frozen=True, slots=True)
class Context:
    """The context of one request."""

    connection: Connection
    version: int
    client_id: str | None
