"""What an administrator learns of groups, as plain values, and what of it follows from the rest.

Members of the classic protocol tell each other what they have in words of their own.  Those of
consumers are read here; what others say, Kafka Connect's workers for instance, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct, error

from hightide.client.replicas import Partition

CONSUMER = "consumer"
EMPTY, DEAD = "Empty", "Dead"

_VERSION_AND_COUNT = Struct(">hi")
_TEXT_LENGTH = Struct(">h")
_NUMBER = Struct(">i")


@dataclass(frozen=True, slots=True)
class GroupListing:
    group: str
    type: str
    """Classic or Consumer; empty if the broker does not tell."""
    state: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupsListing:
    groups: list[GroupListing]
    silent: Mapping[int, str]
    """Brokers that could not be asked, and why."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[Partition, ...] | None
    """None if it cannot be read."""
    target: tuple[Partition, ...] | None = None
    """What it shall have, in the newer protocol."""
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Why and when a group last began to share out its work anew."""

    reason: str
    at_ms: int
    generation: int
    """The generation or epoch that it ended."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: str
    type: str
    state: str
    coordinator: int
    protocol_type: str
    assignor: str
    generation: int | None
    """The group epoch in the newer protocol."""
    members: list[GroupMember]
    leader: str | None = None
    since_ms: int | None = None
    """Since when it is in its state."""
    last_rebalance: Rebalance | None = None

    def owners(self) -> dict[Partition, GroupMember]:
        return {each: member for member in self.members for each in member.assignment or ()}


@dataclass(frozen=True, slots=True)
class Commit:
    """How far a group has come in a partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int | None = None
    """None if the cluster does not tell."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a partition begins and ends."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in a partition; None is not known."""

    topic: str
    partition: int
    commit: Commit | None
    extent: Extent | None
    oldest_ms: int | None
    """When the oldest record was made that the group has not consumed."""
    owner: GroupMember | None

    @property
    def lag_records(self) -> int | None:
        """Records that were deleted before they were consumed do not count."""
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
    """Where the oldest record is to be looked for, of partitions that have one to consume."""
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
    """A group's partitions: those that it has committed in, and those that members have."""
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
    """The partitions in a consumer's assignment; None if this is not one.

    version 2 | count 4 | (topic, count 4, partition 4 …) … | what later versions have added
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


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Partitions as requests name them."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics
