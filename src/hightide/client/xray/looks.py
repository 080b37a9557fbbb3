"""Looks at a cluster again and again, and keeps what is newest of each replica.

    Metadata, from a broker that answers ──┐
    broker 1: its replicas ────────────────┼──▶ partitions: what has changed since the last look
    broker 2: its replicas ────────────────┤
    broker 3: (asked, no answer yet) ──────┘

Each broker is asked in a task of its own, and a look waits for the answers only for a moment.  A
broker that does not answer is silent: its last reports do not count any more, and its task goes on
asking.  Answers with the same bytes as before are not decoded, and partitions whose reports have
not changed are not combined again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hightide.client.admin import Admin
from hightide.client.admin.replicas import report_of
from hightide.client.admin.topics import topic_of
from hightide.client.broker_connection import ConnectionFailed, check
from hightide.client.model.cluster import Node, Partition, TopicDescription, by_topic
from hightide.client.model.replicas import (
    PartitionReplicas,
    ReplicaReport,
    ReplicasDescription,
    combine_reports,
)
from hightide.client.unchanged import Answer, UnchangedAnswers
from hightide.wire.errors import KafkaError
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from hightide.wire.messages.replicas import (
    DepartedBroker,
    DescribeReplicasRequest,
    TopicPartitions,
)

SILENT_S = 1.5
"""A broker is silent when it has not answered for so long; a working one takes milliseconds."""
REPLY_S = 5.0
METADATA_S = 0.5
"""How long to wait for the Metadata of a broker before the next one is asked."""
ANY_BROKER_S = 4.0
LOOK_S = 0.25
"""How long a look waits for the replicas of brokers that are not silent."""
AT_ONCE = 32
"""Replicas in a request: few enough that most requests are about idle partitions only."""

ALL = ""
"""Names the question about all topics; questions about one topic have its name."""


class Reporter:
    """Asks one broker for its replicas, and keeps the newest reports."""

    def __init__(self, broker: int, admin: Admin, answers: UnchangedAnswers) -> None:
        self.broker = broker
        self.reports: dict[Partition, ReplicaReport] = {}
        self.changed: set[Partition] = set()
        self.departed: dict[int, DepartedBroker] = {}
        self.version = ""
        self.is_foreign = False
        self._router = admin.router
        self._answers = answers
        self._failure = ""
        self._refusals = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._heard_s = 0.0
        self._requests: dict[str, tuple[Sequence[Partition], list[DescribeReplicasRequest]]] = {}

    def ask(self, question: str, held: Sequence[Partition]) -> asyncio.Task[None]:
        """Ask about these replicas, unless the same question is still open."""
        task = self._tasks.get(question)
        if task is None or task.done():
            if not any(not other.done() for other in self._tasks.values()):
                self._heard_s = asyncio.get_running_loop().time()
            task = asyncio.create_task(self._ask(question, held))
            self._tasks[question] = task
        return task

    @property
    def silence(self) -> str:
        """Why the broker counts as silent, as a sentence; "" if it answers."""
        if self._failure:
            return self._failure
        is_waiting = any(not task.done() for task in self._tasks.values())
        if is_waiting and asyncio.get_running_loop().time() - self._heard_s > SILENT_S:
            return f"It did not answer within {SILENT_S:g} s."
        return ""

    def returned(self) -> None:
        """Its broker is in the cluster again: what failed before does not count."""
        self._failure = ""

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _ask(self, question: str, held: Sequence[Partition]) -> None:
        try:
            for nth, request in enumerate(self._requests_for(question, held)):
                await self._ask_once((self.broker, question, nth), request)
        except (ConnectionFailed, KafkaError, TimeoutError) as error:
            self._failure = str(error) or f"It did not answer within {REPLY_S:g} s."
            self._router.disconnect(self.broker)
            await self._try_again()
        else:
            self._failure, self._refusals = "", 0

    def _requests_for(
        self, question: str, held: Sequence[Partition]
    ) -> list[DescribeReplicasRequest]:
        known = self._requests.get(question)
        if known is None or known[0] != held:
            requests = [
                DescribeReplicasRequest(
                    topics=[
                        TopicPartitions(topic=topic, partitions=indexes)
                        for topic, indexes in by_topic(held[at : at + AT_ONCE]).items()
                    ]
                )
                for at in range(0, max(1, len(held)), AT_ONCE)
            ]
            known = self._requests[question] = held, requests
            if question == ALL:
                kept = set(held)
                self.reports = {key: one for key, one in self.reports.items() if key in kept}
        return known[1]

    async def _ask_once(self, key: Hashable, request: DescribeReplicasRequest) -> None:
        async with asyncio.timeout(REPLY_S):
            connection = await self._router.broker(self.broker)
            answer = await self._answers.send(
                connection, key, request, version=0, timeout_ms=int(REPLY_S * 1000)
            )
        self._heard_s = asyncio.get_running_loop().time()
        if not answer.is_new:
            return
        found = answer.response
        check(found.error_code, found.error_message, about=f"broker {self.broker}")
        self.version = found.software_version
        for departed in found.departed:
            self.departed[departed.broker_id] = departed
        for topic in found.topics:
            for replica in topic.partitions:
                report = report_of(self.broker, topic, replica)
                partition = topic.name, replica.partition_index
                if self.reports.get(partition) != report:
                    self.reports[partition] = report
                    self.changed.add(partition)

    async def _try_again(self) -> None:
        """Find out whether the broker is of another make: those close the connection."""
        if self.reports or self.version:
            return
        try:
            async with asyncio.timeout(REPLY_S):
                await self._router.broker(self.broker)
        except (ConnectionFailed, KafkaError, TimeoutError):
            return
        self._refusals += 1
        if self._refusals >= 2:
            self.is_foreign, self._failure = True, ""


class Looks:
    """What is known of a cluster, after each look."""

    def __init__(self, admin: Admin) -> None:
        self.cluster_id: str | None = None
        self.controller = -1
        self.topics: dict[str, TopicDescription] = {}
        self.partitions: dict[Partition, PartitionReplicas] = {}
        self.reporters: dict[int, Reporter] = {}
        self.eligible: dict[Partition, tuple[int, ...]] = {}
        self._admin = admin
        self._answers = UnchangedAnswers()
        self._stale: set[Partition] = set()
        self._held: dict[tuple[int, str], list[Partition]] = {}
        self._standing: dict[int, str] = {}
        self._all_topics = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        self._some_topics: dict[tuple[str, ...], MetadataRequest] = {}

    # -- looks -----------------------------------------------------------------------------

    @property
    def nodes(self) -> dict[int, Node]:
        """The live brokers."""
        return self._admin.router.nodes

    async def look(self) -> set[Partition]:
        """Look at everything; return the partitions that have changed or are gone."""
        answer = await self._metadata(ALL, self._all_topics)
        if answer.is_new:
            self._take_topics(answer.response, is_complete=True)
        await self._ask_replicas([ALL])
        return self._combined(None)

    async def look_at(self, names: Sequence[str]) -> set[Partition]:
        """Look at some topics."""
        key = tuple(sorted(names))
        if key not in self._some_topics:
            self._some_topics = {
                key: MetadataRequest(
                    topics=[MetadataRequestTopic(name=name) for name in key],
                    allow_auto_topic_creation=False,
                )
            }
        answer = await self._metadata("some", self._some_topics[key])
        if answer.is_new:
            self._take_topics(answer.response, is_complete=False)
        await self._ask_replicas([name for name in names if name in self.topics])
        return self._combined(set(names))

    def stop(self) -> None:
        for reporter in self.reporters.values():
            reporter.stop()

    async def _metadata(self, key: str, request: MetadataRequest) -> Answer:
        """Ask a broker that answers, without waiting long for one that does not."""
        router = self._admin.router
        for broker in sorted(router.nodes, key=lambda broker: bool(self._standing.get(broker))):
            try:
                async with asyncio.timeout(METADATA_S):
                    connection = await router.broker(broker)
                    answer = await self._answers.send(connection, key, request)
            except (ConnectionFailed, KafkaError, TimeoutError):
                continue
            return self._take_brokers(answer)
        try:
            async with asyncio.timeout(ANY_BROKER_S):
                connection = await router.any()
                answer = await self._answers.send(connection, key, request)
        except TimeoutError:
            raise ConnectionFailed("No broker answers.") from None
        return self._take_brokers(answer)

    def _take_brokers(self, answer: Answer) -> Answer:
        found, router = answer.response, self._admin.router
        nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in found.brokers
        }
        self.cluster_id, self.controller = found.cluster_id, found.controller_id
        router.controller_id = found.controller_id
        for broker in nodes.keys() - router.nodes.keys():
            if broker in self.reporters:
                self.reporters[broker].returned()
        if nodes != router.nodes:
            router.nodes = nodes
            self._stale |= self.partitions.keys()
        for broker in nodes:
            if broker not in self.reporters:
                self.reporters[broker] = Reporter(broker, self._admin, self._answers)
        return answer

    def _take_topics(self, found: Any, *, is_complete: bool) -> None:
        topics = {topic.name: topic_of(topic) for topic in found.topics if not topic.error_code}
        for name, topic in topics.items():
            if self.topics.get(name) != topic:
                self._stale |= {(name, one.partition) for one in topic.partitions}
        gone = (self.topics if is_complete else {one.name for one in found.topics}) - topics.keys()
        for name in gone:
            known = self.topics.pop(name, None)
            self._stale |= {(name, one.partition) for one in known.partitions} if known else set()
        self.topics |= topics
        self._held.clear()

    async def _ask_replicas(self, questions: Sequence[str]) -> None:
        asked = []
        for broker in self.nodes:
            reporter = self.reporters[broker]
            if reporter.is_foreign:
                continue
            for question in questions:
                task = reporter.ask(question, self._held_by(broker, question))
                if not reporter.silence:
                    asked.append(task)
        if asked:
            await asyncio.wait(asked, timeout=LOOK_S)

    def _held_by(self, broker: int, question: str) -> list[Partition]:
        key = broker, question
        if key not in self._held:
            topics = self.topics.values() if question == ALL else [self.topics[question]]
            self._held[key] = [
                (topic.name, partition.partition)
                for topic in topics
                for partition in topic.partitions
                if broker in partition.replicas
            ]
        return self._held[key]

    # -- results ---------------------------------------------------------------------------

    def touch(self, partitions: Iterable[Partition]) -> None:
        """Combine these partitions again at the next look."""
        self._stale |= {*partitions} & self.partitions.keys()

    def _combined(self, names: set[str] | None) -> set[Partition]:
        """Combine the reports of partitions that have changed, of these topics or of all."""
        for broker, reporter in self.reporters.items():
            self._stale |= reporter.changed
            reporter.changed.clear()
            silence = reporter.silence if broker in self.nodes else "gone"
            if bool(silence) != bool(self._standing.get(broker)):
                held = (key for key in self.partitions if self._is_held(key, broker))
                self._stale |= set(held)
            self._standing[broker] = silence
        stale = self._stale
        if names is not None:
            stale = {key for key in self._stale if key[0] in names}
        self._stale = self._stale - stale
        for key in stale:
            self.partitions.pop(key, None)
        for partition in combine_reports(
            self._some(stale),
            self._reports(stale),
            live=self.nodes.keys(),
            eligible=self.eligible,
            silent=self.silent.keys(),
        ):
            self.partitions[partition.topic, partition.partition] = partition
        return stale

    def _is_held(self, key: Partition, broker: int) -> bool:
        return broker in self.partitions[key].state.replicas

    def _some(self, wanted: set[Partition]) -> list[TopicDescription]:
        """The topics with only the partitions that are wanted."""
        found = []
        for name, indexes in by_topic(wanted).items():
            topic, some = self.topics.get(name), set(indexes)
            if topic is not None:
                kept = [one for one in topic.partitions if one.partition in some]
                found.append(replace(topic, partitions=kept))
        return found

    def _reports(self, wanted: set[Partition]) -> Iterable[ReplicaReport]:
        for broker, reporter in self.reporters.items():
            if broker in self.nodes and not self._standing.get(broker):
                for key in wanted:
                    if (report := reporter.reports.get(key)) is not None:
                        yield report

    @property
    def silent(self) -> dict[int, str]:
        """Live brokers that do not answer, each with the reason."""
        return {broker: why for broker in self.nodes if (why := self._standing.get(broker, ""))}

    @property
    def foreign(self) -> frozenset[int]:
        """Live brokers that do not know DescribeReplicas."""
        return frozenset(broker for broker in self.nodes if self.reporters[broker].is_foreign)

    def description(self) -> ReplicasDescription:
        departed: dict[int, DepartedBroker] = {}
        for reporter in self.reporters.values():
            for broker, seen in reporter.departed.items():
                known = departed.get(broker)
                if known is None or seen.last_seen_ms > known.last_seen_ms:
                    departed[broker] = seen
        gone = {broker: seen for broker, seen in departed.items() if broker not in self.nodes}
        addresses = {node.id: f"{node.host}:{node.port}" for node in self.nodes.values()}
        addresses |= {broker: f"{one.host}:{one.port}" for broker, one in gone.items() if one.host}
        return ReplicasDescription(
            self.controller,
            frozenset(self.nodes),
            list(self.partitions.values()),
            self.silent,
            self.foreign,
            addresses,
            {broker: one.last_seen_ms for broker, one in gone.items()},
        )
