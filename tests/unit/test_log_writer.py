"""The thread that writes the log: full disks, blocked pipes, files that are rotated or moved."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import threading

import pytest

from hightide import log_writer
from hightide.log_writer import LogFile, Writer
from hightide.process import environment
from tests.support.eventually import eventually


class Gate:
    """A sink that blocks until it is opened, and may fail."""

    name = "a gate"
    may_block = True

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.failure: OSError | None = None
        self.lines: list[bytes] = []

    def write(self, lines: list[bytes]) -> None:
        assert self.is_open.wait(60)
        if self.failure is not None:
            raise self.failure
        self.lines += lines


@pytest.fixture
def reports(monkeypatch):
    """What is written to stderr."""
    found: list[bytes] = []
    monkeypatch.setattr(log_writer, "to_stderr", lambda data, **_: found.append(data))
    return found


class TestWriter:
    def test_a_blocked_sink_blocks_no_caller_and_lines_are_counted(self, caplog) -> None:
        gate = Gate()
        writer = Writer(gate, most_bytes=1000)
        for number in range(100):
            writer.put(f"{number:019d}\n".encode())
        assert not writer.flush(0.01)
        gate.is_open.set()
        assert writer.flush(60)
        assert gate.lines == [f"{number:019d}\n".encode() for number in range(50)]
        assert caplog.messages == [
            "50 lines were left out of the log: a gate did not take them in time"
        ]
        writer.put(b"later\n")
        assert writer.flush(60)
        assert gate.lines[-1] == b"later\n"
        assert len(caplog.messages) == 1

    def test_a_failure_is_reported_once_and_the_lines_are_counted(self, caplog, reports) -> None:
        gate = Gate()
        gate.is_open.set()
        gate.failure = OSError(errno.ENOSPC, "No space left on device")
        writer = Writer(gate)
        for number in range(3):
            writer.put(f"{number}\n".encode())
            assert writer.flush(60)
        assert reports == [
            b"cannot write the log to a gate: No space left on device; lines are left out\n"
        ]
        gate.failure = None
        assert not caplog.messages
        writer.put(b"later\n")
        assert writer.flush(60)
        assert gate.lines == [b"later\n"]
        assert caplog.messages == ["3 lines were left out of the log: No space left on device"]

    def test_errors_also_go_to_stderr(self, reports) -> None:
        gate = Gate()
        gate.is_open.set()
        writer = Writer(gate)
        writer.put(b"fine\n")
        writer.put(b"broken\n", is_error=True)
        assert writer.flush(60)
        assert gate.lines == [b"fine\n", b"broken\n"]
        assert reports == [b"broken\n"]

    def test_many_threads_may_log(self) -> None:
        gate = Gate()
        gate.is_open.set()
        writer = Writer(gate)
        handler = logging.Handler()
        handler.emit = lambda record: writer.put(record.getMessage().encode())  # type: ignore[method-assign]

        def work(name: int) -> None:
            for number in range(500):
                handler.handle(logging.LogRecord("", 20, "", 1, f"{name} {number}", (), None))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.flush(60)
        assert len(gate.lines) == len(set(gate.lines)) == 2000


class TestStderr:
    """In a process of its own, whose stderr is what the test says."""

    CODE = """
