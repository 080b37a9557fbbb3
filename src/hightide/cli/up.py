"""`hightide up`: a local cluster in the foreground.

It only supervises: the broker is a process of its own, started exactly as `hightide broker
start` would be.  Its log goes to a file rather than through this process, so that a
terminal which stops reading cannot stop a broker.  No typer and no rich are loaded here:
they would cost more time than everything else between the command and the first answer.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from hightide.process import BrokerFailed, BrokerProcess

DATA = Path(".hightide")
BROKER_ID = 1
LOG_BYTES_KEPT = 16 * 1024 * 1024

DESCRIPTION = """\
Start a local cluster and keep it running until Ctrl-C.

When every broker serves, one line goes to stdout:

    bootstrap: HOST:PORT
"""

EPILOG = """\
examples:
  hightide up                            broker on 127.0.0.1:9092, data kept in ./.hightide
  hightide up --memory --port 0          nothing on disk, a free port
  hightide up --data /var/tmp/ht --override auto.create.topics.enable=false
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hightide up",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--brokers", type=int, default=1, metavar="N", help="how many brokers (default: 1)"
    )
    made.add_argument(
        "--port",
        type=int,
        default=9092,
        help="port of the first broker; 0 picks a free one (default: 9092)",
    )
    made.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    where = made.add_mutually_exclusive_group()
    where.add_argument(
        "--data",
        type=Path,
        default=DATA,
        metavar="DIR",
        help="where data and logs are kept between runs (default: ./.hightide)",
    )
    where.add_argument("--memory", action="store_true", help="keep everything in memory only")
    console = made.add_mutually_exclusive_group()
    console.add_argument(
        "--console-port",
        type=int,
        default=8088,
        metavar="PORT",
        help="accepted; this version has no console",
    )
    console.add_argument(
        "--no-console", action="store_true", help="accepted; this version has no console"
    )
    made.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a broker setting, by Kafka's name; may be repeated",
    )
    return made


def run(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if not 0 <= options.port <= 65535:
        parser().error(f"--port {options.port} is not a port number (0 to 65535)")
    if options.brokers != 1:
        say(f"hightide: this version runs one broker, not {options.brokers}; leave --brokers out.")
        return 2
    # SIGTERM takes the way of Ctrl-C. Both are set before the broker starts, and also where
    # a shell gave us an ignored SIGINT, as it does to commands in the background.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if options.memory:
            import tempfile

            with tempfile.TemporaryDirectory(prefix="hightide-") as folder:
                return supervise(options, Path(folder))
        return supervise(options, options.data)
    except KeyboardInterrupt:
        return 0


def supervise(options: argparse.Namespace, folder: Path) -> int:
    broker = BrokerProcess(broker_arguments(options, folder), folder / f"broker-{BROKER_ID}.log")
    try:
        make_room(broker.log)
        address = broker.start()
        print(f"bootstrap: {address}", flush=True)
        say(f"data: {'in memory' if options.memory else folder}   log: {broker.log}")
        say("Ctrl-C stops it.")
        broker.wait()
        raise broker.died()
    except KeyboardInterrupt:
        return stop(broker)
    except (BrokerFailed, OSError) as error:
        say(f"hightide: {error}")
        return 1


def stop(broker: BrokerProcess) -> int:
    try:
        say("stopping")
        code = broker.stop() if broker.is_running() else 0
        # A broker that was told to stop before it served had nothing to put in order.
        return 0 if code in {0, -signal.SIGTERM} else 1
    except KeyboardInterrupt:
        broker.kill()
        return 1


def broker_arguments(options: argparse.Namespace, folder: Path) -> list[str]:
    made = ["--host", options.host, "--port", str(options.port)]
    settings = [f"broker.id={BROKER_ID}", *options.override]
    if options.memory:
        made.append("--memory")
    else:
        settings.insert(0, f"log.dirs={folder.resolve() / f'broker-{BROKER_ID}'}")
    for setting in settings:
        made += ["--override", setting]
    return made


def make_room(log: Path) -> None:
    """Keep one old log: a broker that is started every day must not fill a disk with its talk."""
    if log.exists() and log.stat().st_size > LOG_BYTES_KEPT:
        log.replace(log.with_suffix(".log.1"))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
