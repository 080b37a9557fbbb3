"""Fences late transaction markers, on the side of the broker that receives them.

A marker that arrives after its transaction was completed would end the producer's next transaction.
So a sender that gets no response replaces its connection, and announces the new one first: each
connection has a higher number.  The receiver refuses markers over an older connection of the
sender, and markers for an earlier broker epoch of its own.  Once the receiver has confirmed a
connection, or has another broker epoch, it writes no marker that was sent before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hightide.broker.network.connection import Connection
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.markers import OpenMarkerConnectionRequest


class _MarkerConnection(NamedTuple):
    sender_id: int
    number: tuple[int, int]  # the sender's broker epoch, and its count
    broker_epoch: int


class MarkerFencing:
    """The newest connection of each sender."""

    def __init__(self, broker_epoch: Callable[[], int]) -> None:
        self._broker_epoch = broker_epoch
        self._newest: dict[int, tuple[int, int]] = {}
        self._connections: dict[Connection, _MarkerConnection] = {}

    def open(self, connection: Connection, request: OpenMarkerConnectionRequest) -> ErrorCode:
        """Make this the only connection over which the sender may send markers."""
        for closed in [known for known in self._connections if known.is_closed]:
            del self._connections[closed]
        opened = _MarkerConnection(
            request.sender_id,
            (request.sender_epoch, request.number),
            request.broker_epoch,
        )
        is_old = opened.number <= self._newest.get(opened.sender_id, (-1, -1))
        if opened.broker_epoch != self._broker_epoch() or is_old:
            return ErrorCode.STALE_BROKER_EPOCH
        self._newest[opened.sender_id] = opened.number
        self._connections[connection] = opened
        return ErrorCode.NONE

    def admits(self, connection: Connection) -> bool:
        """Whether markers over this connection may be written.

        Administration tools do not announce their connections; their markers are accepted.
        """
        opened = self._connections.get(connection)
        return opened is None or (
            opened.number == self._newest[opened.sender_id]
            and opened.broker_epoch == self._broker_epoch()
        )
