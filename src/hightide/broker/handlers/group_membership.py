"""JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), DescribeGroups (15),
ListGroups (16), DeleteGroups (42), ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69): groups.

The decisions are made in `core.groups`.  Errors when the group coordinator cannot be asked:
COORDINATOR_NOT_AVAILABLE     __consumer_offsets does not exist, or cannot be read
COORDINATOR_LOAD_IN_PROGRESS  its partition is being read
NOT_COORDINATOR               another broker coordinates the group
INVALID_GROUP_ID              the group id is empty
UNSUPPORTED_VERSION           group.coordinator.rebalance.protocols does not name this kind of group
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from hightide.broker.groups.group_partition import GroupPartition
from hightide.broker.handlers.request_context import Context, in_one_line
from hightide.broker.network.turn import Steps
from hightide.core.groups import responses
from hightide.core.groups.administration import GROUP_ID_NOT_FOUND_VERSION
from hightide.core.groups.turn import Client
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from hightide.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

# From this version of ConsumerGroupHeartbeat on a member chooses its id.
_MEMBER_CHOOSES_ID = 1

_READ, _DELETE, _DESCRIBE = 3, 6, 8
GROUP_OPERATIONS = 1 << _READ | 1 << _DELETE | 1 << _DESCRIBE


def answered(answer: Any) -> Any:
    """Return the response, or a coroutine that waits for it and blocks the connection."""
    return _wait(answer) if isinstance(answer, asyncio.Future) else answer


async def _wait(answer: asyncio.Future[Any]) -> Any:
    return await answer


def client_of(context: Context) -> Client:
    # Kafka writes addresses in the form of Java, with a slash.
    return Client(context.client_id or "", f"/{context.connection.client_address}")


# -- members ---------------------------------------------------------------------------------


def join_group(
    broker: Broker, request: JoinGroupRequest, context: Context
) -> JoinGroupResponse | Coroutine[Any, Any, JoinGroupResponse]:
    def refuse(error: ErrorCode) -> JoinGroupResponse:
        return responses.join_error(error, request.member_id)

    if not request.group_id:
        return refuse(ErrorCode.INVALID_GROUP_ID)
    client, version = client_of(context), context.version

    def ask() -> Any:
        return broker.groups.ask(
            request.group_id,
            lambda coordinator, ticket, now_ms: coordinator.join_asked(
                ticket, request, version, client, now_ms
            ),
            refuse,
        )

    answer: JoinGroupResponse | Coroutine[Any, Any, JoinGroupResponse]
    answer = _matched(broker, request.group_id, None, context, ask)
    return answer


def _matched(
    broker: Broker,
    group_id: str,
    expression: str | None,
    context: Context,
    ask: Callable[[], Any],
) -> Any:
    """Ask the coordinator when the expressions that it needs are matched with all topics."""
    expressions = broker.groups.unmatched(group_id, expression)
    if not expressions:
        return answered(ask())
    return broker.groups.ask_matched(expressions, context.turn.usage, ask)


def sync_group(
    broker: Broker, request: SyncGroupRequest, _context: Context
) -> SyncGroupResponse | Coroutine[Any, Any, SyncGroupResponse]:
    if not request.group_id:
        return responses.sync_error(ErrorCode.INVALID_GROUP_ID)
    answer: SyncGroupResponse | Coroutine[Any, Any, SyncGroupResponse] = answered(
        broker.groups.ask(
            request.group_id,
            lambda coordinator, ticket, now_ms: coordinator.sync_asked(ticket, request, now_ms),
            responses.sync_error,
        )
    )
    return answer


def heartbeat(broker: Broker, request: HeartbeatRequest, _context: Context) -> HeartbeatResponse:
    if not request.group_id:
        return responses.heartbeat_response(ErrorCode.INVALID_GROUP_ID)
    answer: HeartbeatResponse = broker.groups.ask(
        request.group_id,
        lambda coordinator, ticket, now_ms: coordinator.heartbeat_asked(ticket, request, now_ms),
        _no_heartbeat,
    )
    return answer


def _no_heartbeat(error: ErrorCode) -> HeartbeatResponse:
    # While the partition is read, members keep their state.
    is_loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return responses.heartbeat_response(ErrorCode.NONE if is_loading else error)


def leave_group(
    broker: Broker, request: LeaveGroupRequest, context: Context
) -> LeaveGroupResponse | Coroutine[Any, Any, LeaveGroupResponse]:
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    version = context.version
    answer: LeaveGroupResponse | Coroutine[Any, Any, LeaveGroupResponse] = answered(
        broker.groups.ask(
            request.group_id,
            lambda coordinator, ticket, now_ms: coordinator.leave_asked(
                ticket, request, version, now_ms
            ),
            lambda error: LeaveGroupResponse(error_code=error),
            broker.settings.offsets_commit_timeout_ms,
        )
    )
    return answer


def consumer_group_heartbeat(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: Context
) -> ConsumerGroupHeartbeatResponse | Coroutine[Any, Any, ConsumerGroupHeartbeatResponse]:
    if not _serves_consumer_groups(broker):
        return _no_consumer_heartbeat(ErrorCode.UNSUPPORTED_VERSION)
    if not request.group_id:
        return _no_consumer_heartbeat(ErrorCode.INVALID_REQUEST)
    if not request.member_id and context.version >= _MEMBER_CHOOSES_ID:
        return _no_consumer_heartbeat(ErrorCode.INVALID_REQUEST)
    client = client_of(context)

    def ask() -> Any:
        return broker.groups.ask(
            request.group_id,
            lambda coordinator, ticket, now_ms: coordinator.consumer_heartbeat_asked(
                ticket, request, client, now_ms
            ),
            _no_consumer_heartbeat,
            broker.settings.offsets_commit_timeout_ms,
        )

    answer: ConsumerGroupHeartbeatResponse | Coroutine[Any, Any, ConsumerGroupHeartbeatResponse]
    answer = _matched(broker, request.group_id, request.subscribed_topic_regex, context, ask)
    return answer


def _no_consumer_heartbeat(error: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=error.meaning)


def _serves_consumer_groups(broker: Broker) -> bool:
    return "consumer" in broker.settings.group_coordinator_rebalance_protocols


# -- describing ------------------------------------------------------------------------------


def describe_groups(
    broker: Broker, request: DescribeGroupsRequest, context: Context
) -> Steps[DescribeGroupsResponse]:
    groups = []
    for group_id in request.groups:
        yield
        groups.append(_described(broker, group_id, context.version))
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


def _described(broker: Broker, group_id: str, version: int) -> DescribedGroup:
    found = broker.groups.find(group_id)
    if not isinstance(found, ErrorCode):
        return found.coordinator.administration.describe(group_id, version)
    return DescribedGroup(
        error_code=found,
        error_message=found.meaning if version >= GROUP_ID_NOT_FOUND_VERSION else None,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
    )


def consumer_group_describe(
    broker: Broker, request: ConsumerGroupDescribeRequest, _context: Context
) -> Steps[ConsumerGroupDescribeResponse]:
    groups = []
    for group_id in request.group_ids:
        yield
        groups.append(_described_consumers(broker, group_id))
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=groups)


def _described_consumers(broker: Broker, group_id: str) -> DescribedConsumerGroup:
    found = broker.groups.find(group_id)
    if not _serves_consumer_groups(broker):
        found = ErrorCode.UNSUPPORTED_VERSION
    if not isinstance(found, ErrorCode):
        default = broker.settings.group_consumer_assignors[0]
        return found.coordinator.administration.describe_consumers(group_id, default)
    return DescribedConsumerGroup(
        error_code=found,
        error_message=found.meaning,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def list_groups(
    broker: Broker, request: ListGroupsRequest, _context: Context
) -> Steps[ListGroupsResponse]:
    """List the groups that this broker coordinates; a client asks all brokers."""
    groups: list[ListedGroup] = []
    for partition in list(broker.groups):
        yield
        if partition.refusal is not ErrorCode.NONE:
            return ListGroupsResponse(error_code=partition.refusal, groups=[])
        groups += partition.coordinator.administration.listed(request)
    return ListGroupsResponse(groups=groups)


# -- deleting --------------------------------------------------------------------------------


async def delete_groups(
    broker: Broker, request: DeleteGroupsRequest, context: Context
) -> DeleteGroupsResponse:
    results: dict[str, DeletableGroupResult] = {}
    by_partition: dict[GroupPartition, list[str]] = {}
    for group_id in dict.fromkeys(request.groups_names):
        found = broker.groups.find(group_id)
        if isinstance(found, ErrorCode):
            results[group_id] = DeletableGroupResult(group_id=group_id, error_code=found)
        else:
            by_partition.setdefault(found, []).append(group_id)
    timeout_ms = broker.settings.offsets_commit_timeout_ms
    deletions = [_delete(partition, ids, timeout_ms) for partition, ids in by_partition.items()]
    for response in await asyncio.gather(*deletions):
        results.update({result.group_id: result for result in response.results})
        deleted = [result.group_id for result in response.results if not result.error_code]
        if deleted:
            log.info(
                "%d groups deleted, asked by %s: %s",
                *(len(deleted), context.sender, in_one_line(deleted)),
            )
    return DeleteGroupsResponse(
        results=[results[group_id] for group_id in dict.fromkeys(request.groups_names)]
    )


async def _delete(
    partition: GroupPartition, group_ids: list[str], timeout_ms: int
) -> DeleteGroupsResponse:
    def refuse(error: ErrorCode) -> DeleteGroupsResponse:
        results = [DeletableGroupResult(group_id=name, error_code=error) for name in group_ids]
        return DeleteGroupsResponse(results=results)

    request = DeleteGroupsRequest(groups_names=group_ids)
    answer = partition.ask(
        lambda coordinator, ticket, now_ms: coordinator.delete_groups_asked(
            ticket, request, now_ms
        ),
        refuse,
        timeout_ms,
    )
    response: DeleteGroupsResponse = await answer if isinstance(answer, asyncio.Future) else answer
    return response
