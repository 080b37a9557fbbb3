"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44): settings.

Resources are topics and brokers; a broker with an empty name is the default of all brokers. Those
of type BROKER_LOGGER are in `broker_loggers`, those of type CLIENT_METRICS in `client_telemetry`.

Errors per resource:
UNKNOWN_TOPIC_OR_PARTITION   there is no such topic
INVALID_TOPIC_EXCEPTION      the name is not valid for a topic
INVALID_CONFIG               a setting that does not exist, cannot change or has an invalid value
REQUEST_TIMED_OUT            ZooKeeper is unreachable: the settings of a new topic are not known
                             yet, or a change may or may not have happened
INVALID_REQUEST              another type of resource, another broker, or a resource named twice
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hightide import process_log
from hightide.broker.controller.controller_errors import CONTROLLER_ERRORS, kafka_error
from hightide.broker.handlers import broker_loggers, client_telemetry
from hightide.broker.handlers.request_context import Context, in_one_line
from hightide.broker.membership.dynamic_configs import Change
from hightide.broker.network.turn import Steps
from hightide.core.metadata import topic_names as rules
from hightide.settings import Broker as BrokerSettings
from hightide.settings import DescribedSetting, InvalidSetting, Kind, Scope
from hightide.settings import Topic as TopicSettings
from hightide.settings.declaration import Settings
from hightide.settings.secrets import is_secret
from hightide.settings.telemetry import ClientMetrics
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.configs import (
    CLIENT_METRICS,
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

log = logging.getLogger(__name__)

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, REMOVE, APPEND, SUBTRACT = 0, 1, 2, 3
_KINDS = {
    TOPIC: "topic",
    BROKER: "broker",
    BROKER_LOGGER: "the loggers of broker",
    CLIENT_METRICS: "client metrics",
}
_DECLARED: dict[int, type[Settings]] = {TOPIC: TopicSettings, CLIENT_METRICS: ClientMetrics}
_SIGNS = {SET: "=", APPEND: "+=", SUBTRACT: "-="}


# -- describe --------------------------------------------------------------------------------


def describe_configs(
    broker: Broker, request: DescribeConfigsRequest, context: Context
) -> Steps[DescribeConfigsResponse]:
    results = []
    for resource in request.resources:
        yield
        result = DescribeConfigsResult(
            error_code=ErrorCode.NONE,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        named = resource.configuration_keys
        keys = None if named is None else frozenset(named)
        try:
            result.configs = _configs_of(broker, resource, keys, request, context)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.detail or None
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _configs_of(
    broker: Broker,
    resource: DescribeConfigsResource,
    keys: frozenset[str] | None,
    request: DescribeConfigsRequest,
    context: Context,
) -> list[DescribeConfigsResourceResult]:
    if resource.resource_type == BROKER_LOGGER:
        return broker_loggers.describe(broker.broker_id, resource.resource_name, keys)
    return [
        _described(setting, request, context.version)
        for setting in _settings_of(broker, resource)
        if keys is None or setting.name in keys
    ]


def _settings_of(broker: Broker, resource: DescribeConfigsResource) -> Iterable[DescribedSetting]:
    if resource.resource_type == TOPIC:
        overrides = _topic_overrides(broker, resource.resource_name)
        if not broker.topic_configs.is_known(resource.resource_name):
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the settings of topic {resource.resource_name} could not be read from ZooKeeper"
                " yet; try again later",
            )
        return TopicSettings.effective(broker.settings, overrides).describe()
    if resource.resource_type == BROKER:
        own = _is_one_broker(broker, resource.resource_name)
        described = broker.settings.describe()
        if own:
            return described
        return (found for found in described if found.name in broker.broker_configs.cluster)
    if resource.resource_type == CLIENT_METRICS:
        return client_telemetry.describe_subscription(broker, resource.resource_name)
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"resources of type {resource.resource_type} have no settings to describe or change",
    )


def _topic_overrides(broker: Broker, name: str) -> dict[str, str]:
    rules.check_name(name)
    if broker.metadata.get(name) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return dict(broker.topic_configs.overrides(name))


def _is_one_broker(broker: Broker, name: str) -> bool:
    """Whether a resource names this broker; False for the default of all brokers."""
    if name == "":
        return False
    if name != str(broker.broker_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {broker.broker_id}; send the request to broker {name}",
        )
    return True


def _described(
    setting: DescribedSetting, request: DescribeConfigsRequest, version: int
) -> DescribeConfigsResourceResult:
    synonyms = setting.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=setting.text,
        read_only=setting.read_only,
        config_source=setting.source,
        is_sensitive=setting.declared.secret,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.text, source=synonym.source)
            for synonym in synonyms
        ],
        config_type=setting.declared.kind,
        documentation=setting.doc if request.include_documentation and version >= 3 else None,
    )


# -- alter -----------------------------------------------------------------------------------


