"""The coordinator: a tree, its file, its sessions, and the socket that serves them.

coordinator = Coordinator(ServerOptions(file=Path("…/coordination.db")))
host, port = await coordinator.start()
failure = await coordinator.failed      # only if a commit fails: then nothing more is answered
await coordinator.stop()
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from hightide.zookeeper.committer import Committer
from hightide.zookeeper.server.client_connection import Connection
from hightide.zookeeper.server.four_letter_words import Words
from hightide.zookeeper.server.options import ServerOptions, Tls
from hightide.zookeeper.server.sessions import Sessions
from hightide.zookeeper.server.traffic import Traffic, is_loopback

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("hightide.coordinator")

_BACKLOG = 1024


class Refused(Exception):
    """The coordinator will not start like this, and why."""


class ZooKeeperServer:
    """One server. Belongs to one event loop."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._committer = Committer()
        self._traffic = Traffic(options.limits)
        self._listener: asyncio.Server | None = None
        self._expiry: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Done when the coordinator cannot go on."""
        self._committer.on_failure = self._fail

    async def start(self) -> tuple[str, int]:
        """Serve; where. Refused, StorageError or OSError if that cannot be."""
        options = self._options
        addresses = await self._addresses()
        context = None if options.tls is None else _context(options.tls)
        if options.file is not None:
            await self._committer.open(options.file, keep_sessions=True)
        try:
            sessions = Sessions(self._committer, options)
            words = Words(options, self._committer, self._traffic)
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: Connection(options, self._committer, sessions, self._traffic, words),
                # One port for several addresses can only be asked for, not picked.
                addresses if options.port else addresses[0],
                options.port,
                backlog=_BACKLOG,
                ssl=context,
                ssl_handshake_timeout=None if context is None else options.limits.handshake_s,
            )
        except BaseException:
            await self._committer.close()
            raise
        self._expiry = asyncio.create_task(sessions.expire())
        self._expiry.add_done_callback(self._expiry_ended)
        host, port = self._listener.sockets[0].getsockname()[:2]
        words.port = port
        return host, port

    async def stop(self) -> None:
        """Serve nobody any more and let go of the file. The sessions wait there."""
        if self._listener is not None:
            self._listener.close()
        if self._expiry is not None:
            self._expiry.cancel()
        # Before the committer ends: whoever is still there must not be told that it did.
        for connection in list(self._traffic.connections):
            connection.abort()
        await self._committer.close()

    async def _addresses(self) -> list[str]:
        """Where to listen, if that is safe."""
        options = self._options
        found = await asyncio.get_running_loop().getaddrinfo(
            options.host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
        if all(map(is_loopback, addresses)) or options.insecure or options.credentials:
            return addresses
        if options.tls is None:
            raise Refused(
                f"{options.host} can be reached from other machines: give credentials or a TLS"
                " certificate, or say --insecure"
            )
        if options.tls.client_ca is None:
            log.warning("TLS alone hides what is said, but anybody may say it: no client is known")
        return addresses

    def _expiry_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self._fail(error)

    def _fail(self, failure: Exception) -> None:
        log.critical("the coordinator cannot go on: %s", failure)
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._traffic.connections):
            connection.abort()
        if not self.failed.done():
            self.failed.set_result(failure)


def _context(tls: Tls) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise Refused(f"cannot use the TLS files: {error}") from error
    return context
