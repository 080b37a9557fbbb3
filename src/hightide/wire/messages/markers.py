"""A request about transaction markers that Kafka does not have; only brokers send it."""

from __future__ import annotations

from hightide.wire.types import i16, i32, i64, message


@message(key=30004, versions=(0, 0), flexible=0)
class OpenMarkerConnectionRequest:
    """Announce a connection for transaction markers. It fences older ones of the same sender."""

    sender_id: i32
    sender_epoch: i64
    number: i64
    broker_epoch: i64
    """The broker epoch of the receiver."""


@message(key=30004, versions=(0, 0), flexible=0)
class OpenMarkerConnectionResponse:
    """STALE_BROKER_EPOCH if a newer connection is open, or the receiver's broker epoch is old."""

    error_code: i16 = 0
