"""Broker loggers, a resource of DescribeConfigs and IncrementalAlterConfigs: levels of the log.

A logger has the name of a module, such as `hightide.broker.controller.service`, and covers the
modules below it.  A level that is set here lasts until the process ends, and only in this broker.
A logger without a level has that of the next one above; that of `root` is `log.level` at first.

INVALID_REQUEST   another broker, no level, a logger named twice, DELETE for `root`, or an operation
                  other than SET and DELETE
INVALID_CONFIG    a logger that does not exist, or a level that Kafka does not have
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from hightide.settings import Source
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.configs import (
    DescribeConfigsResourceResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)

ROOT = "root"
SET, DELETE = 0, 1

# Kafka's names of levels. No module of ours logs at TRACE, so it is DEBUG for these.
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def describe(
    broker_id: int, resource_name: str, keys: Collection[str] | None
) -> list[DescribeConfigsResourceResult]:
    """Every logger with its level, or those in `keys`."""
    _check_broker(broker_id, resource_name)
    return [
        DescribeConfigsResourceResult(
            name=name,
            value=_level_of(_logger(name)),
            read_only=False,
            config_source=Source.BROKER_LOGGER,
            is_sensitive=False,
            synonyms=[],
            documentation=None,
        )
        for name in (ROOT, *sorted(logging.Logger.manager.loggerDict))
        if keys is None or name in keys
    ]


def alter(broker_id: int, resource: IncrementalAlterConfigsResource, validate_only: bool) -> None:
    """Change the levels of loggers; all changes are valid, or none is made."""
    _check_broker(broker_id, resource.resource_name)
    if len({config.name for config in resource.configs}) != len(resource.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a logger is changed twice")
    levels = {config.name: _level(config) for config in resource.configs}
    if not validate_only:
        for name, level in levels.items():
            _logger(name).setLevel(level)


def _check_broker(broker_id: int, name: str) -> None:
    if name != str(broker_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {broker_id}; send the request to broker {name}"
            if name
            else f"the loggers of one broker need its id: {broker_id}",
        )


def _level(change: IncrementalAlterableConfig) -> int:
    name, operation, level = change.name, change.config_operation, change.value
    if operation not in (SET, DELETE):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a level can only be set and deleted")
    if operation == SET and level is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no level for {name}")
    if name != ROOT and name not in logging.Logger.manager.loggerDict:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"there is no logger {name}")
    if operation == SET:
        if level not in LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"the level of {name} must be one of {', '.join(LEVELS)}, not {level!r}",
            )
        return LEVELS[level]
    if name == ROOT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the level of {ROOT} can only be set")
    return logging.NOTSET


def _logger(name: str) -> logging.Logger:
    # `root` is the name of the root logger in Kafka; getLogger("root") may be another one.
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


def _level_of(logger: logging.Logger) -> str:
    """The effective level, by Kafka's name: the highest one that is not above it."""
    level = logger.getEffectiveLevel()
    return next((name for name in reversed(LEVELS) if LEVELS[name] <= level), "TRACE")
