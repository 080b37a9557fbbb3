"""The demo, as `make run` starts it where there is no terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from queue import Empty, Queue

import pytest

from examples.demo.pipeline import missing_requirement
from hightide import control

COMMAND = (sys.executable, "-m", "examples.demo")
DEADLINE_S = 600
LINE_S = 240


class Process:
    """A demo process and its output so far."""

    def __init__(self, folder, *arguments):
        self.folder = folder
        self._child = subprocess.Popen(
            [*COMMAND, "--port", "0", "--data", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        self._lines = Queue()
        self.output = ""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        with self._child.stdout as stdout:
            for line in stdout:
                self._lines.put(line)
        self._lines.put(None)

    def until(self, words):
        """Wait for a line that matches."""
        deadline = time.monotonic() + LINE_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except Empty:
                line = None
            assert line is not None, f"{words!r} was not printed, but:\n{self.output}"
            self.output += line
            if re.search(words, line):
                return line

    def command(self, *words):
        done = subprocess.run(
            [*COMMAND, *words, "--data", str(self.folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def interrupt(self):
        self._child.send_signal(signal.SIGINT)

    def end(self):
        code = self._child.wait(LINE_S)
        self.output += "".join(iter(self._lines.get, None))
        return code

    def kill(self):
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()


@pytest.fixture
def demo(tmp_path):
    started = []

    def start(*arguments):
        started.append(Process(tmp_path / "demo", *arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.extended
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.skipif(bool(missing_requirement()), reason=missing_requirement())
def test_a_killed_broker_costs_the_pipeline_no_order(demo):
    shown = demo("--duration", "10", "--rate", "40")
    assert re.match(r"bootstrap: (127\.0\.0\.1:\d+,?){3}\n", shown.until("bootstrap"))
    shown.until("The first results are there")
    killed = shown.command("kill")
    assert re.match(r"Broker [123] was killed; it led .*orders", killed)
    assert "is already down" in shown.command("kill")
    shown.until(killed.strip())
    shown.until("is gone")
    shown.until("leads .*orders.* now")
    assert "console: http://127.0.0.1:" in shown.output
    verdict = shown.until("acknowledged, .* read back, .* duplicated\\.")
    assert verdict.startswith("Nothing was lost: ")
    acknowledged = re.search(r"(\d+) orders acknowledged", verdict)
    assert acknowledged is not None
    assert int(acknowledged[1]) > 100
    assert shown.end() == 0, shown.output
    assert (shown.folder / "tables" / "clicks-per-page").exists()
    assert "No demo is running" in shown.command("kill")


def fetched(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)


@pytest.mark.extended
def test_the_console_shows_the_ledger_and_kills_a_broker(demo):
    shown = demo("--no-pipeline", "--rate", "100")
    address = shown.until("bootstrap: ").split()[1].split(",")[0]
    url = shown.until("^console: http").split()[1]
    assert fetched(f"{url}/api/v1/session")["owner"] is True
    deadline = time.monotonic() + 60
    while (banner := fetched(f"{url}/api/v1/banner")["banner"]) is None or (
        "0 acknowledged" in banner["text"] and time.monotonic() < deadline
    ):
        time.sleep(0.2)
    assert re.fullmatch(
        r"Orders: [\d,]+ acknowledged, [\d,]+ read back, ([\d,]+ on their way|0 missing),"
        r" 0 duplicated(; none acknowledged .*)?",
        banner["text"],
    )
    assert banner["level"] in {"ok", "warn"}
    assert banner["is_old"] is False
    # What the button of the X-ray sends; a broker that it ends waits for its restart.
    assert "has ended" in control.send(address, "kill", 2)
    shown.until("Broker 2 has ended by the command kill")
    with pytest.raises(control.Refused, match="not running"):
        control.send(address, "pause", 2)
    assert "serves on" in control.send(address, "restart", 2)
    assert "is paused" in control.send(address, "pause", 3)
    assert "runs again" in control.send(address, "resume", 3)
    with pytest.raises(control.Refused, match="no broker 7"):
        control.send(address, "kill", 7)
    shown.interrupt()
    verdict = shown.until("orders acknowledged")
    assert verdict.rstrip().endswith("0 duplicated.")
    assert shown.end() == 0, shown.output


@pytest.mark.extended
def test_without_a_pipeline_there_are_brokers_and_a_stream_until_ctrl_c(demo):
    shown = demo("--memory", "--no-pipeline", "--no-console", "--rate", "100")
    shown.until("bootstrap: ")
    shown.until("There is no pipeline")
    shown.until("The first results are there")
    assert "There is no broker 7" in shown.command("kill", "7")
    shown.interrupt()
    shown.until("orders acknowledged")
    assert shown.end() == 0, shown.output
