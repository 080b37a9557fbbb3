"""DescribeGroups and ListGroups: what can be seen of a group from outside."""

from __future__ import annotations

from collections.abc import Iterable

from hightide.core.groups.classic.classic_group import ClassicGroup, State
from hightide.core.groups.classic.subscription import CONSUMER
from hightide.core.groups.consumer.consumer_group import ConsumerGroup
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
    ListGroupsRequest,
)

TYPES = {ClassicGroup: "classic", ConsumerGroup: "consumer"}
# Before this version of DescribeGroups, a group that is not there is one that is dead.
NOT_FOUND_IS_TOLD = 6


def described(group_id: str, group: ClassicGroup | None, version: int) -> DescribedGroup:
    if group is None:
        is_told = version >= NOT_FOUND_IS_TOLD
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.NONE,
            error_message=f"there is no group {group_id}" if is_told else None,
            group_id=group_id,
            group_state=State.DEAD.value,
            protocol_type="",
            protocol_data="",
            members=[],
        )
    # Before the work is shared out, what members offer and have does not fit together.
    is_stable = group.state is State.STABLE
    members = [
        DescribedGroupMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if is_stable else b"",
            member_assignment=member.assignment if is_stable else b"",
        )
        for member in group.members.values()
    ]
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=members,
    )


def listed(
    groups: Iterable[ClassicGroup | ConsumerGroup], request: ListGroupsRequest
) -> list[ListedGroup]:
    """The groups in one of the wanted states and of one of the wanted types; none means any."""
    states = {each.lower() for each in request.states_filter}
    types = {each.lower() for each in request.types_filter}
    found = []
    for group in groups:
        state, kind = group.state.value, TYPES[type(group)]
        is_wanted = not states or state.lower() in states
        if is_wanted and (not types or kind.lower() in types):
            protocol = CONSUMER if isinstance(group, ConsumerGroup) else group.protocol_type
            found.append(
                ListedGroup(
                    group_id=group.id,
                    protocol_type=protocol or "",
                    group_state=state,
                    group_type=kind,
                )
            )
    return found
