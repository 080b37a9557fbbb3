"""What a process tells systemd: ready, alive, stopping; and nothing without systemd."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hightide import systemd


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def received(listener: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


def test_states_arrive(manager: socket.socket) -> None:
    asyncio.run(_ready("broker 1 serves 127.0.0.1:9092"))
    systemd.stopping()
    assert received(manager) == [
        "READY=1\nSTATUS=broker 1 serves 127.0.0.1:9092",
        "STOPPING=1\nSTATUS=stopping",
    ]


async def _ready(status: str, seconds: float = 0.0) -> None:
    systemd.ready(status)
    await asyncio.sleep(seconds)


def test_an_abstract_socket_works(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"hightide-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        systemd.notify("READY=1")
        assert received(listener) == ["READY=1"]


def test_the_event_loop_shows_that_it_is_alive(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    asyncio.run(_ready("serves", 0.1))
    first, *signs = received(manager)
    assert first.startswith("READY=1")
    assert len(signs) >= 2
    assert set(signs) == {"WATCHDOG=1"}


def test_the_watchdog_of_another_process_is_left_to_it(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    asyncio.run(_ready("serves", 0.05))
    assert len(received(manager)) == 1


@pytest.mark.parametrize("name", [None, "", "relative", "/nothing/listens/here"])
def test_without_systemd_nothing_happens(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if name is None:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", name)
    asyncio.run(_ready("serves"))
    systemd.stopping()
