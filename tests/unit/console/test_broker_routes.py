"""Acting on brokers: what goes to `up`, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hightide import control
from hightide.console.context import Options
from hightide.console.replies import on_failure
from hightide.console.routes import brokers


class FakeOwner:
    def __init__(self) -> None:
        self.acts: list[tuple[str, int]] = []

    async def act(self, command: str, broker_id: int) -> str:
        if broker_id > 3:
            raise control.Refused(f"there is no broker {broker_id}; the brokers are 1, 2, 3")
        self.acts.append((command, broker_id))
        return f"broker {broker_id} is done with"


def client(owner: FakeOwner | None, bootstrap: str = "localhost:9092,localhost:9093") -> TestClient:
    console: Any = SimpleNamespace(owner=owner, options=Options(bootstrap))
    app = Starlette(routes=brokers.routes(console), exception_handlers={Exception: on_failure})
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("action", brokers.ACTIONS)
def test_an_action_goes_to_the_owner(action: str) -> None:
    owner = FakeOwner()
    reply = client(owner).post(f"/api/v1/brokers/2/{action}")
    assert reply.status_code == 200
    assert owner.acts == [(action, 2)]
    assert reply.json() == {
        "text": "broker 2 is done with",
        "command": f"hightide broker {action} 2",
    }


def test_the_command_names_the_cluster_if_it_is_not_the_default() -> None:
    reply = client(FakeOwner(), "127.0.0.1:7001,127.0.0.1:7002").post("/api/v1/brokers/1/kill")
    assert reply.json()["command"] == "hightide broker kill 1 --bootstrap 127.0.0.1:7001"


def test_a_refusal_of_up_is_a_sentence() -> None:
    reply = client(FakeOwner()).post("/api/v1/brokers/9/pause")
    assert reply.status_code == 409
    assert "the brokers are 1, 2, 3" in reply.json()["error"]


def test_an_unknown_action_is_refused() -> None:
    owner = FakeOwner()
    reply = client(owner).post("/api/v1/brokers/1/destroy")
    assert reply.status_code == 404
    assert not owner.acts


def test_a_console_without_brokers_of_its_own_refuses() -> None:
    reply = client(None).post("/api/v1/brokers/1/kill")
    assert reply.status_code == 409
    assert "hightide up" in reply.json()["error"]


def test_an_action_is_not_a_get() -> None:
    assert client(FakeOwner()).get("/api/v1/brokers/1/kill").status_code == 405
