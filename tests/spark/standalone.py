"""A Spark cluster of real processes, from pip's PySpark: a master and workers.

Each worker is in its own process group with its executors, so killing the group is like the death
of a machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark

from hightide.testing.cluster import free_port

HOME = Path(pyspark.__file__).parent
DEADLINE_S = 240
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
# A short run: Java's optimising compiler would cost more than it saves.
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def until(process: subprocess.Popen[Any], condition: Callable[[], object]) -> None:
    """Wait for something that a process does, as long as the process runs."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, "the process has ended"
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


def python_without_hightide(folder: Path) -> Path:
    """Return a Python with the dependencies of `hightide[spark]`, but without Hightide."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # The folder itself, without its .pth files, which would add the source tree.
    (site / "installed.pth").write_text(f"{HOME.parent}\n")
    return folder / "bin" / "python"


class SparkCluster:
    """A master and workers with one core each, during the `with` block."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SparkCluster:
        self.folder.mkdir(parents=True)
        port = self.url.rpartition(":")[2]
        try:
            self._start("master", MASTER, "--port", port)
            for number in range(self._count):
                name = f"worker-{number}"
                size = ("--cores", "1", "--memory", "800m")
                self.workers.append(self._start(name, WORKER, *size, self.url))
            for number in range(self._count):
                self._wait(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill(self, number: int) -> None:
        """Kill a worker and its executors with SIGKILL."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)
        self.workers[number].wait()

    def stop(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _start(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA,
            "SPARK_WORKER_DIR": str(self.folder / "work"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            # Executors must get Hightide only from the archive.
            "PYTHONPATH": "",
        }
        command = [str(HOME / "bin" / "spark-class"), main, "--host", "127.0.0.1"]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _wait(self, name: str, words: str) -> None:
        log = self.folder / f"{name}.log"
        deadline = time.monotonic() + DEADLINE_S
        while words not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
