"""The state of a group of the classic protocol: its members and its rebalance.

                a member joins
      Empty ─────────────────────▶ PreparingRebalance ◀── a member joins, leaves or changes ──┐
        ▲                            │            ▲                                           │
        │     no member is left      │ all joined │                                           │
        └────────────────────────────┤            │                                           │
                                     ▼            │                                           │
                           CompletingRebalance ───┴──── the assignment is written ────────▶ Stable

A generation begins when all members have joined.  Its leader computes the assignment, and no member
gets its part before the whole assignment is written.  A group that does not exist is Dead.

This module holds the state and its queries.  `rebalance.py` makes it change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from struct import Struct, error
from typing import NamedTuple

from hightide.core.groups.turn import Ticket
from hightide.wire.errors import ErrorCode, WireError
from hightide.wire.messages.groups import JoinGroupResponseMember
from hightide.wire.records.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    GroupRecord,
)
from hightide.wire.records.consumer_protocol import ConsumerSubscription, read

CONSUMER = "consumer"
"""The protocol type of consumers."""
NO_TIMESTAMP = -1

_VERSION_AND_COUNT = Struct(">hi")
_LENGTH = Struct(">h")
_REASON_CHARACTERS = 1024


class State(Enum):
    """The state of a group, named as clients see it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_BEFORE = {
    State.PREPARING_REBALANCE: (State.EMPTY, State.STABLE, State.COMPLETING_REBALANCE),
    State.COMPLETING_REBALANCE: (State.PREPARING_REBALANCE,),
    State.STABLE: (State.COMPLETING_REBALANCE,),
    State.EMPTY: (State.PREPARING_REBALANCE,),
}


