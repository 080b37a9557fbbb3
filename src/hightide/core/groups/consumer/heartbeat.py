"""ConsumerGroupHeartbeat: joining, leaving, and everything between, in one request.

    what the member says ──▶ member changed? ──▶ group epoch grows ──▶ new target ──▶ member's step

All of it is decided at once and comes out as records.  Epochs fence: a member that is not in the
epoch in which the coordinator has it must give up what it has and join anew, unless it only missed
the last answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from hightide.core.groups.consumer.assignors import ASSIGNORS, Share, Subscriber
from hightide.core.groups.consumer.consumer_group import (
    LEFT_FOR_NOW,
    NOTHING,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    SpeaksClassic,
    Topic,
    assignment_epoch_record,
    by_topic,
    epoch_record,
    expression_record,
    gone,
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
class Beat:
    """A heartbeat, with what the shell knows."""

    request: ConsumerGroupHeartbeatRequest
    client: Client
    topics: Mapping[str, Topic]
    """All topics of the cluster."""
    compile_pattern: PatternCompiler
    now_ms: int
    classic: SpeaksClassic | None = None
    """Set if this was said in a JoinGroup."""

    @property
    def owned(self) -> Share | None:
        owned = self.request.topic_partitions
        if owned is None:
            return None
        return frozenset((each.topic_id, index) for each in owned for index in each.partitions)

    @property
    def is_full(self) -> bool:
        """Whether the member tells everything, since it has joined or has missed something."""
        request = self.request
        subscribes = request.subscribed_topic_names, request.subscribed_topic_regex
        return request.member_epoch == JOIN or (
            request.rebalance_timeout_ms != -1
            and any(each is not None for each in subscribes)
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
        problem = "a group needs an id"
    elif request.instance_id == "" or request.rack_id == "":
        problem = "an instance or rack that is given has a name"
    elif epoch < LEFT_FOR_NOW:
        problem = f"there is no member epoch {epoch}"
    elif epoch != JOIN and not request.member_id:
        problem = "a member that has joined has an id"
    elif epoch == LEFT_FOR_NOW and request.instance_id is None:
        problem = "only a static member leaves for a while"
    elif epoch == JOIN:
        if request.rebalance_timeout_ms == -1:
            problem = "who joins says how long a rebalance may take"
        elif request.topic_partitions is None or request.topic_partitions:
            problem = "who joins owns nothing yet, and says so"
        elif not request.subscribed_topic_names and not request.subscribed_topic_regex:
            problem = "who joins says what it subscribes to"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        detail = f"{request.server_assignor} is none of the assignors: {known}"
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, detail)
    if request.subscribed_topic_regex:
        compile_pattern(request.subscribed_topic_regex)


# -- who is it -----------------------------------------------------------------------------


def find(
    group: ConsumerGroup, beat: Beat, member_id: str, max_size: int
) -> tuple[ConsumerMember, list[GroupRecord]]:
    """The member as it was, new or not, and the records that give a static one its new id."""
    request = beat.request
    joins = request.member_epoch == JOIN
    known: ConsumerMember | None = group.members.get(member_id)
    if request.instance_id is not None:
        known = group.static_member(request.instance_id)
        if known is not None and not joins and known.id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"instance {request.instance_id} belongs to member {known.id} now",
            )
        # One that asks again to join has only missed the answer.
        is_another = known is not None and (known.id != member_id or known.epoch == LEFT_FOR_NOW)
        if known is not None and joins and is_another:
            # Members of the classic protocol do not say that they restart.
            if known.epoch != LEFT_FOR_NOW and known.classic is None:
                raise KafkaError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"instance {known.instance_id} is member {known.id}, which has not left",
                )
            return replaced(group, known, member_id)
    if known is None:
        if not joins:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member")
        if len(group.members) >= max_size:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return ConsumerMember(member_id), []
    _check_epoch(known, request.member_epoch, beat.owned)
    return known, []


def replaced(
    group: ConsumerGroup, known: ConsumerMember, member_id: str
) -> tuple[ConsumerMember, list[GroupRecord]]:
    """A static member is back: it takes over from itself."""
    member = replace(known, id=member_id, epoch=0, previous_epoch=0)
    records = [] if known.id == member_id else gone(group.id, known.id)
    records += [
        member.metadata(group.id),
        target_record(group.id, member_id, group.target.get(known.id, NOTHING)),
        member.current(group.id),
    ]
    return member, records


def _check_epoch(member: ConsumerMember, epoch: int, owned: Share | None) -> None:
    if epoch == member.epoch:
        return
    has_missed_answer = (
        epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    )
    if epoch > member.epoch or not has_missed_answer:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"{member.id} is in epoch {member.epoch}, not {epoch}, and must join anew",
        )


# -- what follows --------------------------------------------------------------------------


def decide(
    group: ConsumerGroup,
    beat: Beat,
    member: ConsumerMember,
    rules: Rules,
    *,
    topics_may_differ: bool,
) -> list[GroupRecord]:
    """The records that a heartbeat of this member leads to, beyond those of `find`."""
    updated = _updated(member, beat)
    records = []
    is_new = member.id not in group.members
    if updated != member or is_new:
        records.append(updated.metadata(group.id))
    subscription = (member.topic_names, member.topic_regex)
    has_changed = is_new or subscription != (updated.topic_names, updated.topic_regex)
    is_settled = updated.state is MemberState.STABLE and updated.epoch == group.epoch
    if is_settled and not has_changed and not topics_may_differ:
        return records  # What nearly every heartbeat comes to.
    group = replace(group, members={**group.members, member.id: updated})
    if has_changed or topics_may_differ:
        records += _refreshed(
            group,
            beat.topics,
            beat.compile_pattern,
            beat.now_ms,
            must_grow=has_changed,
            may_differ=topics_may_differ,
        )
        group = _after(group, records)
    if group.epoch > group.assignment_epoch:
        records += _assigned(group, rules)
        group = _after(group, records)
    stepped = reconciled(
        updated,
        group.target.get(updated.id, NOTHING),
        group.assignment_epoch,
        group.owners(),
        # Of an epoch that is over it may tell late, so that this proves nothing given up.
        beat.owned if beat.request.member_epoch == updated.epoch else None,
    )
    if stepped != updated or is_new:
        records.append(stepped.current(group.id))
    return records


def _updated(member: ConsumerMember, beat: Beat) -> ConsumerMember:
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
        # An empty expression takes back the one before.
        topic_regex=member.topic_regex if regex is None else regex or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        classic=beat.classic,
    )


def subscribed(
    member: ConsumerMember, topics: Mapping[str, Topic], expressions: Mapping[str, frozenset[str]]
) -> dict[str, Topic]:
    """The topics that there are of those that it subscribes to."""
    names = {*member.topic_names, *expressions.get(member.topic_regex or "", ())}
    return {name: topics[name] for name in names if name in topics}


def _resolved(
    group: ConsumerGroup,
    topics: Iterable[str],
    compile_pattern: PatternCompiler,
    *,
    may_differ: bool,
) -> dict[str, frozenset[str]]:
    """What the expressions that members subscribe by stand for now."""
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
            # Somebody else wrote it to the log, and understood it.
            found[expression] = known or frozenset()
    return found


def _refreshed(
    group: ConsumerGroup,
    topics: Mapping[str, Topic],
    compile_pattern: PatternCompiler,
    now_ms: int,
    *,
    must_grow: bool,
    may_differ: bool,
) -> list[GroupRecord]:
    """The group epoch grows if members or their topics have changed."""
    known = group.expressions
    expressions = _resolved(group, topics, compile_pattern, may_differ=may_differ)
    records = [
        expression_record(group.id, each, expressions.get(each), now_ms)
        for each in sorted(known.keys() | expressions.keys())
        if known.get(each) != expressions.get(each)
    ]
    wanted: dict[str, Topic] = {}
    for member in group.members.values():
        wanted |= subscribed(member, topics, expressions)
    if wanted != group.topics:
        records.append(topics_record(group.id, wanted))
    if must_grow or records:
        records.append(epoch_record(group.id, group.epoch + 1))
    return records


def _assigned(group: ConsumerGroup, rules: Rules) -> list[GroupRecord]:
    """New shares, and the epoch that they belong to."""
    subscribers = {
        member.id: Subscriber(
            (member.instance_id or "", member.id),
            frozenset(
                each.id for each in subscribed(member, group.topics, group.expressions).values()
            ),
            group.target.get(member.id, NOTHING),
        )
        for member in group.members.values()
    }
    counts = {topic.id: topic.partition_count for topic in group.topics.values()}
    assign = ASSIGNORS[group.preferred_assignor(rules.consumer_assignors[0])]
    target = assign(subscribers, counts)
    changed = [
        target_record(group.id, member_id, share)
        for member_id, share in target.items()
        if group.target.get(member_id) != share
    ]
    return [*changed, assignment_epoch_record(group.id, group.epoch)]


def reason(group: ConsumerGroup, before: ConsumerMember, beat: Beat) -> str:
    """Why the work is shared out anew, if it is."""
    if before.id not in group.members and not before.topic_names and not before.topic_regex:
        return f"{before.id} joined"
    after = _updated(before, beat)
    if (before.topic_names, before.topic_regex) != (after.topic_names, after.topic_regex):
        return f"{before.id} subscribes to something else"
    return "the topics have changed"


def left(
    group: ConsumerGroup,
    leaving: Collection[str],
    topics: Mapping[str, Topic],
    compile_pattern: PatternCompiler,
    now_ms: int,
) -> list[GroupRecord]:
    """These members are out.  The others get their shares with their next heartbeats."""
    rest = {each: value for each, value in group.members.items() if each not in leaving}
    remaining = replace(group, members=rest)
    records = [record for each in leaving for record in gone(group.id, each)]
    # A look at all topics can wait for the next heartbeat.
    return records + _refreshed(
        remaining, topics, compile_pattern, now_ms, must_grow=True, may_differ=False
    )


def left_for_now(group: ConsumerGroup, member: ConsumerMember) -> list[GroupRecord]:
    """A static member restarts: what it has is kept for it, and it gives up what it must."""
    is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
    state = MemberState.STABLE if is_revoking else member.state
    away = replace(member, epoch=LEFT_FOR_NOW, state=state, revoking=NOTHING)
    return [away.current(group.id)]


def response(
    before: ConsumerMember, after: ConsumerMember, beat: Beat, interval_ms: int
) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if beat.is_full or before.assigned != after.assigned:
        partitions = [
            OwnedTopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
            for each in by_topic(after.assigned)
        ]
        assignment = HeartbeatAssignment(topic_partitions=partitions)
    return ConsumerGroupHeartbeatResponse(
        member_id=after.id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=assignment,
    )


def _after(group: ConsumerGroup, records: list[GroupRecord]) -> ConsumerGroup:
    found = group.with_records(records)
    assert found is not None
    return found
