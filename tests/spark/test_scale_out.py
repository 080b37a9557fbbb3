"""The same app on a Spark cluster: it is shipped to the workers, and one of them may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pytest

from hightide.spark.session import NoJava, check_java
from tests.spark.shop_data import send, values
from tests.spark.standalone import DEADLINE_S, JAVA, SparkCluster, python_without_hightide, until

pytestmark = pytest.mark.timeout(900)

NUMBERS = 3000
BEFORE = 1000

APP = """
import hightide.spark.streams as st
from pyspark.sql import functions as F
import beside

app = st.App("scaled")
numbers = app.topic("numbers", "n BIGINT NOT NULL", options={"maxOffsetsPerTrigger": "500"})

@app.query(to="doubled", key="n", every="0 seconds", partitions=2)
def doubled():
    double = F.udf(lambda n: beside.double(n), "bigint")
    return numbers.stream().select("n", double("n").alias("twice"))

@app.query(to="counted", key="last", mode="update", every="0 seconds", partitions=2)
def counted():
    return numbers.stream().groupBy((F.col("n") % 10).alias("last")).count()
"""
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA,
}


@pytest.fixture
def cluster(tmp_path):
    try:
        check_java()
    except NoJava as error:
        pytest.skip(str(error))
    with SparkCluster(tmp_path / "cluster") as made:
        yield made


@pytest.mark.extended
def test_an_app_on_a_cluster_loses_and_repeats_nothing_when_a_worker_is_killed(
    cluster, broker, tmp_path
):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "beside.py").write_text("def double(n):\n    return 2 * n\n")
    (tmp_path / "app" / "scaled.py").write_text(APP)
    for topic in ("numbers", "doubled", "counted"):
        broker.create_topic(topic, partitions=2)
    send(broker, "numbers", [{"n": number} for number in range(BEFORE)])

    with running(cluster, broker, tmp_path) as driver:
        until(driver, lambda: values(broker, "doubled") and values(broker, "counted"))
        send(broker, "numbers", [{"n": number} for number in range(BEFORE, NUMBERS)])
        cluster.kill(0)
        until(driver, lambda: len(values(broker, "doubled")) >= NUMBERS)
        until(driver, lambda: counted(broker) >= NUMBERS)
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(DEADLINE_S) == 0

    found = Counter((value["n"], value["twice"]) for value in values(broker, "doubled"))
    assert found == Counter((number, 2 * number) for number in range(NUMBERS))
    # In update mode every record is a new count, so a duplicate would not be greater.
    by_last: dict[int, list[int]] = {}
    for value in values(broker, "counted"):
        by_last.setdefault(value["last"], []).append(value["count"])
    assert {last: max(counts) for last, counts in by_last.items()} == dict.fromkeys(
        range(10), NUMBERS // 10
    )
    assert all(counts == sorted(set(counts)) for counts in by_last.values())


def counted(broker):
    latest = {value["last"]: value["count"] for value in values(broker, "counted")}
    return sum(latest.values())


@contextmanager
def running(cluster, broker, folder):
    """Run the driver, outside of the cluster; its output goes to pytest."""
    command = [sys.executable, "-m", "hightide", "pipeline", "run", str(folder / "app/scaled.py")]
    command += ["--master", cluster.url, "--bootstrap", broker.bootstrap]
    command += ["--state", str(folder / "state")]
    for name, value in SETTINGS.items():
        command += ["--conf", f"{name}={value}"]
    python = python_without_hightide(folder / "python")
    environment = {**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(command, env=environment) as driver:
        try:
            yield driver
        finally:
            driver.kill()
