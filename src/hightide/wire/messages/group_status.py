"""GroupStatus is ours: what a group's coordinator knows and Kafka's requests do not ask for.

When each offset was committed, and why and when the group last shared out its work anew.
ApiVersions does not tell it, since a client need not know what to make of it.
"""

from __future__ import annotations

from hightide.wire.types import field, i16, i32, i64, message, part


@message(key=30003, versions=(0, 0), flexible=0)
class GroupStatusRequest:
    """Asks the coordinator of these groups about them."""

    group_ids: list[str]


@part
class PartitionCommit:
    partition_index: i32
    committed_offset: i64
    committed_ms: i64


@part
class TopicCommits:
    name: str
    partitions: list[PartitionCommit]


@part
class RebalanceStatus:
    """Why a group last began to share out its work anew, and the generation that ended by it."""

    reason: str
    at_ms: i64
    generation: i32


@part
class GroupStatus:
    """One group; -1 and null are not known."""

    group_id: str
    error_code: i16 = 0
    error_message: str | None = None
    generation: i32 = -1
    """The group epoch in the newer protocol."""
    state_ms: i64 = -1
    """Since when it is in its state."""
    leader: str | None = None
    """The member that shares out the work, if one does."""
    last_rebalance: RebalanceStatus | None = None
    topics: list[TopicCommits] = field(default=[])


@message(key=30003, versions=(0, 0), flexible=0)
class GroupStatusResponse:
    """What is known of each group."""

    groups: list[GroupStatus]
