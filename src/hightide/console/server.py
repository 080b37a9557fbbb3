"""The console's process: options, checks, and uvicorn on a socket that is open before it prints.

    listening: 127.0.0.1:8088

The cluster may be away: the pages say so, and show it when it is there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from hightide import control, private_files
from hightide.client.admin import Admin
from hightide.client.routing import addresses
from hightide.console import password
from hightide.console.access import is_loopback
from hightide.console.app import create_app
from hightide.console.context import DEFAULT_PORT, Console, Options, Owner
from hightide.console.messages.decoders import check_registry
from hightide.console.observer import Observer
from hightide.console.password import BadPassword, Password

CONNECT_MS = 3_000
LAST_REPLIES_S = 1
BACKLOG = 128
REQUEST_HEAD_BYTES = 128 * 1024
"""A page sends the schema that it decodes values with in its address."""
SCHEMA_REGISTRY = "HIGHTIDE_SCHEMA_REGISTRY"

log = logging.getLogger(__name__)


class StartRefused(Exception):
    """The console does not start; the text is a sentence."""


def parser() -> argparse.ArgumentParser:
    built = argparse.ArgumentParser(
        prog="hightide console", description="Serve the console of a cluster.", allow_abbrev=False
    )
    built.add_argument("--bootstrap", "-b", default="localhost:9092", metavar="HOST:PORT")
    built.add_argument("--host", default="127.0.0.1")
    built.add_argument("--port", type=int, default=DEFAULT_PORT)
    built.add_argument("--read-only", action="store_true")
    built.add_argument("--password-file", type=Path, metavar="FILE")
    built.add_argument("--set-password", action="store_true")
    built.add_argument("--allow-host", action="append", default=[], metavar="NAME")
    built.add_argument("--pipelines", type=Path, metavar="DIR")
    built.add_argument("--title", default="")
    built.add_argument("--owner", action="store_true", help="`hightide up` has started it")
    built.add_argument("--banner-file", type=Path, metavar="FILE")
    built.add_argument("--metrics", action="append", default=[], metavar="URL")
    return built


def run(argv: Sequence[str]) -> int:
    """Serve until a signal; return the exit code."""
    given = parser().parse_args(argv)
    options = Options(
        given.bootstrap,
        given.host,
        given.port,
        given.read_only,
        given.password_file,
        tuple(given.allow_host),
        given.pipelines,
        given.title,
        tuple(given.metrics),
        given.owner,
        given.banner_file,
        # Not an option: other users of the machine see the words of a command, and a URL may hold
        # a password.
        os.environ.get(SCHEMA_REGISTRY, ""),
    )
    try:
        if given.set_password:
            return set_password(options.password_file)
        secret = checked(options)
        with listen(options.host, options.port) as listener:
            asyncio.run(serve(options, secret, listener))
    except StartRefused as refusal:
        print(f"hightide: {refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def checked(options: Options) -> Password | None:
    """The password, if there is one; raise StartRefused for options that are not safe or wrong."""
    try:
        addresses(options.bootstrap)
        secret = password.read(options.password_file) if options.password_file else None
    except (ValueError, BadPassword) as error:
        raise StartRefused(f"{error}.") from None
    if options.schema_registry:
        try:
            check_registry(options.schema_registry)
        except ValueError as error:
            raise StartRefused(str(error)) from None
    if options.password_file and password.is_open_to_others(options.password_file):
        log.warning("other users can read %s: `chmod 600` closes it", options.password_file)
    if secret is None and not is_loopback(options.host):
        raise StartRefused(
            f"--host {options.host} lets other machines in, so a password is needed:"
            " --password-file FILE. `hightide console --set-password --password-file FILE` makes"
            " one."
        )
    return secret


def set_password(path: Path | None) -> int:
    """Ask for a password at the terminal, or read a line of stdin, and write its hash."""
    if path is None:
        raise StartRefused("--set-password needs --password-file FILE.")
    if sys.stdin.isatty():
        text = getpass.getpass("Password: ")
        if text != getpass.getpass("Again: "):
            raise StartRefused("The two passwords differ.")
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    try:
        line = password.hash_of(text).line()
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        private_files.create(new)
        new.write_text(f"{line}\n")
        new.replace(path)
    except (BadPassword, OSError) as error:
        raise StartRefused(f"{error}.") from None
    print(f"hightide: {path} has the password's hash.", file=sys.stderr)
    return 0


def listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartRefused(f"{host} is not an address of this machine: {error.strerror}.") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartRefused(f"Cannot listen on {host}:{port}: {error.strerror}.") from None
    return listener


async def serve(options: Options, secret: Password | None, listener: socket.socket) -> None:
    is_local = options.is_child or control.is_running(options.bootstrap)
    console = Console(
        admin=Admin(options.bootstrap, client_id="hightide-console", connect_timeout_ms=CONNECT_MS),
        observer=Observer(options.bootstrap, title=options.title, is_local=is_local),
        options=options,
        owner=Owner(options.bootstrap) if is_local else None,
    )
    await Server(create_app(console, secret), console, listener).serve(sockets=[listener])


class Server(uvicorn.Server):
    """Says when it listens, and ends quietly and quickly."""

    def __init__(self, app: ASGIApp, console: Console, listener: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                ws="none",
                http="h11",
                h11_max_incomplete_event_size=REQUEST_HEAD_BYTES,
                lifespan="on",
                timeout_graceful_shutdown=LAST_REPLIES_S,
                timeout_keep_alive=30,
            )
        )
        self._console = console
        self._listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.should_exit:
            return
        address, port = self._listener.getsockname()[:2]
        host = f"[{address}]" if ":" in address else address
        print(f"listening: {host}:{port}", flush=True)
        if not self._console.options.is_child:
            here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
            print(f"console: http://{here}:{port}", file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._console.closing.set()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal ends the server, and is not raised again after that."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self.should_exit:
            os._exit(1)  # the second one
        self.should_exit = True
