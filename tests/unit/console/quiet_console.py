"""A console without a cluster: what the tests of access and sessions share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from starlette.testclient import TestClient

from hightide.client.admin import Admin
from hightide.console.app import create_app
from hightide.console.context import Console, Options
from hightide.console.observer import Observer
from hightide.console.password import Password

ORIGIN = "http://localhost"
NOWHERE = "127.0.0.1:1"


class StillObserver:
    """An observer that has seen nothing yet."""

    frame: Any = None

    async def __aenter__(self) -> StillObserver:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@contextmanager
def browser(password: Password | None = None, **options: Any) -> Iterator[TestClient]:
    """A client of a new console; it has no token yet."""
    console = Console(Admin(NOWHERE), cast(Observer, StillObserver()), Options(NOWHERE, **options))
    with TestClient(create_app(console, password), base_url=ORIGIN) as client:
        yield client


def token(client: TestClient) -> str:
    return str(client.get("/api/v1/session").json()["token"])
