"""`hightide up`: a local cluster in the foreground.

It only supervises: the coordinator and each broker are processes of their own, started exactly
as `hightide coordinator start` and `hightide broker start` would be, and all at once.  Their logs
go to files rather than through this process, so that a terminal which stops reading cannot stop
a broker.  No typer and no rich are loaded here: they would cost more time than everything else
between the command and the first answer.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hightide.process import (
    BrokerProcess,
    ServiceFailed,
    ServiceProcess,
    ZooKeeperProcess,
    first_to_stop,
    free_port,
    is_free,
    stop_all,
)
from hightide.zookeeper import DATABASE, OLD_DATABASE

DATA = Path(".hightide")
COORDINATOR_PORT = 2181
LOG_BYTES_KEPT = 16 * 1024 * 1024
MOST_REPLICAS = 3
GROUP_DELAY_MS = 100
"""How long a new group waits for more members.  Without any delay the first to come is alone until
its next heartbeat, three seconds later; with this one ten that come together wait for 0.25 s."""
HEARTBEAT_MS = 300
"""How often members of the newer protocol are heard, and so hear of each other.  With Kafka's five
seconds ten members take as long to share out their work; with this they take 0.7 s."""
CALM_S = 10.0
"""A coordinator that dies twice within this time is not started again."""

DESCRIPTION = """\
Start a local cluster and keep it running until Ctrl-C.

When every broker serves, one line goes to stdout:

    bootstrap: HOST:PORT,HOST:PORT,...
