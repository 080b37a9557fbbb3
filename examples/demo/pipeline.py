"""The demo's pipeline as a process: started beside the brokers, and observed.

Spark gets its own process because it logs a lot, handles signals itself, and takes as long to start
as everything else together.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from examples.demo.topics import APP
from hightide.process import ServiceFailed, ServiceProcess
from hightide.spark.pipelines import current_lag, status
from hightide.spark.pipelines.status import AppStatus

PACKAGES = ("pyspark", "pyarrow", "pandas", "deltalake")
STATE, TABLES, LOG = "pipelines", "tables", "pipeline.log"


class PipelineProcess(ServiceProcess):
    """One `python -m examples.demo pipeline` process."""

    module = "examples.demo"
    command = ("pipeline",)
    failure = ServiceFailed
    name = "the pipeline"

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._folder = folder.resolve()
        arguments = ["--bootstrap", bootstrap, "--data", str(self._folder)]
        super().__init__(arguments, self._folder / LOG)

    def status(self) -> AppStatus | None:
        """Return the app's status with its current lag; None before the app has written one."""
        found = status.read(self._folder / STATE / APP)
        return None if found is None or found.pid != self.pid else current_lag.refreshed(found)


def missing_requirement() -> str:
    """Say why the pipeline cannot run here; empty if it can."""
    from hightide.spark.session import NoJava, check_java

    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        return f"{', '.join(missing)} not installed: pip install 'hightide[spark]'."
    try:
        check_java()
    except NoJava as error:
        return str(error)
    return ""


def run(bootstrap: str, folder: Path) -> int:
    """In the child process: run the app until SIGTERM, and return the exit code."""
    from examples.demo import shop_app
    from hightide.spark.pipelines.app_runner import RunFailed
    from hightide.spark.pipelines.app_runner import run as run_app

    # The parent does not read this process's stdout, so stdout goes to the log.
    os.dup2(2, 1)
    app = shop_app.shop(bootstrap, str(folder / STATE), str(folder / TABLES))
    try:
        run_app(app, Path(shop_app.__file__), grace_s=5.0, show=lambda _: None, say=print)
    except RunFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0
