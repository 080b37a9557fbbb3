"""What the routes of the console share: the cluster's client, the observer, options, the owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hightide import control

if TYPE_CHECKING:
    from hightide.client.admin import Admin
    from hightide.console.group_watch import GroupWatch
    from hightide.console.observer import Observer

DEFAULT_PORT = 8088


@dataclass(frozen=True, slots=True)
class Options:
    """How the console was started."""

    bootstrap: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    read_only: bool = False
    password_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Names of this server that a request may carry, besides addresses and localhost."""
    pipelines: Path | None = None
    """The folder in which pipelines keep their state."""
    title: str = ""
    metrics: tuple[str, ...] = ()
    """Addresses of the brokers' metrics, of a local `up`."""
    is_child: bool = False
    """Whether `hightide up` has started it, whose brokers it may act on."""
    banner_file: Path | None = None
    """A sentence that another process writes for the top of every page."""
    schema_registry: str = field(default="", repr=False)
    """The URL of the registry of Avro schemas; it may hold a password."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Acts on the brokers of the `hightide up` that has a broker at one of these addresses."""

    bootstrap: str

    async def act(self, command: str, broker_id: int) -> str:
        """Do as `hightide broker COMMAND ID`: kill, stop, pause, resume or restart.

        Return a sentence. Raise Refused if `up` refuses, NotRunning if it has ended.
        """
        addresses = [address.strip() for address in self.bootstrap.split(",")]
        for address in addresses[:-1]:
            try:
                return await asyncio.to_thread(control.send, address, command, broker_id)
            except control.NotRunning:
                continue
        return await asyncio.to_thread(control.send, addresses[-1], command, broker_id)


@dataclass(slots=True)
class Console:
    """One console of one cluster."""

    admin: Admin
    observer: Observer
    options: Options
    owner: Owner | None = None
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: streams end then."""
    group_watch: GroupWatch | None = None
    """Surveys the groups; made by the first route that needs it."""
    at_close: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """What is undone before the console ends."""
