"""A request about transaction markers that Kafka does not have; brokers send it to each other."""

from __future__ import annotations

from hightide.wire.types import i16, i32, i64, message


@message(key=30004, versions=(0, 0), flexible=0)
class OpenMarkerConnectionRequest:
    """Markers will come over this connection, and over no older one of the same sender."""

    sender_id: i32
    sender_epoch: i64
    number: i64
    broker_epoch: i64
    """Whom it is meant for: the life of the broker that is asked."""


@message(key=30004, versions=(0, 0), flexible=0)
class OpenMarkerConnectionResponse:
    """STALE_BROKER_EPOCH if a newer one is open, or a former life of the broker was meant."""

    error_code: i16 = 0
