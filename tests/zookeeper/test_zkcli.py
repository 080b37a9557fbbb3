"""ZooKeeper's command line, and with it its Java client, with the embedded server."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.zookeeper import jute, servers

PATIENCE_S = 30.0

SCRIPT = """
create /a one
create -e /here two
create -s /a/item- first
create -s -e /a/item- second
create /a
set -v 0 /a three
set -v 0 /a four
get -s /a
get /none
stat /a
ls /a
ls -s /a
ls -R /
ls -w /a
create /a/child
get -w /a
set /a five
stat -w /later
create /later
addauth digest ann:secret
create /hers secret auth::cdrwa
getAcl /hers
setAcl /a world:anyone:ra
set /a six
getAcl /a
setAcl /a world:anyone:cdrwa
delete /a
getEphemerals
getAllChildrenNumber /
sync /a
deleteall /a
deleteall /later
ls /
quit
"""


def command(hosts: str) -> list[str]:
    jvm = ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    main = "org.apache.zookeeper.ZooKeeperMain"
    return ["java", *jvm, quiet, "-cp", servers.classpath(), main, "-server", hosts]


@pytest.fixture(autouse=True)
def _java() -> None:
    if reason := servers.missing():
        pytest.skip(reason)


def transcript(backend: Any) -> tuple[list[str], list[str], list[str]]:
    """Return the output, the errors, and the watch events, which come at any time.

    Not that its session is closed: it tells itself so, and may be gone before it has printed it.
    """
    words = command(backend.hosts)
    ended = subprocess.run(
        words, input=SCRIPT, text=True, capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    output = ended.stdout.replace(backend.chroot, "")
    output_lines = [line for line in output.splitlines() if line not in ("", "WATCHER::")]
    events = [line for line in output_lines if line.startswith("WatchedEvent")]
    output_lines = [
        plain(line) for line in output_lines if line not in events and "Connecting to" not in line
    ]
    seen = sorted(line for line in events if "state:Closed" not in line)
    return output_lines, ended.stderr.splitlines(), seen


def plain(line: str) -> str:
    """Replace what a server chooses: zxids, times, session ids, and the order of a list."""
    if line.startswith("["):
        return str(sorted(line.strip("[]").split(", ")))
    return re.sub(r"^(\w+) = (0x[1-9a-f]\w*|.* UTC .*)$", r"\1 = …", line)


def test_zkcli_says_of_ours_what_it_says_of_zookeeper(embedded, zookeeper):
    output_lines, errors, events = transcript(embedded)
    assert (output_lines, errors, events) == transcript(zookeeper)
    assert "dataVersion = 1" in output_lines
    assert str(["here", "hers"]) in output_lines
    assert "Created /a/item-0000000001" in errors
    assert "version No is not valid : /a" in errors
    assert "Insufficient permission : /a" in errors
    kinds = "NodeChildrenChanged path:/a", "NodeDataChanged path:/a", "NodeCreated path:/later"
    for kind in kinds:
        assert f"WatchedEvent state:SyncConnected type:{kind}" in events


class Shell:
    """An interactive zkCli."""

    def __init__(self, hosts: str, log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command(hosts), stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
            )

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def expect(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (output_lines := self.log.read_text()).count(text) < times:
            assert self._process.poll() is None, f"zkCli ended\n{output_lines}"
            assert time.monotonic() < deadline, f"{text!r} is not in\n{output_lines}"
            time.sleep(0.02)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()


@contextmanager
def shell(hosts: str, log: Path) -> Iterator[Shell]:
    typed = Shell(hosts, log)
    try:
        yield typed
    finally:
        typed.end()


def test_its_watches_are_armed_again_after_the_server_was_killed(embedded, tmp_path):
    def write(operation: int, name: str, tail: bytes) -> None:
        body = jute.text(f"{embedded.chroot}/{name}") + tail
        assert wire.call(operation, body).code == 0

    def change(name: str) -> None:
        write(jute.SET_DATA, name, jute.buffer(b"x") + jute.int32(-1))

    def make(name: str) -> None:
        write(jute.CREATE, name, jute.buffer(b"") + jute.acl_list(jute.OPEN) + jute.int32(0))

    def event(kind: str, name: str) -> str:
        return f"state:SyncConnected type:{kind} path:/{name}"

    with shell(embedded.hosts, tmp_path / "output") as typed:
        for name in ("data", "early", "children"):
            typed.type(f"create /{name} old")
        for line in ("get -w /data", "get -w /early", "ls -w /children", "stat -w /missing"):
            typed.type(line)
        typed.expect("Node does not exist: /missing")
        typed.expect("state:SyncConnected type:None")
        embedded.kill()
        typed.expect("state:Disconnected")
        embedded.restart()
        with jute.Wire(embedded.server.hosts) as wire:
            # Most likely before it has reconnected, so that the server must send the event at once.
            change("early")
            typed.expect("state:SyncConnected type:None", times=2)
            typed.expect(event("NodeDataChanged", "early"))
            change("data")
            make("children/new")
            make("missing")
            typed.expect(event("NodeDataChanged", "data"))
            typed.expect(event("NodeChildrenChanged", "children"))
            typed.expect(event("NodeCreated", "missing"))
        typed.type("get /data")
        typed.expect("x\n")
