"""One Spark session and one broker for all tests of the pipeline: each takes seconds to start."""

from __future__ import annotations

import contextlib

import pytest

from bench.harness.maven import SPARK_CONNECTOR, NoMaven, jars_of
from hightide.spark.session import NoJava, check_java
from hightide.testing import Cluster


def pytest_collection_modifyitems(items):
    for item in items:
        if not any(item.iter_markers("timeout")):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark():
    """A local session on two cores, with the settings of the pipeline."""
    try:
        check_java()
    except NoJava as error:
        pytest.skip(str(error))
    from hightide.spark.session import session

    settings = {"spark.driver.memory": "1g"}
    # Spark's own connector, for comparison only.
    with contextlib.suppress(NoMaven):
        settings["spark.jars"] = ",".join(map(str, jars_of(*SPARK_CONNECTOR)))
    made = session("hightide-tests", "local[2]", settings)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def broker():
    """One broker; each test uses its own topics."""
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three():
    """Three brokers. A test that kills one restarts it."""
    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def checkpoint(tmp_path):
    """The checkpoint of the query of one test."""
    return str(tmp_path / "checkpoint")
