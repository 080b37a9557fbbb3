"""The two sides of a comparison: Hightide's source and sinks, and Spark's own Kafka connector."""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.maven import SPARK_CONNECTOR, NoMaven, jars_of
from bench.harness.process import cpu_s, rss_mb, with_descendants
from hightide.spark.session import session
from hightide.spark.sink import exactly_once

HIGHTIDE, CONNECTOR = "hightide", "connector"
AT_LEAST_ONCE = "hightide-plain"
FORMATS = {HIGHTIDE: "hightide", AT_LEAST_ONCE: "hightide", CONNECTOR: "kafka"}
MEMORY = {"spark.driver.memory": "2g"}


def connector_jars() -> tuple[list[Path], str]:
    """Return the connector's jars; or none, and the reason."""
    try:
        return jars_of(*SPARK_CONNECTOR), ""
    except NoMaven as reason:
        return [], str(reason)


def our_session(jars: list[Path]) -> Any:
    """Two cores and our settings; the connector's jars are there for the comparison alone."""
    settings = dict(MEMORY)
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    return session("bench", "local[2]", settings)


def default_session(jars: list[Path]) -> Any:
    """Two cores, and nothing else set."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", False)
    for key, value in (MEMORY | {"spark.jars": ",".join(map(str, jars))}).items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


@dataclass(slots=True)
class Stand:
    """A broker, a Spark session and a folder for checkpoints."""

    spark: Any
    bootstrap: str
    folder: Path
    names: int = field(default=0)

    def options(self, topic: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }

    def batch(self, side: str, topic: str) -> Any:
        return self.spark.read.format(FORMATS[side]).options(**self.options(topic)).load()

    def stream(self, side: str, topic: str, **more: str) -> Any:
        options = self.options(topic) | more
        return self.spark.readStream.format(FORMATS[side]).options(**options).load()

    def write(self, side: str, rows: Any, topic: str) -> Any:
        """Return a streaming writer to a topic: exactly once for Hightide, else at least once."""
        if side == HIGHTIDE:
            once = exactly_once(topic, bootstrap=self.bootstrap, name=self.new_name())
            return rows.writeStream.foreachBatch(once)
        options = {"kafka.bootstrap.servers": self.bootstrap, "topic": topic}
        return rows.writeStream.format(FORMATS[side]).options(**options)

    def new_name(self) -> str:
        self.names += 1
        return f"bench-{os.getpid()}-{self.names}"

    def run(self, writer: Any) -> Any:
        """Run a streaming query to the end of the available data."""
        with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=self.folder) as checkpoint:
            writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            query = writer.start()
            query.awaitTermination()
            return query

    @property
    def pids(self) -> list[int]:
        """Return Spark's JVM and its Python workers, without this one or brokers."""
        return with_descendants(self.spark.sparkContext._gateway.proc.pid)

    def timed(self, work: Callable[[], object]) -> tuple[float, float]:
        """Return the seconds, and the CPU seconds of Spark with its Python workers."""
        before, began = cpu_s(self.pids), time.perf_counter()
        work()
        return time.perf_counter() - began, cpu_s(self.pids) - before


@contextmanager
def watched_memory(stand: Stand) -> Iterator[dict[str, float]]:
    """The largest sum of resident memory of Spark's processes while the block runs."""
    peak = {"jvm": 0.0, "python": 0.0}
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.25):
            jvm, *workers = stand.pids
            with contextlib.suppress(OSError):
                peak["jvm"] = max(peak["jvm"], rss_mb([jvm]))
                peak["python"] = max(peak["python"], rss_mb(workers))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()
