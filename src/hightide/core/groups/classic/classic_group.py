"""A group of the classic protocol: its members, and how far its rebalance has come.

                a member joins
      Empty ─────────────────────▶ PreparingRebalance ◀─── somebody comes, goes or changes ───┐
        ▲                            │            ▲                                           │
        │      nobody is left        │ all joined │                                           │
        └────────────────────────────┤            │                                           │
                                     ▼            │                                           │
                           CompletingRebalance ───┴─── the leader's shares are written ──▶ Stable

A generation begins when all have joined.  Its leader shares out the work, and nobody is told a
share before all of them are written.  Dead is a group that is not there.

This is the state and what can be asked of it.  What makes it change is in `rebalance.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from hightide.core.groups.classic.subscription import CONSUMER, subscribed_topics
from hightide.core.groups.turn import Ticket
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import JoinGroupResponseMember
from hightide.wire.records.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    GroupRecord,
)

NO_TIME = -1


class State(Enum):
    """Named as clients see it."""

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
    """A way of sharing out the work that a member can follow, with what it says about itself."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class Member:
    """One member, and the request of it that waits, if one does."""

    id: str
    instance_id: str | None
    """What names a static member through its restarts."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """In the order in which the member would have them."""
    assignment: bytes = b""
    is_new: bool = False
    """Not told its id yet, so that heartbeats cannot be expected of it."""
    joining: Ticket | None = None
    syncing: Ticket | None = None

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Why a group last began to share out its work anew."""

    reason: str
    at_ms: int
    generation: int
    """The generation that it ended."""


@dataclass(slots=True)
class ClassicGroup:
    """One group."""

    id: str
    state: State = State.EMPTY
    state_ms: int = NO_TIME
    generation: int = 0
    protocol_type: str | None = None
    """Without one the group is simple: somebody commits offsets and shares out the work himself."""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Group instance id → member id."""
    pending: set[str] = field(default_factory=set)
    """Member ids that were given out and have not been used to join yet."""
    awaiting_sync: set[str] = field(default_factory=set)
    """Members of this generation that have not asked for their assignment yet."""
    subscribed: frozenset[str] | None = frozenset()
    """Topics that consumers subscribe to; None if it cannot be known."""
    is_initial: bool = False
    """This rebalance is the first of a group that was empty, and may wait for more members."""
    has_grown: bool = False
    """A member has come since the initial rebalance was last put off."""
    initial_remaining_ms: int = 0
    """How long the initial rebalance may still be put off."""
    assigning: int | None = None
    """The generation whose assignment is being written."""
    is_stored: bool = False
    """The log has a record of this group, or is about to have one."""
    is_converted: bool = False
    """It was of the newer protocol, and its members have not come together since.  The log tells by
    naming no leader, so that a successor calls them together."""
    last_rebalance: Rebalance | None = None

    # -- questions -------------------------------------------------------------------------

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER

    @property
    def joining_count(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    @property
    def have_all_joined(self) -> bool:
        return not self.pending and all(
            member.joining is not None for member in self.members.values()
        )

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for: all must be given the time to finish their work."""
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    @property
    def can_rebalance(self) -> bool:
        return self.state in _BEFORE[State.PREPARING_REBALANCE]

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether this is a member, and the one that its group instance id belongs to now."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, names: set[str]) -> bool:
        """Whether a member with these protocols could be one of the group."""
        if self.state is State.EMPTY or not self.members:
            return bool(protocol_type) and bool(names)
        return self.protocol_type == protocol_type and not names.isdisjoint(self.candidates())

    def candidates(self) -> set[str]:
        """Protocols that all members can follow."""
        offered = [{each.name for each in member.protocols} for member in self.members.values()]
        return set.intersection(*offered) if offered else set()

    def selected_protocol(self) -> str:
        """What most members would have, of what all of them can follow."""
        candidates = self.candidates()
        assert candidates, "nobody joins who shares no protocol with the others"
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(each.name for each in member.protocols if each.name in candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(sorted(votes), key=votes.__getitem__)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether offsets of the topic may still be needed.  If it is not known, they may."""
        if self.subscribed is None:
            return self.is_consumer
        return topic in self.subscribed

    def for_leader(self) -> list[JoinGroupResponseMember]:
        """What the leader needs to know in order to share out the work."""
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
        """A member, or an id that was only given out."""
        self.pending.discard(member_id)
        self.awaiting_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old_id: str, member: Member) -> None:
        """The static member's new incarnation takes the old one's place."""
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
        """See that somebody leads who is there; False if nobody is."""
        if self.leader is not None and self.members[self.leader].joining is not None:
            return True
        present = next(
            (each.id for each in self.members.values() if each.joining is not None), None
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
        """What is to be known of this generation after the coordinator has moved elsewhere."""
        members = [
            GroupMetadataMember(
                member_id=each.id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout=each.rebalance_timeout_ms,
                session_timeout=each.session_timeout_ms,
                subscription=each.metadata(self.protocol),
                assignment=each.assignment if assignments is None else assignments[each.id],
            )
            for each in self.members.values()
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
        """The group that a record tells of."""
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
        for each in value.members:
            timeout_ms = each.rebalance_timeout
            group.add(
                Member(
                    each.member_id,
                    each.group_instance_id,
                    each.client_id,
                    each.client_host,
                    each.session_timeout if timeout_ms < 0 else timeout_ms,
                    each.session_timeout,
                    value.protocol_type,
                    (Protocol(value.protocol or "", each.subscription),),
                    each.assignment,
                )
            )
        group.leader = value.leader if value.leader in group.members else group.leader
        group.note_subscribed()
        return group

    def check(self) -> None:
        """Assert what must hold between any two facts."""
        assert bool(self.members) == (self.leader is not None)
        assert self.leader is None or self.leader in self.members
        assert not self.pending & self.members.keys()
        assert self.awaiting_sync <= self.members.keys()
        static = {
            each.instance_id: each.id
            for each in self.members.values()
            if each.instance_id is not None
        }
        assert static == self.static_members
        assert all(key == each.id for key, each in self.members.items())
        match self.state:
            case State.EMPTY:
                assert not self.members
            case State.PREPARING_REBALANCE:
                assert all(each.syncing is None for each in self.members.values())
                assert not self.awaiting_sync
            case State.COMPLETING_REBALANCE | State.STABLE:
                assert self.members
                assert self.protocol in self.candidates()
        assert self.assigning is None or self.state is State.COMPLETING_REBALANCE
