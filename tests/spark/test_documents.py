"""The programs of docs/guide/spark.md and docs/guide/formats.md, and the apps of
docs/guide/pipelines.md and docs/guide/streams.md with the tests that they show."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hightide.spark.session import NoJava, check_java
from hightide.testing import Cluster
from tests.support.page_blocks import to_run
from tests.support.pages import Block

pytestmark = pytest.mark.extended


@pytest.fixture(autouse=True)
def java() -> None:
    try:
        check_java()
    except NoJava as error:
        pytest.skip(str(error))


def output_of_tests(name: str, program: str, folder: Path, broker: Cluster) -> str:
    """Run the tests of an app as `hightide pipeline test` does; return what it prints."""
    (folder / name).write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "hightide", "pipeline", "test", name],
        cwd=folder,
        env={**os.environ, "HIGHTIDE_BOOTSTRAP": broker.bootstrap},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("page", ["pipelines.md", "streams.md"])
def test_the_app_of_a_page_passes_its_test(page: str, broker: Cluster, tmp_path: Path) -> None:
    programs = [block.text for block in to_run(f"docs/guide/{page}", "python")]
    said = output_of_tests("shop.py", "\n\n".join(programs), tmp_path, broker)
    assert "orders_of_a_minute_add_up" in said


def test_the_app_as_yaml_passes_its_test(broker: Cluster, tmp_path: Path) -> None:
    [document] = to_run("docs/guide/streams.md", "yaml")
    assert "amounts add up" in output_of_tests("shop.yaml", document.text, tmp_path, broker)


@dataclass
class Order:
    """What docs/guide/formats.md leaves to the reader."""

    id: int


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Cluster]:
    """A broker with the topic of the pages, which has records in both partitions."""
    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=2)
        lines = "".join(f"{number}\t{number}\n" for number in range(2_000))
        subprocess.run(
            [sys.executable, "-m", "hightide", "produce", "orders", "--key-separator", "\t"],
            env={**os.environ, "HIGHTIDE_BOOTSTRAP": cluster.bootstrap},
            input=lines,
            text=True,
            check=True,
        )
        yield cluster


def run(block: Block, cluster: Cluster, names: dict[str, Any], folder: Path) -> None:
    """Run a program with these names; a last expression becomes the name `result`."""
    text = block.text.replace("localhost:9092", cluster.bootstrap)
    tree = ast.parse(text.replace("state/totals", str(folder / "totals")))
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        target = ast.Name(id="result", ctx=ast.Store())
        tree.body[-1] = ast.Assign(targets=[target], value=last.value)
        ast.fix_missing_locations(tree)
    exec(compile(tree, block.page, "exec"), names)


@pytest.fixture
def few_partitions(spark) -> Iterator[None]:
    """A state of two partitions instead of 200, which take a minute."""
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    yield
    spark.conf.unset("spark.sql.shuffle.partitions")


@pytest.mark.usefixtures("few_partitions")
def test_the_programs_of_the_guide_to_spark(spark, orders: Cluster, tmp_path: Path) -> None:
    stream, batch, exactly_once, write, progress = to_run("docs/guide/spark.md", "python")
    names: dict[str, Any] = {"spark": spark}
    run(stream, orders, names, tmp_path)
    assert names["orders"].isStreaming
    run(batch, orders, names, tmp_path)
    assert 500 < names["result"].count() < 2_000
    [view] = to_run("docs/guide/spark.md", "sql")
    # Tests of one worker share the session, and another may have made the view.
    spark.catalog.dropTempView("orders")
    spark.sql(view.text.replace("localhost:9092", orders.bootstrap))
    assert spark.sql("SELECT count(*) FROM orders").first()[0] == 2_000

    names["totals"] = (
        names["orders"].groupBy("key").count().selectExpr("key", "string(count) value")
    )
    orders.create_topic("totals")
    run(exactly_once, orders, names, tmp_path)
    query = names["result"]
    query.processAllAvailable()  # a stream begins at the end of its topics

    names["df"] = spark.range(3).selectExpr("string(id) value")
    run(write, orders, names, tmp_path)
    query.processAllAvailable()
    query.stop()
    totals = spark.read.format("hightide").options(
        **{"kafka.bootstrap.servers": orders.bootstrap, "subscribe": "totals"}
    )
    assert totals.load().selectExpr("max(int(string(value)))").first()[0] == 3
    run(progress, orders, names, tmp_path)
    spark.catalog.dropTempView("orders")


def test_the_program_of_the_guide_to_formats(spark, orders: Cluster, tmp_path: Path) -> None:
    [program] = to_run("docs/guide/formats.md", "python")
    names: dict[str, Any] = {"spark": spark, "Order": Order}
    run(program, orders, names, tmp_path)
    assert "id" in names["orders"].columns
    assert names["dead"] is not None
