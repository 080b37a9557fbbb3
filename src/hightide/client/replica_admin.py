"""What an administrator asks about leaders and replicas: the part of `Admin` that is about them.

Elections and reassignments are Kafka's requests.  DescribeReplicas is Hightide's: every live broker
is asked at once, and one that does not answer in time is named rather than waited for, because it
may be the very one that somebody is looking for.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from hightide.client.cluster_admin import ClusterAdmin
from hightide.client.connection import Connection, ConnectionFailed, check
from hightide.client.model import Reassignment, ResourceType, TopicDescription
from hightide.client.replicas import (
    Partition,
    ReplicaReport,
    ReplicasDescription,
    Role,
    put_together,
    with_moves,
)
from hightide.core.controller.controller import ElectionKind
from hightide.core.metadata.image import state_of
from hightide.core.partition.follower_progress import Progress, Standing
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from hightide.wire.messages.metadata import DescribeTopicPartitionsRequest, TopicRequest
from hightide.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    DescribedReplica,
    DescribedTopic,
    DescribeReplicasRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from hightide.wire.types import api_of

T = TypeVar("T")
REPORT_TIMEOUT_S = 5.0
"""How long a broker has to say how its replicas stand; one that works takes milliseconds."""
REPORTED_AT_ONCE = 500


class ReplicaAdmin(ClusterAdmin):
    """The questions about leaders and replicas."""

    # -- looking ---------------------------------------------------------------------------

    async def describe_replicas(self, names: Sequence[str] | None = None) -> ReplicasDescription:
        """How the replicas of these topics stand, or of all."""
        if names is None:
            topics = await self.list_topics()
        else:
            topics = await self.describe_topics(names)
        brokers = sorted(self._routes.nodes)
        answers = await asyncio.gather(
            *(self._reports(each, _held_by(each, topics)) for each in brokers)
        )
        reports, silent, others = [], {}, set()
        for broker, answer in zip(brokers, answers, strict=True):
            if answer is None:
                others.add(broker)
            elif isinstance(answer, str):
                silent[broker] = answer
            else:
                reports += answer
        partitions = put_together(
            topics,
            reports,
            live=brokers,
            eligible=await self._eligible([topic.name for topic in topics]),
            silent=silent,
        )
        if others:
            moves = await self.list_reassignments()
            partitions = with_moves(
                partitions, {key: (each.adding, each.removing) for key, each in moves.items()}
            )
        controller = self._routes.controller_id
        return ReplicasDescription(
            controller, frozenset(brokers), partitions, silent, frozenset(others)
        )

    async def _reports(
        self, broker: int, held: Sequence[Partition]
    ) -> list[ReplicaReport] | str | None:
        """A broker's own word; a sentence if it does not answer; None if it is not Hightide's.

        It is asked for some at a time, so that whom it serves meanwhile do not wait for long; and
        for nothing if it holds nothing, to hear whether it answers.
        """
        found = []
        for at in range(0, max(1, len(held)), REPORTED_AT_ONCE):
            try:
                async with asyncio.timeout(REPORT_TIMEOUT_S):
                    answer = await self._report(broker, held[at : at + REPORTED_AT_ONCE])
            except TimeoutError:
                return f"It did not answer in {REPORT_TIMEOUT_S:g} s."
            except (ConnectionFailed, KafkaError) as error:
                return str(error)
            if answer is None:
                return None
            found += answer
        return found

    async def _report(self, broker: int, held: Sequence[Partition]) -> list[ReplicaReport] | None:
        connection = await self._routes.broker(broker)
        request = DescribeReplicasRequest(
            topics=[
                TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in _by_topic(held)
            ]
        )
        try:
            answer = await connection.send(request, version=0)
        except ConnectionFailed:
            # Other brokers hang up on what they do not know; one that died cannot be reached
            # any more, and raises here.
            await self._routes.broker(broker)
            return None
        check(answer.error_code, answer.error_message, about=f"broker {broker}")
        return [
            _reported(broker, topic, each) for topic in answer.topics for each in topic.partitions
        ]

    async def _eligible(self, names: Sequence[str]) -> dict[Partition, tuple[int, ...]]:
        """The ELR of each partition, where the cluster has such a thing."""
        connection = await self._routes.any()
        if not names or api_of(DescribeTopicPartitionsRequest).key not in connection.versions:
            return {}
        found: dict[Partition, tuple[int, ...]] = {}
        cursor = None
        while True:
            answer = await connection.send(
                DescribeTopicPartitionsRequest(
                    topics=[TopicRequest(name=name) for name in sorted(names)], cursor=cursor
                ),
                timeout_ms=self._timeout_ms,
            )
            for topic in answer.topics:
                for each in topic.partitions:
                    key = topic.name or "", each.partition_index
                    found[key] = tuple(each.eligible_leader_replicas or ())
            cursor = answer.next_cursor
            if cursor is None:
                return found

    async def topic_values(
        self, names: Sequence[str], keys: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Some settings of many topics, in one request."""
        if not names:
            return {}
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=ResourceType.TOPIC,
                    resource_name=name,
                    configuration_keys=list(keys),
                )
                for name in names
            ]
        )
        answer = await (await self._routes.any()).send(request, timeout_ms=self._timeout_ms)
        found = {}
        for result in answer.results:
            check(result.error_code, result.error_message, about=result.resource_name)
            found[result.resource_name] = {each.name: each.value or "" for each in result.configs}
        return found

    async def min_insync_replicas(self, names: Sequence[str]) -> dict[str, int]:
        """What each topic needs in sync to commit."""
        key = "min.insync.replicas"
        found = await self.topic_values(names, [key])
        return {name: int(values.get(key) or 1) for name, values in found.items()}

    # -- changing --------------------------------------------------------------------------

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Iterable[Partition] | None = None
    ) -> dict[Partition, KafkaError | None]:
        """Have these partitions, or all, elect a leader; what was refused, and None where it
        was done."""
        request = ElectLeadersRequest(
            election_type=kind,
            topic_partitions=None
            if partitions is None
            else [
                TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in _by_topic(partitions)
            ],
            timeout_ms=self._timeout_ms,
        )

        async def ask(connection: Connection) -> dict[Partition, KafkaError | None]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code)
            return {
                (topic.topic, each.partition_id): _refusal(
                    each, f"{topic.topic}/{each.partition_id}"
                )
                for topic in answer.replica_election_results
                for each in topic.partition_result
            }

        return await self._of_controller(ask)

    async def alter_reassignments(
        self, targets: Mapping[Partition, Sequence[int] | None]
    ) -> dict[Partition, KafkaError | None]:
        """Move partitions to these brokers, or with None stop moving them; what was refused, and
        None where it was begun or stopped."""
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms,
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(
                            partition_index=index, replicas=_listed(targets[topic, index])
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in _by_topic(targets)
            ],
        )

        async def ask(connection: Connection) -> dict[Partition, KafkaError | None]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code, answer.error_message)
            return {
                (topic.name, each.partition_index): _refusal(
                    each, f"{topic.name}/{each.partition_index}"
                )
                for topic in answer.responses
                for each in topic.partitions
            }

        return await self._of_controller(ask)

    async def list_reassignments(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[Partition, Reassignment]:
        """Which of these partitions, or of all, are being moved."""
        request = ListPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms,
            topics=None
            if partitions is None
            else [
                ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in _by_topic(partitions)
            ],
        )

        async def ask(connection: Connection) -> dict[Partition, Reassignment]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code, answer.error_message)
            return {
                (topic.name, each.partition_index): Reassignment(
                    tuple(each.replicas),
                    tuple(each.adding_replicas),
                    tuple(each.removing_replicas),
                )
                for topic in answer.topics
                for each in topic.partitions
            }

        return await self._of_controller(ask)

    async def _of_controller(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        async def attempt() -> T:
            return await ask(await self._routes.controller())

        return await self._routes.persist(attempt)


def _reported(broker: int, topic: DescribedTopic, each: DescribedReplica) -> ReplicaReport:
    return ReplicaReport(
        broker=broker,
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=each.partition_index,
        role=Role(each.role),
        leader_epoch=each.leader_epoch,
        log_start_offset=each.log_start_offset,
        high_watermark=each.high_watermark,
        end_offset=each.end_offset,
        size_bytes=each.size_bytes,
        state=None if each.state is None else state_of(each.state),
        is_waiting=each.is_waiting,
        lost_records=each.lost_records,
        is_under_min_isr=each.is_under_min_isr,
        maximal_isr=tuple(each.maximal_isr),
        progress={
            told.broker_id: Progress(
                told.broker_id,
                Standing[told.standing],
                _known(told.end_offset),
                _known(told.lag_records),
                _known(told.lag_ms),
            )
            for told in each.progress
        },
    )


def _held_by(broker: int, topics: Iterable[TopicDescription]) -> list[Partition]:
    return [
        (topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if broker in each.replicas
    ]


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _refusal(result: Any, about: str) -> KafkaError | None:
    try:
        check(result.error_code, result.error_message, about=about)
    except KafkaError as error:
        if error.code == ErrorCode.NOT_CONTROLLER:
            raise
        return error
    return None


def _by_topic(partitions: Iterable[Partition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        topics[topic].append(index)
    return list(topics.items())
