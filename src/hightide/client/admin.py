"""What an administrator asks of a cluster, in Kafka's nouns.

`Admin` sends each question to the broker that can answer it: topics to the controller,
a broker's own settings and directories to that broker, and what its parts are about to leaders and
coordinators.  An answer that says the roles have moved makes it look again a few times.  Every
other error becomes a `KafkaError` with the broker's own sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hightide.client.cluster_admin import described
from hightide.client.connection import (
    Connection,
    ConnectionFailed,
    check,
)
from hightide.client.group_admin import GroupAdmin
from hightide.client.model import (
    ConfigEntry,
    ConfigSource,
    ConfigType,
    ReplicaSize,
    ResourceType,
    TopicDescription,
)
from hightide.client.replica_admin import ReplicaAdmin
from hightide.client.transaction_admin import TransactionAdmin
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

# How long after each look at a topic that may be about to be there.
CREATED_WITHIN_S = (0.05, 0.1, 0.2, 0.4, 0)


class Admin(ReplicaAdmin, GroupAdmin, TransactionAdmin):
    """A client of a whole cluster; use it as an async context."""

    # -- topics ----------------------------------------------------------------------------

    async def ensure_topic(self, name: str) -> TopicDescription:
        """The topic; one that is missing is created if the broker is set to do so by itself.

        Apache Kafka says that a topic is missing also while it creates it, so we look again.
        """

        async def attempt() -> TopicDescription | None:
            answer = await self._routes.metadata([name], create=True)
            topic = answer.topics[0]
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            check(topic.error_code, about=name)
            return described(topic)

        for pause_s in CREATED_WITHIN_S:
            if (found := await self._routes.persist(attempt)) is not None:
                return found
            await asyncio.sleep(pause_s)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {name!r}.")

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

    # -- directories -----------------------------------------------------------------------

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
