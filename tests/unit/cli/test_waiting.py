"""Why a command waits: each cause is said once, on stderr, and only if the wait is long."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from hightide.cli.record import waiting
from hightide.cli.record.waiting import Waiting
from hightide.client.model.diagnosis import NextStep
from hightide.client.model.standstill import Finding
from tests.support.eventually import eventually

NO_LEADER = Finding(("offline",), "There is no leader for t/0.", NextStep("hightide doctor"))
TOO_FEW = Finding(("min isr",), "Too few replicas are in sync in t/0.")


class Watched(Waiting):
    """Finds what the test says, one look after the other."""

    def __init__(self, *looks):
        super().__init__("b:1", "t", is_producer=True)
        self.looks = list(looks)
        self.looked = 0

    async def _findings(self):
        self.looked += 1
        return self.looks.pop(0) if self.looks else []


@pytest.fixture(autouse=True)
def ticks(monkeypatch):
    monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", "b:1")
    monkeypatch.setattr(waiting, "TICK_S", 0.001)


@pytest.fixture
def closed_port():
    """A port that refuses connections: it is bound, and no socket listens on it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(waiting, "AFTER_S", 0.001)
    monkeypatch.setattr(waiting, "MOST_S", 0.002)


@pytest.mark.usefixtures("soon")
def test_each_cause_is_said_once(capsys):
    with Watched([NO_LEADER], [NO_LEADER], [TOO_FEW, NO_LEADER], [TOO_FEW]) as watch:
        watch.begin()
        eventually(lambda: watch.looked > 5)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "Waiting: There is no leader for t/0.",
        "  next: hightide doctor",
        "Waiting: Too few replicas are in sync in t/0.",
    ]


def test_a_short_wait_is_not_looked_at(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "AFTER_S", 1_000.0)
    ticks = []
    with Watched([NO_LEADER]) as watch:
        wait = watch._closed.wait

        def ticked(seconds):
            ticks.append(seconds)
            return wait(seconds)

        monkeypatch.setattr(watch._closed, "wait", ticked)
        watch.begin()
        eventually(lambda: len(ticks) > 20)
    assert (watch.looked, capsys.readouterr().err) == (0, "")


@pytest.mark.usefixtures("soon")
def test_a_command_that_does_not_wait_is_not_looked_at():
    asked = []

    def still():
        asked.append(1)
        return False

    with Watched([NO_LEADER]) as watch:
        watch.still = still
        watch.begin()
        eventually(lambda: len(asked) > 20)
    assert watch.looked == 0


@pytest.mark.usefixtures("soon")
def test_the_end_of_a_command_ends_a_look(capsys):
    begun = threading.Event()

    class Hanging(Watched):
        async def _findings(self):
            begun.set()
            await asyncio.sleep(1_000)
            return [NO_LEADER]

    with Hanging() as watch:
        watch.begin()
        assert begun.wait(60)
    assert not watch._thread.is_alive()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("soon")
def test_brokers_that_cannot_be_reached_are_named(capsys, closed_port):
    with Waiting(f"127.0.0.1:{closed_port}", "t") as watch:
        watch.begin()
        eventually(lambda: watch._said)
    assert capsys.readouterr().err.splitlines()[0] == (
        f"Waiting: No broker answers at 127.0.0.1:{closed_port}."
    )
