"""`hightide generate …`: where files go, bad options, and templates that an installation has."""

from __future__ import annotations

import importlib.resources
import tomllib
from pathlib import Path

import pytest

from hightide.__main__ import main
from hightide.cli.generate.template import FOLDER
from tests.support.pages import ROOT

ENSEMBLE = ("zookeeper", "--servers", "a,b,c", "--id", "2")
COMMANDS = {
    "grafana": ("grafana",),
    "prometheus-rules": ("prometheus-rules",),
    "systemd": ("systemd",),
    "systemd --zookeeper": ("systemd", "--zookeeper"),
    "zookeeper": ENSEMBLE,
    "dockerfile": ("dockerfile",),
    "compose": ("compose",),
    "k8s": ("k8s",),
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_command_prints_a_file_without_places_that_are_left(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *arguments]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) > 20
    assert "@" not in text.replace("SystemCallFilter=@", "").replace("~@", "").replace(" @", "")


def test_a_file_that_exists_is_replaced_only_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.yaml"
    command = ["generate", "prometheus-rules", "--output", str(file)]
    assert main(command) == 0
    assert main(command) == 0, "the same content is no conflict"
    assert main([*command, "--job", "other"]) == 1
    assert "--replace" in capsys.readouterr().err
    assert 'job="hightide"' in file.read_text()
    assert main([*command, "--job", "other", "--replace"]) == 0
    assert 'job="other"' in file.read_text()


def test_the_files_of_a_member_go_to_a_directory(tmp_path: Path) -> None:
    assert main(["generate", *ENSEMBLE, "--output", str(tmp_path / "member")]) == 0
    names = {path.name for path in (tmp_path / "member").iterdir()}
    assert names == {"zoo.cfg", "myid", "zookeeper.service"}
    assert (tmp_path / "member" / "myid").read_text() == "2\n"


REFUSED = {
    ("k8s", "--name", "A B"): "'A B' is not a name",
    ("k8s", "--name", "1st"): "'1st' is not a name",
    ("k8s", "--namespace", "x_y"): "'x_y' is not the name",
    ("k8s", "--storage", "50"): "'50' is not an amount",
    ("k8s", "--image", "x y"): "'x y' is not the name",
    ("k8s", "--replicas", "0"): "--replicas",
    ("compose", "--port", "19090"): "must leave out 19092",
    ("compose", "--port", "65534"): "must leave out 19092",
    ("compose", "--zookeeper", "none"): "'ensemble', 'embedded'",
    ("compose", "--name", "x: y"): "'x: y' is not the name",
    ("dockerfile", "--python", "3.9"): "3.11 or newer",
    ("prometheus-rules", "--job", 'a"b'): "is not the name of a job",
    ("systemd", "--config", "server.properties"): "must be an absolute path",
    ("systemd", "--user", "a b"): "'a b' is not the name",
    ("systemd", "--data", "/a\nExecStart=/b"): "control character",
    ("systemd", "--listen", "127.0.0.1:1"): "are for --zookeeper",
    ("systemd", "--zookeeper", "--config", "/a"): "no file of settings",
    ("systemd", "--zookeeper", "--data", "/a", "--data", "/b"): "--data once",
    ("systemd", "--zookeeper", "--listen", "nonsense"): "expected HOST:PORT",
    ("systemd", "--zookeeper", "--listen", "0.0.0.0:2181"): "--credentials",
    ("zookeeper", "--servers", "a,b", "--id", "1"): "three or five",
    ("zookeeper", "--servers", "a,b,a", "--id", "1"): "named twice",
    ("zookeeper", "--servers", "a,b,c", "--id", "4"): "has 3 members",
    ("zookeeper", "--servers", "a,b,c:1", "--id", "1"): "'c:1' is not the name",
    (*ENSEMBLE, "--home", "zookeeper"): "must be an absolute path",
}


@pytest.mark.parametrize(
    ("arguments", "reason"), REFUSED.items(), ids=[" ".join(words) for words in REFUSED]
)
def test_a_wrong_option_is_refused_with_exit_code_2(
    arguments: tuple[str, ...],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["generate", *arguments]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert not printed.out


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for command, reason in (
        (("grafana", "--output", str(tmp_path)), "is a directory"),
        (("grafana", "--output", str(tmp_path / "missing" / "x")), "does not exist"),
        ((*ENSEMBLE, "--output", str(tmp_path / "file")), "is a file"),
    ):
        assert main(["generate", *command]) == 1
        assert reason in capsys.readouterr().err


def test_paths_that_a_unit_does_not_see_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    program = "/var/tmp/venv/bin/hightide"
    assert main(["generate", "systemd", "--program", program]) == 0
    assert f"The unit does not see {program}" in capsys.readouterr().err
    assert main(["generate", "systemd", "--program", "/opt/hightide/bin/hightide"]) == 0
    assert not capsys.readouterr().err


def test_an_installation_has_the_templates() -> None:
    templates = importlib.resources.files("hightide.cli.generate") / "templates"
    names = {entry.name for entry in templates.iterdir()}
    assert names == {path.name for path in FOLDER.iterdir()}
    assert len(names) > 10
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "src/hightide" in wheel["packages"]
    assert not {"include", "exclude", "only-include"} & set(wheel)
