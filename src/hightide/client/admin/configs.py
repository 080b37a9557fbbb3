"""Configs of topics, brokers and subscriptions of client metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hightide.client.broker_connection import Connection, check
from hightide.client.model.cluster import ConfigEntry, ConfigSource, ConfigType, ResourceType
from hightide.client.routing import Router
from hightide.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)

SET, DELETE = 0, 1


class ConfigAdmin:
    """Requests about configs."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._timeout_ms = router.timeout_ms

    async def resources(self, kinds: Iterable[ResourceType] = ()) -> list[tuple[ResourceType, str]]:
        """Resources that have configs, by type and name; of these types, or of all."""
        request = ListConfigResourcesRequest(resource_types=[*kinds])
        answer = await (await self._router.any()).send(request, timeout_ms=self._timeout_ms)
        check(answer.error_code)
        return sorted(
            (ResourceType(found.resource_type), found.resource_name)
            for found in answer.config_resources
            if found.resource_type in [*ResourceType]
        )

    async def describe(
        self, kind: ResourceType, name: str, keys: Sequence[str] | None = None
    ) -> list[ConfigEntry]:
        """The configs of a resource, by name; all of them, or those in `keys`."""
        connection = await self._connection(kind, name)
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
            entries += [_entry(config) for config in result.configs]
        return sorted(entries, key=lambda entry: entry.name)

    async def topic_values(
        self, names: Sequence[str], keys: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Some configs of many topics, in one request."""
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
        answer = await (await self._router.any()).send(request, timeout_ms=self._timeout_ms)
        found = {}
        for result in answer.results:
            check(result.error_code, result.error_message, about=result.resource_name)
            found[result.resource_name] = {
                config.name: config.value or "" for config in result.configs
            }
        return found

    async def min_insync_replicas(self, names: Sequence[str]) -> dict[str, int]:
        """min.insync.replicas of each topic."""
        key = "min.insync.replicas"
        found = await self.topic_values(names, [key])
        return {name: int(values.get(key) or 1) for name, values in found.items()}

    async def alter(
        self,
        kind: ResourceType,
        name: str,
        *,
        values: Mapping[str, str] | None = None,
        unset: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Change some configs and leave the others; those in `unset` return to their default."""
        changes = [
            IncrementalAlterableConfig(name=key, config_operation=SET, value=value)
            for key, value in (values or {}).items()
        ] + [
            IncrementalAlterableConfig(name=key, config_operation=DELETE, value=None)
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
            connection = await self._connection(kind, name)
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            for resource in answer.responses:
                check(resource.error_code, resource.error_message, about=name)

        await self._router.retry(attempt)

    async def _connection(self, kind: ResourceType, name: str) -> Connection:
        # Only the broker itself knows its static settings and its loggers.  Every broker knows the
        # cluster-wide defaults, whose name is "".
        if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name:
            return await self._router.broker(int(name))
        return await self._router.controller()


def _entry(config: Any) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=ConfigSource(config.config_source),
        type=ConfigType(config.config_type),
        read_only=config.read_only,
        sensitive=config.is_sensitive,
        documentation=config.documentation,
    )
