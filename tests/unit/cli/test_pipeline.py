"""What `hightide pipeline` says without Spark: what is missing, and what files know of apps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hightide.cli import app as cli
from hightide.cli import extra, pipeline_rows
from hightide.spark import session
from hightide.spark.pipelines import status
from hightide.spark.pipelines.status import AppStatus, QueryStatus, State

APP = """\
from hightide.spark.streams import App
app = App("shop")
orders = app.topic("orders")

@app.query(to="copies")
def copies():
    return orders.stream()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # No broker listens there, so the figures that need one are as old as the file.
    monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", "127.0.0.1:1")
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def an_app(name: str, state: State, *queries: QueryStatus) -> AppStatus:
    return AppStatus(
        name, f"{name}.py", "127.0.0.1:1", "local[2]", 7, state, 0, 1000, None, queries
    )


def keep(folder: Path, *apps: AppStatus) -> None:
    for each in apps:
        status.write(folder / ".hightide" / "pipelines" / each.app, each)


@pytest.mark.parametrize("command", ["run", "plan", "test"])
def test_without_the_extra_a_command_says_what_to_install(
    folder, monkeypatch, capsys, command: str
) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda _: None)
    assert cli.run(["pipeline", command, "shop.py"]) == 1
    assert "pip install 'hightide[spark]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "plan"])
def test_without_java_a_command_says_what_to_install(
    folder, monkeypatch, capsys, command: str
) -> None:
    monkeypatch.setattr(session, "java_version", lambda: None)
    assert cli.run(["pipeline", command, "shop.py"]) == 1
    said = capsys.readouterr().err
    assert "openjdk-17" in said
    assert "Traceback" not in said


def test_a_file_that_is_wrong_is_said_to_be_with_its_line(folder, capsys) -> None:
    (folder / "shop.py").write_text("app = = 1\n")
    assert cli.run(["pipeline", "run", "shop.py"]) == 1
    assert "shop.py:1: invalid syntax" in capsys.readouterr().err
    assert cli.run(["pipeline", "run", "nowhere.py"]) == 2
    assert "file 'nowhere.py' does not exist" in capsys.readouterr().err


def test_an_unknown_query_or_setting_is_wrong_usage(folder, capsys) -> None:
    assert cli.run(["pipeline", "run", "shop.py", "--only", "nothing"]) == 2
    assert "copies" in capsys.readouterr().err
    assert cli.run(["pipeline", "run", "shop.py", "--conf", "spark"]) == 2
    assert cli.run(["pipeline", "run", "shop.py", "--dry-run"]) == 2


def test_a_reset_needs_the_broker_and_says_so(folder, capsys) -> None:
    assert cli.run(["pipeline", "run", "shop.py", "--reset", "--yes"]) == 1
    assert "cannot be listed" in capsys.readouterr().err


def test_apps_are_listed_from_what_they_wrote_down(folder, capsys) -> None:
    assert cli.run(["pipeline", "list"]) == 0
    assert "No app has run" in capsys.readouterr().err
    keep(
        folder,
        an_app("good", State.FINISHED, QueryStatus("q", "t")),
        # It says that it runs, but no process holds its lock.
        an_app("gone", State.RUNNING),
    )
    assert cli.run(["pipeline", "list", "-o", "json"]) == 0
    found = {each["app"]: each for each in json.loads(capsys.readouterr().out)}
    assert (found["good"]["state"], found["good"]["queries"]) == ("finished", ["q"])
    assert (found["gone"]["state"], found["gone"]["pid"]) == ("died", None)


def test_the_status_of_an_app_that_is_not_well_has_an_exit_code_of_its_own(folder, capsys) -> None:
    lagging = QueryStatus("q", "t", State.FAILED, 3, lag=5, positions={"t": {"0": 1}})
    failed = dataclasses.replace(an_app("bad", State.FAILED, lagging), error="It broke.")
    keep(folder, an_app("good", State.FINISHED), failed)
    assert cli.run(["pipeline", "status", "good"]) == 0
    assert cli.run(["pipeline", "status", "bad"]) == 3
    told = capsys.readouterr()
    assert "It broke." in told.out
    assert "is that of its last micro-batch" in told.err
    assert cli.run(["pipeline", "status", "never"]) == 1
    assert cli.run(["pipeline", "status", "-o", "json"]) == 0


def test_a_status_is_a_table_with_the_columns_that_are_known() -> None:
    query = QueryStatus("revenue", "out", State.RUNNING, 4, rows_in_per_s=12.0, batch_ms=90)
    page = pipeline_rows.status_page(an_app("shop", State.RUNNING, query), now_ms=3000)
    head, names, figures = page.splitlines()
    assert head.endswith("seen 2 s ago")
    assert names.split()[:3] == ["QUERY", "TO", "STATE"]
    assert "WATERMARK" not in names
    assert figures.split()[:4] == ["revenue", "out", "running", "4"]


def test_a_test_that_fails_is_told_with_its_line_or_its_words(tmp_path) -> None:
    file = tmp_path / "tests.py"
    file.write_text("def bare():\n    assert 1 == 2\n\ndef worded():\n    assert False, 'why'\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    bare, worded = (pipeline_rows.run_test(each, names[each], file) for each in ("bare", "worded"))
    assert (bare.result, bare.error) == ("failed", f"{file}:2: assert 1 == 2")
    assert worded.error == f"{file}:5: why"
    assert pipeline_rows.run_test("good", lambda: None, file).result == "passed"
