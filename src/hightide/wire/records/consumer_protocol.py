"""What consumers of the classic protocol send each other through the coordinator.

    subscription ── in JoinGroup: what a member subscribes to, and what it owns already
    assignment   ── in SyncGroup: what the leader has given to a member

Both begin with their version.  The coordinator looks into them to know which offsets are still
wanted, and to take over sharing out the work when a group changes to the newer protocol.
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
    """What a member says to its leader."""

    topics: list[str]
    user_data: bytes | None = None
    owned_partitions: list[ConsumerPartitions] = field(since=1, ignorable=True, default=[])
    generation_id: i32 = field(since=2, ignorable=True, default=NO_GENERATION)
    rack_id: str | None = field(since=3, nullable=3, ignorable=True, default=None)


@message(versions=(0, 3))
class ConsumerAssignment:
    """What the leader says to a member."""

    assigned_partitions: list[ConsumerPartitions]
    user_data: bytes | None = None


def version_of(data: Buffer) -> int:
    """The version that the sender knows, or the newest that is known here if that is older."""
    if len(data) < _VERSION.size:
        raise WireError(f"{len(data)} bytes have no version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise WireError(f"there is no version {version}")
    return min(int(version), api_of(ConsumerSubscription).versions[1])


def read(cls: type[T], data: Buffer) -> T:
    """WireError if it is none.  Later versions have more behind what is known."""
    version = version_of(data)
    return decode(cls, memoryview(data)[_VERSION.size :], version, exact=False)


def write(message: Any, version: int) -> bytes:
    out = bytearray(_VERSION.pack(version))
    encode_into(out, message, version)
    return bytes(out)
