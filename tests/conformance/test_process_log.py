"""The log of a real broker: JSON, rotation, a full disk, and a pipe that nothing reads."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import pytest

from hightide.client.admin import Admin
from hightide.client.model.cluster import ResourceType
from hightide.process import environment
from hightide.testing import Cluster
from tests.conformance.raw import Raw, good_batch, produce_request, produced
from tests.support.eventually import eventually

LEAST_BYTES = 65536
NAMES = (
    "hightide.broker.handlers.topics",
    "hightide.broker.controller.service",
    "hightide.broker.replication.replica_fetcher",
    "hightide.broker.network.connection",
    "hightide.broker.membership.registration",
    "hightide.broker.controller.controller_election",
)


def log_lines(cluster: Cluster, count: int) -> None:
    """Let the broker log so many lines, of some 500 bytes each."""

    async def run() -> None:
        async with Admin(cluster.bootstrap) as admin:
            for _ in range(count):
                await admin.configs.alter(
                    ResourceType.BROKER_LOGGER, "1", values=dict.fromkeys(NAMES, "INFO")
                )

    asyncio.run(run())


def configure(cluster: Cluster, **values: str) -> None:
    async def run() -> None:
        async with Admin(cluster.bootstrap) as admin:
            named = {name.replace("_", "."): value for name, value in values.items()}
            await admin.configs.alter(ResourceType.BROKER, "", values=named)

    asyncio.run(run())


def check_that_it_produces(cluster: Cluster, topic: str) -> None:
    """Every acknowledgement comes within a second."""
    with Raw(cluster) as raw:
        for _ in range(20):
            began = time.monotonic()
            response = raw.ask(produce_request(topic, good_batch()), 7)
            assert produced(response).error_code == 0
            assert time.monotonic() - began < 1


def test_every_line_is_a_json_object() -> None:
    with Cluster(settings={"log.format": "json"}) as cluster:
        log_lines(cluster, 1)
        forged = 'x\n{"level":"ERROR"}\x1b[2K'
        with Raw(cluster) as raw:
            raw.send(forged.encode() * 10)
            assert raw.receive() is None
        configure(cluster, log_level="warning")
        configure(cluster, log_format="text")
        eventually(lambda: "WARNING" in cluster.log() or "log.format=text" in cluster.log())
        text = cluster.log()
    lines = text.splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(records) >= len(lines) - 1
    for record in records:
        assert list(record)[:5] == ["time", "level", "logger", "broker_id", "message"]
        assert datetime.fromisoformat(record["time"]).tzinfo is not None
        assert record["broker_id"] == 1
        if "event" in record:
            assert isinstance(record["sequence"], int)
            assert isinstance(record["data"], dict)
    loggers = {record["logger"] for record in records}
    assert {"hightide.broker", "hightide.broker.handlers.configs"} <= loggers


def test_the_log_is_rotated_by_size_and_its_limits_change_while_it_runs(tmp_path) -> None:
    path = tmp_path / "broker.log"
    settings = {"log.file": path, "log.file.max.bytes": LEAST_BYTES, "log.file.backups": 2}
    with Cluster(settings=settings) as cluster:
        log_lines(cluster, 600)
        files = [path, *(tmp_path / f"broker.log.{index}" for index in (1, 2))]
        eventually(lambda: all(file.exists() for file in files))
        for file in tmp_path.iterdir():
            assert file in files
            assert file.stat().st_size <= LEAST_BYTES
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        configure(cluster, log_file_backups="1")
        log_lines(cluster, 300)
        eventually(lambda: not files[2].exists())
        assert cluster.log() == "", "nothing but errors goes to stderr"
        path.rename(tmp_path / "moved")
        log_lines(cluster, 1)
        eventually(lambda: path.exists() and "settings of the loggers" in path.read_text())
    assert path.read_text().endswith("broker: stopped\n")


class SmallLogDisk(Cluster):
    """Its log file is on a tmpfs of 64 KiB, which only its own processes see."""

    folder: Path

    def wrapper(self, broker_id: int = 1) -> list[str]:
        mount = f"mount -t tmpfs -o size=64k,mode=700 none '{self.folder}'"
        return ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh"]


def can_mount(folder: Path) -> bool:
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_a_full_disk_of_the_log_stops_nothing(tmp_path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("no tmpfs can be mounted in a namespace of one's own here (unshare -rm)")
    path = tmp_path / "broker.log"
    cluster = SmallLogDisk(settings={"log.file": path, "log.file.backups": 0})
    cluster.folder = tmp_path
    with cluster:
        topic = cluster.create_topic()
        log_lines(cluster, 300)
        report = f"cannot write the log to {path}: No space left on device"
        eventually(lambda: report in cluster.log())
        check_that_it_produces(cluster, topic)
        assert cluster.log().count("cannot write the log") == 1
        seen = Path(f"/proc/{cluster.pid()}/root{path}")
        os.truncate(seen, 0)
        log_lines(cluster, 1)
        eventually(lambda: "lines were left out of the log: No space left" in seen.read_text())


class Piped(Cluster):
    """Its stderr is a pipe."""

    pipe: Path

    def wrapper(self, broker_id: int = 1) -> list[str]:
        return ["sh", "-c", f"exec \"$@\" 2>'{self.pipe}'", "sh"]


@contextmanager
def unread_pipe(path: Path) -> Iterator[int]:
    """A pipe of one page."""
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 4096)
        yield descriptor
    finally:
        os.close(descriptor)


def test_a_pipe_that_nothing_reads_stops_nothing(tmp_path) -> None:
    cluster = Piped()
    cluster.pipe = tmp_path / "stderr"
    with unread_pipe(cluster.pipe) as pipe, cluster:
        topic = cluster.create_topic()
        log_lines(cluster, 100)
        check_that_it_produces(cluster, topic)
        text = b""

        def read() -> bytes:
            nonlocal text
            with suppress(BlockingIOError):
                text += os.read(pipe, 65536)
            return text

        # All lines were kept, and come when the pipe is read.
        eventually(lambda: read().count(b"settings of the loggers") == 100)


def test_a_file_that_cannot_be_opened_is_an_error_of_the_start(tmp_path) -> None:
    path = tmp_path / "missing" / "broker.log"
    for command in (
        ["broker", "start", "--memory", "--port", "0", "--override", f"log.file={path}"],
        ["zookeeper", "start", "--memory", "--log-file", str(path)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "hightide", *command],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert str(path) in done.stderr
        assert "Traceback" not in done.stderr


def test_the_reason_why_a_start_failed_is_on_stderr_too(tmp_path) -> None:
    path = tmp_path / "broker.log"
    taken = tmp_path / "file"
    taken.write_text("")
    settings = [f"log.file={path}", f"log.dirs={taken}", "broker.id=7"]
    overrides = [part for setting in settings for part in ("--override", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "hightide", "broker", "start", "--port", "0", *overrides],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ERROR   [broker 7] broker: the broker cannot start: " in done.stderr
    assert done.stderr in path.read_text()


def test_the_log_of_the_embedded_zookeeper_is_json_too(tmp_path) -> None:
    path = tmp_path / "zookeeper.log"
    command = ["zookeeper", "start", "--memory", "--listen", "127.0.0.1:0"]
    command += ["--log-format", "json", "--log-file", str(path), "--log-level", "debug"]
    with subprocess.Popen(
        [sys.executable, "-m", "hightide", *command], env=environment(), stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"listening: ")
        server.terminate()
    assert server.returncode == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert (records[-1]["message"], records[-1]["broker_id"]) == ("stopped", None)