import logging, sys
from hightide import process_log
process_log.begin("broker", process_log.Options(), 1)
log = logging.getLogger("hightide.test")
"""

    def run(self, code: str, **options) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", self.CODE + code]
        return subprocess.Popen(command, env=environment(), **options)

    def test_everything_is_written_at_the_end(self) -> None:
        code = "[log.info('line %d', number) for number in range(5000)]\nraise ValueError('last')"
        child = self.run(code, stderr=subprocess.PIPE)
        _, written = child.communicate(timeout=60)
        lines = written.decode().splitlines()
        assert [line.rpartition(" ")[2] for line in lines[:5000]] == list(map(str, range(5000)))
        assert lines[5000].endswith("process_log: the process ends: last")
        assert lines[-1] == "    ValueError: last"
        assert child.returncode == 1

    @pytest.mark.parametrize("end", ["", "raise ValueError('last')"])
    def test_a_pipe_that_nothing_reads_delays_the_end_only(self, end) -> None:
        code = f"for number in range(5000): log.info('line %d', number)\nprint('done')\n{end}"
        child = self.run(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        assert child.wait(60) == (1 if end else 0)
        child.communicate()

    def test_a_closed_pipe_ends_nothing(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        code = "for number in range(500): log.info('line %d', number)\nprint('done')"
        child = self.run(code, stdout=subprocess.PIPE, stderr=writer)
        os.close(writer)
        assert child.communicate(timeout=60)[0] == b"done\n"
        assert child.returncode == 0

    def test_no_file_is_taken_for_a_stderr_that_is_closed(self, tmp_path) -> None:
        code = (
            f"import os; data = os.open({str(tmp_path / 'data')!r}, os.O_CREAT | os.O_WRONLY)\n"
            "assert data == 2\n"
            "log.error('x')"
        )
        child = self.run(code, preexec_fn=lambda: os.close(2))
        assert child.wait(60) == 0
        assert (tmp_path / "data").read_bytes() == b""

    def test_a_line_is_in_a_regular_file_when_it_is_logged(self, tmp_path) -> None:
        code = "import os, signal; log.info('x'); os.kill(os.getpid(), signal.SIGKILL)"
        with (tmp_path / "log").open("wb") as file:
            self.run(code, stderr=file).wait(60)
        assert (tmp_path / "log").read_text().endswith("test: x\n")


class TestLogFile:
    def lines(self, *numbers: int) -> list[bytes]:
        return [f"{number:09d}\n".encode() for number in numbers]

    def text(self, path) -> list[int]:
        return [int(line) for line in path.read_text().splitlines()]

    def test_files_are_private_and_limited_in_size_and_number(self, tmp_path) -> None:
        path = tmp_path / "log"
        file = LogFile(path, max_bytes=30, backups=2)
        file.open()
        for number in range(10):
            file.write(self.lines(number))
        assert self.text(path) == [9]
        assert self.text(tmp_path / "log.1") == [6, 7, 8]
        assert self.text(tmp_path / "log.2") == [3, 4, 5]
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
        assert {stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()} == {0o600}

    def test_many_lines_at_once_fill_several_files(self, tmp_path) -> None:
        file = LogFile(tmp_path / "log", max_bytes=30, backups=9)
        file.open()
        file.write(self.lines(*range(10)))
        assert self.text(tmp_path / "log.3") == [0, 1, 2]
        assert self.text(tmp_path / "log") == [9]

    def test_a_new_process_goes_on_with_the_file(self, tmp_path) -> None:
        for number in range(4):
            file = LogFile(tmp_path / "log", max_bytes=30, backups=2)
            file.open()
            file.write(self.lines(number))
            file.close()
        assert self.text(tmp_path / "log.1") == [0, 1, 2]
        assert self.text(tmp_path / "log") == [3]

    def test_fewer_backups_remove_the_oldest_files(self, tmp_path) -> None:
        file = LogFile(tmp_path / "log", max_bytes=10, backups=5)
        file.open()
        file.write(self.lines(*range(8)))
        file.backups = 2
        file.write(self.lines(8))
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
        assert self.text(tmp_path / "log.2") == [6]

    def test_without_backups_another_program_moves_or_truncates_the_file(self, tmp_path) -> None:
        path = tmp_path / "log"
        file = LogFile(path, max_bytes=10, backups=0)
        file.open()
        file.write(self.lines(*range(5)))
        path.rename(tmp_path / "moved")
        file.write(self.lines(5))
        assert self.text(tmp_path / "moved") == [0, 1, 2, 3, 4]
        assert self.text(path) == [5]
        os.truncate(path, 0)
        file.write(self.lines(6))
        assert self.text(path) == [6]
        path.unlink()
        file.write(self.lines(7))
        assert self.text(path) == [7]

    def test_a_file_that_cannot_be_renamed_grows(self, tmp_path, monkeypatch, caplog) -> None:
        def refuse(*_args):
            raise PermissionError(errno.EACCES, "Permission denied")

        file = LogFile(tmp_path / "log", max_bytes=30, backups=2)
        file.open()
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", refuse)
            file.write(self.lines(*range(10)))
        assert self.text(tmp_path / "log") == [*range(10)]
        assert len(caplog.messages) == 1
        assert caplog.messages[0].endswith("log, which grows: Permission denied")
        file.write(self.lines(10))
        assert self.text(tmp_path / "log") == [10]

    def test_a_torn_line_does_not_swallow_the_next(self, tmp_path, monkeypatch) -> None:
        path = tmp_path / "log"
        file = LogFile(path, max_bytes=1000, backups=2)
        file.open()
        write = os.write
        space = 15

        def full(descriptor: int, data: bytes) -> int:
            nonlocal space
            if not space:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = write(descriptor, data[:space])
            space -= written
            return written

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space"):
                file.write(self.lines(1, 2, 3))
        file.write(self.lines(4))
        assert path.read_bytes() == b"000000001\n00000\n000000004\n"

    @pytest.mark.parametrize("kind", ["directory", "pipe"])
    def test_only_a_regular_file_is_opened(self, tmp_path, kind) -> None:
        path = tmp_path / "log"
        path.mkdir() if kind == "directory" else os.mkfifo(path)
        with pytest.raises(OSError, match="is not a regular file"):
            LogFile(path, 1000, 1).open()

    def test_a_writer_goes_on_when_the_directory_returns(self, tmp_path, reports, caplog) -> None:
        folder = tmp_path / "disk"
        folder.mkdir()
        file = LogFile(folder / "log", 1000, 1)
        file.open()
        writer = Writer(file)
        folder.rename(tmp_path / "gone")
        writer.put(self.lines(1)[0])
        assert writer.flush(60)
        assert b"No such file or directory; lines are left out" in reports[0]
        folder.mkdir()
        writer.put(self.lines(2)[0])
        assert writer.flush(60)
        assert self.text(folder / "log") == [2]
        eventually(lambda: "1 line was left out of the log" in caplog.text)
