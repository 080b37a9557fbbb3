"""Levels of a running broker's loggers, changed by kafka-python and by `hightide config`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from kafka.admin import KafkaAdminClient
from kafka.admin._configs import AlterConfigOp, ConfigResource, ConfigResourceType

from hightide.testing import Cluster
from tests.conformance.commands import runner
from tests.support.eventually import eventually

LOGGER = "hightide.broker.controller.topic_changes"
CREATED = "created topic {}"
INVALID_REQUEST, INVALID_CONFIG = 42, 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    yield client
    client.close()


def loggers(broker_id, configs=None) -> ConfigResource:
    return ConfigResource(ConfigResourceType.BROKER_LOGGER, str(broker_id), configs)


def levels(admin, broker_id) -> dict[str, str]:
    found = admin.describe_configs([loggers(broker_id)], config_filter="all")
    described = found["broker_logger"][str(broker_id)]
    assert {entry["config_source"] for entry in described.values()} == {
        "DYNAMIC_BROKER_LOGGER_CONFIG"
    }
    return {name: entry["value"] for name, entry in described.items()}


def test_a_level_is_changed_in_one_running_broker(cluster, admin) -> None:
    controller = cluster.controller()
    other = 3 - controller
    before = levels(admin, controller)
    assert (before["root"], before[LOGGER]) == ("INFO", "INFO")
    admin.alter_configs([loggers(controller, {LOGGER: "ERROR"})])
    assert levels(admin, controller) == before | {LOGGER: "ERROR"}
    assert levels(admin, other)[LOGGER] == "INFO"
    hidden, shown = cluster.create_topic(), None
    admin.alter_configs([loggers(controller, {LOGGER: (AlterConfigOp.DELETE, None)})])
    assert levels(admin, controller) == before
    shown = cluster.create_topic()
    eventually(lambda: CREATED.format(shown) in cluster.log(controller))
    assert CREATED.format(hidden) not in cluster.log(controller)
    change = f"settings of the loggers of broker {controller}: {LOGGER}=ERROR, asked by 127.0.0.1"
    assert change in cluster.log(controller)


def test_the_level_of_a_package_covers_its_modules(cluster, admin) -> None:
    admin.alter_configs([loggers(1, {"hightide.broker": "FATAL", "root": "WARN"})])
    found = levels(admin, 1)
    assert (found[LOGGER], found["hightide.log.log"]) == ("FATAL", "WARN")
    admin.alter_configs(
        [loggers(1, {"hightide.broker": (AlterConfigOp.DELETE, None), "root": "INFO"})]
    )
    assert set(levels(admin, 1).values()) <= {"INFO", "WARN", "ERROR", "FATAL"}
    assert levels(admin, 1)[LOGGER] == "INFO"


def test_a_level_is_gone_after_a_restart(admin) -> None:
    with Cluster() as cluster:
        client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        client.alter_configs([loggers(1, {LOGGER: "FATAL"})])
        client.close()
        cluster.kill(1)
        cluster.restart(1)
        client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        assert levels(client, 1)[LOGGER] == "INFO"
        client.close()


def test_the_setting_of_the_level_stays_after_a_restart_and_root_follows_it() -> None:
    with Cluster() as cluster:
        client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        everywhere = ConfigResource(ConfigResourceType.BROKER, "1", {"log.level": "error"})
        client.alter_configs([everywhere])
        eventually(lambda: levels(client, 1)["root"] == "ERROR")
        # Another setting leaves a level of the root logger as it is.
        client.alter_configs([loggers(1, {"root": "DEBUG"})])
        client.alter_configs(
            [ConfigResource(ConfigResourceType.BROKER, "1", {"log.cleaner.backoff.ms": "1234"})],
            raise_on_unknown=False,
        )
        assert levels(client, 1)["root"] == "DEBUG"
        client.close()
        cluster.kill(1)
        cluster.restart(1)
        client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        assert levels(client, 1)["root"] == "ERROR"
        client.close()


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ({LOGGER: "LOUD"}, INVALID_CONFIG),
        ({"kafka.server.KafkaApis": "INFO"}, INVALID_CONFIG),
        ({"root": (AlterConfigOp.DELETE, None)}, INVALID_REQUEST),
        ({LOGGER: (AlterConfigOp.APPEND, "INFO")}, INVALID_REQUEST),
    ],
)
def test_a_wrong_change_is_refused(admin, configs, code) -> None:
    found = admin.alter_configs([loggers(1, configs)], raise_on_unknown=False)
    assert code_of(found) == code


def test_the_request_that_replaces_all_settings_is_refused(admin) -> None:
    found = admin.alter_configs(
        [loggers(1, {LOGGER: "ERROR"})], raise_on_unknown=False, incremental=False
    )
    assert code_of(found) == INVALID_REQUEST


def code_of(found) -> int:
    """The error code of the one resource."""
    (text,) = found["broker_logger"].values()
    (code,) = re.findall(r"\[Error (\d+)\]", text)
    return int(code)


def test_the_command_line_shows_and_sets_levels(cluster, capfd, monkeypatch) -> None:
    command = runner(cluster.bootstrap, capfd, monkeypatch)
    shown = command("config", "get", "broker-logger/2", LOGGER, "-o", "json").json
    assert [(row["name"], row["value"]) for row in shown] == [(LOGGER, "INFO")]
    assert command("config", "set", "broker-logger/2", f"{LOGGER}=DEBUG").code == 0
    shown = json.loads(command("config", "get", "broker-logger/2", LOGGER, "-o", "json").out)
    assert shown[0]["value"] == "DEBUG"
    assert command("config", "unset", "broker-logger/2", LOGGER).code == 0
    refused = command("config", "set", "broker-logger/2", f"{LOGGER}=LOUD")
    assert refused.code == 1
    assert "must be one of TRACE, DEBUG, INFO, WARN, ERROR, FATAL" in refused.err
    assert command("config", "get", "broker-logger/x").code == 2
