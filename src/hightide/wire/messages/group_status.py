"""GroupStatus, which Kafka does not have: state of a group that Kafka's requests do not return.

It has the time of each offset commit, and the reason and time of the last rebalance. ApiVersions
does not list it, since clients do not know it.
"""

from __future__ import annotations

from hightide.wire.types import field, i16, i32, i64, message, part


@message(key=30003, versions=(0, 0), flexible=0)
class GroupStatusRequest:
    """Request the status of groups from their coordinator."""

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
    """The reason of the last rebalance, and the generation that it ended."""

    reason: str
    at_ms: i64
    generation: i32


@part
class GroupStatus:
    """One group; -1 and null mean unknown."""

    group_id: str
    error_code: i16 = 0
    error_message: str | None = None
    generation: i32 = -1
    """The group epoch in the consumer protocol."""
    state_ms: i64 = -1
    """When the group entered its state."""
    leader: str | None = None
    """The group leader, in the classic protocol."""
    last_rebalance: RebalanceStatus | None = None
    topics: list[TopicCommits] = field(default=[])


@message(key=30003, versions=(0, 0), flexible=0)
class GroupStatusResponse:
    """The status of each group."""

    groups: list[GroupStatus]
