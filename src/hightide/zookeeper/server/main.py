"""`hightide zookeeper start`: run the embedded ZooKeeper server until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import sys
from pathlib import Path

from hightide import process_log, systemd
from hightide.zookeeper import CREDENTIALS, DATABASE, database_file, environment_credentials
from hightide.zookeeper.quota import Quota
from hightide.zookeeper.server.options import DEFAULT_PORT, Limits, ServerOptions, Tls

OK, FAILED, USAGE, COMMIT_FAILED = 0, 1, 2, 70

log = logging.getLogger("hightide.zookeeper")


def run(argv: list[str]) -> int:
    """Run the server with these arguments and return its exit code."""
    if not __debug__:
        print("hightide relies on assertions: start Python without -O", file=sys.stderr)
        return USAGE
    gc.disable()  # until it serves: objects created during the start are permanent
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        options = _options(arguments)
        process_log.begin("zookeeper", _log_options(arguments))
    except (ValueError, OSError) as wrong:
        print(wrong, file=sys.stderr)
        return USAGE
    _raise_file_limit()
    # asyncio's event loop, although uvloop is faster: it polls the sockets before it runs timers.
    # So after a pause the server reads the clients' pings before it expires their sessions.
    return asyncio.run(_serve(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hightide zookeeper start",
        description="Start an embedded ZooKeeper server. It speaks ZooKeeper's protocol, so"
        " ZooKeeper's clients and tools work with it.",
        epilog=f"The variable {CREDENTIALS} may also hold the credentials, user:password.",
    )
    limits, quota = Limits(), Quota()
    add = parser.add_argument
    add("--listen", default=f"127.0.0.1:{DEFAULT_PORT}", metavar="HOST:PORT",
        help="port 0 picks a free one (default: %(default)s)")  # fmt: skip
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--data", type=Path, metavar="DIR", help=f"directory of {DATABASE}")
    where.add_argument("--memory", action="store_true", help="keep everything in memory")
    add("--tick-ms", type=int, default=2000, metavar="MS",
        help="the unit of session timeouts (default: %(default)s)")  # fmt: skip
    add("--min-session-timeout-ms", type=int, metavar="MS", help="default: 2 ticks")
    add("--max-session-timeout-ms", type=int, metavar="MS", help="default: 20 ticks")
    add("--credentials", type=Path, metavar="FILE",
        help="file with lines user:password; clients must use one of them")  # fmt: skip
    add("--tls-cert", type=Path, metavar="FILE", help="serve TLS with this certificate (PEM)")
    add("--tls-key", type=Path, metavar="FILE", help="the key of --tls-cert (PEM)")
    add("--tls-client-ca", type=Path, metavar="FILE",
        help="clients must present a certificate signed by this CA (PEM)")  # fmt: skip
    add("--insecure", action="store_true",
        help="serve other hosts without credentials or TLS")  # fmt: skip
    add("--max-connections", type=int, default=limits.connections, metavar="N",
        help="default: %(default)s")  # fmt: skip
    add("--max-connections-per-ip", type=int, default=limits.connections_per_address,
        metavar="N", help="for clients on other hosts (default: %(default)s)")  # fmt: skip
    add("--max-sessions", type=int, default=limits.sessions, metavar="N",
        help="default: %(default)s")  # fmt: skip
    add("--max-held-bytes", type=int, default=limits.held_bytes, metavar="BYTES",
        help="memory of all clients: input, requests, output (default: %(default)s)")  # fmt: skip
    add("--max-znodes", type=int, default=quota.znodes, metavar="N",
        help="default: %(default)s")  # fmt: skip
    add("--max-tree-bytes", type=int, default=quota.tree_bytes, metavar="BYTES",
        help="paths, data and ACLs of all znodes (default: %(default)s)")  # fmt: skip
    add("--max-watches", type=int, default=quota.watches, metavar="N",
        help="watches of all clients (default: %(default)s)")  # fmt: skip
    add("--4lw-commands-whitelist", dest="words", default="srvr", metavar="WORDS",
        help="four-letter words for clients on other hosts, separated by commas, or *; a client on"
        " this host may use all (default: %(default)s)")  # fmt: skip
    add("--global-outstanding-limit", type=int, default=limits.outstanding, metavar="N",
        help="pending requests of all clients (default: %(default)s)")  # fmt: skip
    add("--max-response-bytes", type=int, default=limits.response_bytes, metavar="BYTES",
        help="default: %(default)s")  # fmt: skip
    add("--max-multi-operations", type=int, default=limits.operations, metavar="N",
        help="operations in one multi (default: %(default)s)")  # fmt: skip
    _add_log_options(parser)
    return parser


def _add_log_options(parser: argparse.ArgumentParser) -> None:
    log = process_log
    add = parser.add_argument
    add("--log-level", default="info", choices=log.LEVELS, help="default: %(default)s")
    add("--log-format", default="text", choices=log.FORMATS, help="default: %(default)s")
    add("--log-file", type=Path, metavar="FILE", help="write the log to this file, not to stderr")
    add("--log-file-max-bytes", type=int, default=log.MAX_BYTES, metavar="BYTES",
        help="size at which FILE becomes FILE.1 (default: %(default)s)")  # fmt: skip
    add("--log-file-backups", type=int, default=log.BACKUPS, metavar="N",
        help="earlier files that are kept; 0 leaves FILE to logrotate (default: %(default)s)",
        )  # fmt: skip


def _log_options(arguments: argparse.Namespace) -> process_log.Options:
    if arguments.log_file_max_bytes < 1 or arguments.log_file_backups < 0:
        raise ValueError("--log-file-max-bytes must be at least 1, --log-file-backups at least 0")
    return process_log.Options(
        arguments.log_level,
        arguments.log_format,
        None if arguments.log_file is None else arguments.log_file.absolute(),
        arguments.log_file_max_bytes,
        arguments.log_file_backups,
    )


def _options(arguments: argparse.Namespace) -> ServerOptions:
    host, colon, port = arguments.listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--listen {arguments.listen}: expected HOST:PORT")
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise ValueError("--tls-cert and --tls-key must be given together")
    if arguments.tls_client_ca is not None and arguments.tls_cert is None:
        raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
    tls = None
    if arguments.tls_cert is not None:
        tls = Tls(arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca)
    return ServerOptions(
        host=host.strip("[]"),
        port=int(port),
        file=None if arguments.memory else database_file(arguments.data),
        tick_ms=arguments.tick_ms,
        min_session_timeout_ms=arguments.min_session_timeout_ms,
        max_session_timeout_ms=arguments.max_session_timeout_ms,
        credentials=_credentials(arguments.credentials),
        tls=tls,
        words=tuple(word.strip() for word in arguments.words.split(",")),
        insecure=arguments.insecure,
        quota=Quota(
            znodes=arguments.max_znodes,
            tree_bytes=arguments.max_tree_bytes,
            watches=arguments.max_watches,
        ),
        limits=Limits(
            connections=arguments.max_connections,
            connections_per_address=arguments.max_connections_per_ip,
            sessions=arguments.max_sessions,
            held_bytes=arguments.max_held_bytes,
            response_bytes=arguments.max_response_bytes,
            operations=arguments.max_multi_operations,
            outstanding=arguments.global_outstanding_limit,
        ),
    )


def _credentials(file: Path | None) -> tuple[str, ...]:
    lines = [environment_credentials()]
    if file is not None:
        lines += file.read_text("utf-8").splitlines()
        if not any(line.strip() for line in lines):
            raise ValueError(f"{file}: expected lines of user:password, the file is empty")
    return tuple(line.strip() for line in lines if line.strip())


def _raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: every client needs one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(options: ServerOptions) -> int:
    # Imported here: an error in the options is reported before these modules are loaded.
    from hightide.zookeeper.server.server import StartRefused, ZooKeeperServer
    from hightide.zookeeper.zookeeper_errors import StorageError

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server = ZooKeeperServer(options)
    try:
        host, port = await server.start()
    except (StartRefused, StorageError, OSError) as error:
        print(f"ZooKeeper cannot start: {error}", file=sys.stderr)
        return USAGE if isinstance(error, StartRefused) else FAILED
    gc.enable()
    gc.freeze()
    # A collection of the youngest 250,000 objects takes some 30 ms, of all znodes much longer.
    gc.set_threshold(50_000, 5, 1000)
    print(f"listening: {shown(host)}:{port}", flush=True)
    systemd.ready(f"serves {shown(host)}:{port}")
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait((waiting, server.failed), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    systemd.stopping()
    await server.stop()
    log.info("stopped")
    return COMMIT_FAILED if server.failed.done() else OK


def shown(host: str) -> str:
    """Format an address as a client on this host writes it."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
