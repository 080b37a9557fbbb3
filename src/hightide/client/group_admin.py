"""What an administrator asks about groups: the part of `Admin` that is about them.

All but one are Kafka's requests, and work with any cluster.  GroupStatus is Hightide's: it tells
when offsets were committed and why a group last rebalanced.  Other brokers hang up on it, and then
that is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hightide.client.connection import Connection, ConnectionFailed, check
from hightide.client.coordinator_admin import COME_AGAIN, CoordinatorAdmin, CoordinatorKind
from hightide.client.groups import (
    CONSUMER,
    DEAD,
    Commit,
    Extent,
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupMember,
    GroupsListing,
    Rebalance,
    assigned,
    by_topic,
    lags,
    unread,
)
from hightide.client.model import Timestamp
from hightide.client.record_admin import RecordAdmin
from hightide.client.replicas import Partition
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    DescribedAssignment,
    DescribedConsumerGroup,
)
from hightide.wire.messages.group_status import GroupStatus, GroupStatusRequest
from hightide.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    ListGroupsRequest,
    ListGroupsResponse,
)
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from hightide.wire.types import api_of

TAKES_STATES, TAKES_TYPES, TAKES_GROUPS = 4, 5, 8
"""First versions of ListGroups that filter by state and by type; of OffsetFetch with groups."""
UNSTABLE = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})


class GroupAdmin(CoordinatorAdmin, RecordAdmin):
    """The questions about groups and their offsets."""

    # -- looking ---------------------------------------------------------------------------

    async def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> GroupsListing:
        """All groups of the cluster, or those in one of the states and of one of the types."""

        async def ask(connection: Connection) -> ListGroupsResponse:
            version = connection.version_for(ListGroupsRequest)
            if (states and version < TAKES_STATES) or (types and version < TAKES_TYPES):
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.address} cannot choose groups by state and type.",
                )
            request = ListGroupsRequest(states_filter=[*states], types_filter=[*types])
            answer: ListGroupsResponse = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code, about=connection.address)
            return answer

        heard = await self._at_every_broker(ask)
        found = [
            GroupListing(
                each.group_id,
                each.group_type.capitalize(),
                each.group_state,
                each.protocol_type,
                broker,
            )
            for broker, answer in heard.answers.items()
            for each in answer.groups
        ]
        return GroupsListing(sorted(found, key=lambda each: each.group), heard.silent)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """State and members of a group; one that does not exist raises."""
        found = await self._seen(group_id)
        return _with_status(found, await self.group_status(group_id))

    async def _seen(self, group_id: str) -> GroupDescription:
        """What Kafka's requests tell of a group."""

        async def ask(connection: Connection) -> GroupDescription:
            coordinator = self._broker_at(connection)
            found = await self._describe_consumers(connection, group_id, coordinator)
            if found is None:
                found = await self._describe_classic(connection, group_id, coordinator)
            return found

        return await self._at_coordinator(CoordinatorKind.GROUP, group_id, ask)

    async def _describe_consumers(
        self, connection: Connection, group_id: str, coordinator: int
    ) -> GroupDescription | None:
        """A group of the newer protocol; None if it is not one."""
        if api_of(ConsumerGroupDescribeRequest).key not in connection.versions:
            return None
        request = ConsumerGroupDescribeRequest(
            group_ids=[group_id], include_authorized_operations=False
        )
        answer = await connection.send(request, timeout_ms=self._timeout_ms)
        (group,) = answer.groups
        if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return None
        check(group.error_code, group.error_message, about=group_id)
        return _of_consumers(group, coordinator)

    async def _describe_classic(
        self, connection: Connection, group_id: str, coordinator: int
    ) -> GroupDescription:
        request = DescribeGroupsRequest(groups=[group_id])
        answer = await connection.send(request, timeout_ms=self._timeout_ms)
        (group,) = answer.groups
        # Older versions tell of a group that is not there as of one that is dead.
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {group_id!r}.")
        check(group.error_code, group.error_message, about=group_id)
        return _of_classic(group, coordinator)

    async def group_status(self, group_id: str) -> GroupStatus | None:
        """What only Hightide's coordinators tell; None of a group that they do not know, and of
        coordinators that are not Hightide's."""

        async def ask(connection: Connection) -> GroupStatus | None:
            try:
                answer = await connection.send(GroupStatusRequest(group_ids=[group_id]), version=0)
            except ConnectionFailed:
                # Other brokers hang up on what they do not know; one that died cannot be reached
                # any more, and raises here.
                await self._routes.broker(self._broker_at(connection))
                return None
            (found,) = answer.groups
            if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                return None
            check(found.error_code, found.error_message, about=group_id)
            return found  # type: ignore[no-any-return]

        return await self._at_coordinator(CoordinatorKind.GROUP, group_id, ask)

    # -- offsets ---------------------------------------------------------------------------

    async def committed(
        self,
        group_id: str,
        *,
        stable: bool = False,
        partitions: Iterable[Partition] | None = None,
    ) -> dict[Partition, Commit]:
        """What a group has committed, in all partitions or in some.

        `stable` waits for transactions that may commit more.  Apache Kafka does so only for
        partitions that are named: of the others it tells what is committed by now.
        """
        named = None if partitions is None else by_topic(partitions)

        async def ask(connection: Connection) -> dict[Partition, Commit]:
            version = connection.version_for(OffsetFetchRequest)
            if version >= TAKES_GROUPS:
                topics = (
                    None
                    if named is None
                    else [
                        OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                        for name, indexes in named.items()
                    ]
                )
                group = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
                request = OffsetFetchRequest(groups=[group], require_stable=stable)
            else:
                older = (
                    None
                    if named is None
                    else [
                        OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                        for name, indexes in named.items()
                    ]
                )
                request = OffsetFetchRequest(
                    group_id=group_id, topics=older, require_stable=stable and version >= 7
                )
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            told = answer.groups[0] if version >= TAKES_GROUPS else answer
            check(told.error_code, about=group_id)
            found = {}
            for topic in told.topics:
                for each in topic.partitions:
                    check(each.error_code, about=f"{topic.name}/{each.partition_index}")
                    if each.committed_offset >= 0:
                        found[topic.name, each.partition_index] = Commit(
                            each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                        )
            return found

        return await self._at_coordinator(CoordinatorKind.GROUP, group_id, ask, UNSTABLE)

    async def commit_for(
        self, group_id: str, offsets: Mapping[Partition, int | tuple[int, str]]
    ) -> dict[Partition, KafkaError | None]:
        """Commit offsets, each alone or with its metadata, in the name of a group that nobody is a
        member of; what was refused, and None where it was done."""
        texts = {
            each: (given, "") if isinstance(given, int) else given
            for each, given in offsets.items()
        }
        request = OffsetCommitRequest(
            group_id=group_id,
            member_id="",
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=texts[topic, index][0],
                            committed_metadata=texts[topic, index][1],
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(offsets).items()
            ],
        )

        async def ask(connection: Connection) -> dict[Partition, KafkaError | None]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            return {
                (topic.name, each.partition_index): _refusal(
                    each.error_code, f"{topic.name}/{each.partition_index}"
                )
                for topic in answer.topics
                for each in topic.partitions
            }

        return await self._at_coordinator(CoordinatorKind.GROUP, group_id, ask)

    async def group_lag(self, group_id: str) -> GroupLag:
        """How far a group is behind in each of its partitions."""
        group = await self._seen(group_id)
        # Commits before ends: otherwise what is consumed meanwhile would be more than there is.
        commits = await self.committed(group_id)
        status = await self.group_status(group_id)
        group, commits = _with_status(group, status), _with_times(commits, status)
        extents = await self.extents({*commits, *group.owners()})
        oldest_ms = await self.record_times(unread(commits, extents))
        return GroupLag(group, lags(group, commits, extents, oldest_ms))

    async def extents(self, partitions: Iterable[Partition]) -> dict[Partition, Extent]:
        """Where these partitions begin and end.  What does not exist any more and what nobody
        leads is left out."""
        names = sorted({topic for topic, _ in partitions})
        answer = await self._routes.metadata(names)
        led = {
            (topic.name, each.partition_index)
            for topic in answer.topics
            for each in topic.partitions
            if topic.error_code == ErrorCode.NONE and each.leader_id in self._routes.nodes
        }
        asked = [each for each in partitions if each in led]
        starts = await self.list_offsets(dict.fromkeys(asked, Timestamp.EARLIEST))
        ends = await self.list_offsets(dict.fromkeys(asked, Timestamp.LATEST))
        return {each: Extent(starts[each].offset, ends[each].offset) for each in asked}

    # -- deleting --------------------------------------------------------------------------

    async def delete_group(self, group_id: str) -> None:
        """Forget a group that has no members, and its offsets."""

        async def ask(connection: Connection) -> None:
            request = DeleteGroupsRequest(groups_names=[group_id])
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            for each in answer.results:
                check(each.error_code, about=group_id)

        await self._at_coordinator(CoordinatorKind.GROUP, group_id, ask)