"""

EPILOG = """\
examples:
  hightide up                            broker on 127.0.0.1:9092, data kept in ./.hightide
  hightide up --brokers 3                three of them, on 9092, 9093 and 9094
  hightide up --memory --port 0          nothing on disk, free ports
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
        help="port of the first broker, the others count up; 0 picks free ones (default: 9092)",
    )
    made.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    made.add_argument(
        "--coordinator-port",
        type=int,
        metavar="PORT",
        help="port of the coordinator, on 127.0.0.1; 0 picks a free one (default: "
        f"{COORDINATOR_PORT} if it is free and --port is not 0, else a free one)",
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


def parse(argv: list[str]) -> argparse.Namespace:
    known = parser()
    options = known.parse_args(argv)
    if options.brokers < 1:
        known.error(f"--brokers {options.brokers} is no cluster; it takes at least one")
    for name, port in (("--port", options.port), ("--coordinator-port", options.coordinator_port)):
        if port is not None and not 0 <= port <= 65535:
            known.error(f"{name} {port} is not a port number (0 to 65535)")
    if options.port + options.brokers - 1 > 65535:
        known.error(f"--port {options.port} leaves no room for {options.brokers} brokers")
    if options.coordinator_port and options.coordinator_port in broker_ports(options):
        known.error(f"--coordinator-port {options.coordinator_port} is the port of a broker")
    return options


def run(argv: list[str]) -> int:
    options = parse(argv)
    # SIGTERM takes the way of Ctrl-C. Both are set before anything starts, and also where
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
    """Start everything, watch over it, stop everything; the exit code."""
    cluster = None
    try:
        move_old_zookeeper_data(folder)
        cluster = LocalCluster.of(options, folder)
        cluster.start()
        print(f"bootstrap: {','.join(each.address for each in cluster.brokers)}", flush=True)
        say(f"coordinator: {cluster.coordinator.address}")
        say(f"data: {'in memory' if options.memory else folder}   logs: {folder}/*.log")
        say("Ctrl-C stops it.")
        cluster.watch()
    except KeyboardInterrupt:
        say("stopping")
        return cluster.stop() if cluster else 0
    except (ServiceFailed, OSError) as error:
        say(f"hightide: {error}")
    if cluster:
        cluster.stop()
    return 1


@dataclass(slots=True)
class LocalCluster:
    """The processes of one `hightide up`."""

    coordinator: ZooKeeperProcess
    brokers: list[BrokerProcess]
    keeps_data: bool

    @classmethod
    def of(cls, options: argparse.Namespace, folder: Path) -> Self:
        port = coordinator_port(options)
        return cls(
            ZooKeeperProcess(
                coordinator_arguments(options, folder, port), folder / "coordinator.log"
            ),
            [
                BrokerProcess(
                    broker_arguments(options, folder, broker_id, port),
                    folder / f"broker-{broker_id}.log",
                    f"broker {broker_id}" if options.brokers > 1 else "",
                )
                for broker_id in range(1, options.brokers + 1)
            ],
            keeps_data=not options.memory,
        )

    @property
    def processes(self) -> list[ServiceProcess]:
        return [self.coordinator, *self.brokers]

    def start(self) -> None:
        """All at once: the brokers themselves wait for the coordinator."""
        for process in self.processes:
            make_room(process.log)
            process.launch()
        for process in self.processes:
            process.wait_until_it_listens()

    def watch(self) -> None:
        """Return when no broker is left.

        A broker that dies is told and missed, the others go on. The coordinator is started
        again: it finds its data, and the brokers' sessions in it. One that kept nothing cannot
        be, nor one that dies again soon after.
        """
        last_death = -CALM_S
        while living := [broker for broker in self.brokers if broker.is_running()]:
            dead = first_to_stop([self.coordinator, *living])
            failure = dead.died()
            if dead is self.coordinator:
                now = time.monotonic()
                if not self.keeps_data or now - last_death < CALM_S:
                    raise failure
                last_death = now
                say(f"hightide: {failure}\nhightide: the coordinator is started again.")
                self.coordinator.start()
            else:
                say(f"hightide: {failure}")

    def stop(self) -> int:
        """The brokers first and together, since they take their leave of the coordinator."""
        try:
            codes = [*stop_all(self.brokers), *stop_all([self.coordinator])]
        except KeyboardInterrupt:
            for process in self.processes:
                if process.is_running():
                    process.kill()
            return 1
        # A child that was told to stop before it served had nothing to put in order.
        return 0 if set(codes) <= {0, -signal.SIGTERM} else 1


def broker_ports(options: argparse.Namespace) -> range:
    """The ports that the brokers will have; none that can be known if they pick free ones."""
    return range(options.port, options.port + options.brokers) if options.port else range(0)


def coordinator_port(options: argparse.Namespace) -> int:
    """A port that is known before the coordinator runs, since all processes start at once."""
    wanted: int | None = options.coordinator_port
    if wanted and not is_free(wanted):
        # Found out here, before the brokers turn to whoever listens there.
        raise ServiceFailed(f"Port {wanted} is in use; give the coordinator another.")
    if wanted is None and options.port != 0 and COORDINATOR_PORT not in broker_ports(options):
        if is_free(COORDINATOR_PORT):
            return COORDINATOR_PORT
        say(f"hightide: port {COORDINATOR_PORT} is in use; the coordinator takes another.")
    while not wanted or wanted in broker_ports(options):
        wanted = free_port()
    return wanted


def coordinator_arguments(options: argparse.Namespace, folder: Path, port: int) -> list[str]:
    where = ["--memory"] if options.memory else ["--data", str(folder.resolve() / "coordinator")]
    return ["--listen", f"127.0.0.1:{port}", *where]


def broker_arguments(
    options: argparse.Namespace, folder: Path, broker_id: int, coordinator: int
) -> list[str]:
    port = options.port + broker_id - 1 if options.port else 0
    made = ["--host", options.host, "--port", str(port)]
    settings = [f"broker.id={broker_id}", f"zookeeper.connect=127.0.0.1:{coordinator}"]
    # Whoever starts several brokers wants to see replicas.
    settings.append(f"default.replication.factor={min(options.brokers, MOST_REPLICAS)}")
    settings.append(f"group.initial.rebalance.delay.ms={GROUP_DELAY_MS}")
    settings.append(f"group.consumer.heartbeat.interval.ms={HEARTBEAT_MS}")
    if options.memory:
        made.append("--memory")
    else:
        settings.append(f"log.dirs={folder.resolve() / f'broker-{broker_id}'}")
    for setting in [*settings, *options.override]:
        made += ["--override", setting]
    return made


def move_old_zookeeper_data(folder: Path) -> None:
    """Take over what a single broker of an earlier version kept among its own data.

    Two files are one database, so they move into a folder of another name first, and become the
    coordinator's when both are there. Whatever stopped us in between, the next start finishes it.
    """
    old, moving, new = folder / "broker-1", folder / "coordinator.moving", folder / "coordinator"
    databases = (OLD_DATABASE, DATABASE)
    if new.exists() or not (moving.exists() or any((old / name).exists() for name in databases)):
        return
    moving.mkdir(exist_ok=True)
    for name in (file for database in databases for file in (f"{database}-wal", database)):
        if (old / name).exists():
            (old / name).rename(moving / name)
    moving.rename(new)


def make_room(log: Path) -> None:
    """Keep one old log: a broker that is started every day must not fill a disk with its talk."""
    if log.exists() and log.stat().st_size > LOG_BYTES_KEPT:
        log.replace(log.with_suffix(".log.1"))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
