"""Groups of the classic protocol: find the coordinator, join, sync, heartbeat, leave.

A member joins, the group leader computes the assignment and sends it with SyncGroup, and all
members send heartbeats until the next rebalance.
"""

from __future__ import annotations

from hightide.wire.types import field, i8, i16, i32, message, part


@message(key=10, versions=(0, 6), flexible=3)
class FindCoordinatorRequest:
    """Request the coordinator of a group or transactional id; of several from version 4 on."""

    key: str = field(until=3, default="")
    key_type: i8 = field(since=1, default=0)
    coordinator_keys: list[str] = field(since=4, default=[])


@part
class Coordinator:
    key: str
    node_id: i32
    host: str
    port: i32
    error_code: i16 = 0
    error_message: str | None = None


@message(key=10, versions=(0, 6), flexible=3)
class FindCoordinatorResponse:
    """The coordinator of each key."""

    throttle_time_ms: i32 = field(since=1, ignorable=True, default=0)
    error_code: i16 = field(until=3, default=0)
    error_message: str | None = field(since=1, until=3, ignorable=True, default=None)
    node_id: i32 = field(until=3, default=0)
    host: str = field(until=3, default="")
    port: i32 = field(until=3, default=0)
    coordinators: list[Coordinator] = field(since=4, default=[])


@part
class JoinGroupRequestProtocol:
    name: str
    metadata: bytes


@message(key=11, versions=(0, 9), flexible=6)
class JoinGroupRequest:
    """Join a group with the protocols that the member supports."""

    group_id: str
    session_timeout_ms: i32
    rebalance_timeout_ms: i32 = field(since=1, ignorable=True, default=-1)
    member_id: str
    group_instance_id: str | None = field(since=5, default=None)
    protocol_type: str
    protocols: list[JoinGroupRequestProtocol]
    reason: str | None = field(since=8, ignorable=True, default=None)


@part
class JoinGroupResponseMember:
    member_id: str
    group_instance_id: str | None = field(since=5, ignorable=True, default=None)
    metadata: bytes


@message(key=11, versions=(0, 9), flexible=6)
class JoinGroupResponse:
    """The new generation; the group leader also gets the members and their protocols."""

    throttle_time_ms: i32 = field(since=2, ignorable=True, default=0)
    error_code: i16 = 0
    generation_id: i32 = -1
    protocol_type: str | None = field(since=7, ignorable=True, default=None)
    protocol_name: str | None = field(nullable=7)
    leader: str
    skip_assignment: bool = field(since=9, default=False)
    member_id: str
    members: list[JoinGroupResponseMember]


@part
class SyncGroupRequestAssignment:
    member_id: str
    assignment: bytes


@message(key=14, versions=(0, 5), flexible=4)
class SyncGroupRequest:
    """Request the assignment of a member; the group leader sends all assignments."""

    group_id: str
    generation_id: i32
    member_id: str
    group_instance_id: str | None = field(since=3, default=None)
    protocol_type: str | None = field(since=5, ignorable=True, default=None)
    protocol_name: str | None = field(since=5, ignorable=True, default=None)
    assignments: list[SyncGroupRequestAssignment]


@message(key=14, versions=(0, 5), flexible=4)
class SyncGroupResponse:
    """The assignment of the member."""

    throttle_time_ms: i32 = field(since=1, ignorable=True, default=0)
    error_code: i16 = 0
    protocol_type: str | None = field(since=5, ignorable=True, default=None)
    protocol_name: str | None = field(since=5, ignorable=True, default=None)
    assignment: bytes


@message(key=12, versions=(0, 4), flexible=4)
class HeartbeatRequest:
    """Keep the session of a member alive."""

    group_id: str
    generation_id: i32
    member_id: str
    group_instance_id: str | None = field(since=3, default=None)


@message(key=12, versions=(0, 4), flexible=4)
class HeartbeatResponse:
    """Whether the member may continue or must rejoin."""

    throttle_time_ms: i32 = field(since=1, ignorable=True, default=0)
    error_code: i16 = 0


@part
class MemberIdentity:
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = field(since=5, ignorable=True, default=None)


@message(key=13, versions=(0, 5), flexible=4)
class LeaveGroupRequest:
    """Leave a group; from version 3 on several members can be removed at once."""

    group_id: str
    member_id: str = field(until=2, default="")
    members: list[MemberIdentity] = field(since=3, default=[])


@part
class MemberResponse:
    member_id: str
    group_instance_id: str | None
    error_code: i16 = 0


@message(key=13, versions=(0, 5), flexible=4)
class LeaveGroupResponse:
    """The result for each member."""

    throttle_time_ms: i32 = field(since=1, ignorable=True, default=0)
    error_code: i16 = 0
    members: list[MemberResponse] = field(since=3, default=[])


@message(key=15, versions=(0, 6), flexible=5)
class DescribeGroupsRequest:
    """Request the state and members of groups."""

    groups: list[str]
    include_authorized_operations: bool = field(since=3, default=False)


@part
class DescribedGroupMember:
    member_id: str
    group_instance_id: str | None = field(since=4, ignorable=True, default=None)
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@part
class DescribedGroup:
    error_code: i16 = 0
    error_message: str | None = field(since=6, default=None)
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: list[DescribedGroupMember]
    authorized_operations: i32 = field(since=3, default=-(2**31))


@message(key=15, versions=(0, 6), flexible=5)
class DescribeGroupsResponse:
    """State, protocol and members of each group."""

    throttle_time_ms: i32 = field(since=1, ignorable=True, default=0)
    groups: list[DescribedGroup]


@message(key=16, versions=(0, 5), flexible=3)
class ListGroupsRequest:
    """Request the groups that this broker coordinates."""

    states_filter: list[str] = field(since=4, default=[])
    types_filter: list[str] = field(since=5, default=[])


@part
class ListedGroup:
    group_id: str
    protocol_type: str
    group_state: str = field(since=4, ignorable=True, default="")
    group_type: str = field(since=5, ignorable=True, default="")


@message(key=16, versions=(0, 5), flexible=3)
class ListGroupsResponse:
    """The groups that this broker coordinates."""

    throttle_time_ms: i32 = field(since=1, ignorable=True, default=0)
    error_code: i16 = 0
    groups: list[ListedGroup]


@message(key=42, versions=(0, 2), flexible=2)
class DeleteGroupsRequest:
    """Delete groups without members."""

    groups_names: list[str]


@part
class DeletableGroupResult:
    group_id: str
    error_code: i16 = 0


@message(key=42, versions=(0, 2), flexible=2)
class DeleteGroupsResponse:
    """The result for each group."""

    throttle_time_ms: i32 = 0
    results: list[DeletableGroupResult]