def _of_classic(group: DescribedGroup, coordinator: int) -> GroupDescription:
    is_consumer = group.protocol_type == CONSUMER
    return GroupDescription(
        group=group.group_id,
        type="Classic",
        state=group.group_state,
        coordinator=coordinator,
        protocol_type=group.protocol_type,
        assignor=group.protocol_data,
        generation=None,
        members=[
            GroupMember(
                id=each.member_id,
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                host=each.client_host,
                assignment=assigned(each.member_assignment) if is_consumer else None,
            )
            for each in group.members
        ],
    )


def _of_consumers(group: DescribedConsumerGroup, coordinator: int) -> GroupDescription:
    return GroupDescription(
        group=group.group_id,
        type="Consumer",
        state=group.group_state,
        coordinator=coordinator,
        protocol_type=CONSUMER,
        assignor=group.assignor_name,
        generation=group.group_epoch,
        members=[
            GroupMember(
                id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                host=each.client_host,
                assignment=_partitions(each.assignment),
                target=_partitions(each.target_assignment),
                epoch=each.member_epoch,
            )
            for each in group.members
        ],
    )


def _partitions(assignment: DescribedAssignment) -> tuple[Partition, ...]:
    return tuple(
        sorted(
            (each.topic_name, index)
            for each in assignment.topic_partitions
            for index in each.partitions
        )
    )


def _with_status(group: GroupDescription, status: GroupStatus | None) -> GroupDescription:
    if status is None:
        return group
    told = status.last_rebalance
    return replace(
        group,
        generation=status.generation if status.generation >= 0 else group.generation,
        leader=status.leader,
        since_ms=status.state_ms if status.state_ms >= 0 else None,
        last_rebalance=None
        if told is None
        else Rebalance(told.reason, told.at_ms, told.generation),
    )


def _with_times(
    commits: Mapping[Partition, Commit], status: GroupStatus | None
) -> dict[Partition, Commit]:
    """Commits with their times; one that another has followed since has none."""
    times = {
        (topic.name, each.partition_index, each.committed_offset): each.committed_ms
        for topic in (() if status is None else status.topics)
        for each in topic.partitions
    }
    return {
        partition: replace(commit, committed_ms=times.get((*partition, commit.offset)))
        for partition, commit in commits.items()
    }


def _refusal(code: int, about: str) -> KafkaError | None:
    """What was refused for good; what may be done at another coordinator is tried there."""
    try:
        check(code, about=about)
    except KafkaError as error:
        if error.code in COME_AGAIN:
            raise
        return error
    return None
