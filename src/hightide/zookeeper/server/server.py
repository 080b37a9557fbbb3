"""The embedded ZooKeeper server: a tree, its file, its sessions, and the listening socket.

server = ZooKeeperServer(ServerOptions(file=Path("…/zookeeper.db")))
host, port = await server.start()
failure = await server.failed      # only after a failed commit: the server answers nothing more
await server.stop()
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from hightide import tcp
from hightide.zookeeper.committer import Committer
from hightide.zookeeper.server.client_connection import Connection
from hightide.zookeeper.server.four_letter_words import Words
from hightide.zookeeper.server.options import ServerOptions, Tls
from hightide.zookeeper.server.sessions import Sessions
from hightide.zookeeper.server.traffic import Traffic, is_loopback

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("hightide.zookeeper")

_BACKLOG = 1024


class StartRefused(Exception):
    """The server refuses to start with these options; the text says why."""


class ZooKeeperServer:
    """One server. Belongs to one event loop."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._committer = Committer(works_in_turns=True)
        self._traffic = Traffic(options.limits)
        self._listener: asyncio.Server | None = None
        self._expiry: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Done when the server has failed."""
        self._committer.on_failure = self._fail

    async def start(self) -> tuple[str, int]:
        """Listen, and return host and port. Raises StartRefused, StorageError or OSError."""
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
                # Port 0 would pick a different port for each address.
                addresses if options.port else addresses[0],
                options.port,
                backlog=_BACKLOG,
                ssl=context,
                ssl_handshake_timeout=None if context is None else options.limits.handshake_s,
            )
        except BaseException:
            await self._committer.close()
            raise
        for listening in self._listener.sockets:
            tcp.listen_options(listening)
        self._expiry = asyncio.create_task(sessions.expire())
        self._expiry.add_done_callback(self._expiry_ended)
        host, port = self._listener.sockets[0].getsockname()[:2]
        words.port = port
        return host, port

    async def stop(self) -> None:
        """Close all connections and the file. The sessions stay in the file."""
        if self._listener is not None:
            self._listener.close()
        if self._expiry is not None:
            self._expiry.cancel()
        # Before the committer closes: clients must not see that as the loss of their sessions.
        for connection in list(self._traffic.connections):
            connection.abort()
        await self._committer.close()

    async def _addresses(self) -> list[str]:
        """Return the addresses to listen on; raise StartRefused if that is not safe."""
        options = self._options
        found = await asyncio.get_running_loop().getaddrinfo(
            options.host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
        if all(map(is_loopback, addresses)) or options.insecure or options.credentials:
            return addresses
        if options.tls is None:
            raise StartRefused(
                f"{options.host} can be reached from other hosts: use --credentials or"
                " --tls-cert, or --insecure"
            )
        if options.tls.client_ca is None:
            log.warning(
                "TLS without --tls-client-ca or --credentials does not authenticate clients"
            )
        return addresses

    def _expiry_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self._fail(error)

    def _fail(self, failure: Exception) -> None:
        log.critical("ZooKeeper failed and stops serving: %s", failure)
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
        raise StartRefused(f"cannot load the TLS files: {error}") from error
    return context
