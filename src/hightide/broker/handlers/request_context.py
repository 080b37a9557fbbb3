"""Who asks: what a handler may want to know besides the request."""

from __future__ import annotations

from dataclasses import dataclass

from hightide.broker.network.connection import Connection


@dataclass(frozen=True, slots=True)
class Context:
    """The circumstances of one request."""

    connection: Connection
    version: int
    client_id: str | None
