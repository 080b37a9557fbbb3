"""What is in the lines of a log, and that clients can neither forge them nor fill the disk."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from dataclasses import dataclass

import pytest

from hightide import process_log
from hightide.core.events import Event, Recorded
from hightide.log_writer import LogFile, Writer
from hightide.process_log import (
    BACKUPS,
    IN_S,
    MAX_BYTES,
    MOST_CHARACTERS,
    MOST_LINES,
    JsonLines,
    Options,
    Origin,
    ProcessLog,
    Repetition,
    TextLines,
    always,
    escaped,
    moment,
    short_name,
)
from hightide.settings import Broker

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"
NAME = "hightide.broker.replication.isr_changes"


def record(name: str, line: int, *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "x.py", line, "closed %s: 100%%", args, None)


def failed(message: str) -> logging.LogRecord:
    """A record with a traceback."""
    try:
        raise ValueError(message)
    except ValueError:
        info = sys.exc_info()
    return logging.LogRecord(NAME, logging.ERROR, "x.py", 1, "cannot serve", (), info)


@dataclass(frozen=True, slots=True)
class TestIsrShrunk(Event):
    __test__ = False
    partition: int
    isr: tuple[int, ...]

    def __str__(self) -> str:
        return f"t/{self.partition}: the ISR shrank"


class TestText:
    def lines(self, *records: logging.LogRecord, origin: Origin | None = None) -> list[str]:
        text = TextLines(origin or Origin("broker", 1))
        return [line for record in records for line in text.format(record).split("\n")]

    def test_a_line_has_time_level_broker_logger_and_message(self) -> None:
        (line,) = self.lines(record(NAME, 1, "a"))
        pattern = TIME + r" INFO    \[broker 1\] replication\.isr_changes: closed a: 100%"
        assert re.fullmatch(pattern, line)

    @pytest.mark.parametrize(
        ("origin", "shown"),
        [
            (Origin("zookeeper"), "[zookeeper]"),
            (Origin("broker"), "[broker]"),
            (Origin("broker", 0), "[broker 0]"),
        ],
    )
    def test_a_process_without_a_broker_id_has_its_name(self, origin, shown) -> None:
        assert f" {shown} " in self.lines(record(NAME, 1, "a"), origin=origin)[0]

    @pytest.mark.parametrize(
        "forged",
        [
            "x\n2026-01-01T00:00:00.000+00:00 INFO    [broker 1] broker: all is well",
            "x\r\x1b[2Kforged",
            "\u2028forged\u202eslipped\x85\x00",
            "\ud800",
        ],
    )
    def test_a_client_cannot_forge_a_line(self, forged) -> None:
        (line,) = self.lines(record(NAME, 1, forged))
        assert line.isprintable()
        in_trace = self.lines(failed(forged))
        assert all(part.startswith("    ") and part.isprintable() for part in in_trace[1:])

    def test_letters_of_all_languages_stay(self) -> None:
        assert escaped("Tür 東京 ✓") == "Tür 東京 ✓"
        assert escaped("a\tb\\n") == "a\\tb\\n"

    def test_a_long_message_is_cut(self) -> None:
        (line,) = self.lines(record(NAME, 1, "x" * 1_000_000))
        assert len(line) < MOST_CHARACTERS + 200
        assert line.endswith("characters)")

    def test_the_offset_is_that_of_the_time(self, monkeypatch) -> None:
        import time

        monkeypatch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        process_log._second.cache_clear()
        try:
            assert moment(1763541012.0459) == "2025-11-19T09:30:12.045+01:00"
            assert moment(1752741012.0) == "2025-07-17T10:30:12.000+02:00"
            monkeypatch.setenv("TZ", "America/St_Johns")
            time.tzset()
            process_log._second.cache_clear()
            assert moment(1763541012.0) == "2025-11-19T05:00:12.000-03:30"
        finally:
            monkeypatch.undo()
            time.tzset()
            process_log._second.cache_clear()

    @pytest.mark.parametrize(
        ("name", "short"),
        [
            (NAME, "replication.isr_changes"),
            ("hightide.broker", "broker"),
            ("hightide.log.log", "log.log"),
            ("hightide.zookeeper.client", "zookeeper.client"),
            ("asyncio", "asyncio"),
        ],
    )
    def test_names_of_loggers_are_short(self, name, short) -> None:
        assert short_name(name) == short


class TestJson:
    def fields(self, found: logging.LogRecord, broker_id: int | None = 1):
        text = JsonLines(Origin("broker", broker_id)).format(found)
        assert text.isascii()
        assert "\n" not in text
        return json.loads(text)

    def test_a_record_is_one_object(self) -> None:
        found = self.fields(record(NAME, 1, "a\nb\x1b"))
        assert re.fullmatch(TIME, found.pop("time"))
        assert found == {
            "level": "INFO",
            "logger": NAME,
            "broker_id": 1,
            "message": "closed a\nb\x1b: 100%",
        }
        assert self.fields(record(NAME, 1, "a"), None)["broker_id"] is None

    def test_an_event_has_its_kind_its_number_and_its_fields(self) -> None:
        event = TestIsrShrunk(3, (1, 2))
        found = logging.LogRecord(NAME, logging.INFO, "x.py", 1, "%s", (event,), None)
        found.event = Recorded(17, 1, 1, event)
        fields = self.fields(found)
        assert fields["message"] == "t/3: the ISR shrank"
        assert (fields["event"], fields["sequence"]) == ("test_isr_shrunk", 17)
        assert fields["data"] == {"partition": 3, "isr": [1, 2]}

    def test_a_traceback_is_a_field(self) -> None:
        found = self.fields(failed("no such thing"))
        assert found["message"] == "cannot serve"
        assert found["exception"].startswith("Traceback (most recent call last):\n")
        assert found["exception"].endswith("ValueError: no such thing")


class Kept:
    """A sink that keeps the lines."""

    name = "a list"
    may_block = False

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, lines: list[bytes]) -> None:
        self.lines += lines


@pytest.fixture
def kept():
    """The lines that a process log in front of the root logger writes."""
    sink = Kept()
    handler = ProcessLog(Origin("broker", 1), Options(), Writer(sink), None)
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    root.handlers[:] = [handler]
    root.setLevel("INFO")
    yield handler, sink.lines
    root.handlers[:] = before
    root.setLevel(level)


class TestProcessLog:
    log = logging.getLogger("hightide.test")

    def test_a_mistake_of_the_code_that_logs_loses_no_line(self, kept) -> None:
        _, lines = kept
        self.log.info("%d of %d", 1)  # noqa: PLE1206 - the mistake
        (line,) = lines
        assert b"'%d of %d' (the line cannot be formatted: TypeError" in line

    def test_level_and_format_follow_the_settings(self, kept) -> None:
        handler, lines = kept
        handler.configure(Options(level="error", format="json"))
        self.log.info("no")
        self.log.error("yes")
        (line,) = lines
        assert json.loads(line)["message"] == "yes"
        # The level of the root logger is kept when another setting changes.
        logging.getLogger().setLevel("DEBUG")
        handler.configure(Options(level="error", format="text"))
        self.log.debug("details")
        assert lines[-1].endswith(b": details\n")

    def test_some_lines_are_logged_whatever_the_level_is(self, kept) -> None:
        handler, lines = kept
        handler.configure(Options(level="error"))
        always(self.log, "settings of %s", "broker 1")
        (line,) = lines
        assert line.endswith(b" INFO    [broker 1] test: settings of broker 1\n")

    def test_the_file_follows_the_settings(self, tmp_path) -> None:
        file = LogFile(tmp_path / "log", 1000, 1)
        handler = ProcessLog(Origin("broker", 1), Options(), Writer(Kept()), file)
        handler.configure(Options(max_bytes=2000, backups=7))
        assert (file.max_bytes, file.backups) == (2000, 7)

    def test_an_exception_of_a_thread_is_logged(self, kept) -> None:
        _, lines = kept

        def work() -> None:
            raise ValueError("broken")

        before, threading.excepthook = threading.excepthook, process_log._uncaught_in_thread
        try:
            thread = threading.Thread(target=work, name="compaction")
            thread.start()
            thread.join()
        finally:
            threading.excepthook = before
        (line,) = lines
        assert b"the thread 'compaction' has ended: broken\n    Traceback" in line

    def test_a_test_that_has_its_own_handlers_keeps_them(self, kept) -> None:
        before = logging.getLogger().handlers[:]
        hook = sys.excepthook
        process_log.begin("broker", Options())
        assert logging.getLogger().handlers == before
        assert sys.excepthook is hook


def test_the_options_are_those_of_the_settings(tmp_path) -> None:
    assert Options.of(Broker()) == Options("info", "text", None, MAX_BYTES, BACKUPS)
    given = {
        "log.level": "debug",
        "log.format": "json",
        "log.file": str(tmp_path / "broker.log"),
        "log.file.max.bytes": "65536",
        "log.file.backups": "0",
    }
    of = Options.of(Broker.read(given))
    assert of == Options("debug", "json", tmp_path / "broker.log", 65536, 0)


@pytest.mark.parametrize("name", ["hightide.broker.network.connection", "hightide.zookeeper"])
def test_lines_that_clients_cause_are_limited_and_counted(name) -> None:
    now_s = 0.0
    limit = Repetition(lambda: now_s)
    kept = [limit.filter(record(name, 1, number)) for number in range(1000)]
    assert kept == [True] * MOST_LINES + [False] * (1000 - MOST_LINES)
    assert limit.filter(record(name, 2, "another kind"))
    now_s = IN_S
    first, second = record(name, 1, "a"), record(name, 1, "b")
    assert limit.filter(first)
    assert limit.filter(second)
    assert first.getMessage() == f"closed a: 100% ({1000 - MOST_LINES} such lines were left out)"
    assert second.getMessage() == "closed b: 100%"


def test_lines_about_removed_data_are_never_left_out() -> None:
    limit = Repetition(lambda: 0.0)
    name = "hightide.broker.handlers.topics"
    assert all(limit.filter(record(name, 1, number)) for number in range(1000))
