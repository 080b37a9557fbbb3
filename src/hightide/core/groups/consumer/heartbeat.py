"""ConsumerGroupHeartbeat: joining, leaving and reconciling, in one request.

    request ──▶ member changed? ──▶ group epoch grows ──▶ new target ──▶ member reconciles

All of it is decided in one turn, as records.  Epochs fence: a member in another epoch than the
coordinator's must give up its partitions and join again, unless it only missed the last response.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from hightide.core.groups.consumer.assignors import ASSIGNORS, Assignment, Subscriber
from hightide.core.groups.consumer.consumer_group import (
    NO_PARTITIONS,
    STATIC_LEAVE,
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Topic,
    assignment_epoch_record,
    by_topic,
    epoch_record,
    expression_record,
    member_tombstones,
    target_record,
    topics_record,
)
from hightide.core.groups.consumer.reconciliation import reconciled
from hightide.core.groups.consumer.topic_pattern import PatternCompiler
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.turn import Client
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    OwnedTopicPartitions,
)
from hightide.wire.records.consumer_offsets import GroupRecord

JOIN = 0
LEAVE = -1


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """A heartbeat, with what it is decided upon."""

    request: ConsumerGroupHeartbeatRequest
    client: Client
    topics: Mapping[str, Topic]
    """All topics of the cluster."""
    compile_pattern: PatternCompiler
    now_ms: int
    classic: ClassicMember | None = None
    """Set if the heartbeat was a JoinGroup."""

    @property
    def owned(self) -> Assignment | None:
        owned = self.request.topic_partitions
        if owned is None:
            return None
        return frozenset((topic.topic_id, index) for topic in owned for index in topic.partitions)

    @property
    def is_full(self) -> bool:
        """Whether the request has all fields: the member joins, or has missed a response."""
        request = self.request
        subscribes = request.subscribed_topic_names, request.subscribed_topic_regex
        return request.member_epoch == JOIN or (
            request.rebalance_timeout_ms != -1
            and any(subscription is not None for subscription in subscribes)
            and request.topic_partitions is not None
        )


def check_request(
    request: ConsumerGroupHeartbeatRequest,
    assignors: tuple[str, ...],
    compile_pattern: PatternCompiler,
) -> None:
    """Raise the error of a request that no group can accept.

    INVALID_REQUEST, UNSUPPORTED_ASSIGNOR or INVALID_REGULAR_EXPRESSION.
    """
    epoch = request.member_epoch
    problem = None
    if not request.group_id:
        problem = "GroupId must not be empty"
    elif request.instance_id == "" or request.rack_id == "":
        problem = "InstanceId and RackId must not be empty strings"
    elif epoch < STATIC_LEAVE:
        problem = f"MemberEpoch is {epoch}, but must be at least {STATIC_LEAVE}"
    elif epoch != JOIN and not request.member_id:
        problem = "MemberId must be set, except to join"
    elif epoch == STATIC_LEAVE and request.instance_id is None:
        problem = f"MemberEpoch {STATIC_LEAVE} is for static members, but InstanceId is not set"
    elif epoch == JOIN:
        if request.rebalance_timeout_ms == -1:
            problem = "RebalanceTimeoutMs must be set to join"
        elif request.topic_partitions is None or request.topic_partitions:
            problem = "TopicPartitions must be empty to join"
        elif not request.subscribed_topic_names and not request.subscribed_topic_regex:
            problem = "SubscribedTopicNames or SubscribedTopicRegex must be set to join"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        detail = f"assignor {request.server_assignor} is not supported, only {known}"
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, detail)
    if request.subscribed_topic_regex:
        compile_pattern(request.subscribed_topic_regex)


# -- the member ----------------------------------------------------------------------------


def find_member(
    group: ConsumerGroup, beat: MemberHeartbeat, member_id: str, max_size: int
) -> tuple[ConsumerMember, list[GroupRecord]]:
    """Return the member before this heartbeat, and the records that replace a static member."""
    request = beat.request
    joins = request.member_epoch == JOIN
    known: ConsumerMember | None = group.members.get(member_id)
    if request.instance_id is not None:
        known = group.static_member(request.instance_id)
        if known is not None and not joins and known.id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"instance {request.instance_id} is member {known.id} now",
            )
        # A member that joins a second time has only missed the response.
        is_another = known is not None and (known.id != member_id or known.epoch == STATIC_LEAVE)
        if known is not None and joins and is_another:
            # Members of the classic protocol do not announce a restart.
            if known.epoch != STATIC_LEAVE and known.classic is None:
                raise KafkaError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"instance {known.instance_id} is member {known.id}, which has not left",
                )
            return replace_static_member(group, known, member_id)
    if known is None:
        if not joins:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of group {group.id}"
            )
        if len(group.members) >= max_size:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return ConsumerMember(member_id), []
    _check_epoch(known, request.member_epoch, beat.owned)
    return known, []


def replace_static_member(
    group: ConsumerGroup, known: ConsumerMember, member_id: str
) -> tuple[ConsumerMember, list[GroupRecord]]:
    """Give a static member that has restarted a new member id."""
    member = replace(known, id=member_id, epoch=0, previous_epoch=0)
    records = [] if known.id == member_id else member_tombstones(group.id, known.id)
    records += [
        member.metadata(group.id),
        target_record(group.id, member_id, group.target.get(known.id, NO_PARTITIONS)),
        member.current(group.id),
    ]
    return member, records


def _check_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    if epoch == member.epoch:
        return
    has_missed_answer = (
        epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    )
    if epoch > member.epoch or not has_missed_answer:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"{member.id} is in epoch {member.epoch}, not {epoch}, and must join again",
        )


# -- decisions -----------------------------------------------------------------------------


def decide(
    group: ConsumerGroup,
    beat: MemberHeartbeat,
    member: ConsumerMember,
    rules: Rules,
    *,
    topics_may_differ: bool,
) -> list[GroupRecord]:
    """Return the records that follow from a heartbeat, after those of `find_member`."""
    updated = _updated(member, beat)
    records = []
    is_new = member.id not in group.members
    if updated != member or is_new:
        records.append(updated.metadata(group.id))
    subscription = (member.topic_names, member.topic_regex)
    has_changed = is_new or subscription != (updated.topic_names, updated.topic_regex)
    is_settled = updated.state is MemberState.STABLE and updated.epoch == group.epoch
    if is_settled and not has_changed and not topics_may_differ:
        return records  # The case of nearly every heartbeat.
    group = replace(group, members={**group.members, member.id: updated})
    if has_changed or topics_may_differ:
        records += _refresh(
            group,
            beat.topics,
            beat.compile_pattern,
            beat.now_ms,
            must_grow=has_changed,
            may_differ=topics_may_differ,
        )
        group = _with_records(group, records)
    if group.epoch > group.assignment_epoch:
        records += _new_target(group, rules)
        group = _with_records(group, records)
    stepped = reconciled(
        updated,
        group.target.get(updated.id, NO_PARTITIONS),
        group.assignment_epoch,
        group.owners(),
        # A report of an earlier epoch may be stale, and proves no revocation.
        beat.owned if beat.request.member_epoch == updated.epoch else None,
    )
    if stepped != updated or is_new:
        records.append(stepped.current(group.id))
    return records


def _updated(member: ConsumerMember, beat: MemberHeartbeat) -> ConsumerMember:
    request = beat.request
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    instance_id, rack_id = request.instance_id, request.rack_id
    return replace(
        member,
        instance_id=member.instance_id if instance_id is None else instance_id,
        rack_id=member.rack_id if rack_id is None else rack_id,
        client_id=beat.client.id,
        client_host=beat.client.host,
        topic_names=member.topic_names if names is None else tuple(sorted({*names})),
        # An empty expression removes the previous one.
        topic_regex=member.topic_regex if regex is None else regex or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        classic=beat.classic,
    )


def subscribed(
    member: ConsumerMember, topics: Mapping[str, Topic], expressions: Mapping[str, frozenset[str]]
) -> dict[str, Topic]:
    """Return the existing topics that a member subscribes to."""
    names = {*member.topic_names, *expressions.get(member.topic_regex or "", ())}
    return {name: topics[name] for name in names if name in topics}


def _resolve_patterns(
    group: ConsumerGroup,
    topics: Iterable[str],
    compile_pattern: PatternCompiler,
    *,
    may_differ: bool,
) -> dict[str, frozenset[str]]:
    """Return the topics that the regular expressions of the members match."""
    found = {}
    for member in group.members.values():
        expression = member.topic_regex
        if expression is None or expression in found:
            continue
        known = group.expressions.get(expression)
        if known is not None and not may_differ:
            found[expression] = known
            continue
        try:
            found[expression] = frozenset(filter(compile_pattern(expression).matches, topics))
        except KafkaError:
            # Another broker wrote it to the log, and could compile it.
            found[expression] = known or frozenset()
    return found


def _refresh(
    group: ConsumerGroup,
    topics: Mapping[str, Topic],
    compile_pattern: PatternCompiler,
    now_ms: int,
    *,
    must_grow: bool,
    may_differ: bool,
) -> list[GroupRecord]:
    """Return the records of changed topics; the group epoch grows with them, or if it must."""
    known = group.expressions
    expressions = _resolve_patterns(group, topics, compile_pattern, may_differ=may_differ)
    records = [
        expression_record(group.id, expression, expressions.get(expression), now_ms)
        for expression in sorted(known.keys() | expressions.keys())
        if known.get(expression) != expressions.get(expression)
    ]
    resolved: dict[str, Topic] = {}
    for member in group.members.values():
        resolved |= subscribed(member, topics, expressions)
    if resolved != group.topics:
        records.append(topics_record(group.id, resolved))
    if must_grow or records:
        records.append(epoch_record(group.id, group.epoch + 1))
    return records


def _new_target(group: ConsumerGroup, rules: Rules) -> list[GroupRecord]:
    """Return the records of a new target assignment, and its epoch."""
    subscribers = {
        member.id: Subscriber(
            (member.instance_id or "", member.id),
            frozenset(
                topic.id for topic in subscribed(member, group.topics, group.expressions).values()
            ),
            group.target.get(member.id, NO_PARTITIONS),
        )
        for member in group.members.values()
    }
    counts = {topic.id: topic.partition_count for topic in group.topics.values()}
    assign = ASSIGNORS[group.preferred_assignor(rules.consumer_assignors[0])]
    target = assign(subscribers, counts)
    changed = [
        target_record(group.id, member_id, assignment)
        for member_id, assignment in target.items()
        if group.target.get(member_id) != assignment
    ]
    return [*changed, assignment_epoch_record(group.id, group.epoch)]


def reason(group: ConsumerGroup, before: ConsumerMember, beat: MemberHeartbeat) -> str:
    """Return why the group rebalances, if it does."""
    if before.id not in group.members and not before.topic_names and not before.topic_regex:
        return f"{before.id} joined"
    after = _updated(before, beat)
    if (before.topic_names, before.topic_regex) != (after.topic_names, after.topic_regex):
        return f"{before.id} changed its subscription"
    return "the topics changed"


def members_left(
    group: ConsumerGroup,
    leaving: Collection[str],
    topics: Mapping[str, Topic],
    compile_pattern: PatternCompiler,
    now_ms: int,
) -> list[GroupRecord]:
    """Return the records that remove members.

    The others get their new assignments with their next heartbeats.
    """
    rest = {key: member for key, member in group.members.items() if key not in leaving}
    remaining = replace(group, members=rest)
    records = [record for member_id in leaving for record in member_tombstones(group.id, member_id)]
    # Resolving the regular expressions can wait for the next heartbeat.
    return records + _refresh(
        remaining, topics, compile_pattern, now_ms, must_grow=True, may_differ=False
    )


def static_member_left(group: ConsumerGroup, member: ConsumerMember) -> list[GroupRecord]:
    """Return the record of a static member that restarts.

    It keeps its partitions, except those that it had to revoke.
    """
    is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
    state = MemberState.STABLE if is_revoking else member.state
    away = replace(member, epoch=STATIC_LEAVE, state=state, revoking=NO_PARTITIONS)
    return [away.current(group.id)]


def heartbeat_response(
    before: ConsumerMember, after: ConsumerMember, beat: MemberHeartbeat, interval_ms: int
) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if beat.is_full or before.assigned != after.assigned:
        partitions = [
            OwnedTopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
            for topic in by_topic(after.assigned)
        ]
        assignment = HeartbeatAssignment(topic_partitions=partitions)
    return ConsumerGroupHeartbeatResponse(
        member_id=after.id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=assignment,
    )


def _with_records(group: ConsumerGroup, records: list[GroupRecord]) -> ConsumerGroup:
    found = group.with_records(records)
    assert found is not None
    return found
