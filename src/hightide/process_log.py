"""The log of a process that serves: what is in a line, and which lines there are.

    text  2026-11-19T09:30:12.045+01:00 INFO    [broker 1] replication.isr_changes: ...
    json  {"time":"2026-11-19T09:30:12.045+01:00","level":"INFO","logger":"hightide.broker....

A record is one line; a traceback adds lines that begin with a space. Characters that do not print
are escaped, so a client cannot forge a line with a name that it chooses, nor reach the terminal.

Clients cause some lines, such as those about a connection that is closed, and can cause thousands a
second: they would fill the disk that the records need. The lines of one kind are limited; the first
one after a pause says how many were left out.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hightide.core.events import Recorded
from hightide.log_writer import LogFile, Stderr, Writer

if TYPE_CHECKING:
    from hightide.settings import Broker

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
MAX_BYTES, BACKUPS = 100 * 1024 * 1024, 10
MOST_CHARACTERS = 64 * 1024
"""The length at which a message, or a traceback, is cut."""
MOST_LINES, IN_S = 50, 10.0
_OF_CLIENTS = ("hightide.broker.network.", "hightide.zookeeper")
_SHORTENED = ("hightide.broker.", "hightide.")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What the settings say about the log."""

    level: str = "info"
    format: str = "text"
    file: Path | None = None
    max_bytes: int = MAX_BYTES
    backups: int = BACKUPS

    @classmethod
    def of(cls, settings: Broker) -> Self:
        return cls(
            settings.log_level,
            settings.log_format,
            None if settings.log_file is None else Path(settings.log_file).absolute(),
            settings.log_file_max_bytes,
            settings.log_file_backups,
        )


@dataclass(slots=True)
class Origin:
    """The process that logs: in text `[broker 1]`, in JSON the broker id."""

    process: str
    broker_id: int | None = None

    def __str__(self) -> str:
        return self.process if self.broker_id is None else f"{self.process} {self.broker_id}"


class ProcessLog(logging.Handler):
    """Formats each record where it is logged, and passes the line to the writer."""

    def __init__(self, origin: Origin, options: Options, writer: Writer, file: LogFile | None):
        super().__init__()
        self.origin = origin
        self.options = options
        self.writer = writer
        self._file = file
        self.addFilter(Repetition())
        self.setFormatter(formatter(options.format, origin))

    def configure(self, options: Options) -> None:
        """Follow changed settings.

        A level that has not changed here stays as it is: it may be set as that of the root logger.
        """
        before, self.options = self.options, options
        if options.level != before.level:
            logging.getLogger().setLevel(options.level.upper())
        self.setFormatter(formatter(options.format, self.origin))
        if self._file is not None:
            self._file.max_bytes, self._file.backups = options.max_bytes, options.backups

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception as error:
            # A mistake in the code that logs; the record must not be lost, nor the process end.
            record.msg = f"{record.msg!r} (the line cannot be formatted: {error!r})"
            record.args, record.exc_info = None, None
            record.__dict__.pop("event", None)
            text = self.format(record)
        line = f"{text}\n".encode(errors="backslashreplace")
        self.writer.put(line, is_error=record.levelno >= logging.ERROR)


_log: ProcessLog | None = None


def begin(process: str, options: Options, broker_id: int | None = None) -> None:
    """Begin the log of this process. Raise OSError if its file cannot be opened."""
    global _log  # noqa: PLW0603 - a process has one log
    root = logging.getLogger()
    root.setLevel(options.level.upper())
    if root.handlers:
        return  # a test has its own
    file = None
    if options.file is not None:
        file = LogFile(options.file, options.max_bytes, options.backups)
        file.open()
    writer = Writer(file or Stderr())
    _log = ProcessLog(Origin(process, broker_id), options, writer, file)
    root.addHandler(_log)
    # Python prints these on stderr, where they have no time, and may block.
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable
    atexit.register(writer.flush)


def configure(options: Options, broker_id: int) -> None:
    """The broker knows its id, or its settings have changed."""
    if _log is not None:
        _log.origin.broker_id = broker_id
        _log.configure(options)


def always(logger: logging.Logger, message: str, *args: object) -> None:
    """Log a line whatever the level is: no change of a level hides who has changed it."""
    place = logger.findCaller(stacklevel=2)
    logger.handle(logger.makeRecord(logger.name, logging.INFO, *place[:2], message, args, None))


# -- what Python reports -----------------------------------------------------------------------


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical("the process ends: %s", error or kind.__name__, exc_info=(kind, error, trace))
    if _log is not None:
        _log.writer.flush()


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread is not None else "unknown"
        log.error("the thread %r has ended: %s", name, args.exc_value, exc_info=args.exc_value)


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    what = unraisable.err_msg or "exception ignored"
    log.error("%s in %r", what, unraisable.object, exc_info=unraisable.exc_value)


# -- lines -------------------------------------------------------------------------------------


def formatter(name: str, origin: Origin) -> logging.Formatter:
    return JsonLines(origin) if name == "json" else TextLines(origin)


class TextLines(logging.Formatter):
    """Lines for people."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self._origin = origin

    def format(self, record: logging.LogRecord) -> str:
        where = f"[{self._origin}] {short_name(record.name)}"
        message = escaped(shortened(record.getMessage()))
        line = f"{moment(record.created)} {record.levelname:<7} {where}: {message}"
        trace = shortened(self.formatException(record.exc_info)) if record.exc_info else ""
        return "\n".join([line, *(f"    {escaped(part)}" for part in trace.splitlines())])


class JsonLines(logging.Formatter):
    """A JSON object for each record, in ASCII. An event has its kind and all its fields."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self._origin = origin

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(dict(self._fields(record)), separators=(",", ":"), default=str)

    def _fields(self, record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
        yield "time", moment(record.created)
        yield "level", record.levelname
        yield "logger", record.name
        yield "broker_id", self._origin.broker_id
        yield "message", shortened(record.getMessage())
        recorded = getattr(record, "event", None)
        if isinstance(recorded, Recorded):
            yield "event", recorded.event.kind
            yield "sequence", recorded.sequence
            yield "data", recorded.event.data()
        if record.exc_info:
            yield "exception", shortened(self.formatException(record.exc_info))


def moment(created_s: float) -> str:
    """A time in ISO 8601, with milliseconds and the offset from UTC."""
    second, millisecond = divmod(int(created_s * 1000), 1000)
    head, offset = _second(second)
    return f"{head}.{millisecond:03d}{offset}"


@lru_cache(4)
def _second(second: int) -> tuple[str, str]:
    local = time.localtime(second)
    sign = "-" if local.tm_gmtoff < 0 else "+"
    hours, minutes = divmod(abs(local.tm_gmtoff) // 60, 60)
    return time.strftime("%Y-%m-%dT%H:%M:%S", local), f"{sign}{hours:02d}:{minutes:02d}"


def short_name(name: str) -> str:
    for prefix in _SHORTENED:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}… ({len(text)} characters)"


def escaped(text: str) -> str:
    """Replace each character that does not print: line ends, controls, invisible ones."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


class Repetition(logging.Filter):
    """Limits how often one place in the code may log because of clients."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_OF_CLIENTS):
            return True
        place, now_s = (record.pathname, record.lineno), self._now_s()
        began_s, count = self._seen.get(place, (now_s, 0))
        if now_s - began_s >= IN_S:
            if count > MOST_LINES:
                left_out = f"({count - MOST_LINES} such lines were left out)"
                record.msg, record.args = f"{record.getMessage()} {left_out}", None
            began_s, count = now_s, 0
        self._seen[place] = began_s, count + 1
        return count < MOST_LINES
