"""Settings of topics, brokers and so on: list, describe, replace, change incrementally."""

from __future__ import annotations

from hightide.wire.types import field, i8, i16, i32, message, part


@part
class DescribeConfigsResource:
    resource_type: i8
    resource_name: str
    configuration_keys: list[str] | None


@message(key=32, versions=(1, 4), flexible=4)
class DescribeConfigsRequest:
    """Request settings of topics or brokers; all of them if the keys are null."""

    resources: list[DescribeConfigsResource]
    include_synonyms: bool = False
    include_documentation: bool = field(since=3, default=False)


@part
class DescribeConfigsSynonym:
    name: str
    value: str | None
    source: i8


@part
class DescribeConfigsResourceResult:
    name: str
    value: str | None
    read_only: bool
    config_source: i8 = -1
    is_sensitive: bool
    synonyms: list[DescribeConfigsSynonym]
    config_type: i8 = field(since=3, ignorable=True, default=0)
    documentation: str | None = field(since=3, ignorable=True, default="")


@part
class DescribeConfigsResult:
    error_code: i16 = 0
    error_message: str | None = None
    resource_type: i8
    resource_name: str
    configs: list[DescribeConfigsResourceResult]


@message(key=32, versions=(1, 4), flexible=4)
class DescribeConfigsResponse:
    """Settings with value, source, synonyms and documentation."""

    throttle_time_ms: i32 = 0
    results: list[DescribeConfigsResult]


@part
class AlterableConfig:
    name: str
    value: str | None


@part
class AlterConfigsResource:
    resource_type: i8
    resource_name: str
    configs: list[AlterableConfig]


@message(key=33, versions=(0, 2), flexible=2)
class AlterConfigsRequest:
    """Replace all settings of a resource."""

    resources: list[AlterConfigsResource]
    validate_only: bool


@part
class AlterConfigsResourceResponse:
    error_code: i16 = 0
    error_message: str | None = None
    resource_type: i8
    resource_name: str


@message(key=33, versions=(0, 2), flexible=2)
class AlterConfigsResponse:
    """The result for each resource."""

    throttle_time_ms: i32 = 0
    responses: list[AlterConfigsResourceResponse]


@part
class IncrementalAlterableConfig:
    name: str
    config_operation: i8
    value: str | None


@part
class IncrementalAlterConfigsResource:
    resource_type: i8
    resource_name: str
    configs: list[IncrementalAlterableConfig]


@message(key=44, versions=(0, 1), flexible=1)
class IncrementalAlterConfigsRequest:
    """Set, delete, append to or subtract from single settings."""

    resources: list[IncrementalAlterConfigsResource]
    validate_only: bool


@message(key=44, versions=(0, 1), flexible=1)
class IncrementalAlterConfigsResponse:
    """The result for each resource."""

    throttle_time_ms: i32 = 0
    responses: list[AlterConfigsResourceResponse]


CLIENT_METRICS = 16


@message(key=74, versions=(0, 1), flexible=0)
class ListConfigResourcesRequest:
    """Request the names of resources of some types; of all types if none is named.

    Version 0 has another name in Kafka, ListClientMetricsResources, and lists only those.
    """

    resource_types: list[i8] = field(since=1, default=[])


@part
class ConfigResource:
    resource_name: str
    resource_type: i8 = field(since=1, ignorable=True, default=CLIENT_METRICS)


@message(key=74, versions=(0, 1), flexible=0)
class ListConfigResourcesResponse:
    """The resources by name and type."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    config_resources: list[ConfigResource]
