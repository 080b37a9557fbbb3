"""The pipeline of the demonstration as a process: started beside the brokers, and watched.

Spark has a process of its own here, because it talks a lot, takes signals for itself, and takes as
long to start as everything else together.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from hightide.demo.names import APP
from hightide.process import ServiceFailed, ServiceProcess
from hightide.spark.pipelines import behind, status
from hightide.spark.pipelines.status import AppStatus

PACKAGES = ("pyspark", "pyarrow", "pandas", "deltalake")
STATE, TABLES, LOG = "pipelines", "tables", "pipeline.log"


class PipelineProcess(ServiceProcess):
    """One `hightide demo pipeline` process."""

    command = ("demo", "pipeline")
    failure = ServiceFailed
    name = "the pipeline"

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._folder = folder.resolve()
        arguments = ["--bootstrap", bootstrap, "--data", str(self._folder)]
        super().__init__(arguments, self._folder / LOG)

    def status(self) -> AppStatus | None:
        """How the app says it is doing, with the lag as it is now; None before it has said so."""
        found = status.read(self._folder / STATE / APP)
        return None if found is None or found.pid != self.pid else behind.refreshed(found)


def why_not() -> str:
    """Why the pipeline cannot run here; empty if it can."""
    from hightide.spark.session import NoJava, check_java

    missing = [each for each in PACKAGES if find_spec(each) is None]
    if missing:
        return f"{', '.join(missing)} not installed: pip install 'hightide[spark]'."
    try:
        check_java()
    except NoJava as error:
        return str(error)
    return ""


def run(bootstrap: str, folder: Path) -> int:
    """In the process: run the app until it is told to stop."""
    from hightide.demo import shop
    from hightide.spark.pipelines.running import RunFailed
    from hightide.spark.pipelines.running import run as run_app

    # The one who started this reads nothing from it.
    os.dup2(2, 1)
    app = shop.shop(bootstrap, str(folder / STATE), str(folder / TABLES))
    try:
        run_app(app, Path(shop.__file__), patience_s=5.0, show=lambda _: None, say=print)
    except RunFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0
