"""ConsumerGroupDescribe: what can be seen of a group of the newer protocol from outside."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from hightide.core.groups.consumer.assignors import Share
from hightide.core.groups.consumer.consumer_group import NOTHING, ConsumerGroup, by_topic
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import (
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def described(
    group_id: str, group: ConsumerGroup | None, default_assignor: str
) -> DescribedConsumerGroup:
    if group is None:
        return DescribedConsumerGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"there is no consumer group {group_id}",
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=[],
        )
    names = {topic.id: name for name, topic in group.topics.items()}
    members = [
        DescribedConsumer(
            member_id=member.id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=[*member.topic_names],
            subscribed_topic_regex=member.topic_regex,
            assignment=_shown(member.assigned, names),
            target_assignment=_shown(group.target.get(member.id, NOTHING), names),
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )
        for member in group.members.values()
    ]
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(default_assignor),
        members=members,
    )


def _shown(share: Share, names: Mapping[uuid.UUID, str]) -> DescribedAssignment:
    """Partitions of topics that are gone are not shown: they have no name any more."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(
                topic_id=each.topic_id,
                topic_name=names[each.topic_id],
                partitions=each.partitions,
            )
            for each in by_topic(share)
            if each.topic_id in names
        ]
    )
