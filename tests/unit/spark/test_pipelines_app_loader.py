"""From a file to an app: what is loaded, and the error if nothing is."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from hightide.spark.pipelines import app_archive, app_runner, logs
from hightide.spark.pipelines.app_loader import LoadError, load

GOOD = """\
from __future__ import annotations
from dataclasses import dataclass
from datetime import datetime
import hightide.spark.streams as st

@dataclass
class Order:
    id: int
    ts: datetime

app = st.App("shop")
orders = app.topic("orders", Order, time="ts")

@app.query(to="copies")
def copies():
    return orders.stream()

def test_nothing():
    pass

if __name__ == "__main__":
    raise AssertionError("a file that is loaded is not run")
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def made(text: str, name: str = "shop.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return made


def test_an_app_is_found_with_its_queries_and_tests(write) -> None:
    app = load(write(GOOD))
    assert app.name == "shop"
    assert list(app.queries) == ["copies"]
    assert list(app.tests) == ["test_nothing"]


def test_an_app_of_yaml_is_found_too(write) -> None:
    text = "app: y\ntopics: {a: {schema: text}}\nqueries: {q: {sql: SELECT * FROM a, to: b}}\n"
    assert list(load(write(text, "y.yaml")).queries) == ["q"]


def test_an_app_can_have_modules_beside_it(write) -> None:
    write("factor = 2", "prices_beside_the_app.py")
    assert load(write("import prices_beside_the_app\n" + GOOD.replace("from __future__", "#"))).name


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("def broken(:\n", "shop.py:1: invalid syntax: def broken(:"),
        ("x = 1\n", "has no app"),
        (GOOD + "again = st.App('two')\n", "has 2 apps (again, app)"),
        ("from hightide.spark.streams import App\napp = App('a')\n", "without a query"),
        ("x = 1\nprint(y)\n", "shop.py:2: NameError: name 'y' is not defined"),
        ("import sys\nsys.exit(1)\n", "shop.py:2: the file exits while it is loaded"),
        (GOOD.replace('to="copies"', 'to="co pies"'), "shop.py:14: 'co pies' cannot be"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(write, text: str, answer: str) -> None:
    with pytest.raises(LoadError) as caught:
        load(write(text))
    assert answer in str(caught.value)


def test_an_app_under_two_names_is_one(write) -> None:
    assert load(write(GOOD + "other = app\n")).name == "shop"


def test_files_that_are_no_apps_are_refused(write, tmp_path) -> None:
    for path, answer in (
        (tmp_path / "nowhere.py", "There is no file"),
        (write("x", "app.txt"), "neither Python"),
        (write("a: [", "a.yaml"), "a.yaml: line 1"),
        (write("app: y\n", "b.yaml"), "b.yaml: queries is missing"),
    ):
        with pytest.raises(LoadError) as caught:
            load(path)
        assert answer in str(caught.value)


# -- the archive for a cluster ---------------------------------------------------------------------


def test_a_cluster_gets_hightide_and_the_modules_beside_the_app_but_not_the_app(write, tmp_path):
    write("factor = 2", "prices_to_ship.py")
    write("factor = 2", "not_imported.py")
    file = write("import prices_to_ship\n" + GOOD.replace("from __future__", "#"))
    load(file)
    settings = app_archive.settings("spark://127.0.0.1:7077", file, tmp_path / "state")
    names = set(zipfile.ZipFile(settings["spark.submit.pyFiles"]).namelist())
    assert {"hightide/__init__.py", "pyspark_hightide/__init__.py", "prices_to_ship.py"} <= names
    assert not {"shop.py", "not_imported.py"} & names
    assert not [name for name in names if "__pycache__" in name]
    assert settings["spark.driver.host"] == "127.0.0.1"


def test_a_master_elsewhere_must_find_the_way_back_by_itself(tmp_path, write) -> None:
    settings = app_archive.settings("spark://cluster:7077", write(GOOD), tmp_path)
    assert "spark.driver.host" not in settings


def test_local_workers_look_where_the_app_is(write, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/already")
    assert app_archive.settings("local[2]", write(GOOD), tmp_path) == {}
    assert str(tmp_path) in os.environ["PYTHONPATH"].split(os.pathsep)
    assert "/already" in os.environ["PYTHONPATH"].split(os.pathsep)


def test_what_the_app_says_of_spark_comes_before_what_we_say(write, tmp_path) -> None:
    file = write(GOOD)
    app = load(file)
    app.configure(
        state=tmp_path,
        settings={"spark.sql.streaming.stopTimeout": "1s", app_runner.JAVA_OPTIONS: "-Xss2m"},
    )
    app_runner.prepare(app, file, is_short=True)
    assert app.settings["spark.sql.streaming.stopTimeout"] == "1s"
    options = app.settings[app_runner.JAVA_OPTIONS].split()
    assert options[0].startswith("-Dlog4j2.configurationFile=file:")
    assert options[1:] == ["-Xss2m"]
    assert (tmp_path / "shop" / "log4j2.properties").exists()


# -- logs ------------------------------------------------------------------------------------------


def test_what_processes_say_on_stderr_goes_to_a_file(tmp_path, capfd) -> None:
    with logs.muted(tmp_path):
        os.system("echo noise >&2")
    os.system("echo words >&2")
    assert (tmp_path / logs.OUTPUT_LOG).read_text() == "noise\n"
    assert capfd.readouterr().err == "words\n"


def test_traces_are_kept_one_after_the_other(tmp_path) -> None:
    logs.keep(tmp_path, "first")
    log = logs.keep(tmp_path, "second\n")
    text = log.read_text()
    assert text.index("first") < text.index("second")
