"""The console's process: beside `hightide up`, on its own, with a cluster that is away."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hightide.process import ConsoleProcess, environment, free_port
from hightide.testing import Cluster
from tests.conformance.test_cluster import answers
from tests.conformance.test_up import Up
from tests.console.browsing import console
from tests.support.eventually import eventually
from tests.support.scrape import scrape

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def up(tmp_path) -> Iterator:
    started: list[Up] = []

    def start(*arguments: str) -> Up:
        started.append(Up(tmp_path, "--memory", *arguments))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.end(signal.SIGKILL)


def url_of(run: Up) -> str:
    return run.hears("console: ").removeprefix("console: ").strip()


def consoles(run: Up) -> list[int]:
    """The pids of the consoles of an `up`."""
    pid = run.process.pid
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(n) for n in listed if b"\0hightide.console\0" in Path(f"/proc/{n}/cmdline").read_bytes()
    ]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def change(url: str, path: str, body: dict) -> httpx.Response:
    token = httpx.get(f"{url}/api/v1/session").json()["token"]
    headers = {"X-Hightide-Token": token, "Origin": url}
    return httpx.post(f"{url}/api/v1/{path}", json=body, headers=headers, timeout=30)


def test_up_serves_a_console_that_may_act_on_its_brokers(up):
    run = up("--port", "0")
    url = url_of(run)
    session = httpx.get(f"{url}/api/v1/session").json()
    assert (session["owner"], session["read_only"], session["login"]) == (True, False, False)
    eventually(lambda: httpx.get(f"{url}/readyz").status_code == 200)
    assert not httpx.get(f"{url}/api/v1/overview").json()["is_foreign"]
    metrics = scrape(f"{url}/metrics")
    assert metrics.value("hightide_broker_up", broker="1") == 1
    assert metrics.value("kafka_server_kafkaserver_brokerstate", broker="1") == 3
    code, said = run.end(signal.SIGTERM)
    assert code == 0, said
    assert "Traceback" not in said
    assert "console" not in said  # its end is no news when everything ends
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.extended
def test_the_console_takes_the_next_port_that_is_free(up):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # then it is taken already, which is as good
            taken.bind(("127.0.0.1", 8088))
            taken.listen()
        port = free_port()
        run = up("--port", str(port), "--metrics-port", "0", "--zookeeper-port", "0")
        assert int(url_of(run).rpartition(":")[2]) > 8088


def test_brokers_go_on_without_a_console_that_does_not_start(tmp_path, up, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "uvicorn.py").write_text("raise ImportError('it is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    run = up("--port", "0")
    bootstrap = run.bootstrap()
    assert "the brokers go on" in run.hears("hightide console --bootstrap")
    assert answers(bootstrap)
    assert run.end(signal.SIGTERM)[0] == 0


@pytest.mark.extended
def test_brokers_go_on_when_the_console_dies(up):
    run = up("--port", "0")
    bootstrap = run.bootstrap()
    url_of(run)
    (pid,) = consoles(run)
    os.kill(pid, signal.SIGKILL)
    assert "the brokers go on" in run.hears("hightide console --bootstrap")
    assert answers(bootstrap)
    assert run.end(signal.SIGTERM)[0] == 0


@pytest.mark.extended
def test_no_console_is_none(up):
    run = up("--port", "0", "--no-console")
    run.bootstrap()
    run.hears("Ctrl-C stops it")
    assert consoles(run) == []
    assert "console" not in run.end(signal.SIGTERM)[1]


def test_a_console_waits_for_a_cluster_that_is_away(tmp_path):
    port = free_port()
    with console(f"127.0.0.1:{port}", tmp_path) as url:
        assert httpx.get(url).status_code in {200, 503}  # 503 without the libraries
        session = httpx.get(f"{url}/api/v1/session").json()
        assert not session["owner"]
        assert httpx.get(f"{url}/livez").status_code == 200
        assert httpx.get(f"{url}/readyz").status_code == 503
        answer = httpx.get(f"{url}/api/v1/topics", timeout=30)
        assert answer.status_code in {503, 504}
        assert f"127.0.0.1:{port}" in answer.json()["error"]
    assert "Traceback" not in (tmp_path / "console.log").read_text()


def test_a_console_ends_at_once_although_a_browser_is_watching(tmp_path, cluster: Cluster):
    process = ConsoleProcess(["--bootstrap", cluster.bootstrap, "--port", "0"], tmp_path / "log")
    url = f"http://{process.start()}"
    with urllib.request.urlopen(f"{url}/api/v1/live", timeout=20) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.readline()
        # A limit that is far above what it takes, and far below any time-out of a stream.
        assert process.stop(timeout_s=20) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_console_dies_with_its_parent(tmp_path, cluster: Cluster):
    parent = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from hightide.process import ConsoleProcess\n"
        f"child = ConsoleProcess(['--bootstrap', {cluster.bootstrap!r}, '--port', '0'],"
        f" Path({str(tmp_path / 'log')!r}))\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
    )
    pid = int(done.stdout)
    eventually(lambda: not is_alive(pid))


def test_the_command_serves_any_cluster(tmp_path, cluster: Cluster):
    command = [sys.executable, "-m", "hightide", "console", "-b", cluster.bootstrap, "--port", "0"]
    with subprocess.Popen(
        [*command, "--read-only", "--title", "the tests"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("listening: ").strip()
        session = httpx.get(f"http://{address}/api/v1/session").json()
        assert (session["title"], session["read_only"]) == ("the tests", True)
        answer = change(f"http://{address}", "topics", {"name": "refused"})
        assert (answer.status_code, answer.json()["error"]) == (403, "The console is read-only.")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said == f"console: http://{address}\n"


def test_the_command_refuses_to_listen_for_all_without_a_password(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hightide", "console", "-b", NOWHERE, "--host", "0.0.0.0"],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "a password is needed" in done.stderr


@pytest.mark.extended
def test_a_port_that_is_taken_is_a_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "hightide", "console", "-b", NOWHERE, "--port", port],
            check=False,
            capture_output=True,
            text=True,
            env=environment(),
            cwd=tmp_path,
        )
    assert done.returncode == 1
    assert done.stderr == f"hightide: Cannot listen on 127.0.0.1:{port}: Address already in use.\n"
