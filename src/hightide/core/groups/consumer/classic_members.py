"""Members of a consumer group that use the classic protocol.

    JoinGroup ──▶ handled as a consumer heartbeat ──▶ the member epoch, as the generation
    SyncGroup ──▶ the partitions of the member; the coordinator assigns, there is no leader
    Heartbeat ──▶ REBALANCE_IN_PROGRESS if the member must join again to reconcile

A member that must join again and does not, or that joins and does not send SyncGroup, is removed
after its rebalance timeout.
"""

from __future__ import annotations

from hightide.core.groups.classic.classic_group import CONSUMER, read_subscription
from hightide.core.groups.classic.join_group import MEMBER_ID_REQUIRED_VERSION, JoinAttempt
from hightide.core.groups.classic.leave_group import identities, leave_response
from hightide.core.groups.consumer import heartbeat
from hightide.core.groups.consumer.consumer_group import (
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from hightide.core.groups.consumer.consumer_groups import ConsumerGroups
from hightide.core.groups.consumer.heartbeat import MemberHeartbeat
from hightide.core.groups.deadlines import Deadline, Kind
from hightide.core.groups.migration import assignment_of, can_downgrade
from hightide.core.groups.turn import Ticket, Turn
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    OwnedTopicPartitions,
)
from hightide.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from hightide.wire.records.consumer_offsets import GroupRecord
from hightide.wire.records.consumer_protocol import NO_GENERATION, ConsumerSubscription

# -- joining -------------------------------------------------------------------------------


def join(groups: ConsumerGroups, attempt: JoinAttempt, turn: Turn) -> bool:
    """Handle a JoinGroup to a consumer group with members.

    Return False if the group is a classic one now and must be joined as such: its last member of
    the consumer protocol has come back with the classic one.
    """
    request = attempt.request
    group = groups.groups[request.group_id]
    subscription = read_subscription(request.protocols[0].metadata) if request.protocols else None
    if subscription is None or request.protocol_type != CONSUMER or not _supports(group, attempt):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    instance_id = request.group_instance_id
    if (
        not request.member_id
        and instance_id is None
        and attempt.version >= MEMBER_ID_REQUIRED_VERSION
    ):
        _check_size(group, turn.rules.consumer_max_size)
        raise KafkaError(ErrorCode.MEMBER_ID_REQUIRED)
    known = None if instance_id is None else group.static_member(instance_id)
    is_back = known is not None and not request.member_id
    if known is not None and is_back and can_downgrade(group, [known.id], turn.rules):
        reason = attempt.reason(f"static member {instance_id} came back with the classic protocol")
        groups.remove(group, [known], reason, turn)
        return False
    member, records = _find(group, attempt, turn.rules.consumer_max_size)
    beat = _as_heartbeat(groups, attempt, subscription, member, turn.now_ms)
    after = groups.step(group, beat, member, records, turn, client_reason=request.reason)
    stepped = after.members[member.id]
    turn.deadlines.cancel(Deadline(Kind.MEMBER_JOIN, group.id, member.id))
    at_ms = turn.now_ms + max(1, stepped.rebalance_timeout_ms)
    turn.deadlines.set(Deadline(Kind.MEMBER_SYNC, group.id, member.id), at_ms)
    response = JoinGroupResponse(
        generation_id=stepped.epoch,
        protocol_type=CONSUMER,
        protocol_name=request.protocols[0].name,
        leader="",
        member_id=member.id,
        members=[],
    )
    groups.answer(attempt.ticket, group.id, response, turn)
    return True


def _supports(group: ConsumerGroup, attempt: JoinAttempt) -> bool:
    """Whether all members of the classic protocol support one of these protocols."""
    common = {protocol.name for protocol in attempt.protocols}
    for member in group.members.values():
        if member.classic is not None:
            common &= {protocol.name for protocol in member.classic.protocols}
    return bool(common)


def _find(
    group: ConsumerGroup, attempt: JoinAttempt, max_size: int
) -> tuple[ConsumerMember, list[GroupRecord]]:
    request = attempt.request
    instance_id = request.group_instance_id
    member_id = request.member_id or attempt.new_member_id
    if instance_id is not None:
        known = group.static_member(instance_id)
        if request.member_id:
            return member_of(group, request.member_id, instance_id), []
        if known is not None:
            return heartbeat.replace_static_member(group, known, member_id)
    known = group.members.get(member_id)
    if known is not None:
        return member_of(group, member_id, None), []
    _check_size(group, max_size)
    return ConsumerMember(member_id), []


