"""What a handler may need besides the request: its connection, version, client id and turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hightide.broker.network.connection import Connection
from hightide.broker.network.turn import Turn

_CLIENT_ID_CHARACTERS, _LINE_CHARACTERS, _LINE_NAMES = 100, 500, 50


@dataclass(frozen=True, slots=True)
class Context:
    """The context of one request."""

    connection: Connection
    version: int
    client_id: str | None
    turn: Turn = field(default_factory=Turn)

    @property
    def sender(self) -> str:
        """The sender for log lines: its address and its client id."""
        address = self.connection.client_address or "an unknown address"
        return f"{address} (client id {(self.client_id or '')[:_CLIENT_ID_CHARACTERS]!r})"


def in_one_line(names: Sequence[str]) -> str:
    """Return names that a client has chosen for the log: they forge no line, and fill no disk."""
    text = ", ".join(names[:_LINE_NAMES])
    return repr(text[:_LINE_CHARACTERS])[1:-1]
