"""Groups: list, describe, lag, offsets, delete.

All requests but one are Kafka's and work with any cluster.  GroupStatus is Hightide's: it says when
offsets were committed and why a group last rebalanced.  Other brokers close the connection on it;
then those values are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hightide.client.admin.records import RecordAdmin
from hightide.client.broker_connection import Connection, check
from hightide.client.model.cluster import Partition, by_topic
from hightide.client.model.groups import (
    CONSUMER,
    DEAD,
    Commit,
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupMember,
    GroupsListing,
    Rebalance,
    assigned,
    lags,
    unread,
)
from hightide.client.routing import COORDINATOR_MOVED, CoordinatorKind, Router
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    DescribedAssignment,
    DescribedConsumerGroup,
)
from hightide.wire.messages.group_status import GroupStatus, GroupStatusRequest, GroupStatusResponse
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
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from hightide.wire.types import api_of

TAKES_STATES, TAKES_TYPES, TAKES_GROUPS = 4, 5, 8
"""First versions of ListGroups that filter by state and by type; of OffsetFetch with groups."""
UNSTABLE = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})


class GroupAdmin:
    """Requests about groups and their offsets."""

    def __init__(self, router: Router, records: RecordAdmin) -> None:
        self._router = router
        self._records = records
        self._timeout_ms = router.timeout_ms

    # -- list and describe -----------------------------------------------------------------

    async def list(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> GroupsListing:
        """All groups of the cluster, or those with one of the states and one of the types."""

        async def ask(connection: Connection) -> ListGroupsResponse:
            version = connection.version_for(ListGroupsRequest)
            if (states and version < TAKES_STATES) or (types and version < TAKES_TYPES):
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.address} cannot filter groups by state and type.",
                )
            request = ListGroupsRequest(states_filter=[*states], types_filter=[*types])
            answer: ListGroupsResponse = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code, about=connection.address)
            return answer

        heard = await self._router.ask_every_broker(ask)
        found = [
            GroupListing(
                group.group_id,
                group.group_type.capitalize(),
                group.group_state,
                group.protocol_type,
                broker,
            )
            for broker, answer in heard.answers.items()
            for group in answer.groups
        ]
        return GroupsListing(sorted(found, key=lambda group: group.group), heard.silent)

    async def describe(self, group_id: str) -> GroupDescription:
        """State and members of a group; one that does not exist raises."""
        found = await self._describe(group_id)
        return with_status(found, await self.status(group_id))

    async def _describe(self, group_id: str) -> GroupDescription:
        """Describe a group with Kafka's requests alone."""

        async def ask(connection: Connection) -> GroupDescription:
            coordinator = self._router.broker_of(connection)
            found = await self._describe_consumers(connection, group_id, coordinator)
            if found is None:
                found = await self._describe_classic(connection, group_id, coordinator)
            return found

        return await self._router.ask_coordinator(CoordinatorKind.GROUP, group_id, ask)

    async def _describe_consumers(
        self, connection: Connection, group_id: str, coordinator: int
    ) -> GroupDescription | None:
        """A group of the consumer protocol; None if it is of the classic one."""
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
        return consumer_group(group, coordinator)

    async def _describe_classic(
        self, connection: Connection, group_id: str, coordinator: int
    ) -> GroupDescription:
        request = DescribeGroupsRequest(groups=[group_id])
        answer = await connection.send(request, timeout_ms=self._timeout_ms)
        (group,) = answer.groups
        # Older versions report a group that does not exist as dead.
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {group_id!r}.")
        check(group.error_code, group.error_message, about=group_id)
        return classic_group(group, coordinator)

    async def status(self, group_id: str) -> GroupStatus | None:
        """What only Hightide's coordinators know; None if the group does not exist, or the
        coordinator is not Hightide's."""

        async def send(connection: Connection) -> GroupStatusResponse:
            answer: GroupStatusResponse = await connection.send(
                GroupStatusRequest(group_ids=[group_id]), version=0
            )
            return answer

        async def ask(connection: Connection) -> GroupStatus | None:
            broker = self._router.broker_of(connection)
            answer = await self._router.ask_hightide(broker, send)
            if answer is None:
                return None
            (found,) = answer.groups
            if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                return None
            check(found.error_code, found.error_message, about=group_id)
            return found

        return await self._router.ask_coordinator(CoordinatorKind.GROUP, group_id, ask)

    # -- offsets ---------------------------------------------------------------------------

    async def committed(
        self,
        group_id: str,
        *,
        stable: bool = False,
        partitions: Iterable[Partition] | None = None,
    ) -> dict[Partition, Commit]:
        """The committed offsets of a group, in all partitions or in some.

        `stable` waits for open transactions that commit offsets.  Apache Kafka does so only for
        partitions that the request names; for others it returns what is committed by now.
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
            result = answer.groups[0] if version >= TAKES_GROUPS else answer
            check(result.error_code, about=group_id)
            return committed_offsets(result)

        return await self._router.ask_coordinator(CoordinatorKind.GROUP, group_id, ask, UNSTABLE)

    async def commit(
        self, group_id: str, offsets: Mapping[Partition, int | tuple[int, str]]
    ) -> dict[Partition, KafkaError | None]:
        """Commit offsets, each with or without metadata, for a group without members.

        Returns the error of each partition, or None where the commit succeeded.
        """
        commits = {
            partition: (offset, "") if isinstance(offset, int) else offset
            for partition, offset in offsets.items()
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
                            committed_offset=commits[topic, index][0],
                            committed_metadata=commits[topic, index][1],
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
                (topic.name, partition.partition_index): _refusal(
                    partition.error_code, f"{topic.name}/{partition.partition_index}"
                )
                for topic in answer.topics
                for partition in topic.partitions
            }

        return await self._router.ask_coordinator(CoordinatorKind.GROUP, group_id, ask)

    async def lag(self, group_id: str) -> GroupLag:
        """How far a group is behind in each of its partitions."""
        group = await self._describe(group_id)
        # Read commits before ends, so that no commit is ahead of the end that was read.
        commits = await self.committed(group_id)
        status = await self.status(group_id)
        group, commits = with_status(group, status), with_times(commits, status)
        extents = await self._records.extents({*commits, *group.owners()})
        oldest_ms = await self._records.timestamps(unread(commits, extents))
        return GroupLag(group, lags(group, commits, extents, oldest_ms))

    # -- delete ----------------------------------------------------------------------------

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[Partition]
    ) -> dict[Partition, ErrorCode | None]:
        """Delete committed offsets; return the refusal of each partition, or None."""
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=index) for index in indexes
                    ],
                )
                for topic, indexes in by_topic(partitions).items()
            ],
        )

        async def ask(connection: Connection) -> dict[Partition, ErrorCode | None]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code, about=group_id)
            found: dict[Partition, ErrorCode | None] = {}
            for topic in answer.topics:
                for partition in topic.partitions:
                    key = topic.name, partition.partition_index
                    refusal = _refusal(partition.error_code, f"{key[0]}/{key[1]}")
                    found[key] = None if refusal is None else refusal.code
            return found

        return await self._router.ask_coordinator(CoordinatorKind.GROUP, group_id, ask)

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets."""

        async def ask(connection: Connection) -> None:
            request = DeleteGroupsRequest(groups_names=[group_id])
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            for result in answer.results:
                check(result.error_code, about=group_id)

        await self._router.ask_coordinator(CoordinatorKind.GROUP, group_id, ask)


