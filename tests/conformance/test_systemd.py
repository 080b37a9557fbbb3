"""A broker and the embedded ZooKeeper tell systemd that they serve when they do, and not before."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVERS = {
    "broker": ("broker", "start", "--memory", "--port", "0"),
    "zookeeper": ("zookeeper", "start", "--memory", "--listen", "127.0.0.1:0"),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_is_ready_when_it_serves_and_says_that_it_stops(kind: str, tmp_path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
        service(SERVERS[kind], tmp_path / "notify", systemd) as server,
    ):
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("listening: ").strip()
        ready = systemd.recv(4096).decode()
        assert ready.startswith("READY=1\nSTATUS=")
        assert ready.endswith(f"serves {address}")
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 10).close()
        assert systemd.recv(4096) == b"WATCHDOG=1"
        server.send_signal(signal.SIGTERM)
        while (state := systemd.recv(4096)) == b"WATCHDOG=1":
            pass
        assert state == b"STOPPING=1\nSTATUS=stopping"
        assert server.wait(60) == 0


@contextlib.contextmanager
def service(
    arguments: tuple[str, ...], socket_path: Path, systemd: socket.socket
) -> Iterator[subprocess.Popen[str]]:
    """A server as systemd starts it."""
    systemd.bind(str(socket_path))
    systemd.settimeout(60)
    variables = {"NOTIFY_SOCKET": str(socket_path), "WATCHDOG_USEC": "600000"}
    with subprocess.Popen(
        [sys.executable, "-m", "hightide", *arguments],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield server
        finally:
            server.kill()
