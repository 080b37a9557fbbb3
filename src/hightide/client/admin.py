"""What an administrator asks of a cluster, in Kafka's nouns.

`Admin` sends each question to the broker that can answer it: topics to the controller,
offsets to the leader, a broker's own settings and directories to that broker.  An answer
that says the roles have moved makes it look again a few times.  Every other error becomes a
`KafkaError` with the broker's own sentence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from hightide.client.cluster_admin import described
from hightide.client.connection import (
    Connection,
    ConnectionFailed,
    check,
)
from hightide.client.model import (
    ConfigEntry,
    ConfigSource,
    ConfigType,
    OffsetAt,
    ReplicaSize,
    ResourceType,
    TopicDescription,
)
from hightide.client.replica_admin import ReplicaAdmin
from hightide.client.replicas import Partition
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.cluster import DescribeLogDirsRequest
from hightide.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from hightide.wire.messages.controller import ResignControllerRequest
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hightide.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from hightide.wire.types import NO_UUID

T = TypeVar("T")


class Admin(ReplicaAdmin):
    """A client of a whole cluster; use it as an async context."""

    # -- topics ----------------------------------------------------------------------------

    async def ensure_topic(self, name: str) -> TopicDescription:
        """The topic; one that is missing is created if the broker is set to do so by itself."""

        async def attempt() -> TopicDescription:
            answer = await self._routes.metadata([name], create=True)
            for each in answer.topics:
                if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}."
                    )
                check(each.error_code, about=name)
            return described(answer.topics[0])

        return await self._routes.persist(attempt)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic; -1 leaves the number to the broker."""
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

    async def delete_topic(self, name: str) -> None:
        def request(version: int) -> DeleteTopicsRequest:
            if version < 6:
                return DeleteTopicsRequest(topic_names=[name], timeout_ms=self._timeout_ms)
            state = DeleteTopicState(name=name, topic_id=NO_UUID)
            return DeleteTopicsRequest(topics=[state], timeout_ms=self._timeout_ms)

        connection = await self._routes.controller()
        version = connection.version_for(DeleteTopicsRequest)
        await self._change(request(version), lambda answer: answer.responses)

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
        """Send a change to the controller and raise what its first refusal says."""

        async def attempt() -> None:
            connection = await self._routes.controller()
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            for each in results(answer):
                check(each.error_code, getattr(each, "error_message", None), about=each.name or "")

        await self._routes.persist(attempt)

    # -- the controller --------------------------------------------------------------------

    async def resign_controller(self) -> tuple[int, int]:
        """Let the controller hand its task to another broker; (who it was, who it is).

        Only Hightide's brokers know this request, and they do not advertise it.
        """
        before = (await self.describe_cluster()).controller
        connection = await self._routes.controller()
        try:
            answer = await connection.send(
                ResignControllerRequest(), version=0, timeout_ms=self._timeout_ms
            )
        except ConnectionFailed as failed:
            raise ConnectionFailed(f"{failed} Is it a broker of Hightide?") from failed
        check(answer.error_code, answer.error_message)
        return before, answer.controller_id

    # -- configs ---------------------------------------------------------------------------

    async def describe_configs(
        self, kind: ResourceType, name: str, keys: Sequence[str] | None = None
    ) -> list[ConfigEntry]:
        connection = await self._for_resource(kind, name)
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configuration_keys=None if keys is None else list(keys),
                )
            ],
            include_documentation=connection.version_for(DescribeConfigsRequest) >= 3,
        )
        answer = await connection.send(request, timeout_ms=self._timeout_ms)
        entries = []
        for result in answer.results:
            check(result.error_code, result.error_message, about=name)
            entries += [_config_entry(each) for each in result.configs]
        return sorted(entries, key=lambda entry: entry.name)

    async def alter_configs(
        self,
        kind: ResourceType,
        name: str,
        *,
        values: Mapping[str, str] | None = None,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Change some settings and leave the others; `unset` ones fall back to their default."""
        set_value, delete_value = 0, 1
        changes = [
            IncrementalAlterableConfig(name=key, config_operation=set_value, value=value)
            for key, value in (values or {}).items()
        ] + [
            IncrementalAlterableConfig(name=key, config_operation=delete_value, value=None)
            for key in unset
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=kind, resource_name=name, configs=changes
                )
            ],
            validate_only=validate_only,
        )

        async def attempt() -> None:
            connection = await self._for_resource(kind, name)
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            for each in answer.responses:
                check(each.error_code, each.error_message, about=name)

        await self._routes.persist(attempt)

    async def _for_resource(self, kind: ResourceType, name: str) -> Connection:
        # Only the broker itself knows its own settings; the cluster-wide ones ("") are anybody's.
        if kind is ResourceType.BROKER and name:
            return await self._routes.broker(int(name))
        return await self._routes.controller()

    # -- records ---------------------------------------------------------------------------

    async def list_offsets(self, wanted: Mapping[Partition, int]) -> dict[Partition, OffsetAt]:
        """The first offset at or after a timestamp, or what a `model.Timestamp` asks for."""

        async def ask(
            connection: Connection, part: Mapping[Partition, int]
        ) -> dict[Partition, OffsetAt]:
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=index, current_leader_epoch=-1, timestamp=time
                            )
                            for index, time in partitions
                        ],
                    )
                    for topic, partitions in _by_topic(part)
                ],
                timeout_ms=self._timeout_ms,
            )
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            found = {}
            for topic in answer.topics:
                for each in topic.partitions:
                    check(each.error_code, about=f"{topic.name}/{each.partition_index}")
                    found[topic.name, each.partition_index] = OffsetAt(
                        each.offset, each.timestamp, each.leader_epoch
                    )
            return found

        return await self._at_leaders(wanted, ask)

    async def delete_records(self, before: Mapping[Partition, int]) -> dict[Partition, int]:
        """Delete what lies before an offset (-1: everything); returns the new start offsets."""

        async def ask(
            connection: Connection, part: Mapping[Partition, int]
        ) -> dict[Partition, int]:
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(partition_index=index, offset=offset)
                            for index, offset in partitions
                        ],
                    )
                    for topic, partitions in _by_topic(part)
                ],
                timeout_ms=self._timeout_ms,
            )
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            found = {}
            for topic in answer.topics:
                for each in topic.partitions:
                    check(each.error_code, about=f"{topic.name}/{each.partition_index}")
                    found[topic.name, each.partition_index] = each.low_watermark
            return found

        return await self._at_leaders(before, ask)

    async def describe_log_dirs(self) -> list[ReplicaSize]:
        """The size of every replica on every broker."""
        if not self._routes.nodes:
            await self._routes.metadata([])
        found = []
        for broker_id in sorted(self._routes.nodes):
            connection = await self._routes.broker(broker_id)
            answer = await connection.send(
                DescribeLogDirsRequest(topics=None), timeout_ms=self._timeout_ms
            )
            check(answer.error_code, about=f"broker {broker_id}")
            for directory in answer.results:
                check(directory.error_code, about=directory.log_dir)
                found += [
                    ReplicaSize(
                        broker=broker_id,
                        log_dir=directory.log_dir,
                        topic=topic.name,
                        partition=each.partition_index,
                        size_bytes=each.partition_size,
                        offset_lag=each.offset_lag,
                    )
                    for topic in directory.topics
                    for each in topic.partitions
                ]
        return found

    async def _at_leaders(
        self,
        wanted: Mapping[Partition, int],
        ask: Callable[[Connection, Mapping[Partition, int]], Awaitable[dict[Partition, T]]],
    ) -> dict[Partition, T]:
        """Ask each leader about its partitions."""

        async def attempt() -> dict[Partition, T]:
            topics = await self.describe_topics(sorted({topic for topic, _ in wanted}))
            leaders = {
                (topic.name, each.partition): each.leader
                for topic in topics
                for each in topic.partitions
            }
            parts: dict[int, dict[Partition, int]] = defaultdict(dict)
            for (topic, index), value in wanted.items():
                if (topic, index) not in leaders:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"Topic {topic!r} has no partition {index}.",
                    )
                parts[leaders[topic, index]][topic, index] = value
            found: dict[Partition, T] = {}
            for leader, part in parts.items():
                if leader not in self._routes.nodes:
                    names = ", ".join(f"{topic}/{index}" for topic, index in part)
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{names} has no leader.")
                found.update(await ask(await self._routes.broker(leader), part))
            return found

        return await self._routes.persist(attempt)


def _by_topic(values: Mapping[Partition, int]) -> list[tuple[str, list[tuple[int, int]]]]:
    topics: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (topic, partition), value in values.items():
        topics[topic].append((partition, value))
    return list(topics.items())


def _config_entry(answer: Any) -> ConfigEntry:
    return ConfigEntry(
        name=answer.name,
        value=answer.value,
        source=ConfigSource(answer.config_source),
        type=ConfigType(answer.config_type),
        read_only=answer.read_only,
        sensitive=answer.is_sensitive,
        documentation=answer.documentation,
    )