def _check_size(group: ConsumerGroup, max_size: int) -> None:
    if len(group.members) >= max_size:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)


def _as_heartbeat(
    groups: ConsumerGroups,
    attempt: JoinAttempt,
    subscription: ConsumerSubscription,
    member: ConsumerMember,
    now_ms: int,
) -> MemberHeartbeat:
    """Translate a JoinGroup into a consumer heartbeat."""
    request = attempt.request
    owned = [
        OwnedTopicPartitions(topic_id=groups.topics[topic.topic].id, partitions=topic.partitions)
        for topic in subscription.owned_partitions
        if topic.topic in groups.topics
    ]
    generation = subscription.generation_id
    heartbeat_request = ConsumerGroupHeartbeatRequest(
        group_id=request.group_id,
        member_id=member.id,
        # Old versions carry no generation: their owned partitions count as current.
        member_epoch=member.epoch if generation == NO_GENERATION else generation,
        instance_id=request.group_instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=attempt.rebalance_timeout_ms,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex="",
        topic_partitions=owned,
    )
    classic = ClassicMember(request.session_timeout_ms, attempt.protocols)
    return MemberHeartbeat(
        heartbeat_request, attempt.client, groups.topics, groups.compile_pattern, now_ms, classic
    )


# -- heartbeats ----------------------------------------------------------------------------


def member_of(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Return the member with these ids, which must use the classic protocol."""
    member = group.members.get(member_id)
    if instance_id is not None:
        member = group.static_member(instance_id)
        if member is not None and member.id != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
    if member is None or member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def sync(groups: ConsumerGroups, ticket: Ticket, request: SyncGroupRequest, turn: Turn) -> None:
    group = groups.groups[request.group_id]
    member = member_of(group, request.member_id, request.group_instance_id)
    assert member.classic is not None
    _check_generation(member, request.generation_id)
    protocol = member.classic.protocols[0].name
    for requested, ours in ((request.protocol_type, CONSUMER), (request.protocol_name, protocol)):
        if requested is not None and requested != ours:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
    if group.epoch > member.epoch and not is_revoking:
        _await_join(group, member, turn)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    turn.deadlines.cancel(Deadline(Kind.MEMBER_SYNC, group.id, member.id))
    groups.keep_session(group.id, member, turn)
    response = SyncGroupResponse(
        protocol_type=CONSUMER, protocol_name=protocol, assignment=assignment_of(group, member)
    )
    groups.answer(ticket, group.id, response, turn)


def beat(groups: ConsumerGroups, request: HeartbeatRequest, turn: Turn) -> ErrorCode:
    """Handle a Heartbeat; return its error."""
    group = groups.groups[request.group_id]
    try:
        member = member_of(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
    except KafkaError as error:
        return error.code
    groups.keep_session(group.id, member, turn)
    is_unreleased = member.state is MemberState.UNRELEASED_PARTITIONS
    if (
        member.epoch < group.epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (is_unreleased and not group.is_waiting(member))
    ):
        _await_join(group, member, turn)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _await_join(group: ConsumerGroup, member: ConsumerMember, turn: Turn) -> None:
    deadline = Deadline(Kind.MEMBER_JOIN, group.id, member.id)
    if turn.deadlines.get(deadline) is None:
        turn.deadlines.set(deadline, turn.now_ms + max(1, member.rebalance_timeout_ms))


# -- leaving -------------------------------------------------------------------------------


def leave(
    groups: ConsumerGroups, ticket: Ticket, request: LeaveGroupRequest, version: int, turn: Turn
) -> None:
    """Handle LeaveGroup.  An administrator may remove members of both protocols."""
    group = groups.groups[request.group_id]
    leaving: dict[str, ConsumerMember] = {}
    reasons = []
    results = []
    for identity in identities(request, version):
        result = MemberResponse(
            member_id=identity.member_id, group_instance_id=identity.group_instance_id
        )
        try:
            member = _find_leaving(group, identity)
            if member.id in leaving:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            leaving[member.id] = member
            reasons.append(f"{member.id} ({identity.reason})" if identity.reason else member.id)
        except KafkaError as error:
            result.error_code = error.code
        results.append(result)
    if leaving:
        groups.remove(group, [*leaving.values()], f"left: {', '.join(reasons)}", turn)
    groups.answer(ticket, group.id, leave_response(results, version), turn)


def _find_leaving(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    member = group.members.get(identity.member_id)
    if identity.group_instance_id is not None:
        member = group.static_member(identity.group_instance_id)
        # An administrator names the instance only.
        if member is not None and identity.member_id and identity.member_id != member.id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member
