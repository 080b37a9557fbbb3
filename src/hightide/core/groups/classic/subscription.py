"""What a consumer's own part of the classic protocol says: the topics it subscribes to.

    version 2 | count 4 | topic … | user data | what later versions have added

To know which offsets are still wanted, the part is read that all versions begin with.  More is
needed of members of a group that changes to the newer protocol, or has.
"""

from __future__ import annotations

from struct import Struct, error

from hightide.wire.errors import WireError
from hightide.wire.records.consumer_protocol import ConsumerSubscription, read

CONSUMER = "consumer"

_VERSION_AND_COUNT = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics; None if this is not what a consumer sends."""
    topics = set()
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            return None
        at = _VERSION_AND_COUNT.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, at)
            at += _LENGTH.size
            if not 0 <= length <= len(metadata) - at:
                return None
            topics.add(str(metadata[at : at + length], "utf-8"))
            at += length
    except (error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def whole_subscription(metadata: bytes) -> ConsumerSubscription | None:
    """All that a consumer says about itself; None if this is not what a consumer sends."""
    try:
        return read(ConsumerSubscription, metadata)
    except WireError:
        return None
