"""Migration of a group with members between the classic and the consumer protocol (KIP-848).

    classic group ── a member joins with the consumer protocol ──▶ consumer group, in which the
                                                                   others keep the classic protocol
    consumer group ── its last member with the consumer protocol leaves ──▶ classic group

Every member stays, in the generation or epoch that it knows, and keeps its partitions until the
coordinator revokes them.  The tombstones of the one group and the records of the other are one
write.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from hightide.core.groups import responses
from hightide.core.groups.classic.classic_group import (
    CONSUMER,
    ClassicGroup,
    Member,
    State,
    read_subscription,
)
from hightide.core.groups.classic.rebalance import complete_join, keep_session, prepare
from hightide.core.groups.consumer.assignors import Assignment
from hightide.core.groups.consumer.consumer_group import (
    NO_PARTITIONS,
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
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
    """A consumer group that replaces a classic one."""

    group: ConsumerGroup
    records: list[GroupRecord]
    """The tombstones of the classic group and the records of the consumer group."""
    replaced: ClassicGroup


# -- from classic to consumer --------------------------------------------------------------


def upgrade(classic: ClassicGroup, topics: Mapping[str, Topic], rules: Rules) -> Conversion:
    """Convert a classic group; GROUP_ID_NOT_FOUND, with the reason, if it must stay classic."""
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
        problem = f"its protocol type is {classic.protocol_type}"
    elif len(classic.members) > rules.consumer_max_size:
        problem = f"{len(classic.members)} members are more than {rules.consumer_max_size}"
    if problem is not None:
        raise _not_upgraded(classic, problem)
    # A new member has no response yet, not even its member id: it joins again.
    staying = [member for member in classic.members.values() if not member.is_new]
    subscriptions = {member.id: _subscription_of(classic, member) for member in staying}
    assignments = _assignments(classic, staying, subscriptions, topics)
    generation = classic.generation
    members = {
        member.id: ConsumerMember(
            member.id,
            member.instance_id,
            subscriptions[member.id].rack_id,
            member.client_id,
            member.client_host,
            tuple(sorted({*subscriptions[member.id].topics})),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicMember(member.session_timeout_ms, member.protocols),
            epoch=generation,
            previous_epoch=generation,
            assigned=assignments[member.id],
        )
        for member in staying
    }
    return ConsumerGroup(classic.id, generation, generation, members, assignments)


def _subscription_of(classic: ClassicGroup, member: Member) -> ConsumerSubscription:
    names = [protocol.name for protocol in member.protocols]
    protocol = classic.protocol if classic.protocol in names else names[0]
    subscription = read_subscription(member.metadata(protocol))
    if subscription is None:
        raise _not_upgraded(classic, f"the subscription of {member.id} cannot be read")
    return subscription


def _assignments(
    classic: ClassicGroup,
    members: Iterable[Member],
    subscriptions: Mapping[str, ConsumerSubscription],
    topics: Mapping[str, Topic],
) -> dict[str, Assignment]:
    """Return the partitions that each member owns.

    During a rebalance no member has an assignment, but a cooperative member that joins again still
    owns the partitions in its subscription.  If two members claim a partition, the member of the
    later generation owns it.
    """
    assignments: dict[str, Assignment] = {}
    claims = []
    for member in members:
        assignments[member.id] = NO_PARTITIONS
        claim = _by_id(subscriptions[member.id].owned_partitions, topics)
        rank = 1, -subscriptions[member.id].generation_id
        if member.assignment:
            try:
                assignment = read(ConsumerAssignment, member.assignment)
            except WireError as error:
                raise _not_upgraded(
                    classic, f"the assignment of {member.id} cannot be read: {error}"
                ) from error
            claim, rank = _by_id(assignment.assigned_partitions, topics), (0, 0)
        claims.append((rank, member.id, claim))
    taken: set[tuple[uuid.UUID, int]] = set()
    for _, member_id, claim in sorted(claims, key=lambda claim: claim[:2]):
        assignments[member_id] = claim - taken
        taken |= claim
    return assignments


def _by_id(partitions: Iterable[ConsumerPartitions], topics: Mapping[str, Topic]) -> Assignment:
    return frozenset(
        (topics[partition.topic].id, index)
        for partition in partitions
        if partition.topic in topics
        for index in partition.partitions
    )


def _not_upgraded(classic: ClassicGroup, problem: str) -> KafkaError:
    detail = f"group {classic.id} uses the classic protocol and cannot change it: {problem}"
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)


def release_waiting(classic: ClassicGroup, turn: Turn) -> None:
    """Answer the requests that wait in the classic group: their members join the consumer group."""
    rejoin = ErrorCode.REBALANCE_IN_PROGRESS
    for member in [*classic.members.values()]:
        if member.joining is not None:
            turn.answer(member.joining, responses.join_error(rejoin, member.id))
        if member.syncing is not None:
            turn.answer(member.syncing, responses.sync_error(rejoin))
        member.joining = member.syncing = None
        turn.deadlines.cancel(Deadline(Kind.SESSION, classic.id, member.id))
        if member.is_new:
            classic.remove(member.id)
    # An assignment that is being written has no effect.
    classic.assigning = None
    for kind in (Kind.JOIN, Kind.SYNC):
        turn.deadlines.cancel(Deadline(kind, classic.id))


def restore_classic(classic: ClassicGroup, turn: Turn) -> None:
    """Restore the sessions of a classic group whose conversion could not be written."""
    for member in classic.members.values():
        keep_session(classic, member, turn)
    reason = "the change to the consumer protocol could not be written"
    at_ms = turn.now_ms + max(1, classic.rebalance_timeout_ms)
    if classic.state is State.STABLE and classic.awaiting_sync:
        turn.deadlines.set(Deadline(Kind.SYNC, classic.id), at_ms)
    elif classic.state is State.COMPLETING_REBALANCE:
        prepare(classic, reason, turn)
    elif classic.state is State.PREPARING_REBALANCE:
        classic.is_initial = False
        # No request waits any more.  Members that do not join again in time are removed, as usual.
        turn.deadlines.set(Deadline(Kind.JOIN, classic.id), at_ms)
        if not classic.members:
            complete_join(classic, turn)


# -- from consumer to classic --------------------------------------------------------------


def can_downgrade(group: ConsumerGroup, leaving: Collection[str], rules: Rules) -> bool:
    """Whether all members that stay use the classic protocol, and one that leaves does not."""
    staying = [member for member in group.members.values() if member.id not in leaving]
    return (
        bool(staying)
        and all(member.classic is not None for member in staying)
        and any(group.members[member_id].classic is None for member_id in leaving)
        and len(staying) <= rules.max_size
        and rules.migration_policy.allows_downgrade
    )


def downgrade(group: ConsumerGroup, leaving: Collection[str], now_ms: int) -> ClassicGroup:
    """Return the classic group of the members that stay, with their current assignments."""
    classic = ClassicGroup(
        group.id,
        State.STABLE,
        now_ms,
        group.epoch,
        last_rebalance=group.last_rebalance,
        is_stored=True,
        is_converted=True,
    )
    for member in group.members.values():
        if member.id not in leaving:
            assert member.classic is not None
            classic.add(
                Member(
                    member.id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.classic.session_timeout_ms,
                    CONSUMER,
                    member.classic.protocols,
                    assignment_of(group, member),
                )
            )
    classic.protocol = classic.selected_protocol()
    classic.note_subscribed()
    return classic


def assignment_of(group: ConsumerGroup, member: ConsumerMember) -> bytes:
    """Encode a member's partitions as a leader would.  Deleted topics have no name: left out."""
    assert member.classic is not None
    names = {topic.id: name for name, topic in group.topics.items()}
    partitions = [
        ConsumerPartitions(topic=names[topic.topic_id], partitions=topic.partitions)
        for topic in by_topic(member.assigned)
        if topic.topic_id in names
    ]
    version = version_of(member.classic.protocols[0].metadata)
    return write(ConsumerAssignment(assigned_partitions=partitions), version)


def withdraw_classic(classic: ClassicGroup, error: ErrorCode, turn: Turn) -> None:
    """Withdraw a classic group whose creation could not be written."""
    for member in classic.members.values():
        if member.joining is not None:
            turn.answer(member.joining, responses.join_error(error))
    for member_id in [*classic.members, *classic.pending]:
        turn.deadlines.cancel(Deadline(Kind.SESSION, classic.id, member_id))
    for kind in (Kind.JOIN, Kind.SYNC):
        turn.deadlines.cancel(Deadline(kind, classic.id))
