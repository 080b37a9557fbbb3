"""A test harness for one coordinator: send requests, read the answers, commit or refuse writes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hightide.broker.groups.re2_patterns import compile_pattern
from hightide.core.groups.classic.classic_group import ClassicGroup
from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.turn import Client, Outcome, Write
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from hightide.wire.records.consumer_offsets import GroupRecord

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3000
KEEP: Any = object()


class Harness:
    """A coordinator whose writes are committed at once, unless `holds` is set."""

    def __init__(self, **rules: Any) -> None:
        self.rules = replace(Rules(initial_rebalance_delay_ms=DELAY_MS), **rules)
        self.now_ms = 1_000_000
        self.tickets = 0
        self.answers: dict[int, Any] = {}
        self.writes: list[Write] = []
        self.log: list[tuple[GroupRecord, int]] = []
        self.holds = False
        self.coordinator = GroupCoordinator(self.rules, Random(0), compile_pattern)
        self.carry_out(self.coordinator.loaded(self.now_ms))

    def group(self, group_id: str = "g") -> ClassicGroup:
        found = self.coordinator.classic_groups[group_id]
        assert isinstance(found, ClassicGroup)
        return found

    def carry_out(self, outcome: Outcome) -> None:
        self.coordinator.check()
        for ticket, response in outcome.answers:
            assert ticket not in self.answers
            self.answers[ticket] = response
        self.writes += outcome.writes
        while self.writes and not self.holds:
            self.commit()

    def commit(self) -> None:
        write = self.writes.pop(0)
        base_offset = len(self.log)
        self.log += [(record, write.producer_id) for record in write.records]
        self.carry_out(self.coordinator.written(write, base_offset, self.now_ms))

    def refuse(self, error: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        self.carry_out(self.coordinator.write_failed(self.writes.pop(0), error, self.now_ms))

    def moved(self) -> Harness:
        """Return a harness of another coordinator that has replayed the log."""
        harness = Harness.__new__(Harness)
        harness.__dict__.update(self.__dict__, answers={}, writes=[], log=[*self.log])
        harness.coordinator = GroupCoordinator(self.rules, Random(1), compile_pattern)
        for offset, (record, producer_id) in enumerate(self.log):
            harness.coordinator.replay(record, offset, producer_id)
        harness.carry_out(harness.coordinator.loaded(self.now_ms))
        return harness

    def wait(self, passed_ms: int) -> None:
        until_ms = self.now_ms + passed_ms
        while (at_ms := self.coordinator.deadline_ms) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.carry_out(self.coordinator.time_passed(self.now_ms))
        self.now_ms = until_ms

    def ask(self, method: str, request: Any, *how: Any) -> int:
        self.tickets += 1
        ask = getattr(self.coordinator, method)
        self.carry_out(ask(self.tickets, request, *how, self.now_ms))
        return self.tickets

    # -- requests --------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        version: int = 9,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        group_id: str = "g",
        reason: str | None = None,
    ) -> int:
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in (protocols or {"range": b""}).items()
            ],
            reason=reason,
        )
        return self.ask("join_asked", request, version, Client("client", "/host"))

    def new_id(self, **how: Any) -> str:
        """Return a member id that the coordinator has handed out."""
        response = self.answers[self.join(**how)]
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return str(response.member_id)

    def sync(
        self,
        joined: JoinGroupResponse,
        shares: dict[str, bytes] | None = None,
        **changed: Any,
    ) -> int:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=share)
                for member_id, share in (shares or {}).items()
            ],
        )
        for name, value in changed.items():
            setattr(request, name, value)
        return self.ask("sync_asked", request)

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id="g",
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        return ErrorCode(self.answers[self.ask("heartbeat_asked", request)].error_code)

    def leave(self, *members: tuple[str, str | None]) -> Any:
        identities = [MemberIdentity(member_id=m, group_instance_id=i) for m, i in members]
        request = LeaveGroupRequest(group_id="g", members=identities)
        return self.answers[self.ask("leave_asked", request, 5)]

    def stable(self, count: int = 2, **how: Any) -> list[JoinGroupResponse]:
        """Form a stable group of so many dynamic members; the first is the leader."""
        ids = [self.new_id(**how) for _ in range(count)]
        tickets = [self.join(member_id, **how) for member_id in ids]
        self.wait(DELAY_MS * 2)
        joined = [self.answers[ticket] for ticket in tickets]
        shares = {key: f"share of {n}".encode() for n, key in enumerate(ids)}
        joined.sort(key=lambda member: member.leader != member.member_id)
        self.sync(joined[0], shares)
        for response in joined[1:]:
            self.sync(response)
        return joined

    def commit_offset(
        self,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        *,
        instance: str | None = None,
        version: int = 9,
        topic: str = "t",
        metadata: str | None = None,
        retention_ms: int = -1,
        group_id: str = "g",
    ) -> int:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=metadata
        )
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        return self.ask("commit_asked", request, version)

    def commit_error(self, *how: Any, **more: Any) -> ErrorCode:
        response = self.answers[self.commit_offset(*how, **more)]
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def fetch(
        self, topic: str = "t", *, require_stable: bool = False, group_id: str = "g"
    ) -> int | ErrorCode:
        topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
        request = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        response = self.coordinator.fetch_asked(request, require_stable=require_stable)
        (found,) = response.topics[0].partitions
        return ErrorCode(found.error_code) if found.error_code else found.committed_offset
