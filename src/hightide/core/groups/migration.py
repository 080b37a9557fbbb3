"""How a group changes its protocol while its members are at work.

    classic group ── a member of the newer protocol joins ──▶ consumer group, in which the others
                                                              go on to speak the classic protocol
    consumer group ── its last member of the newer protocol goes ──▶ classic group

Everybody stays a member, in the generation or epoch that he knows, and keeps what he has until he
is told otherwise.  The records that take out the one kind and bring in the other are one write.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from hightide.core.groups import responses
from hightide.core.groups.classic.classic_group import ClassicGroup, Member, State
from hightide.core.groups.classic.rebalance import complete_join, keep_session, prepare
from hightide.core.groups.classic.subscription import CONSUMER, whole_subscription
from hightide.core.groups.consumer.assignors import Share
from hightide.core.groups.consumer.consumer_group import (
    NOTHING,
    ConsumerGroup,
    ConsumerMember,
    SpeaksClassic,
    Topic,
    by_topic,
)
from hightide.core.groups.deadlines import Deadline, Kind
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.turn import Turn
from hightide.wire.errors import ErrorCode, KafkaError, WireError
from hightide.wire.records.consumer_offsets import GroupMetadataKey, GroupRecord
from hightide.wire.records.consumer_protocol import (
    ConsumerAssignment,
    ConsumerPartitions,
    ConsumerSubscription,
    read,
    version_of,
    write,
)


class Conversion(NamedTuple):
    """A consumer group that takes the place of a classic one."""

    group: ConsumerGroup
    records: list[GroupRecord]
    """What takes out the one and brings in the other."""
    replaced: ClassicGroup


# -- from classic to consumer --------------------------------------------------------------


def upgraded(classic: ClassicGroup, topics: Mapping[str, Topic], rules: Rules) -> Conversion:
    """GROUP_ID_NOT_FOUND, saying why, if the group cannot be of the newer protocol."""
    records = []
    if classic.is_stored:
        records.append(GroupRecord(GroupMetadataKey(group=classic.id), None))
    group = ConsumerGroup(classic.id)
    if classic.state is not State.EMPTY:
        group = _consumer_group(classic, topics, rules)
        records += group.records()
    return Conversion(group, records, classic)


def _consumer_group(
    classic: ClassicGroup, topics: Mapping[str, Topic], rules: Rules
) -> ConsumerGroup:
    problem = None
    if not rules.migration_policy.allows_upgrade:
        problem = f"group.consumer.migration.policy is {rules.migration_policy.value}"
    elif not classic.is_consumer:
        problem = f"its members are of the kind {classic.protocol_type}"
    elif len(classic.members) > rules.consumer_max_size:
        problem = f"{len(classic.members)} members are more than {rules.consumer_max_size}"
    if problem is not None:
        raise _not_upgraded(classic, problem)
    # Who is new has not been told anything, not even that he is a member: he joins again.
    staying = [each for each in classic.members.values() if not each.is_new]
    said = {each.id: _said(classic, each) for each in staying}
    shares = _shares(classic, staying, said, topics)
    generation = classic.generation
    members = {
        each.id: ConsumerMember(
            each.id,
            each.instance_id,
            said[each.id].rack_id,
            each.client_id,
            each.client_host,
            tuple(sorted({*said[each.id].topics})),
            rebalance_timeout_ms=each.rebalance_timeout_ms,
            classic=SpeaksClassic(each.session_timeout_ms, each.protocols),
            epoch=generation,
            previous_epoch=generation,
            assigned=shares[each.id],
        )
        for each in staying
    }
    return ConsumerGroup(classic.id, generation, generation, members, shares)


def _said(classic: ClassicGroup, member: Member) -> ConsumerSubscription:
    names = [each.name for each in member.protocols]
    protocol = classic.protocol if classic.protocol in names else names[0]
    said = whole_subscription(member.metadata(protocol))
    if said is None:
        raise _not_upgraded(classic, f"{member.id} does not say what it subscribes to")
    return said


def _shares(
    classic: ClassicGroup,
    members: Iterable[Member],
    said: Mapping[str, ConsumerSubscription],
    topics: Mapping[str, Topic],
) -> dict[str, Share]:
    """What everybody has.

    While the leader shares out the work nobody has an assignment, but whoever does not give up
    everything to join again has what he said then.  Of two who say so, the one is right who was a
    member in the later generation.
    """
    shares: dict[str, Share] = {}
    claims = []
    for each in members:
        shares[each.id] = NOTHING
        claim = _by_id(said[each.id].owned_partitions, topics)
        rank = 1, -said[each.id].generation_id
        if each.assignment:
            try:
                assignment = read(ConsumerAssignment, each.assignment)
            except WireError as error:
                raise _not_upgraded(classic, f"{each.id} has an assignment: {error}") from error
            claim, rank = _by_id(assignment.assigned_partitions, topics), (0, 0)
        claims.append((rank, each.id, claim))
    taken: set[tuple[uuid.UUID, int]] = set()
    for _, member_id, claim in sorted(claims, key=lambda each: each[:2]):
        shares[member_id] = claim - taken
        taken |= claim
    return shares


def _by_id(partitions: Iterable[ConsumerPartitions], topics: Mapping[str, Topic]) -> Share:
    return frozenset(
        (topics[each.topic].id, index)
        for each in partitions
        if each.topic in topics
        for index in each.partitions
    )


def _not_upgraded(classic: ClassicGroup, problem: str) -> KafkaError:
    detail = f"{classic.id} is a group of the classic protocol and stays one: {problem}"
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)


def released(classic: ClassicGroup, turn: Turn) -> None:
    """The group is a consumer group from now on: whoever waits is told to join that."""
    again = ErrorCode.REBALANCE_IN_PROGRESS
    for member in [*classic.members.values()]:
        if member.joining is not None:
            turn.answer(member.joining, responses.not_joined(again, member.id))
        if member.syncing is not None:
            turn.answer(member.syncing, responses.not_synced(again))
        member.joining = member.syncing = None
        turn.deadlines.cancel(Deadline(Kind.SESSION, classic.id, member.id))
        if member.is_new:
            classic.remove(member.id)
    # What is being written of it takes effect for nobody.
    classic.assigning = None
    for kind in (Kind.JOIN, Kind.SYNC):
        turn.deadlines.cancel(Deadline(kind, classic.id))


def reinstated(classic: ClassicGroup, turn: Turn) -> None:
    """It is a classic group as before, since the change could not be written."""
    for member in classic.members.values():
        keep_session(classic, member, turn)
    reason = "it could not change to the newer protocol"
    at_ms = turn.now_ms + max(1, classic.rebalance_timeout_ms)
    if classic.state is State.STABLE and classic.awaiting_sync:
        turn.deadlines.set(Deadline(Kind.SYNC, classic.id), at_ms)
    elif classic.state is State.COMPLETING_REBALANCE:
        prepare(classic, reason, turn)
    elif classic.state is State.PREPARING_REBALANCE:
        classic.is_initial = False
        # Nobody waits any more.  Those who do not come again in time are out, as ever.
        turn.deadlines.set(Deadline(Kind.JOIN, classic.id), at_ms)
        if not classic.members:
            complete_join(classic, turn)


# -- from consumer to classic --------------------------------------------------------------


def can_downgrade(group: ConsumerGroup, leaving: Collection[str], rules: Rules) -> bool:
    """Whether those who stay all speak the classic protocol, and one goes who does not."""
    staying = [each for each in group.members.values() if each.id not in leaving]
    return (
        bool(staying)
        and all(each.classic is not None for each in staying)
        and any(group.members[each].classic is None for each in leaving)
        and len(staying) <= rules.max_size
        and rules.migration_policy.allows_downgrade
    )


def downgraded(group: ConsumerGroup, leaving: Collection[str], now_ms: int) -> ClassicGroup:
    """The classic group of those who stay, with what they have been told to have."""
    classic = ClassicGroup(
        group.id,
        State.STABLE,
        now_ms,
        group.epoch,
        last_rebalance=group.last_rebalance,
        is_stored=True,
        is_converted=True,
    )
    for each in group.members.values():
        if each.id not in leaving:
            assert each.classic is not None
            classic.add(
                Member(
                    each.id,
                    each.instance_id,
                    each.client_id,
                    each.client_host,
                    each.rebalance_timeout_ms,
                    each.classic.session_timeout_ms,
                    CONSUMER,
                    each.classic.protocols,
                    assignment_of(group, each),
                )
            )
    classic.protocol = classic.selected_protocol()
    classic.note_subscribed()
    return classic


def assignment_of(group: ConsumerGroup, member: ConsumerMember) -> bytes:
    """What the member has, as a leader would tell it.  Topics that are gone have no name."""
    assert member.classic is not None
    names = {topic.id: name for name, topic in group.topics.items()}
    partitions = [
        ConsumerPartitions(topic=names[each.topic_id], partitions=each.partitions)
        for each in by_topic(member.assigned)
        if each.topic_id in names
    ]
    version = version_of(member.classic.protocols[0].metadata)
    return write(ConsumerAssignment(assigned_partitions=partitions), version)


def withdrawn(classic: ClassicGroup, error: ErrorCode, turn: Turn) -> None:
    """It did not come to be, since the change could not be written."""
    for member in classic.members.values():
        if member.joining is not None:
            turn.answer(member.joining, responses.not_joined(error))
    for member_id in [*classic.members, *classic.pending]:
        turn.deadlines.cancel(Deadline(Kind.SESSION, classic.id, member_id))
    for kind in (Kind.JOIN, Kind.SYNC):
        turn.deadlines.cancel(Deadline(kind, classic.id))
