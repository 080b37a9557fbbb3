"""Where Spark's output goes: to files beside an app's state instead of the terminal.

`spark.log` is Spark's log. `output.log` is everything else that its processes print: the first
lines of Java, and the output of an app's functions in the workers. `errors.log` has the whole
traces of the errors that users see in short.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from hightide import private_files

SPARK_LOG, OUTPUT_LOG, ERRORS_LOG = "spark.log", "output.log", "errors.log"
LEVEL = "WARN"
# Loggers with which PySpark prints whole exceptions as JSON, besides raising them.
NOISY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
PROPERTIES = """\
status = error
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 16MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""


def settings(folder: Path) -> dict[str, str]:
    """Return Spark settings that send its log to the folder of an app."""
    private_files.make_directory(folder)
    properties = folder / "log4j2.properties"
    log = (folder / SPARK_LOG).absolute()
    properties.write_text(PROPERTIES.format(level=LEVEL.lower(), file=log), "utf-8")
    where = f"-Dlog4j2.configurationFile={properties.absolute().as_uri()}"
    return {"spark.driver.extraJavaOptions": where, "spark.log.level": LEVEL}


@contextlib.contextmanager
def muted(folder: Path) -> Iterator[None]:
    """Redirect stderr of the processes that are started in this block to a file."""
    private_files.make_directory(folder)
    for name in NOISY_LOGGERS:
        logging.getLogger(name).disabled = True
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with (folder / OUTPUT_LOG).open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def keep(folder: Path, trace: str) -> Path:
    """Append a whole trace to the log of errors, and return its path."""
    private_files.make_directory(folder)
    with (folder / ERRORS_LOG).open("a", encoding="utf-8") as log:
        log.write(f"--- {datetime.now(UTC).isoformat(timespec='seconds')}\n{trace.rstrip()}\n")
    return folder / ERRORS_LOG
