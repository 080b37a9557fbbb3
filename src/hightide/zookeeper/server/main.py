"""`hightide coordinator start`: options in, one coordinator out, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from pathlib import Path

from hightide.zookeeper import DATABASE
from hightide.zookeeper.server.options import DEFAULT_PORT, Limits, ServerOptions, Tls

OK, FAILED, USAGE, COMMIT_FAILED = 0, 1, 2, 70

CREDENTIALS = "HIGHTIDE_COORDINATOR_CREDENTIALS"

log = logging.getLogger("hightide.coordinator")


def run(argv: list[str]) -> int:
    """Run a coordinator with these arguments; its exit code."""
    if not __debug__:
        print("hightide relies on its assertions: start it without -O", file=sys.stderr)
        return USAGE
    gc.disable()  # until it serves: what is loaded now is there to stay
    parser = _parser()
    arguments = parser.parse_args(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
    )
    try:
        options = _options(arguments)
    except (ValueError, OSError) as wrong:
        print(wrong, file=sys.stderr)
        return USAGE
    _raise_file_limit()
    # Python's own event loop, though another answers sooner: it looks at the sockets before the
    # timers, so that after a pause what clients said is heard before their sessions are judged.
    return asyncio.run(_serve(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hightide coordinator start",
        description="Start a coordinator: what brokers agree through. It speaks ZooKeeper's"
        " protocol, so ZooKeeper's clients and tools work with it.",
        epilog=f"Credentials may also be given as user:password in {CREDENTIALS}.",
    )
    limits = Limits()
    add = parser.add_argument
    add("--listen", default=f"127.0.0.1:{DEFAULT_PORT}", metavar="HOST:PORT",
        help="port 0 picks a free one (default: %(default)s)")  # fmt: skip
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--data", type=Path, metavar="DIR", help=f"keep {DATABASE} here")
    where.add_argument("--memory", action="store_true", help="keep everything in memory")
    add("--tick-ms", type=int, default=2000, metavar="MS",
        help="the unit of session timeouts (default: %(default)s)")  # fmt: skip
    add("--min-session-timeout-ms", type=int, metavar="MS", help="default: 2 ticks")
    add("--max-session-timeout-ms", type=int, metavar="MS", help="default: 20 ticks")
    add("--credentials", type=Path, metavar="FILE",
        help="lines user:password; nobody else is served then")  # fmt: skip
    add("--tls-cert", type=Path, metavar="FILE", help="serve TLS with this certificate (PEM)")
    add("--tls-key", type=Path, metavar="FILE", help="and this key")
    add("--tls-client-ca", type=Path, metavar="FILE",
        help="clients must show a certificate signed by this authority")  # fmt: skip
    add("--insecure", action="store_true",
        help="serve other machines without credentials or TLS")  # fmt: skip
    add("--max-connections", type=int, default=limits.connections, metavar="N",
        help="default: %(default)s")  # fmt: skip
    add("--max-connections-per-ip", type=int, default=limits.connections_per_address,
        metavar="N", help="does not count this machine (default: %(default)s)")  # fmt: skip
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


def _options(arguments: argparse.Namespace) -> ServerOptions:
    host, colon, port = arguments.listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--listen {arguments.listen}: it must be HOST:PORT")
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise ValueError("--tls-cert and --tls-key belong together")
    if arguments.tls_client_ca is not None and arguments.tls_cert is None:
        raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
    tls = None
    if arguments.tls_cert is not None:
        tls = Tls(arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca)
    return ServerOptions(
        host=host.strip("[]"),
        port=int(port),
        file=None if arguments.memory else arguments.data / DATABASE,
        tick_ms=arguments.tick_ms,
        min_session_timeout_ms=arguments.min_session_timeout_ms,
        max_session_timeout_ms=arguments.max_session_timeout_ms,
        credentials=_credentials(arguments.credentials),
        tls=tls,
        insecure=arguments.insecure,
        limits=Limits(
            connections=arguments.max_connections,
            connections_per_address=arguments.max_connections_per_ip,
        ),
    )


def _credentials(file: Path | None) -> tuple[str, ...]:
    lines = [os.environ.get(CREDENTIALS, "")]
    if file is not None:
        lines += file.read_text("utf-8").splitlines()
        if not any(line.strip() for line in lines):
            raise ValueError(f"{file}: no user:password in it, so nobody could be served")
    return tuple(line.strip() for line in lines if line.strip())


def _raise_file_limit() -> None:
    """Take all the open files that the process may have: every client needs one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(options: ServerOptions) -> int:
    # Imported here: a mistake in the options is told before the server's parts are loaded.
    from hightide.zookeeper.errors import StorageError
    from hightide.zookeeper.server.server import Refused, ZooKeeperServer

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    coordinator = ZooKeeperServer(options)
    try:
        host, port = await coordinator.start()
    except (Refused, StorageError, OSError) as error:
        print(f"the coordinator cannot start: {error}", file=sys.stderr)
        return USAGE if isinstance(error, Refused) else FAILED
    gc.enable()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    print(f"listening: {shown(host)}:{port}", flush=True)
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait((waiting, coordinator.failed), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await coordinator.stop()
    log.info("stopped")
    return COMMIT_FAILED if coordinator.failed.done() else OK


def shown(host: str) -> str:
    """An address as a client on this machine would write it."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
