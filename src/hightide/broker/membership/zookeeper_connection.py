"""A broker's way to its coordinator: a ZooKeeper ensemble, or a coordinator that it runs itself.

Its own one runs in a thread with an event loop of its own, so that no commit to disk ever holds up
a client, and is reached by the same protocol and client as any other.

A broker that was killed left a session behind, which would keep its id taken until it expires.  So
the broker keeps the key of its session beside its logs, which are locked for one process; its next
life takes that session over and ends it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hightide.settings import Broker as Settings
from hightide.settings import InvalidSetting
from hightide.zookeeper import database_file
from hightide.zookeeper.client import ClientTls, SessionKey, ZooKeeperClient
from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.server_thread import ServerThread

log = logging.getLogger(__name__)

SESSION_FILE = "zookeeper.session"
_OLD_SESSION_FILE = "coordination.session"  # its name in earlier versions
_HOST, _PORT = "127.0.0.1", 2181
_TICK_MS = 500
_SHORTEST_MS, _LONGEST_MS = 4_000, 40_000  # as a ZooKeeper grants them by default


@dataclass(frozen=True, slots=True)
class Opened:
    """A session, and the coordinator behind it if it is the broker's own."""

    client: ZooKeeperClient
    own: ServerThread | None

    async def close(self) -> None:
        await self.client.close()
        if self.own is not None:
            await asyncio.to_thread(self.own.stop)


async def open_zookeeper(
    settings: Settings,
    directory: Path | None,
    on_failure: Callable[[Exception], None],
    *,
    is_new: bool,
) -> Opened:
    """Begin a session.  Without a directory nothing is kept.

    The chroot is made only for a broker that is new: one that has data finds it, or is at the wrong
    coordinator.  `on_failure` is called, in any thread, when the broker's own coordinator cannot go
    on.
    """
    own = None
    hosts = settings.zookeeper_connect or ""
    if not hosts:
        own, hosts = await asyncio.to_thread(_start_own, settings, directory, on_failure)
    try:
        client = await ZooKeeperClient.connect(
            hosts,
            session_timeout_ms=settings.zookeeper_session_timeout_ms,
            connection_timeout_ms=connection_timeout_ms(settings),
            credentials=settings.zookeeper_credentials,
            tls=None if own is not None else _tls(settings),
            resume=None if directory is None else read_session_key(directory),
            creates_chroot=is_new,
        )
    except BaseException:
        if own is not None:
            await asyncio.to_thread(own.stop)
        raise
    return Opened(client, own)


def connection_timeout_ms(settings: Settings) -> int:
    """How long a broker that starts waits for its coordinator."""
    return settings.zookeeper_connection_timeout_ms or settings.zookeeper_session_timeout_ms


def _start_own(
    settings: Settings, directory: Path | None, on_failure: Callable[[Exception], None]
) -> tuple[ServerThread, str]:
    host, port = listening(settings.zookeeper_listen)
    while True:
        thread = ServerThread(
            ServerOptions(
                host=host,
                port=port,
                file=None if directory is None else database_file(directory),
                tick_ms=_TICK_MS,
                min_session_timeout_ms=min(_SHORTEST_MS, settings.zookeeper_session_timeout_ms),
                max_session_timeout_ms=max(_LONGEST_MS, settings.zookeeper_session_timeout_ms),
                credentials=(settings.zookeeper_credentials,)
                if settings.zookeeper_credentials
                else (),
            )
        )
        thread.on_failure = on_failure
        try:
            bound, port = thread.start()
        except OSError as error:
            # Nobody asked for that port: a machine may have many brokers, each with its own.
            if error.errno == errno.EADDRINUSE and settings.zookeeper_listen is None and port:
                port = 0
                continue
            raise
        log.info("the broker's own coordinator listens on %s:%d", bound, port)
        reached = _HOST if bound in ("0.0.0.0", "::") else bound
        return thread, f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"


def listening(text: str | None) -> tuple[str, int]:
    """Host and port of `zookeeper.listen`."""
    if text is None:
        return _HOST, _PORT
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidSetting(f"zookeeper.listen: must be host:port, not {text!r}")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


def _tls(settings: Settings) -> ClientTls | None:
    if not settings.zookeeper_ssl_client_enable:
        return None
    return ClientTls(
        ca=settings.zookeeper_ssl_truststore_location,
        certificate=settings.zookeeper_ssl_keystore_location,
    )


def read_session_key(directory: Path) -> SessionKey | None:
    """The key of the session that the last process had."""
    try:
        file = directory / SESSION_FILE
        if not file.exists():
            file = directory / _OLD_SESSION_FILE
        found = json.loads(file.read_text())
        return SessionKey(int(found["session_id"]), bytes.fromhex(found["password"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as damage:
        log.warning("%s cannot be read, so it is ignored: %s", directory / SESSION_FILE, damage)
        return None


def write_session_key(directory: Path, session_key: SessionKey) -> None:
    """Keep the key of a session; it is as good as a password, so it is nobody else's business."""
    temporary = directory / f"{SESSION_FILE}.tmp"
    text = json.dumps(
        {"session_id": session_key.session_id, "password": session_key.password.hex()}
    )
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    temporary.replace(directory / SESSION_FILE)
    (directory / _OLD_SESSION_FILE).unlink(missing_ok=True)
