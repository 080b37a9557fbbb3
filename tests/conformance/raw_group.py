"""The requests of a group member over a plain socket, also wrong ones that no client sends."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.conformance.raw import Raw

Partition = tuple[str, int]
JOIN, SYNC, HEARTBEAT, LEAVE = 9, 5, 4, 5
COMMIT, FETCH = 9, 9
SESSION_MS = 30_000


def new_group() -> str:
    return f"group-{time.monotonic_ns()}"


def subscription(*topics: str) -> bytes:
    """Return the subscription of a consumer, in version 0."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def share(*partitions: Partition) -> bytes:
    """Return the assignment that a group's leader gives a member."""
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    parts = b"".join(
        struct.pack(f">h{len(name)}si{len(them)}i", len(name), name.encode(), len(them), *them)
        for name, them in topics.items()
    )
    return struct.pack(">hi", 0, len(topics)) + parts + struct.pack(">i", -1)


@dataclass
class RawMember:
    """A member on its connection."""

    raw: Raw
    group: str
    topics: tuple[str, ...] = ("topic",)
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    session_ms: int = SESSION_MS
    rebalance_ms: int = SESSION_MS
    protocols: tuple[str, ...] = ("range",)
    protocol_type: str = "consumer"
    joined: Any = field(default=None, repr=False)

    # -- joining ---------------------------------------------------------------------------

    def join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=protocol, metadata=subscription(*self.topics))
                for protocol in self.protocols
            ],
            reason="a test",
        )

    def join(self, version: int = JOIN) -> ErrorCode:
        """Join, again with the member id that the coordinator requires, if it does."""
        answer = self.raw.ask(self.join_request(), version)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = self.raw.ask(self.join_request(), version)
        return self._joined(answer)

    def begin_to_join(self, version: int = JOIN) -> None:
        """Send JoinGroup without waiting; `end_of_join` returns the response."""
        if not self.member_id and self.instance is None:
            answer = self.raw.ask(self.join_request(), version)
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            self.member_id = answer.member_id
        self.raw.begin(self.join_request(), version)

    def end_of_join(self, version: int = JOIN) -> ErrorCode:
        return self._joined(self.raw.end(self.join_request(), version))

    def _joined(self, answer: Any) -> ErrorCode:
        self.joined = answer
        if answer.error_code == 0:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return ErrorCode(answer.error_code)

    @property
    def is_leader(self) -> bool:
        return self.joined is not None and self.joined.leader == self.member_id

    def sync_request(
        self, shares: Mapping[str, bytes] | None = None, **given: Any
    ) -> SyncGroupRequest:
        assignments = [
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in (shares or {}).items()
        ]
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocols[0],
            "assignments": assignments,
        }
        return SyncGroupRequest(**values | given)

    def sync(
        self, shares: Mapping[str, bytes] | None = None, version: int = SYNC, **given: Any
    ) -> Any:
        return self.raw.ask(self.sync_request(shares, **given), version)

    def form(self, *partitions: Partition) -> RawMember:
        """Form the group as its only member, with these partitions."""
        assert self.join() is ErrorCode.NONE
        answer = self.sync({self.member_id: share(*partitions)})
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        return self

    # -- being a member --------------------------------------------------------------------

    def heartbeat(self, version: int = HEARTBEAT, **given: Any) -> ErrorCode:
        values: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance if version >= 3 else None,
        }
        return ErrorCode(self.raw.ask(HeartbeatRequest(**values | given), version).error_code)

    def leave(self, version: int = LEAVE, member_id: str | None = None) -> ErrorCode:
        gone = self.member_id if member_id is None else member_id
        answer = leave(self.raw, self.group, [(gone, None)], version)
        found = answer.members[0].error_code if answer.members else answer.error_code
        return ErrorCode(answer.error_code or found)

    def commit(
        self, offsets: Mapping[Partition, int], version: int = COMMIT, **given: Any
    ) -> list[ErrorCode]:
        values: dict[str, Any] = {
            "generation": self.generation,
            "member_id": self.member_id,
            "instance": self.instance if version >= 7 else None,
        }
        return commit(self.raw, self.group, offsets, version, **values | given)


