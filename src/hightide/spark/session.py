"""The Spark session with the settings that pipelines need.

Two settings halve the time of a micro-batch on one machine: Unix sockets between Spark and its
Python workers, and a checkpoint writer that does not fork `chmod` for each local file. The workers
run the interpreter that runs this, because the `python3` on the PATH may not have Hightide.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hightide.settings.secrets import is_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # pyiceberg reads microseconds; Spark's default, INT96, has nanoseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
IF_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
}


class NoJava(Exception):
    """Spark cannot start here; the text says what to install."""


def java_version() -> int | None:
    """Return the major version of the Java that Spark would run on; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        process = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return None
    words = process.stderr.split('"')
    parts = words[1].split(".") if len(words) > 1 else []
    if len(parts) > 1 and parts[0] == "1":  # Java 8 calls itself 1.8.0.
        parts = parts[1:]
    digits = "".join(part for part in parts[0] if part.isdecimal()) if parts else ""
    return int(digits) if digits else None


def check_java() -> None:
    found = java_version()
    advice = (
        f"Spark needs Java {OLDEST_JAVA} or newer; on Debian: apt install openjdk-17-jre-headless."
    )
    if found is None:
        raise NoJava(f"No Java was found. {advice}")
    if found < OLDEST_JAVA:
        raise NoJava(f"Java {found} is too old. {advice}")


def session(
    name: str, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return this process's Spark session; create it if there is none."""
    check_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    wanted = ALWAYS | (IF_LOCAL if is_local else {}) | dict(settings or {})
    public = {key: value for key, value in wanted.items() if not is_secret(key)}
    if public != wanted:
        _start_java({**public, "spark.app.name": name, "spark.master": master})
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Java with these settings as arguments, which every user of the host can read.

    PySpark passes all settings that way, unless Java runs already: then it sends them.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(settings.items())))
