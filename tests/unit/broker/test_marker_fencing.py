"""Marker connections, as the broker that receives markers sees them."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hightide.broker.transactions.marker_fencing import MarkerFencing
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.markers import OpenMarkerConnectionRequest


def request(
    number: int, *, sender_epoch: int = 5, broker_epoch: int = 9
) -> OpenMarkerConnectionRequest:
    return OpenMarkerConnectionRequest(
        sender_id=2, sender_epoch=sender_epoch, number=number, broker_epoch=broker_epoch
    )


def connection() -> Any:
    class Hashed(SimpleNamespace):
        __hash__ = object.__hash__  # type: ignore[assignment]

    return Hashed(is_closed=False)


def test_only_the_newest_connection_of_a_sender_brings_markers():
    fencing, old, new, tool = (
        MarkerFencing(lambda: 9),
        connection(),
        connection(),
        connection(),
    )
    assert fencing.open(old, request(1)) == ErrorCode.NONE
    assert fencing.admits(old)
    assert fencing.open(new, request(2)) == ErrorCode.NONE
    assert not fencing.admits(old)
    assert fencing.admits(new)
    assert fencing.admits(tool)
    # An announcement that arrives late is one of an old connection too.
    assert fencing.open(connection(), request(1)) == ErrorCode.STALE_BROKER_EPOCH
    assert fencing.open(connection(), request(1, sender_epoch=6)) == ErrorCode.NONE
    assert not fencing.admits(new)


def test_markers_for_an_earlier_broker_epoch_are_refused():
    epoch = [9]
    fencing, one = MarkerFencing(lambda: epoch[0]), connection()
    assert fencing.open(one, request(1, broker_epoch=8)) == ErrorCode.STALE_BROKER_EPOCH
    assert fencing.open(one, request(1)) == ErrorCode.NONE
    epoch[0] = 10
    assert not fencing.admits(one)


def test_closed_connections_are_forgotten():
    fencing, connections = MarkerFencing(lambda: 9), [connection() for _ in range(4)]
    for number, opened in enumerate(connections, 1):
        assert fencing.open(opened, request(number)) == ErrorCode.NONE
    for before, after in pairwise(connections):
        assert not fencing.admits(before)
        before.is_closed = True
        assert after.is_closed is False
    assert fencing.open(connection(), request(5)) == ErrorCode.NONE
    assert len(fencing._connections) == 2
