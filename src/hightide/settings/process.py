"""Broker settings for its process: the log of what it does.

Kafka has no setting for that log, only a file for Log4j. Its other names `log.…` are about the logs
of partitions; `log.level`, `log.format` and `log.file…` are not among them.
"""

from __future__ import annotations

from hightide.settings.declaration import Scope, Settings, setting

CLUSTER = Scope.CLUSTER


class ProcessSettings(Settings):
    """The log of the process."""

    log_level: str = setting(
        default="info",
        doc="Least level of the lines in the broker's own log. The levels of single loggers are"
        " changed with the resource broker-logger, until the broker stops.",
        scope=CLUSTER,
        one_of=("debug", "info", "warning", "error"),
    )
    log_format: str = setting(
        default="text",
        doc="Form of the lines in the broker's own log: text, or one JSON object for each line.",
        scope=CLUSTER,
        one_of=("text", "json"),
    )
    log_file: str | None = setting(
        default=None,
        doc="File of the broker's own log; if not set, the log goes to stderr. A file that another"
        " program has moved away is created again.",
    )
    log_file_max_bytes: int = setting(
        default=100 * 1024 * 1024,
        doc="Size at which log.file becomes log.file.1, and a new file begins.",
        scope=CLUSTER,
        at_least=64 * 1024,
    )
    log_file_backups: int = setting(
        default=10,
        doc="Number of earlier files (log.file.1, .2 and so on) that are kept; with 0 the broker"
        " never begins a new file, and another program such as logrotate has to.",
        scope=CLUSTER,
        at_least=0,
        at_most=1000,
    )
