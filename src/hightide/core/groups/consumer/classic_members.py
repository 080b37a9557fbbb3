"""Members of a consumer group that speak the classic protocol.

    JoinGroup ──▶ what a heartbeat says, and the step that follows ──▶ the member's epoch, which it
                                                                       takes for a generation
    SyncGroup ──▶ what the member has; there is no leader, the coordinator has shared out the work
    Heartbeat ──▶ REBALANCE_IN_PROGRESS if there is something to fetch with another JoinGroup

Whoever is told to join again, or has joined and does not ask for its assignment, is out after its
rebalance timeout.
"""

from __future__ import annotations

from hightide.core.groups.classic.join_group import MEMBER_ID_REQUIRED, Join
from hightide.core.groups.classic.leave_group import identities, left
from hightide.core.groups.classic.subscription import CONSUMER, whole_subscription
from hightide.core.groups.consumer import heartbeat
from hightide.core.groups.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    SpeaksClassic,
)
from hightide.core.groups.consumer.consumer_groups import ConsumerGroups
from hightide.core.groups.consumer.heartbeat import Beat
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


def join(groups: ConsumerGroups, asked: Join, turn: Turn) -> bool:
    """A JoinGroup to a consumer group that has members.

    False if the group is a classic one now, and has to be joined as such: the last member of the
    newer protocol comes back speaking the classic one.
    """
    request = asked.request
    group = groups.groups[request.group_id]
    said = whole_subscription(request.protocols[0].metadata) if request.protocols else None
    if said is None or request.protocol_type != CONSUMER or not _supports(group, asked):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    instance_id = request.group_instance_id
    if not request.member_id and instance_id is None and asked.version >= MEMBER_ID_REQUIRED:
        _check_size(group, turn.rules.consumer_max_size)
        raise KafkaError(ErrorCode.MEMBER_ID_REQUIRED)
    known = None if instance_id is None else group.static_member(instance_id)
    is_back = known is not None and not request.member_id
    if known is not None and is_back and can_downgrade(group, [known.id], turn.rules):
        why = asked.why(f"static member {instance_id} came back with the classic protocol")
        groups.remove(group, [known], why, turn)
        return False
    member, records = _find(group, asked, turn.rules.consumer_max_size)
    beat = _as_beat(groups, asked, said, member, turn.now_ms)
    after = groups.step(group, beat, member, records, turn, said_why=request.reason)
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
    groups.answer(asked.ticket, group.id, response, turn)
    return True


def _supports(group: ConsumerGroup, asked: Join) -> bool:
    """Whether all who speak the classic protocol have one of these in common."""
    common = {each.name for each in asked.protocols}
    for member in group.members.values():
        if member.classic is not None:
            common &= {each.name for each in member.classic.protocols}
    return bool(common)


def _find(
    group: ConsumerGroup, asked: Join, max_size: int
) -> tuple[ConsumerMember, list[GroupRecord]]:
    request = asked.request
    instance_id = request.group_instance_id
    member_id = request.member_id or asked.new_member_id
    if instance_id is not None:
        known = group.static_member(instance_id)
        if request.member_id:
            return member_of(group, request.member_id, instance_id), []
        if known is not None:
            return heartbeat.replaced(group, known, member_id)
    known = group.members.get(member_id)
    if known is not None:
        return member_of(group, member_id, None), []
    _check_size(group, max_size)
    return ConsumerMember(member_id), []


def _check_size(group: ConsumerGroup, max_size: int) -> None:
    if len(group.members) >= max_size:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)


def _as_beat(
    groups: ConsumerGroups,
    asked: Join,
    said: ConsumerSubscription,
    member: ConsumerMember,
    now_ms: int,
) -> Beat:
    """What it says, in the words of the newer protocol."""
    request = asked.request
    owned = [
        OwnedTopicPartitions(topic_id=groups.topics[each.topic].id, partitions=each.partitions)
        for each in said.owned_partitions
        if each.topic in groups.topics
    ]
    generation = said.generation_id
    words = ConsumerGroupHeartbeatRequest(
        group_id=request.group_id,
        member_id=member.id,
        # Old versions do not tell the generation: what they say of it is said now.
        member_epoch=member.epoch if generation == NO_GENERATION else generation,
        instance_id=request.group_instance_id,
        rack_id=said.rack_id,
        rebalance_timeout_ms=asked.rebalance_timeout_ms,
        subscribed_topic_names=said.topics,
        subscribed_topic_regex="",
        topic_partitions=owned,
    )
    classic = SpeaksClassic(request.session_timeout_ms, asked.protocols)
    return Beat(words, asked.client, groups.topics, groups.compile_pattern, now_ms, classic)


# -- being a member ------------------------------------------------------------------------


def member_of(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """The member that says that it is this one, and speaks the classic protocol."""
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
    for asked, ours in ((request.protocol_type, CONSUMER), (request.protocol_name, protocol)):
        if asked is not None and asked != ours:
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
    """What a Heartbeat is told."""
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
    """Of whichever protocol: an administrator takes out members of both."""
    group = groups.groups[request.group_id]
    leaving: dict[str, ConsumerMember] = {}
    reasons = []
    results = []
    for each in identities(request, version):
        result = MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id)
        try:
            member = _leaving(group, each)
            if member.id in leaving:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            leaving[member.id] = member
            reasons.append(f"{member.id} ({each.reason})" if each.reason else member.id)
        except KafkaError as error:
            result.error_code = error.code
        results.append(result)
    if leaving:
        groups.remove(group, [*leaving.values()], f"left: {', '.join(reasons)}", turn)
    groups.answer(ticket, group.id, left(results, version), turn)


def _leaving(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    member = group.members.get(identity.member_id)
    if identity.group_instance_id is not None:
        member = group.static_member(identity.group_instance_id)
        # An administrator knows instances only.
        if member is not None and identity.member_id and identity.member_id != member.id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member
