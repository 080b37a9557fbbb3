"""DescribeConfigs (32), AlterConfigs (33) and IncrementalAlterConfigs (44).

Resources are topics and brokers; a broker with an empty name is the default of all brokers.

Answers per resource:
UNKNOWN_TOPIC_OR_PARTITION   there is no such topic
INVALID_TOPIC_EXCEPTION      the name cannot be a topic's
INVALID_CONFIG               a setting that does not exist, cannot change or cannot have its value
REQUEST_TIMED_OUT            the coordinator is away, so it may or may not have happened
INVALID_REQUEST              another kind of resource, another broker, or a resource named twice
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hightide.broker.controller.errors import CONTROLLER_ERRORS, kafka_error
from hightide.broker.handlers.request_context import Context
from hightide.broker.membership.dynamic_configs import Change
from hightide.core.metadata import topic_names as rules
from hightide.settings import Broker as BrokerSettings
from hightide.settings import Described, InvalidSetting, Kind, Scope
from hightide.settings import Topic as TopicSettings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

TOPIC, BROKER = 2, 4
SET, REMOVE, APPEND, SUBTRACT = 0, 1, 2, 3


# -- describe --------------------------------------------------------------------------------


def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: Context
) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            error_code=ErrorCode.NONE,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        try:
            result.configs = [
                _described(each, request, context.version)
                for each in _settings_of(broker, resource)
                if resource.configuration_keys is None or each.name in resource.configuration_keys
            ]
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.detail or None
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _settings_of(broker: Broker, resource: DescribeConfigsResource) -> Iterable[Described]:
    if resource.resource_type == TOPIC:
        overrides = _topic_overrides(broker, resource.resource_name)
        return TopicSettings.effective(broker.settings, overrides).describe()
    if resource.resource_type == BROKER:
        own = _is_one_broker(broker, resource.resource_name)
        described = broker.settings.describe()
        if own:
            return described
        return (each for each in described if each.name in broker.broker_configs.cluster)
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"only topics and brokers have settings, not type {resource.resource_type}",
    )


def _topic_overrides(broker: Broker, name: str) -> dict[str, str]:
    rules.check_name(name)
    if broker.metadata.get(name) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return dict(broker.topic_configs.overrides(name))


def _is_one_broker(broker: Broker, name: str) -> bool:
    """Whether a resource's name is this broker's id; false for the default of all brokers."""
    if name == "":
        return False
    if name != str(broker.broker_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"this is broker {broker.broker_id}, not broker {name}"
        )
    return True


def _described(
    each: Described, request: DescribeConfigsRequest, version: int
) -> DescribeConfigsResourceResult:
    synonyms = each.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=each.name,
        value=each.text,
        read_only=each.read_only,
        config_source=each.source,
        is_sensitive=each.declared.secret,
        synonyms=[
            DescribeConfigsSynonym(name=s.name, value=s.text, source=s.source) for s in synonyms
        ],
        config_type=each.declared.kind,
        documentation=each.doc if request.include_documentation and version >= 3 else None,
    )


# -- alter -----------------------------------------------------------------------------------


async def alter_configs(
    broker: Broker, request: AlterConfigsRequest, _context: Context
) -> AlterConfigsResponse:
    """Replace all settings of each resource."""
    changes = [(each, _replacing(each)) for each in request.resources]
    return AlterConfigsResponse(responses=await _alter_all(broker, changes, request.validate_only))


async def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, _context: Context
) -> IncrementalAlterConfigsResponse:
    """Change some settings of each resource, one by one."""
    changes = [(each, _changing(each)) for each in request.resources]
    return IncrementalAlterConfigsResponse(
        responses=await _alter_all(broker, changes, request.validate_only)
    )


Resource = AlterConfigsResource | IncrementalAlterConfigsResource


async def _alter_all(
    broker: Broker, changes: Sequence[tuple[Resource, Change]], validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    named = Counter((each.resource_type, each.resource_name) for each, _ in changes)
    responses = []
    for resource, change in changes:
        code, message = ErrorCode.NONE, None
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names this twice")
            await _alter(broker, resource, change, validate_only)
        except InvalidSetting as wrong:
            code, message = ErrorCode.INVALID_CONFIG, str(wrong)
        except CONTROLLER_ERRORS as error:
            failure = kafka_error(error)
            code, message = failure.code, failure.detail or None
        responses.append(
            AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return responses


async def _alter(broker: Broker, resource: Resource, change: Change, validate_only: bool) -> None:
    if resource.resource_type == TOPIC:
        name = resource.resource_name

        def topic_change(had: dict[str, str]) -> dict[str, str]:
            overrides = change(had)
            TopicSettings.check(overrides)
            return overrides

        topic_change(_topic_overrides(broker, name))
        if not validate_only:
            await broker.topic_configs.configure(name, topic_change)
    elif resource.resource_type == BROKER:
        own = _is_one_broker(broker, resource.resource_name)

        def broker_change(had: dict[str, str]) -> dict[str, str]:
            config = change(had)
            BrokerSettings.check_change(config, Scope.BROKER if own else Scope.CLUSTER)
            return config

        broker_change(broker.broker_configs.own if own else broker.broker_configs.cluster)
        if not validate_only:
            await broker.broker_configs.configure(broker_change, own)
    else:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"only topics and brokers have settings, not type {resource.resource_type}",
        )


def _replacing(resource: AlterConfigsResource) -> Change:
    def change(_had: dict[str, str]) -> dict[str, str]:
        values = {config.name: config.value for config in resource.configs}
        if empty := sorted(name for name, value in values.items() if value is None):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no value for {', '.join(empty)}")
        return {name: value for name, value in values.items() if value is not None}

    return change


def _changing(resource: IncrementalAlterConfigsResource) -> Change:
    return lambda had: _changed(had, resource)


def _changed(had: dict[str, str], resource: IncrementalAlterConfigsResource) -> dict[str, str]:
    is_topic = resource.resource_type == TOPIC
    declared = (TopicSettings if is_topic else BrokerSettings).declared
    if len({config.name for config in resource.configs}) != len(resource.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a setting is changed twice")
    config = dict(had)
    for each in resource.configs:
        about = declared.get(each.name)
        operation, value = each.config_operation, each.value
        if operation == REMOVE:
            config.pop(each.name, None)
            continue
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no value for {each.name}")
        if operation in (APPEND, SUBTRACT):
            if about is None or about.kind is not Kind.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"{each.name} is not a list: it can only be set"
                )
            before = config.get(each.name) or about.text(about.default) or ""
            config[each.name] = _edited(before, value, operation == APPEND)
        elif operation == SET:
            config[each.name] = value
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no such operation: {operation}")
    return config


def _edited(before: str, value: str, appends: bool) -> str:
    entries = [entry for entry in before.split(",") if entry]
    given = [entry.strip() for entry in value.split(",") if entry.strip()]
    if appends:
        entries += [entry for entry in given if entry not in entries]
    else:
        entries = [entry for entry in entries if entry not in given]
    return ",".join(entries)