async def alter_configs(
    broker: Broker, request: AlterConfigsRequest, context: Context
) -> AlterConfigsResponse:
    """Replace all settings of each resource."""
    changes = [(resource, _replacing(resource)) for resource in request.resources]
    validate_only = request.validate_only
    return AlterConfigsResponse(responses=await _alter_all(broker, changes, validate_only, context))


async def incremental_alter_configs(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: Context
) -> IncrementalAlterConfigsResponse:
    """Change some settings of each resource, one by one."""
    changes = [(resource, _changing(resource)) for resource in request.resources]
    return IncrementalAlterConfigsResponse(
        responses=await _alter_all(broker, changes, request.validate_only, context)
    )


Resource = AlterConfigsResource | IncrementalAlterConfigsResource


async def _alter_all(
    broker: Broker,
    changes: Sequence[tuple[Resource, Change]],
    validate_only: bool,
    context: Context,
) -> list[AlterConfigsResourceResponse]:
    named = Counter((resource.resource_type, resource.resource_name) for resource, _ in changes)
    responses = []
    for resource, change in changes:
        await context.turn.pause()
        code, message = ErrorCode.NONE, None
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names this resource twice")
            await _alter(broker, resource, change, validate_only)
            if not validate_only:
                # A change may remove data: retention, compaction, unclean elections.
                process_log.always(
                    log, "settings of %s, asked by %s", _shown(resource), context.sender
                )
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

        def topic_change(before: dict[str, str]) -> dict[str, str]:
            overrides = change(before)
            TopicSettings.check(overrides)
            return overrides

        topic_change(_topic_overrides(broker, name))
        if not validate_only:
            await broker.topic_configs.configure(name, topic_change)
    elif resource.resource_type == BROKER:
        own = _is_one_broker(broker, resource.resource_name)

        def broker_change(before: dict[str, str]) -> dict[str, str]:
            config = change(before)
            BrokerSettings.check_change(config, Scope.BROKER if own else Scope.CLUSTER)
            return config

        broker_change(broker.broker_configs.own if own else broker.broker_configs.cluster)
        if not validate_only:
            await broker.broker_configs.configure(broker_change, own)
    elif resource.resource_type == BROKER_LOGGER and isinstance(
        resource, IncrementalAlterConfigsResource
    ):
        broker_loggers.alter(broker.broker_id, resource, validate_only)
    elif resource.resource_type == CLIENT_METRICS and isinstance(
        resource, IncrementalAlterConfigsResource
    ):
        name = resource.resource_name
        await client_telemetry.alter_subscription(broker, name, change, validate_only)
    else:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"resources of type {resource.resource_type} have no settings to describe or change",
        )


def _shown(resource: Resource) -> str:
    """A resource and its changes for the log, without secrets."""
    changes = []
    for config in resource.configs:
        operation = getattr(config, "config_operation", SET)
        value = "…" if is_secret(config.name) else config.value
        sign = " deleted" if operation == REMOVE else f"{_SIGNS[operation]}{value}"
        changes.append(f"{config.name}{sign}")
    kind = _KINDS[resource.resource_type]
    name = in_one_line([resource.resource_name or "(all)"])
    return f"{kind} {name}: {in_one_line(changes)}"


def _replacing(resource: AlterConfigsResource) -> Change:
    def change(_before: dict[str, str]) -> dict[str, str]:
        values = {config.name: config.value for config in resource.configs}
        if empty := sorted(name for name, value in values.items() if value is None):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no value for {', '.join(empty)}")
        return {name: value for name, value in values.items() if value is not None}

    return change


def _changing(resource: IncrementalAlterConfigsResource) -> Change:
    return lambda before: _changed(before, resource)


def _changed(before: dict[str, str], resource: IncrementalAlterConfigsResource) -> dict[str, str]:
    declared = _DECLARED.get(resource.resource_type, BrokerSettings).declared
    if len({config.name for config in resource.configs}) != len(resource.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a setting is changed twice")
    config = dict(before)
    for change in resource.configs:
        name, operation, value = change.name, change.config_operation, change.value
        setting = declared.get(name)
        if operation == REMOVE:
            config.pop(name, None)
            continue
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no value for {name}")
        if operation in (APPEND, SUBTRACT):
            if setting is None or setting.kind is not Kind.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"{name} is not a list: it can only be set"
                )
            entries = config.get(name) or setting.text(setting.default) or ""
            config[name] = _edited(entries, value, operation == APPEND)
        elif operation == SET:
            config[name] = value
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no such operation: {operation}")
    return config


def _edited(before: str, value: str, appends: bool) -> str:
    entries = [entry for entry in before.split(",") if entry]
    named = [entry.strip() for entry in value.split(",") if entry.strip()]
    if appends:
        entries += [entry for entry in named if entry not in entries]
    else:
        entries = [entry for entry in entries if entry not in named]
    return ",".join(entries)
