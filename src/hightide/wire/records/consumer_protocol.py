"""The data that consumers of the classic protocol exchange through the coordinator.

    subscription ── in JoinGroup: the topics of a member, and the partitions that it owns
    assignment   ── in SyncGroup: the partitions that the leader assigned to a member

Both begin with their version. The coordinator decodes them to know which offsets are still in use,
and to assign partitions itself when a group migrates to the consumer protocol (KIP-848).
"""

from __future__ import annotations

from struct import Struct
from typing import Any, TypeVar

from hightide.wire.codec import decode, encode_into
from hightide.wire.errors import WireError
from hightide.wire.types import Buffer, api_of, field, i32, message, part

_VERSION = Struct(">h")
NO_GENERATION = -1

T = TypeVar("T")


@part
class ConsumerPartitions:
    topic: str
    partitions: list[i32]


@message(versions=(0, 3))
class ConsumerSubscription:
    """The subscription of a member, for the group leader."""

    topics: list[str]
    user_data: bytes | None = None
    owned_partitions: list[ConsumerPartitions] = field(since=1, ignorable=True, default=[])
    generation_id: i32 = field(since=2, ignorable=True, default=NO_GENERATION)
    rack_id: str | None = field(since=3, nullable=3, ignorable=True, default=None)


@message(versions=(0, 3))
class ConsumerAssignment:
    """The assignment of a member, from the group leader."""

    assigned_partitions: list[ConsumerPartitions]
    user_data: bytes | None = None


def version_of(data: Buffer) -> int:
    """Return the version of the data, but at most the newest known version."""
    if len(data) < _VERSION.size:
        raise WireError(f"{len(data)} bytes have no version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise WireError(f"the version is {version}; it must not be negative")
    return min(int(version), api_of(ConsumerSubscription).versions[1])


def read(cls: type[T], data: Buffer) -> T:
    """Decode a subscription or assignment. Newer versions have more fields at the end."""
    version = version_of(data)
    return decode(cls, memoryview(data)[_VERSION.size :], version, exact=False)


def write(message: Any, version: int) -> bytes:
    out = bytearray(_VERSION.pack(version))
    encode_into(out, message, version)
    return bytes(out)
