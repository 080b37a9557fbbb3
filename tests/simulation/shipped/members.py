"""The group membership of copiers: the classic protocol, or the consumer protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    OwnedTopicPartitions,
)
from hightide.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.simulation.shipped.copying import (
    AGAIN,
    GROUP,
    GROUP_KIND,
    Copier,
    GiveUp,
    Groups,
    Rejoin,
    beat,
    pause,
)

BEAT_S = 0.5
SESSION_MS = 2000
REBALANCE_MS = 3000
_SUBSCRIPTION = Struct(">hih")


class ClassicMember:
    """A classic member; as the leader, it also assigns the partitions."""

    lost = (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    )

    def __init__(self, copier: Copier, groups: Groups, topic: str, partitions: int) -> None:
        self._copier = copier
        self._groups = groups
        self._topic = topic
        self._partitions = partitions
        self.id = ""
        self.generation = -1
        self.share: list[int] = []
        self._beaten_at = 0.0

    @property
    def fetch_identity(self) -> tuple[str | None, int]:
        return None, -1

    async def join(self) -> None:
        self.share = []
        for _ in range(60):
            newest = self._groups.newest
            try:
                is_in = await self._try_to_join()
            except ConnectionFailed:
                is_in = False
            if is_in:
                self._groups.shared_out(newest, self.generation, self.id, self.share)
                self._beaten_at = self._copier.world.now
                return
            await pause(self._copier)
        raise GiveUp("its group takes no members")

    async def _try_to_join(self) -> bool:
        copier, name = self._copier, self._topic.encode()
        subscription = _SUBSCRIPTION.pack(0, 1, len(name)) + name + b"\xff\xff\xff\xff"
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        answer = await copier.ask_coordinator(
            GROUP_KIND, GROUP, request, wait_ms=REBALANCE_MS + 3000
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            return False
        if not self._is_well(answer.error_code):
            return False
        self.id, generation = answer.member_id, answer.generation_id
        sync = SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=self._assignments(answer),
        )
        answer = await copier.ask_coordinator(GROUP_KIND, GROUP, sync, wait_ms=REBALANCE_MS + 3000)
        if not self._is_well(answer.error_code):
            return False
        self.generation = generation
        self.share = list(answer.assignment)
        return True

    def _assignments(self, joined: Any) -> list[SyncGroupRequestAssignment]:
        """Return the leader's assignment: a byte for each partition."""
        if joined.leader != joined.member_id:
            return []
        members = sorted(member.member_id for member in joined.members)
        return [
            SyncGroupRequestAssignment(
                member_id=member, assignment=bytes(range(nth, self._partitions, len(members)))
            )
            for nth, member in enumerate(members)
        ]

    def _is_well(self, code: int) -> bool:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""
        elif code in AGAIN:
            self._copier.lose_coordinator(GROUP_KIND, GROUP)
        elif code not in (ErrorCode.NONE, *self.lost):
            raise GiveUp(f"the group: {ErrorCode(code)!r}")
        return code == ErrorCode.NONE

    async def keep(self) -> None:
        """Send a heartbeat; raise Rejoin if the group rebalances."""
        if self._copier.world.now - self._beaten_at < BEAT_S:
            return
        self._beaten_at = self._copier.world.now
        request = HeartbeatRequest(group_id=GROUP, generation_id=self.generation, member_id=self.id)
        code = await beat(self._copier, request)
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""
        if code in self.lost:
            raise Rejoin
        if code != ErrorCode.NONE and code not in AGAIN:
            raise GiveUp(f"Heartbeat: {ErrorCode(code)!r}")


class ConsumerMember:
    """A member of the consumer protocol: it reports its partitions, and gets its assignment."""

    lost = (
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    )

    def __init__(self, copier: Copier, topic: str) -> None:
        self._copier = copier
        self._topic = topic
        self.generation = 0
        self.share: list[int] = []
        self._topic_id: Any = None
        self._beaten_at = 0.0
        # Whether a response was lost, which may have held the assignment.
        self._is_unsure = False
        self._new_id()

    def _new_id(self) -> None:
        self.id = f"{self._copier.name}-{self._copier.random.getrandbits(32)}"
        self.generation, self.share = 0, []

    @property
    def fetch_identity(self) -> tuple[str | None, int]:
        return self.id, self.generation

    async def join(self) -> None:
        """Join the group and take the assignment, which may be empty for now."""
        for _ in range(60):
            if self.generation > 0 or await self._beat(is_first=True):
                return
            await pause(self._copier)
        raise GiveUp("its group takes no members")

    async def _beat(self, is_first: bool = False) -> bool:
        """Send a heartbeat; return whether there was a response."""
        copier = self._copier
        owned = [] if self._topic_id is None else [self._owned()]
        # A full heartbeat gets a full response.
        says_all = is_first or self._is_unsure
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.id,
            member_epoch=self.generation,
            rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
            subscribed_topic_names=[self._topic] if says_all else None,
            topic_partitions=[] if is_first else owned,
        )
        self._is_unsure = True
        try:
            answer = await copier.ask_coordinator(GROUP_KIND, GROUP, request)
        except ConnectionFailed:
            return False
        code = answer.error_code
        if code in self.lost:
            self._new_id()
            raise Rejoin
        if code != ErrorCode.NONE:
            if code not in AGAIN:
                raise GiveUp(f"ConsumerGroupHeartbeat: {ErrorCode(code)!r}")
            copier.lose_coordinator(GROUP_KIND, GROUP)
            return False
        self._is_unsure = False
        self.generation = answer.member_epoch
        self._beaten_at = copier.world.now
        if answer.assignment is not None:
            self._take(answer.assignment.topic_partitions)
        return True

    def _owned(self) -> OwnedTopicPartitions:
        return OwnedTopicPartitions(topic_id=self._topic_id, partitions=self.share)

    def _take(self, given: list[OwnedTopicPartitions]) -> None:
        share = sorted(index for topic in given for index in topic.partitions)
        for topic in given:
            self._topic_id = topic.topic_id
        if share != self.share:
            self.share = share
            # Another member gets revoked partitions only after this one has reported them as
            # revoked.
            self._beaten_at = 0.0
            raise Rejoin

    async def keep(self) -> None:
        if self._copier.world.now - self._beaten_at >= BEAT_S:
            await self._beat()


def classic(groups: Groups, topic: str, partitions: int) -> Callable[[Copier], ClassicMember]:
    return lambda copier: ClassicMember(copier, groups, topic, partitions)


def newer(topic: str) -> Callable[[Copier], ConsumerMember]:
    return lambda copier: ConsumerMember(copier, topic)
