"""The connections that markers come over, as the leaders of partitions see them.

A marker that comes late, after its transaction was completed, would end the next transaction of the
same producer.  Whoever sends markers and gets no answer replaces the connection, and says so first
on the new one: each has a number that grows.  What still comes over an older one is refused, and so
is what was meant for a former life of this broker.  So when a new lane is open, or this broker is
known to be in another life, nothing is on its way any more that could still be taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hightide.broker.network.connection import Connection
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.markers import OpenMarkerLaneRequest


class _Lane(NamedTuple):
    sender_id: int
    number: tuple[int, int]  # the sender's broker epoch, and its count
    broker_epoch: int


class MarkerFencing:
    """Which of them are the newest."""

    def __init__(self, broker_epoch: Callable[[], int]) -> None:
        self._broker_epoch = broker_epoch
        self._newest: dict[int, tuple[int, int]] = {}
        self._lanes: dict[Connection, _Lane] = {}

    def open(self, connection: Connection, request: OpenMarkerLaneRequest) -> ErrorCode:
        """A broker will send markers over this connection, and over no older one."""
        for each in [each for each in self._lanes if each.is_closed]:
            del self._lanes[each]
        lane = _Lane(
            request.sender_id,
            (request.sender_epoch, request.number),
            request.broker_epoch,
        )
        is_old = lane.number <= self._newest.get(lane.sender_id, (-1, -1))
        if lane.broker_epoch != self._broker_epoch() or is_old:
            return ErrorCode.STALE_BROKER_EPOCH
        self._newest[lane.sender_id] = lane.number
        self._lanes[connection] = lane
        return ErrorCode.NONE

    def admits(self, connection: Connection) -> bool:
        """May markers that come over it be written?  Those of people's tools, which open no lane,
        may."""
        lane = self._lanes.get(connection)
        return lane is None or (
            lane.number == self._newest[lane.sender_id]
            and lane.broker_epoch == self._broker_epoch()
        )
