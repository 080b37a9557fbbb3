"""The generated units: systemd's words, and commands that the servers accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from hightide.broker.main import _parse as parse_broker
from hightide.cli.generate import machines
from hightide.zookeeper.server.main import _options, _parser
from tests.support.units import command, settings

PROGRAM = "/opt/hightide/bin/hightide"


def test_a_broker_accepts_its_command() -> None:
    unit = machines.broker_unit(PROGRAM, "/etc/hightide/server.properties", "hightide", [])
    program, *words = command(unit)
    assert (program, words[:2]) == (PROGRAM, ["broker", "start"])
    assert parse_broker(words[2:]).config == Path("/etc/hightide/server.properties")


def test_the_embedded_zookeeper_accepts_its_command(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text("brokers:secret\n")
    unit = machines.embedded_zookeeper_unit(
        PROGRAM, "[::]:2181", "/var/lib/hightide/zookeeper", "hightide", str(credentials)
    )
    program, *words = command(unit)
    assert (program, words[:2]) == (PROGRAM, ["zookeeper", "start"])
    options = _options(_parser().parse_args(words[2:]))
    assert (options.host, options.port) == ("::", 2181)
    assert options.credentials == ("brokers:secret",)
    assert options.file is not None
    assert options.file.parent == Path("/var/lib/hightide/zookeeper")


@pytest.mark.parametrize(
    "path", ["/etc/a b/100%.properties", '/etc/"x"/$HOME', "/etc/a;b", "/etc/back\\slash 'q'"]
)
def test_a_path_stays_one_word(path: str) -> None:
    unit = machines.broker_unit(PROGRAM, path, "hightide", [])
    assert command(unit)[-2:] == ["--config", path]


def test_systemd_knows_when_a_server_serves_and_does_not_restart_it_after_a_wrong_setting() -> None:
    embedded = machines.embedded_zookeeper_unit(
        PROGRAM, machines.ZOOKEEPER_ADDRESS, "/var/lib/hightide/zookeeper", "hightide", None
    )
    for unit in (machines.broker_unit(PROGRAM, "/etc/x", "hightide", []), embedded):
        service = settings(unit)["Service"]
        assert service["Type"] == ["notify"]
        assert service["RestartPreventExitStatus"] == ["2"]
        assert service["KillSignal"] == ["SIGTERM"]
        assert service["User"] == ["hightide"]


def test_a_broker_may_write_to_its_directories_and_to_no_others() -> None:
    directories = ["/var/lib/hightide/data", "/mnt/disk 1", "/mnt/disk2"]
    service = settings(machines.broker_unit(PROGRAM, "/etc/x", "hightide", directories))["Service"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["StateDirectory"] == ["hightide"]
    assert service["ReadWritePaths"] == ['"/mnt/disk 1" /mnt/disk2']
    alone = settings(machines.broker_unit(PROGRAM, "/etc/x", "hightide", []))["Service"]
    assert "ReadWritePaths" not in alone


def test_a_broker_stops_before_a_zookeeper_on_its_host() -> None:
    unit = settings(machines.broker_unit(PROGRAM, "/etc/x", "hightide", []))["Unit"]
    after = " ".join(unit["After"]).split()
    assert {"zookeeper.service", "hightide-zookeeper.service"} <= set(after)
    assert "Requires" not in unit, "ZooKeeper may be elsewhere, and a broker waits for it"


def test_a_member_reads_its_configuration_with_java() -> None:
    unit = machines.zookeeper_unit("/srv/zookeeper", "/etc/hightide/zoo.cfg", "zookeeper", None)
    words = command(unit)
    assert words[0] == "/usr/bin/java"
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    assert words[-2:] == [main, "/etc/hightide/zoo.cfg"]
    assert settings(unit)["Service"]["ReadWritePaths"] == ["/srv/zookeeper"]
    unit = machines.zookeeper_unit("/srv/zookeeper", "/etc/zoo.cfg", "zookeeper", "/opt/zookeeper")
    words = command(unit)
    assert words[words.index("-cp") + 1] == "/opt/zookeeper/lib/*:/opt/zookeeper/conf"


def test_the_members_of_an_ensemble_listen_on_their_names() -> None:
    text = machines.zoo_cfg(machines.hosts("a.example, b.example,fd00::3"), "/var/lib/zookeeper")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = dict(line.split("=", 1) for line in lines)
    assert found["server.1"] == "a.example:2888:3888;a.example:2181"
    assert found["server.3"] == "[fd00::3]:2888:3888;[fd00::3]:2181"
    assert found["dataDir"] == "/var/lib/zookeeper"
    assert found["admin.enableServer"] == "false"
    assert int(found["autopurge.purgeInterval"]) > 0


def test_the_session_of_a_broker_is_within_the_limits_of_the_ensemble() -> None:
    from hightide.settings import load_broker

    text = machines.zoo_cfg(machines.hosts("a,b,c"), "/var/lib/zookeeper")
    [tick_ms] = [int(line[9:]) for line in text.splitlines() if line.startswith("tickTime=")]
    timeout_ms = load_broker(None, {}, []).zookeeper_session_timeout_ms
    assert 2 * tick_ms <= timeout_ms <= 20 * tick_ms