def leave(
    raw: Raw, group: str, members: Iterable[tuple[str, str | None]], version: int = LEAVE
) -> Any:
    them = list(members)
    if version < 3:
        return raw.ask(LeaveGroupRequest(group_id=group, member_id=them[0][0]), version)
    wanted = [
        MemberIdentity(member_id=member_id, group_instance_id=instance)
        for member_id, instance in them
    ]
    return raw.ask(LeaveGroupRequest(group_id=group, members=wanted), version)


# -- offsets -----------------------------------------------------------------------------------


def commit_request(
    group: str,
    offsets: Mapping[Partition, int],
    *,
    generation: int = -1,
    member_id: str = "",
    instance: str | None = None,
    note: str | None = "",
    epoch: int = -1,
) -> OffsetCommitRequest:
    """Return the request's topics, one for each partition."""
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=epoch,
                        committed_metadata=note,
                    )
                ],
            )
            for (topic, index), offset in offsets.items()
        ],
    )


def commit(
    raw: Raw, group: str, offsets: Mapping[Partition, int], version: int = COMMIT, **given: Any
) -> list[ErrorCode]:
    """Return the error of each partition, in the order of the offsets."""
    answer = raw.ask(commit_request(group, offsets, **given), version)
    found = {
        (topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    }
    return [found[place] for place in offsets]


def fetch_offsets(
    raw: Raw,
    group: str,
    partitions: Iterable[Partition] | None,
    version: int = FETCH,
    **given: Any,
) -> dict[Partition, Any]:
    """Return the committed offsets, with None of all partitions; raise the group's error."""
    topics: dict[str, list[int]] | None = None
    if partitions is not None:
        topics = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
    if version < 8:
        wanted = (
            None
            if topics is None
            else [
                OffsetFetchRequestTopic(name=name, partition_indexes=them)
                for name, them in topics.items()
            ]
        )
        request = OffsetFetchRequest(group_id=group, topics=wanted, **given)
        answer = raw.ask(request, version)
    else:
        stable = given.pop("require_stable", False)
        request = OffsetFetchRequest(
            groups=[fetch_group(group, topics, **given)], require_stable=stable
        )
        (answer,) = raw.ask(request, version).groups
    assert answer.error_code == 0, ErrorCode(answer.error_code).name
    return {
        (topic.name, partition.partition_index): partition
        for topic in answer.topics
        for partition in topic.partitions
    }


def fetch_group(
    group: str, topics: Mapping[str, list[int]] | None, **given: Any
) -> OffsetFetchRequestGroup:
    wanted = (
        None
        if topics is None
        else [
            OffsetFetchRequestTopics(name=name, partition_indexes=them)
            for name, them in topics.items()
        ]
    )
    return OffsetFetchRequestGroup(group_id=group, topics=wanted, **given)


def offsets_of(raw: Raw, group: str, *partitions: Partition) -> dict[Partition, int]:
    """Return only the committed offsets, of all partitions if none are named."""
    found = fetch_offsets(raw, group, partitions or None)
    return {place: committed.committed_offset for place, committed in found.items()}


def delete_offsets(raw: Raw, group: str, *partitions: Partition) -> Any:
    return raw.ask(
        OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)]
                )
                for topic, index in partitions
            ],
        ),
        0,
    )


# -- administration ----------------------------------------------------------------------------


def find(raw: Raw, group: str, version: int = 4, kind: int = 0) -> Any:
    if version < 4:
        return raw.ask(FindCoordinatorRequest(key=group, key_type=kind), version)
    request = FindCoordinatorRequest(coordinator_keys=[group], key_type=kind)
    return raw.ask(request, version).coordinators[0]


def describe(raw: Raw, group: str, version: int = 5) -> Any:
    return raw.ask(DescribeGroupsRequest(groups=[group]), version).groups[0]


def listed(raw: Raw, version: int = 5, **filters: Any) -> dict[str, Any]:
    answer = raw.ask(ListGroupsRequest(**filters), version)
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    return {group.group_id: group for group in answer.groups}


def delete_groups(raw: Raw, *groups: str, version: int = 2) -> list[ErrorCode]:
    answer = raw.ask(DeleteGroupsRequest(groups_names=list(groups)), version)
    found = {result.group_id: ErrorCode(result.error_code) for result in answer.results}
    return [found[group] for group in groups]
