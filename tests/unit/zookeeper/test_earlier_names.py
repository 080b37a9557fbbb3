"""Names of earlier versions, in which ZooKeeper was called the coordinator, still work."""

import pytest

from hightide import zookeeper
from hightide.__main__ import main
from hightide.broker.membership.zookeeper_connection import read_session_key, write_session_key
from hightide.settings import Broker, load_broker
from hightide.zookeeper.client import SessionKey

KEY = SessionKey(7, b"secret")


def test_a_database_is_found_under_both_names(tmp_path):
    new, old = tmp_path / "zookeeper.db", tmp_path / "coordination.db"
    assert zookeeper.database_file(tmp_path) == new
    old.touch()
    assert zookeeper.database_file(tmp_path) == old
    new.touch()
    assert zookeeper.database_file(tmp_path) == new


def test_a_session_file_is_read_under_both_names_and_written_under_the_new_one(tmp_path):
    assert read_session_key(tmp_path) is None
    write_session_key(tmp_path, KEY)
    (tmp_path / "zookeeper.session").rename(tmp_path / "coordination.session")
    assert read_session_key(tmp_path) == KEY
    write_session_key(tmp_path, KEY)
    assert read_session_key(tmp_path) == KEY
    assert [path.name for path in tmp_path.iterdir()] == ["zookeeper.session"]


@pytest.mark.parametrize("prefix", ["zookeeper", "coordinator"])
def test_settings_are_read_under_both_names(prefix):
    given = {f"{prefix}.listen": "127.0.0.1:0", f"{prefix}.credentials": "ann:secret"}
    secret = f"KAFKA_{prefix.upper()}_CREDENTIALS"
    for settings in (
        Broker.read(given),
        load_broker(None, {secret: "ann:secret"}, [f"{prefix}.listen=127.0.0.1:0"]),
        load_broker(
            None, {f"KAFKA_{name.upper().replace('.', '_')}": given[name] for name in given}, []
        ),
    ):
        assert settings.zookeeper_listen == "127.0.0.1:0"
        assert settings.zookeeper_credentials == "ann:secret"


def test_the_new_name_of_a_setting_wins():
    given = {"coordinator.listen": "127.0.0.1:1", "zookeeper.listen": "127.0.0.1:2"}
    assert Broker.read(given).zookeeper_listen == "127.0.0.1:2"


def test_the_earlier_command_is_hidden_and_does_the_same(tmp_path, capsys):
    assert main(["--help"]) == 0
    assert "│ coordinator" not in capsys.readouterr().out
    errors = []
    for command in ("zookeeper", "coordinator"):
        missing = str(tmp_path / "missing")
        assert main([command, "backup", str(tmp_path / "file"), "--from", missing]) == 1
        errors.append(capsys.readouterr().err)
    assert errors[0] == errors[1] != ""
