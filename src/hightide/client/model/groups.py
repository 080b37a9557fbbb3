"""Groups, their members, commits and lag.

Members of the classic protocol encode their assignments themselves, and a broker only passes the
bytes on.  The encoding of consumers is decoded here; others, such as that of Kafka Connect's
workers, are left undecoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct, error

from hightide.client.model.cluster import Extent, Partition

CONSUMER = "consumer"
EMPTY, DEAD = "Empty", "Dead"

_VERSION_AND_COUNT = Struct(">hi")
_TEXT_LENGTH = Struct(">h")
_NUMBER = Struct(">i")


@dataclass(frozen=True, slots=True)
class GroupListing:
    group: str
    type: str
    """Classic or Consumer; empty if the broker does not say."""
    state: str
    protocol: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupsListing:
    groups: list[GroupListing]
    silent: Mapping[int, str]
    """Brokers that did not answer, and why."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[Partition, ...] | None
    """None if it cannot be decoded."""
    target: tuple[Partition, ...] | None = None
    """The target assignment, in the consumer protocol (KIP-848)."""
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Why and when a group last began to rebalance."""

    reason: str
    at_ms: int
    generation: int
    """The generation or epoch that the rebalance ended."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: str
    type: str
    state: str
    coordinator: int
    protocol_type: str
    assignor: str
    generation: int | None
    """The group epoch in the consumer protocol."""
    members: list[GroupMember]
    leader: str | None = None
    since_ms: int | None = None
    """When the group entered its state."""
    last_rebalance: Rebalance | None = None

    def owners(self) -> dict[Partition, GroupMember]:
        """The member that each assigned partition belongs to."""
        return {
            partition: member for member in self.members for partition in member.assignment or ()
        }


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int | None = None
    """None if the cluster does not say."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in a partition; None means unknown."""

    topic: str
    partition: int
    commit: Commit | None
    extent: Extent | None
    oldest_ms: int | None
    """The timestamp of the oldest record that the group has not consumed."""
    owner: GroupMember | None

    @property
    def lag_records(self) -> int | None:
        """How many records are left; those that were deleted unconsumed do not count."""
        if self.commit is None or self.extent is None:
            return None
        begin = max(self.commit.offset, self.extent.start_offset)
        return max(0, self.extent.end_offset - begin)

    def lag_ms(self, now_ms: int) -> int | None:
        """The age of the oldest record that is not consumed.  Clocks may differ."""
        if self.lag_records == 0:
            return 0
        return None if self.oldest_ms is None else max(0, now_ms - self.oldest_ms)


@dataclass(frozen=True, slots=True)
class GroupLag:
    group: GroupDescription
    partitions: list[PartitionLag] = field(default_factory=list)


def unread(
    commits: Mapping[Partition, Commit], extents: Mapping[Partition, Extent]
) -> dict[Partition, int]:
    """The offset of the oldest unconsumed record, for partitions that have one."""
    found = {}
    for partition, commit in commits.items():
        extent = extents.get(partition)
        if extent is not None:
            offset = max(commit.offset, extent.start_offset)
            if offset < extent.end_offset:
                found[partition] = offset
    return found


def lags(
    group: GroupDescription,
    commits: Mapping[Partition, Commit],
    extents: Mapping[Partition, Extent],
    oldest_ms: Mapping[Partition, int],
) -> list[PartitionLag]:
    """The lag in every partition with a commit or an owner."""
    owners = group.owners()
    return [
        PartitionLag(
            *partition,
            commits.get(partition),
            extents.get(partition),
            oldest_ms.get(partition),
            owners.get(partition),
        )
        for partition in sorted({*commits, *owners})
    ]


def assigned(data: bytes) -> tuple[Partition, ...] | None:
    """Decode a consumer's assignment; None if the bytes are not one.

    version 2 | count 4 | (topic, count 4, partition 4 …) … | fields of later versions
    """
    found: list[Partition] = []
    if not data:
        return ()
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(data)
        at = _VERSION_AND_COUNT.size
        if version < 0 or not 0 <= count <= len(data):
            return None
        for _ in range(count):
            (length,) = _TEXT_LENGTH.unpack_from(data, at)
            at += _TEXT_LENGTH.size
            if not 0 <= length <= len(data) - at:
                return None
            topic = str(data[at : at + length], "utf-8")
            at += length
            (indexes,) = _NUMBER.unpack_from(data, at)
            at += _NUMBER.size
            if not 0 <= indexes <= (len(data) - at) // _NUMBER.size:
                return None
            for _ in range(indexes):
                found.append((topic, *_NUMBER.unpack_from(data, at)))
                at += _NUMBER.size
    except (error, UnicodeDecodeError):
        return None
    return tuple(sorted(found))
