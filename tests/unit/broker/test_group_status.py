"""GroupStatus: what a coordinator knows about a group beyond Kafka's own requests."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

from hightide.broker.groups.re2_patterns import compile_pattern
from hightide.broker.handlers.group_status import group_status
from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.turn import Client
from hightide.wire.codec import decode, encode
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.group_status import GroupStatusRequest, GroupStatusResponse
from hightide.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support.steps import all_steps


def new_coordinator():
    made = GroupCoordinator(Rules(), Random(1), compile_pattern)
    made.loaded(1000)
    return made


def statuses(coordinator, *groups):
    broker = SimpleNamespace(
        groups=SimpleNamespace(
            find=lambda group_id: (
                ErrorCode.NOT_COORDINATOR
                if group_id == "elsewhere"
                else SimpleNamespace(coordinator=coordinator)
            )
        )
    )
    request = GroupStatusRequest(group_ids=list(groups))
    answer = all_steps(group_status(cast(Any, broker), request, cast(Any, None)))
    # The response must also survive encoding.
    assert decode(GroupStatusResponse, encode(answer, 0), 0) == answer
    return answer.groups


def commit(coordinator, group_id, offset, now_ms):
    partition = OffsetCommitRequestPartition(
        partition_index=3, committed_offset=offset, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=group_id,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="orders", partitions=[partition])],
    )
    outcome = coordinator.commit_asked(1, request, 8, now_ms)
    for write in outcome.writes:
        coordinator.written(write, 0, now_ms)


def test_commits_are_returned_with_their_times():
    coordinator = new_coordinator()
    commit(coordinator, "g", 40, 5000)
    (found,) = statuses(coordinator, "g")
    assert found.error_code == 0
    (topic,) = found.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == ("orders", 3)
    assert (partition.committed_offset, partition.committed_ms) == (40, 5000)
    assert (found.last_rebalance, found.leader) == (None, None)


def test_the_reason_of_the_last_rebalance_is_returned():
    coordinator = new_coordinator()
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    coordinator.join_asked(1, request, 3, Client("c", "/h"), 2000)
    (found,) = statuses(coordinator, "g")
    assert found.last_rebalance.at_ms == 2000
    assert found.last_rebalance.reason.startswith("c-")
    assert found.leader.startswith("c-")


def test_groups_that_are_not_here_get_their_own_errors():
    missing, elsewhere = statuses(new_coordinator(), "none", "elsewhere")
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert elsewhere.error_code == ErrorCode.NOT_COORDINATOR
