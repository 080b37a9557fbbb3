"""GroupStatus (30003): when a group's offsets were committed, and why it last rebalanced.

Kafka has no such request; there, the commit times are only in the log of __consumer_offsets, and
the reasons are nowhere.

GROUP_ID_NOT_FOUND            there is no such group
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE
                              the group coordinator is not here, or not ready
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hightide.broker.handlers.request_context import Context
from hightide.broker.network.turn import Steps
from hightide.core.groups.classic.classic_group import ClassicGroup
from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.offsets import CommittedOffset, TopicPartition
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.group_status import (
    GroupStatus,
    GroupStatusRequest,
    GroupStatusResponse,
    PartitionCommit,
    RebalanceStatus,
    TopicCommits,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker


def group_status(
    broker: Broker, request: GroupStatusRequest, _context: Context
) -> Steps[GroupStatusResponse]:
    groups = []
    for group_id in request.group_ids:
        yield
        groups.append(_status(broker, group_id))
    return GroupStatusResponse(groups=groups)


def _status(broker: Broker, group_id: str) -> GroupStatus:
    found = broker.groups.find(group_id)
    if isinstance(found, ErrorCode):
        return GroupStatus(group_id=group_id, error_code=found, error_message=found.meaning)
    return status(found.coordinator, group_id)


def status(coordinator: GroupCoordinator, group_id: str) -> GroupStatus:
    """Return what the coordinator knows of a group."""
    group = coordinator.administration.find(group_id)
    if group is None:
        return GroupStatus(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"there is no group {group_id}",
        )
    found = GroupStatus(group_id=group_id, topics=_topics(coordinator.offsets.of(group_id)))
    if isinstance(group, ClassicGroup):
        found.generation = group.generation
        found.state_ms = group.state_ms
        found.leader = group.leader
    else:
        found.generation = group.epoch
    last = group.last_rebalance
    if last is not None:
        found.last_rebalance = RebalanceStatus(
            reason=last.reason, at_ms=last.at_ms, generation=last.generation
        )
    return found


def _topics(commits: Mapping[TopicPartition, CommittedOffset]) -> list[TopicCommits]:
    topics: dict[str, TopicCommits] = {}
    for (topic, index), commit in commits.items():
        commits_of_topic = topics.setdefault(topic, TopicCommits(name=topic, partitions=[]))
        commits_of_topic.partitions.append(
            PartitionCommit(
                partition_index=index,
                committed_offset=commit.offset,
                committed_ms=commit.committed_ms,
            )
        )
    return list(topics.values())
