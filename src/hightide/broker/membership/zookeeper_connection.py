"""A broker's connection to ZooKeeper: an ensemble, or an embedded ZooKeeper in its own process.

The embedded ZooKeeper runs in a thread with its own event loop, so that its writes to disk never
delay a client.  The broker connects to it with the same protocol and client as to an ensemble.

A killed broker leaves a session that keeps its id taken until the session expires.  So the broker
stores the key of its session beside its logs, which only one process can lock.  After a restart it
resumes that session and ends it.
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
from hightide.zookeeper.server.server import StartRefused
from hightide.zookeeper.server.server_thread import ServerThread

log = logging.getLogger(__name__)

SESSION_FILE = "zookeeper.session"
_OLD_SESSION_FILE = "coordination.session"  # its name in earlier versions
_HOST, _PORT = "127.0.0.1", 2181
_TICK_MS = 500
_SHORTEST_MS, _LONGEST_MS = 4_000, 40_000  # ZooKeeper's default limits of session timeouts


@dataclass(frozen=True, slots=True)
class ZooKeeperConnection:
    """A session, and the embedded ZooKeeper if there is one."""

    client: ZooKeeperClient
    embedded: ServerThread | None

    async def close(self) -> None:
        await self.client.close()
        if self.embedded is not None:
            await asyncio.to_thread(self.embedded.stop)


async def open_zookeeper(
    settings: Settings,
    directory: Path | None,
    on_failure: Callable[[Exception], None],
    *,
    is_new: bool,
) -> ZooKeeperConnection:
    """Start a session.  Without a directory nothing is stored.

    Only a new broker creates the chroot: for a broker that has data, a missing chroot means that it
    is connected to the wrong ZooKeeper.  `on_failure` is called, in any thread, when the embedded
    ZooKeeper fails.
    """
    embedded = None
    hosts = settings.zookeeper_connect or ""
    if not hosts:
        embedded, hosts = await asyncio.to_thread(_start_embedded, settings, directory, on_failure)
    try:
        client = await ZooKeeperClient.connect(
            hosts,
            session_timeout_ms=settings.zookeeper_session_timeout_ms,
            connection_timeout_ms=settings.zookeeper_connection_timeout_ms,
            credentials=settings.zookeeper_credentials,
            tls=None if embedded is not None else _tls(settings),
            resume=None if directory is None else read_session_key(directory),
            creates_chroot=is_new,
        )
    except BaseException:
        if embedded is not None:
            await asyncio.to_thread(embedded.stop)
        raise
    return ZooKeeperConnection(client, embedded)


def _start_embedded(
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
        except StartRefused as refused:
            raise InvalidSetting(
                f"zookeeper.listen: {host} can be reached from other hosts: set"
                " zookeeper.credentials, or listen on 127.0.0.1"
            ) from refused
        except OSError as error:
            # The default port is only a wish: a host may run many brokers with their own ZooKeeper.
            if error.errno == errno.EADDRINUSE and settings.zookeeper_listen is None and port:
                port = 0
                continue
            raise
        log.info("the embedded ZooKeeper listens on %s:%d", bound, port)
        reached = _HOST if bound in ("0.0.0.0", "::") else bound
        return thread, f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"


def listening(text: str | None) -> tuple[str, int]:
    """Return host and port of `zookeeper.listen`."""
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
    """Return the key of the previous process's session, if there is one."""
    try:
        file = directory / SESSION_FILE
        if not file.exists():
            file = directory / _OLD_SESSION_FILE
        found = json.loads(file.read_text())
        return SessionKey(int(found["session_id"]), bytes.fromhex(found["password"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as damage:
        log.warning("ignoring the unreadable %s: %s", directory / SESSION_FILE, damage)
        return None


def write_session_key(directory: Path, session_key: SessionKey) -> None:
    """Store the key of a session, readable for the owner only: it is as good as a password."""
    temporary = directory / f"{SESSION_FILE}.tmp"
    text = json.dumps(
        {"session_id": session_key.session_id, "password": session_key.password.hex()}
    )
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    temporary.replace(directory / SESSION_FILE)
    (directory / _OLD_SESSION_FILE).unlink(missing_ok=True)