def committed_offsets(result: Any) -> dict[Partition, Commit]:
    """The committed offsets in the result of a group."""
    found = {}
    for topic in result.topics:
        for partition in topic.partitions:
            key = topic.name, partition.partition_index
            check(partition.error_code, about=f"{key[0]}/{key[1]}")
            if partition.committed_offset >= 0:
                found[key] = Commit(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.metadata or "",
                )
    return found


def classic_group(group: DescribedGroup, coordinator: int) -> GroupDescription:
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
                id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=assigned(member.member_assignment) if is_consumer else None,
            )
            for member in group.members
        ],
    )


def consumer_group(group: DescribedConsumerGroup, coordinator: int) -> GroupDescription:
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
                id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_partitions(member.assignment),
                target=_partitions(member.target_assignment),
                epoch=member.member_epoch,
            )
            for member in group.members
        ],
    )


def _partitions(assignment: DescribedAssignment) -> tuple[Partition, ...]:
    return tuple(
        sorted(
            (topic.topic_name, index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        )
    )


def with_status(group: GroupDescription, status: GroupStatus | None) -> GroupDescription:
    if status is None:
        return group
    last = status.last_rebalance
    return replace(
        group,
        generation=status.generation if status.generation >= 0 else group.generation,
        leader=status.leader,
        since_ms=status.state_ms if status.state_ms >= 0 else None,
        last_rebalance=None
        if last is None
        else Rebalance(last.reason, last.at_ms, last.generation),
    )


def with_times(
    commits: Mapping[Partition, Commit], status: GroupStatus | None
) -> dict[Partition, Commit]:
    """Commits with their times; a commit that is newer than the status has none."""
    times = {
        (topic.name, commit.partition_index, commit.committed_offset): commit.committed_ms
        for topic in (() if status is None else status.topics)
        for commit in topic.partitions
    }
    return {
        partition: replace(commit, committed_ms=times.get((*partition, commit.offset)))
        for partition, commit in commits.items()
    }


def _refusal(code: int, about: str) -> KafkaError | None:
    """The error of a partition; one that another coordinator may not have is raised and retried."""
    try:
        check(code, about=about)
    except KafkaError as error:
        if error.code in COORDINATOR_MOVED:
            raise
        return error
    return None