class Protocol(NamedTuple):
    """A protocol that a member supports (for consumers, an assignor), and the member's metadata."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class Member:
    """A member, and its JoinGroup or SyncGroup that waits for an answer, if any."""

    id: str
    instance_id: str | None
    """The group.instance.id of a static member; it survives restarts."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """In the order of the member's preference."""
    assignment: bytes = b""
    is_new: bool = False
    """The member does not know its id yet, so it cannot send heartbeats."""
    joining: Ticket | None = None
    syncing: Ticket | None = None

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str | None) -> bytes:
        return next((known.metadata for known in self.protocols if known.name == protocol), b"")


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Why and when a group began its last rebalance."""

    reason: str
    at_ms: int
    generation: int
    """The generation that the rebalance ended."""

    @classmethod
    def begun(cls, reason: str, at_ms: int, generation: int) -> Rebalance:
        """Return a rebalance with the start of its reason: clients may give long ones."""
        return cls(reason[:_REASON_CHARACTERS], at_ms, generation)


@dataclass(slots=True)
class ClassicGroup:
    """A group of the classic protocol."""

    id: str
    state: State = State.EMPTY
    state_ms: int = NO_TIMESTAMP
    generation: int = 0
    protocol_type: str | None = None
    """None for a simple group, whose consumers only commit offsets."""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Group instance id → member id."""
    pending: set[str] = field(default_factory=set)
    """Member ids that were handed out (MEMBER_ID_REQUIRED) and have not joined yet."""
    awaiting_sync: set[str] = field(default_factory=set)
    """Members of this generation that have not sent SyncGroup yet."""
    subscribed: frozenset[str] | None = frozenset()
    """The topics that the consumers subscribe to; None if unknown."""
    is_initial: bool = False
    """This is the first rebalance of an empty group, which may wait for more members."""
    has_grown: bool = False
    """A member has joined since the initial rebalance was last delayed."""
    initial_remaining_ms: int = 0
    """How long the initial rebalance may still be delayed."""
    assigning: int | None = None
    """The generation whose assignment is being written."""
    is_stored: bool = False
    """The log has a record of this group, or is about to have one."""
    is_converted: bool = False
    """The group used the consumer protocol, and has not rebalanced since.  Its record names no
    leader, so that the next coordinator starts the rebalance too."""
    last_rebalance: Rebalance | None = None

    # -- questions -------------------------------------------------------------------------

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER

    @property
    def joining_count(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    @property
    def staying_count(self) -> int:
        """The members that stay when the rebalance completes, if no other member joins."""
        return sum(
            member.joining is not None or member.instance_id is not None
            for member in self.members.values()
        )

    @property
    def have_all_joined(self) -> bool:
        return not self.pending and all(
            member.joining is not None for member in self.members.values()
        )

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest timeout of any member: every member needs time to finish its work."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def can_rebalance(self) -> bool:
        return self.state in _BEFORE[State.PREPARING_REBALANCE]

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return why the ids do not name a current member, or NONE."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, names: set[str]) -> bool:
        """Whether a member with these protocols can join the group."""
        if self.state is State.EMPTY or not self.members:
            return bool(protocol_type) and bool(names)
        return self.protocol_type == protocol_type and not names.isdisjoint(self.candidates())

    def candidates(self) -> set[str]:
        """Return the protocols that all members support."""
        offered = [
            {protocol.name for protocol in member.protocols} for member in self.members.values()
        ]
        return set.intersection(*offered) if offered else set()

    def selected_protocol(self) -> str:
        """Return the protocol that most members prefer, of those that all support."""
        candidates = self.candidates()
        assert candidates, "a member without a common protocol must not join"
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(
                protocol.name for protocol in member.protocols if protocol.name in candidates
            )
            votes[choice] = votes.get(choice, 0) + 1
        return max(sorted(votes), key=votes.__getitem__)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may still use offsets of the topic; True if that is unknown."""
        if self.subscribed is None:
            return self.is_consumer
        return topic in self.subscribed

    def for_leader(self) -> list[JoinGroupResponseMember]:
        """Return the members as the leader needs them to compute the assignment."""
        return [
            JoinGroupResponseMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members.values()
        ]

    # -- changes ---------------------------------------------------------------------------

    def move_to(self, state: State, now_ms: int) -> None:
        assert self.state in _BEFORE[state], f"{self.id}: {self.state} to {state}"
        self.state = state
        self.state_ms = now_ms

    def add(self, member: Member) -> None:
        assert member.id not in self.members
        if not self.members:
            self.protocol_type = member.protocol_type
        assert self.protocol_type == member.protocol_type
        self.members[member.id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        self.pending.discard(member.id)

    def remove(self, member_id: str) -> None:
        """Remove a member, or a pending member id."""
        self.pending.discard(member_id)
        self.awaiting_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old_id: str, member: Member) -> None:
        """Replace a static member by the same member after its restart."""
        assert member.instance_id is not None
        self.members = {
            member.id if member_id == old_id else member_id: (
                member if member_id == old_id else known
            )
            for member_id, known in self.members.items()
        }
        self.static_members[member.instance_id] = member.id
        if old_id in self.awaiting_sync:
            self.awaiting_sync.remove(old_id)
            self.awaiting_sync.add(member.id)
        if self.leader == old_id:
            self.leader = member.id

    def elect_leader(self) -> bool:
        """Choose a leader among the members that have joined; return False if none has."""
        if self.leader is not None and self.members[self.leader].joining is not None:
            return True
        present = next(
            (member.id for member in self.members.values() if member.joining is not None), None
        )
        if present is not None:
            self.leader = present
        return present is not None

    def begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.awaiting_sync.clear()
        self.is_initial = self.is_converted = False
        self.assigning = None
        if self.members:
            self.protocol = self.selected_protocol()
            self.move_to(State.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.move_to(State.EMPTY, now_ms)
        self.note_subscribed()

    def note_subscribed(self) -> None:
        self.subscribed = frozenset() if self.is_consumer or not self.members else None
        if self.is_consumer:
            topics: set[str] = set()
            for member in self.members.values():
                found = subscribed_topics(member.metadata(self.protocol))
                if found is None:
                    self.subscribed = None
                    return
                topics |= found
            self.subscribed = frozenset(topics)

    # -- the log ---------------------------------------------------------------------------

    def record(self, assignments: dict[str, bytes] | None = None) -> GroupRecord:
        """Return the record from which the next coordinator restores this generation."""
        members = [
            GroupMetadataMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(self.protocol),
                assignment=member.assignment if assignments is None else assignments[member.id],
            )
            for member in self.members.values()
        ]
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=None if self.is_converted else self.leader,
            current_state_timestamp=self.state_ms,
            members=members,
        )
        return GroupRecord(GroupMetadataKey(group=self.id), value)

    @classmethod
    def replayed(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """Restore a group from its record."""
        group = cls(
            group_id,
            State.STABLE if value.members else State.EMPTY,
            value.current_state_timestamp,
            value.generation,
            value.protocol_type or None,
            value.protocol,
            is_stored=True,
            is_converted=bool(value.members) and value.leader is None,
        )
        for member in value.members:
            timeout_ms = member.rebalance_timeout
            group.add(
                Member(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.session_timeout if timeout_ms < 0 else timeout_ms,
                    member.session_timeout,
                    value.protocol_type,
                    (Protocol(value.protocol or "", member.subscription),),
                    member.assignment,
                )
            )
        group.leader = value.leader if value.leader in group.members else group.leader
        group.note_subscribed()
        return group

    def check(self) -> None:
        """Assert the invariants that hold between any two facts."""
        assert bool(self.members) == (self.leader is not None)
        assert self.leader is None or self.leader in self.members
        assert not self.pending & self.members.keys()
        assert self.awaiting_sync <= self.members.keys()
        static = {
            member.instance_id: member.id
            for member in self.members.values()
            if member.instance_id is not None
        }
        assert static == self.static_members
        assert all(key == member.id for key, member in self.members.items())
        match self.state:
            case State.EMPTY:
                assert not self.members
            case State.PREPARING_REBALANCE:
                assert all(member.syncing is None for member in self.members.values())
                assert not self.awaiting_sync
            case State.COMPLETING_REBALANCE | State.STABLE:
                assert self.members
                assert self.protocol in self.candidates()
        assert self.assigning is None or self.state is State.COMPLETING_REBALANCE


# -- subscriptions -------------------------------------------------------------------------


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription, or None if the metadata is not one.

    The layout, of which only the part common to all versions is read:

        version 2 | topic count 4 | topic … | user data | fields of later versions

    This is enough to know which offsets are still in use.
    """
    topics = set()
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            return None
        at = _VERSION_AND_COUNT.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, at)
            at += _LENGTH.size
            if not 0 <= length <= len(metadata) - at:
                return None
            topics.add(str(metadata[at : at + length], "utf-8"))
            at += length
    except (error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def read_subscription(metadata: bytes) -> ConsumerSubscription | None:
    """Return a consumer's whole subscription, or None if the metadata is not one.

    Needed only for groups that change, or have changed, to the consumer protocol.
    """
    try:
        return read(ConsumerSubscription, metadata)
    except WireError:
        return None
