"""Replicas: describe, elect leaders, reassign.

Elections and reassignments are Kafka's requests.  DescribeReplicas is Hightide's: it goes to every
live broker at once, and a broker that does not answer in time is named instead of waited for,
because it may be the very one that an operator is looking for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hightide.client.admin.topics import TopicAdmin
from hightide.client.broker_connection import Connection, ConnectionFailed, check
from hightide.client.model.cluster import Partition, TopicDescription, by_topic
from hightide.client.model.replicas import (
    Reassignment,
    ReplicaReport,
    ReplicasDescription,
    Role,
    combine_reports,
    with_reassignments,
)
from hightide.client.routing import Router
from hightide.core.controller.controller import ElectionKind
from hightide.core.metadata.image import state_of
from hightide.core.partition.follower_progress import Progress, Standing
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.metadata import DescribeTopicPartitionsRequest, TopicRequest
from hightide.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    DepartedBroker,
    DescribedReplica,
    DescribedTopic,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from hightide.wire.types import api_of

REPORT_TIMEOUT_S = 5.0
"""How long a broker may take to report; a working one takes milliseconds."""
REPORTED_AT_ONCE = 500


class ReplicaAdmin:
    """Requests about leaders and replicas."""

    def __init__(self, router: Router, topics: TopicAdmin) -> None:
        self._router = router
        self._topics = topics
        self._timeout_ms = router.timeout_ms

    # -- describe --------------------------------------------------------------------------

    async def describe(self, names: Sequence[str] | None = None) -> ReplicasDescription:
        """The state of the replicas of these topics, or of all."""
        if names is None:
            topics = await self._topics.list()
        else:
            topics = await self._topics.describe(names)
        brokers = sorted(self._router.nodes)
        departed: dict[int, DepartedBroker] = {}
        answers = await asyncio.gather(
            *(self._reports(broker, _held_by(broker, topics), departed) for broker in brokers)
        )
        reports, silent, others = [], {}, set()
        for broker, answer in zip(brokers, answers, strict=True):
            if answer is None:
                others.add(broker)
            elif isinstance(answer, str):
                silent[broker] = answer
            else:
                reports += answer
        partitions = combine_reports(
            topics,
            reports,
            live=brokers,
            eligible=await self.eligible([topic.name for topic in topics]),
            silent=silent,
        )
        if others:
            partitions = with_reassignments(partitions, await self.reassignments())
        gone = {broker: one for broker, one in departed.items() if broker not in brokers}
        addresses = {node.id: f"{node.host}:{node.port}" for node in self._router.nodes.values()}
        addresses |= {broker: f"{one.host}:{one.port}" for broker, one in gone.items() if one.host}
        return ReplicasDescription(
            self._router.controller_id,
            frozenset(brokers),
            partitions,
            silent,
            frozenset(others),
            addresses,
            {broker: one.last_seen_ms for broker, one in gone.items()},
        )

    async def _reports(
        self, broker: int, held: Sequence[Partition], departed: dict[int, DepartedBroker]
    ) -> list[ReplicaReport] | str | None:
        """A broker's reports; a sentence if it does not answer; None if it is not Hightide's.

        The brokers that it saw leave are added to `departed`, each as it was seen last.

        One request covers a limited number of replicas, so that the broker's other clients do not
        wait for long.  A broker without replicas gets an empty request, to learn whether it
        answers.
        """
        found = []
        for at in range(0, max(1, len(held)), REPORTED_AT_ONCE):
            try:
                async with asyncio.timeout(REPORT_TIMEOUT_S):
                    answer = await self._ask_report(broker, held[at : at + REPORTED_AT_ONCE])
            except TimeoutError:
                return f"It did not answer within {REPORT_TIMEOUT_S:g} s."
            except (ConnectionFailed, KafkaError) as error:
                return str(error)
            if answer is None:
                return None
            found += [
                report_of(broker, topic, replica)
                for topic in answer.topics
                for replica in topic.partitions
            ]
            for one in answer.departed:
                known = departed.get(one.broker_id)
                if known is None or one.last_seen_ms > known.last_seen_ms:
                    departed[one.broker_id] = one
        return found

    async def _ask_report(
        self, broker: int, held: Sequence[Partition]
    ) -> DescribeReplicasResponse | None:
        connection = await self._router.broker(broker)
        request = DescribeReplicasRequest(
            topics=[
                TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(held).items()
            ]
        )
        try:
            answer: DescribeReplicasResponse = await connection.send(request, version=0)
        except ConnectionFailed:
            # Other brokers close the connection on a request that they do not know.  A broker that
            # has died cannot be reached, and raises here.
            await self._router.broker(broker)
            return None
        check(answer.error_code, answer.error_message, about=f"broker {broker}")
        return answer

    async def eligible(self, names: Sequence[str]) -> dict[Partition, tuple[int, ...]]:
        """The ELR of each partition, if the cluster has ELRs."""
        connection = await self._router.any()
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
                for partition in topic.partitions:
                    key = topic.name or "", partition.partition_index
                    found[key] = tuple(partition.eligible_leader_replicas or ())
            cursor = answer.next_cursor
            if cursor is None:
                return found

    # -- change ----------------------------------------------------------------------------

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Iterable[Partition] | None = None
    ) -> dict[Partition, KafkaError | None]:
        """Elect leaders of these partitions, or of all.

        Returns the error of each partition, or None where a leader was elected.
        """
        request = ElectLeadersRequest(
            election_type=kind,
            topic_partitions=None
            if partitions is None
            else [
                TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ],
            timeout_ms=self._timeout_ms,
        )

        async def ask(connection: Connection) -> dict[Partition, KafkaError | None]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code)
            return {
                (topic.topic, partition.partition_id): _refusal(
                    partition, f"{topic.topic}/{partition.partition_id}"
                )
                for topic in answer.replica_election_results
                for partition in topic.partition_result
            }

        return await self._router.ask_controller(ask)

    async def reassign(
        self, targets: Mapping[Partition, Sequence[int] | None]
    ) -> dict[Partition, KafkaError | None]:
        """Reassign partitions to these brokers, or with None cancel their reassignments.

        Returns the error of each partition, or None where the request was accepted.
        """
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms,
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(
                            partition_index=index, replicas=_brokers(targets[topic, index])
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(targets).items()
            ],
        )

        async def ask(connection: Connection) -> dict[Partition, KafkaError | None]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code, answer.error_message)
            return {
                (topic.name, partition.partition_index): _refusal(
                    partition, f"{topic.name}/{partition.partition_index}"
                )
                for topic in answer.responses
                for partition in topic.partitions
            }

        return await self._router.ask_controller(ask)

    async def reassignments(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[Partition, Reassignment]:
        """The reassignments in progress, of these partitions or of all."""
        request = ListPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms,
            topics=None
            if partitions is None
            else [
                ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(partitions).items()
            ],
        )

        async def ask(connection: Connection) -> dict[Partition, Reassignment]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code, answer.error_message)
            return {
                (topic.name, partition.partition_index): Reassignment(
                    tuple(partition.replicas),
                    tuple(partition.adding_replicas),
                    tuple(partition.removing_replicas),
                )
                for topic in answer.topics
                for partition in topic.partitions
            }

        return await self._router.ask_controller(ask)


def report_of(broker: int, topic: DescribedTopic, replica: DescribedReplica) -> ReplicaReport:
    """A replica of a broker's response."""
    return ReplicaReport(
        broker=broker,
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=replica.partition_index,
        role=Role(replica.role),
        leader_epoch=replica.leader_epoch,
        log_start_offset=replica.log_start_offset,
        high_watermark=replica.high_watermark,
        end_offset=replica.end_offset,
        size_bytes=replica.size_bytes,
        state=None if replica.state is None else state_of(replica.state),
        is_waiting=replica.is_waiting,
        lost_records=replica.lost_records,
        last_epoch=replica.last_epoch,
        last_stable_offset=_known(replica.last_stable_offset),
        failure=replica.failure,
        is_under_min_isr=replica.is_under_min_isr,
        maximal_isr=tuple(replica.maximal_isr),
        progress={
            follower.broker_id: Progress(
                follower.broker_id,
                Standing[follower.standing],
                _known(follower.end_offset),
                _known(follower.lag_records),
                _known(follower.lag_ms),
            )
            for follower in replica.progress
        },
    )


def _held_by(broker: int, topics: Iterable[TopicDescription]) -> list[Partition]:
    return [
        (topic.name, partition.partition)
        for topic in topics
        for partition in topic.partitions
        if broker in partition.replicas
    ]


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _brokers(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _refusal(result: Any, about: str) -> KafkaError | None:
    try:
        check(result.error_code, result.error_message, about=about)
    except KafkaError as error:
        if error.code == ErrorCode.NOT_CONTROLLER:
            raise
        return error
    return None
