"""`hightide broker start`: run one broker until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hightide import process_log, systemd
from hightide.settings import Broker as Settings
from hightide.settings import InvalidSetting, load_broker

if TYPE_CHECKING:
    from hightide.zookeeper.client import SessionKey

OK, FAILED, USAGE = 0, 1, 2

log = logging.getLogger("hightide.broker")


Report = Callable[["SessionKey | None"], None]


def run(argv: list[str], report_session: Report = lambda _: None) -> int:
    """Run a broker with these arguments and return its exit code.

    The key of the broker's ZooKeeper session is reported when the broker registers in a session,
    and None when it has closed the session.
    """
    if not __debug__:
        print("hightide needs its assertions: start Python without -O", file=sys.stderr)
        return USAGE
    gc.disable()  # until the broker serves: objects that the start creates stay
    arguments = _parse(argv)
    try:
        settings = load_broker(arguments.config, os.environ, _overrides(arguments))
    except InvalidSetting as wrong:
        print(wrong, file=sys.stderr)
        return USAGE
    known_id = settings.broker_id if settings.broker_id >= 0 else None
    try:
        process_log.begin("broker", process_log.Options.of(settings), known_id)
    except OSError as error:
        print(f"log.file: cannot write to {settings.log_file}: {error}", file=sys.stderr)
        return USAGE
    for line in settings.without_effect():
        log.warning("%s", line)
    for line in settings.narrowed():
        log.warning("%s", line)
    return _run(settings, arguments.memory, report_session)


def _parse(argv: list[str]) -> argparse.Namespace:
    epilog = None
    if any(argument in ("-h", "--help") for argument in argv):
        from hightide.settings.reference import help_text

        epilog = f"settings:\n\n{help_text()}"
    return _parser(epilog).parse_args(argv)


def _parser(epilog: str | None = None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hightide broker start",
        description="Start one broker. Settings come from FILE, then from KAFKA_* environment"
        " variables, then from --override.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a server.properties file")
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting that overrides the file and the environment; may be repeated",
    )
    parser.add_argument("--host", help="listen on this address only (short for listeners)")
    parser.add_argument("--port", type=int, help="listen on this port; 0 picks a free one")
    parser.add_argument("--memory", action="store_true", help="keep everything in memory")
    parser.add_argument(
        "--log-level", choices=process_log.LEVELS, help="short for the setting log.level"
    )
    return parser


def _overrides(arguments: argparse.Namespace) -> list[str]:
    overrides = list(arguments.override)
    if arguments.log_level is not None:
        overrides.append(f"log.level={arguments.log_level}")
    if arguments.host is not None or arguments.port is not None:
        port = 9092 if arguments.port is None else arguments.port
        overrides.append(f"listeners=PLAINTEXT://{arguments.host or '127.0.0.1'}:{port}")
    return overrides


def _raise_file_limit() -> None:
    """Raise the limit of open files as far as allowed: segments and connections need them."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run(settings: Settings, in_memory: bool, report_session: Report) -> int:
    _raise_file_limit()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_serve(settings, in_memory, report_session))
    return uvloop.run(_serve(settings, in_memory, report_session))


async def _serve(settings: Settings, in_memory: bool, report_session: Report) -> int:
    # Imported here, so that an error in the settings is reported before the broker is loaded.
    from hightide.broker.broker import Broker
    from hightide.broker.environment import RealEnvironment
    from hightide.broker.membership.identity import StartupRefused
    from hightide.log.disk import MemoryDisk
    from hightide.wire.errors import Corrupt, KafkaError
    from hightide.zookeeper.zookeeper_errors import ZooKeeperError

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    broker = Broker(
        settings, environment=RealEnvironment(memory=MemoryDisk() if in_memory else None)
    )
    broker.report_session = report_session
    broker.on_configured = lambda changed: process_log.configure(
        process_log.Options.of(changed), broker.broker_id
    )
    stop = asyncio.ensure_future(stopped.wait())
    # The start waits for ZooKeeper and for the controller; a signal must be able to end it.
    starting = asyncio.ensure_future(broker.start())
    await asyncio.wait([starting, stop], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    try:
        addresses = await starting
    except asyncio.CancelledError:
        log.info("stopped during the start")
        return OK
    except (StartupRefused, OSError, KafkaError, Corrupt, ZooKeeperError, InvalidSetting) as error:
        log.error("the broker cannot start: %s", error)
        return FAILED
    # Objects that exist now stay, so the collector need not look at them again; and it need not
    # run often, because nothing on the hot path makes cycles.
    gc.enable()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    # Compaction runs in a thread; the event loop must not wait five milliseconds for the GIL.
    sys.setswitchinterval(0.0005)
    _announce(broker.broker_id, addresses)
    waits: list[asyncio.Future[Any]] = [stop, broker.failed]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    code = OK
    if broker.failed.done():
        log.error("the broker must stop: %s", broker.failed.exception())
        code = FAILED
    log.info("stopping")
    systemd.stopping()
    await broker.stop()
    log.info("stopped")
    return code


def _announce(broker_id: int, addresses: Sequence[tuple[str, int]]) -> None:
    """Tell the log, the process that started this one, and systemd that the broker serves."""
    from hightide.zookeeper.server.traffic import is_loopback

    for host, port in addresses:
        log.info("broker %d listens on %s:%d", broker_id, host, port)
        if not is_loopback(host):
            log.warning(
                "other hosts can reach %s:%d, and clients are not authenticated: each can read,"
                " change and delete everything; the setting listeners chooses the address",
                host,
                port,
            )
    host, port = addresses[0]
    shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
    print(f"listening: {shown}:{port}", flush=True)
    systemd.ready(f"broker {broker_id} serves {shown}:{port}")
