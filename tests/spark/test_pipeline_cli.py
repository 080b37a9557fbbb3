"""`hightide pipeline …` as users type it, against a real broker and on real Spark.

Commands that end by themselves run in this process and share its session, which saves the start of
Spark; the one that runs until a signal is a separate process.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hightide.cli import app as cli
from tests.spark.shop_data import send, values
from tests.spark.standalone import DEADLINE_S, until

pytestmark = pytest.mark.extended

APP = """
import hightide.spark.streams as st
from pyspark.sql import functions as F

app = st.App("{name}")
orders = app.topic("{name}-orders", "id BIGINT NOT NULL, amount DOUBLE", key="id")

@app.query(to="{name}-big", key="id", every="100 milliseconds")
def big():
    {body}

def test_small_orders_are_left_out():
    rows = [{{"id": 1, "amount": 9}}, {{"id": 2, "amount": 99}}]
    found = app.test(big, **{{"{name}-orders": rows}})
    assert [each["id"] for each in found] == [2]

def test_that_cannot_hold():
    assert app.test(big, **{{"{name}-orders": []}})
"""
GOOD = 'return orders.stream().where("amount > 50")'
WRONG = 'return orders.stream().where("amont > 50")'
FAILING = """
    halve = F.udf(lambda amount: amount / 0, "double")
    return orders.stream().select("id", halve("amount").alias("half"))"""


@pytest.fixture
def app(broker, tmp_path, monkeypatch):
    """Write an app with this query body into its own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", broker.bootstrap)
    name = f"shop{abs(hash(tmp_path)) % 10**8}"

    def made(body: str) -> str:
        (tmp_path / "shop.py").write_text(APP.format(name=name, body=body))
        return name

    broker.create_topic(f"{name}-orders", partitions=2)
    broker.create_topic(f"{name}-big")
    return made


@pytest.fixture
def hightide(spark, capfd):
    """Run a command; return its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.run(["pipeline", *arguments])
        return code, *capfd.readouterr()

    return run


def line_of(words: str, further: int = 0) -> str:
    """Return the line of the app's file with these words, or one that many lines later."""
    lines = Path("shop.py").read_text().splitlines()
    return f"shop.py:{next(at for at, line in enumerate(lines, 1) if words in line) + further}"


def orders(broker, name, numbers):
    send(broker, f"{name}-orders", [{"id": number, "amount": float(number)} for number in numbers])


def written(broker, name):
    return sorted(value["id"] for value in values(broker, f"{name}-big"))


def test_an_app_is_planned_and_tested_without_data(app, hightide) -> None:
    name = app(GOOD)
    code, out, _ = hightide("plan", "shop.py", "-o", "json")
    (plan,) = json.loads(out)
    assert (code, plan["query"], plan["mode"]) == (0, "big", "append")
    assert plan["reads"] == [f"{name}-orders (stream)"]
    assert {"column": "amount", "type": "double", "nullable": True} in plan["columns"]

    code, out, err = hightide("test", "shop.py")
    assert code == 1
    assert "test_small_orders_are_left_out  passed" in out
    assert f'{line_of("def test_that", 1)}: assert app.test(big, **{{"{name}-orders": []}})' in err
    assert "1 of 2 tests failed" in err
    assert hightide("test", "shop.py", "test_small_orders_are_left_out")[0] == 0


def test_a_column_that_is_not_there_is_found_before_anything_runs(app, hightide) -> None:
    app(WRONG)
    code, out, err = hightide("plan", "shop.py")
    assert (code, out) == (1, "")
    assert "`amont`" in err
    assert "`amount`" in err
    assert line_of("amont") in err
    assert "org.apache" not in err
    assert "Traceback" not in err


def test_an_app_runs_continues_and_starts_over(app, hightide, broker) -> None:
    name = app(GOOD)
    orders(broker, name, range(100))
    code, _, err = hightide("run", "shop.py", "--once")
    assert code == 0, err
    assert f"{name}: finished" in err
    assert written(broker, name) == list(range(51, 100))

    orders(broker, name, range(100, 110))
    assert hightide("run", "shop.py", "--once")[0] == 0
    assert written(broker, name) == list(range(51, 110))
    code, out, _ = hightide("status", name, "-o", "json")
    (status,) = json.loads(out)
    (query,) = status["queries"]
    assert (code, status["state"], query["state"]) == (0, "finished", "finished")
    assert (query["lag"], query["rows_in"], query["rows_out"]) == (0, 10, 10)
    assert name in hightide("list")[1]

    code, _, err = hightide("run", "shop.py", "--reset", "--dry-run")
    assert code == 0
    assert f"{name}-big-batches would be removed" in err
    code, _, err = hightide("run", "shop.py", "--reset", "--once", "--yes")
    assert code == 0, err
    assert written(broker, name) == sorted([*range(51, 110), *range(51, 110)])


def test_a_query_that_fails_is_explained_in_words_and_the_rest_is_kept(
    app, hightide, broker, tmp_path
) -> None:
    name = app(FAILING)
    orders(broker, name, range(10))
    code, _, err = hightide("run", "shop.py", "--once")
    assert code == 1
    assert f"{line_of('amount / 0')}: ZeroDivisionError" in err
    assert "org.apache" not in err
    log = tmp_path / ".hightide" / "pipelines" / name / "errors.log"
    assert "ZeroDivisionError" in log.read_text()
    code, out, _ = hightide("status", name, "-o", "json")
    assert code == 3
    assert "ZeroDivisionError" in json.loads(out)[0]["queries"][0]["error"]


def test_an_app_that_is_told_to_stop_finishes_what_it_has_begun(
    app, hightide, broker, tmp_path
) -> None:
    name = app(GOOD)
    command = [sys.executable, "-m", "hightide", "pipeline", "run", "shop.py", "-o", "json"]
    data, talk = tmp_path / "data", tmp_path / "talk"
    with (
        data.open("w") as out,
        talk.open("w") as err,
        subprocess.Popen([*command, "--master", "local[1]"], stdout=out, stderr=err) as process,
    ):
        try:
            orders(broker, name, range(100))
            until(process, lambda: len(written(broker, name)) == 49)
            # The status shows that it runs, and no second run is allowed meanwhile.
            (status,) = json.loads(hightide("status", name, "-o", "json")[1])
            assert (status["state"], status["pid"]) == ("running", process.pid)
            code, _, refused = hightide("run", "shop.py", "--once")
            assert code == 1
            assert "already running" in refused
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
    assert "Stopping after the current micro-batches" in talk.read_text()
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    assert lines[0]["state"] == "starting"
    assert lines[-1]["state"] == "stopped"
    assert lines[-1]["queries"][0]["rows_in"] == 100
    assert written(broker, name) == list(range(51, 100))
    assert hightide("status", name)[1].startswith(f"{name}: stopped")
