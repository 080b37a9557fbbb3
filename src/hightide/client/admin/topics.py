"""Topics: list, describe, create, grow, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hightide.client.broker_connection import Connection, check
from hightide.client.model.cluster import PartitionDescription, TopicDescription
from hightide.client.retry import Backoff
from hightide.client.routing import Router
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from hightide.wire.types import NO_UUID


class TopicAdmin:
    """Requests about topics.  Any broker describes them; the controller changes them."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._timeout_ms = router.timeout_ms

    async def list(self) -> Sequence[TopicDescription]:
        """All topics, by name."""
        answer = await self._router.metadata(None)
        return sorted(map(topic_of, answer.topics), key=lambda topic: topic.name)

    async def describe(self, names: Sequence[str]) -> Sequence[TopicDescription]:
        """The topics in the order of the names; one that does not exist raises."""
        return [topic_of(topic) for topic in await self._router.topics(names)]

    async def ensure(self, name: str) -> TopicDescription:
        """Describe a topic; a missing one is created if the cluster creates topics automatically.

        Apache Kafka reports a topic as missing while it creates it, so this looks again for a
        short time.
        """

        async def attempt() -> TopicDescription | None:
            answer = await self._router.metadata([name], create=True)
            topic = answer.topics[0]
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            check(topic.error_code, about=name)
            return topic_of(topic)

        backoff = Backoff(0.05, 0.4, attempts=5)
        while (found := await self._router.retry(attempt)) is None:
            if not await backoff.pause():
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}."
                )
        return found

    async def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic; -1 stands for the broker's default."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=[
                CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()
            ],
        )
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=self._timeout_ms, validate_only=validate_only
        )
        await self._change(request, lambda answer: answer.topics)

    async def delete(self, name: str) -> None:
        connection = await self._router.controller()
        if connection.version_for(DeleteTopicsRequest) < 6:
            request = DeleteTopicsRequest(topic_names=[name], timeout_ms=self._timeout_ms)
        else:
            state = DeleteTopicState(name=name, topic_id=NO_UUID)
            request = DeleteTopicsRequest(topics=[state], timeout_ms=self._timeout_ms)
        await self._change(request, lambda answer: answer.responses)

    async def create_partitions(
        self, name: str, count: int, *, validate_only: bool = False
    ) -> None:
        """Grow a topic to `count` partitions."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )
        await self._change(request, lambda answer: answer.results)

    async def _change(self, request: Any, results: Callable[[Any], Iterable[Any]]) -> None:
        """Send a change to the controller, and raise its first refusal."""

        async def ask(connection: Connection) -> None:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            for topic in results(answer):
                message = getattr(topic, "error_message", None)
                check(topic.error_code, message, about=topic.name or "")

        await self._router.ask_controller(ask)


def topic_of(topic: Any) -> TopicDescription:
    """A topic of a Metadata response."""
    return TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        internal=topic.is_internal,
        partitions=sorted(
            (
                PartitionDescription(
                    partition=partition.partition_index,
                    leader=partition.leader_id,
                    leader_epoch=partition.leader_epoch,
                    replicas=[*partition.replica_nodes],
                    isr=[*partition.isr_nodes],
                    offline=[*partition.offline_replicas],
                )
                for partition in topic.partitions
            ),
            key=lambda partition: partition.partition,
        ),
    )
