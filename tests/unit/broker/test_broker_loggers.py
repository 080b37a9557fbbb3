"""Levels of loggers: which changes are made, and which are refused as in Kafka."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hightide.broker.handlers.broker_loggers import DELETE, LEVELS, SET, alter, describe
from hightide.broker.handlers.configs import (
    BROKER_LOGGER,
    alter_configs,
    describe_configs,
    incremental_alter_configs,
)
from hightide.broker.network.turn import Turn
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tests.support.steps import all_steps

NAME = "hightide.broker.replication.test_loggers"
ABOVE = "hightide.broker.replication"
BROKER: Any = SimpleNamespace(broker_id=1)
APPEND, SUBTRACT = 2, 3


@pytest.fixture(autouse=True)
def loggers():
    """Two loggers whose levels are as before at the end, and that of the root."""
    found = [logging.getLogger(name) for name in (NAME, ABOVE, None)]
    before = [logger.level for logger in found]
    yield
    for logger, level in zip(found, before, strict=True):
        logger.setLevel(level)


def resource(*changes: tuple[str, int, str | None], name: str = "1"):
    return IncrementalAlterConfigsResource(
        resource_type=BROKER_LOGGER,
        resource_name=name,
        configs=[
            IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )


def level(name: str) -> str | None:
    (found,) = describe(1, "1", [name])
    return found.value


def test_every_logger_is_listed_with_its_effective_level() -> None:
    found = describe(1, "1", None)
    names = [entry.name for entry in found]
    assert names[0] == "root"
    assert {NAME, ABOVE, "hightide.broker"} <= set(names)
    assert len(set(names)) == len(names)
    (entry,) = describe(1, "1", [NAME, "no.such.logger"])
    assert entry.config_source == 6  # DYNAMIC_BROKER_LOGGER_CONFIG
    assert (entry.read_only, entry.is_sensitive, entry.synonyms) == (False, False, [])


@pytest.mark.parametrize("kafkas", LEVELS)
def test_a_level_is_set_and_shown_by_kafkas_name(kafkas) -> None:
    alter(1, resource((NAME, SET, kafkas)), validate_only=False)
    assert logging.getLogger(NAME).level == LEVELS[kafkas]
    assert level(NAME) == kafkas


@pytest.mark.parametrize(("number", "kafkas"), [(1, "TRACE"), (15, "DEBUG"), (60, "FATAL")])
def test_a_level_that_kafka_does_not_have_is_shown_as_the_next_lower_one(number, kafkas) -> None:
    logging.getLogger(NAME).setLevel(number)
    assert level(NAME) == kafkas


def test_a_level_covers_the_loggers_below_until_it_is_deleted() -> None:
    root = level("root")
    alter(1, resource((ABOVE, SET, "FATAL")), validate_only=False)
    assert level(NAME) == "FATAL"
    alter(1, resource((NAME, SET, "DEBUG"), (ABOVE, DELETE, None)), validate_only=False)
    assert (level(NAME), level(ABOVE)) == ("DEBUG", root)
    alter(1, resource((NAME, DELETE, None)), validate_only=False)
    assert level(NAME) == root


def test_root_is_the_root_logger() -> None:
    alter(1, resource(("root", SET, "ERROR")), validate_only=False)
    assert logging.getLogger().level == logging.ERROR
    assert level(NAME) == "ERROR"


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ((NAME, SET, "LOUD"), ErrorCode.INVALID_CONFIG, "must be one of TRACE, DEBUG, INFO"),
        ((NAME, SET, "info"), ErrorCode.INVALID_CONFIG, "not 'info'"),
        ((NAME, SET, "OFF"), ErrorCode.INVALID_CONFIG, "not 'OFF'"),
        ((NAME, SET, ""), ErrorCode.INVALID_CONFIG, "not ''"),
        (("kafka.server", SET, "INFO"), ErrorCode.INVALID_CONFIG, "there is no logger kafka.serv"),
        (("kafka.server", DELETE, None), ErrorCode.INVALID_CONFIG, "there is no logger"),
        (("", SET, "INFO"), ErrorCode.INVALID_CONFIG, "there is no logger"),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST, "root can only be set"),
        ((NAME, SET, None), ErrorCode.INVALID_REQUEST, "no level for"),
        ((NAME, APPEND, "INFO"), ErrorCode.INVALID_REQUEST, "only be set and deleted"),
        ((NAME, SUBTRACT, "INFO"), ErrorCode.INVALID_REQUEST, "only be set and deleted"),
        ((NAME, 9, "INFO"), ErrorCode.INVALID_REQUEST, "only be set and deleted"),
    ],
)
def test_what_kafka_refuses_is_refused_and_nothing_is_changed(change, code, text) -> None:
    before = level(ABOVE)
    with pytest.raises(KafkaError, match=text) as refused:
        alter(1, resource((ABOVE, SET, "FATAL"), change), validate_only=False)
    assert refused.value.code == code
    assert level(ABOVE) == before
    assert "kafka.server" not in logging.Logger.manager.loggerDict


def test_a_logger_is_changed_once_in_a_request() -> None:
    twice = resource((NAME, SET, "INFO"), (NAME, DELETE, None))
    with pytest.raises(KafkaError, match="twice"):
        alter(1, twice, validate_only=False)


@pytest.mark.parametrize("name", ["2", "", "one", "01"])
def test_only_this_broker_is_changed_and_described(name) -> None:
    with pytest.raises(KafkaError) as altered:
        alter(1, resource((NAME, SET, "INFO"), name=name), validate_only=False)
    with pytest.raises(KafkaError) as described:
        describe(1, name, None)
    assert altered.value.code == described.value.code == ErrorCode.INVALID_REQUEST
    assert "1" in altered.value.detail


def test_a_trial_changes_nothing() -> None:
    before = level(NAME)
    alter(1, resource((NAME, SET, "FATAL")), validate_only=True)
    assert level(NAME) == before


CONTEXT = cast(Any, SimpleNamespace(version=1, sender="192.0.2.1 (client id 'me')", turn=Turn()))


def test_the_log_says_who_has_changed_a_level_whatever_the_level_is(caplog) -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[resource(("root", SET, "FATAL"), (NAME, DELETE, None))], validate_only=False
    )
    response = asyncio.run(incremental_alter_configs(BROKER, request, CONTEXT))
    assert [each.error_code for each in response.responses] == [ErrorCode.NONE]
    assert caplog.messages == [
        f"settings of the loggers of broker 1: root=FATAL, {NAME} deleted,"
        " asked by 192.0.2.1 (client id 'me')"
    ]


def test_a_resource_is_changed_once_in_a_request() -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[resource((NAME, SET, "INFO"))] * 2, validate_only=False
    )
    response = asyncio.run(incremental_alter_configs(BROKER, request, CONTEXT))
    assert [each.error_code for each in response.responses] == [ErrorCode.INVALID_REQUEST] * 2


def test_the_request_that_replaces_all_settings_is_refused() -> None:
    whole = AlterConfigsResource(
        resource_type=BROKER_LOGGER,
        resource_name="1",
        configs=[AlterableConfig(name=NAME, value="FATAL")],
    )
    before = level(NAME)
    request = AlterConfigsRequest(resources=[whole], validate_only=False)
    (response,) = asyncio.run(alter_configs(BROKER, request, CONTEXT)).responses
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert level(NAME) == before


def test_describe_configs_has_the_loggers() -> None:
    wanted = DescribeConfigsResource(
        resource_type=BROKER_LOGGER, resource_name="1", configuration_keys=[NAME]
    )
    other = DescribeConfigsResource(
        resource_type=BROKER_LOGGER, resource_name="2", configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[wanted, other])
    own, refused = all_steps(describe_configs(BROKER, request, CONTEXT)).results
    assert [entry.name for entry in own.configs] == [NAME]
    assert (refused.error_code, refused.configs) == (ErrorCode.INVALID_REQUEST, [])
