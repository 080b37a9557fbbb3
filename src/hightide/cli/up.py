"""`hightide up`: a local cluster in the foreground.

This process only supervises.  The ZooKeeper server and each broker are separate processes, started
exactly as `hightide zookeeper start` and `hightide broker start` do, and all at once.  Their logs
go to files and not through this process, so that a terminal that stops reading cannot block a
broker.  This module loads neither typer nor rich: that would take more time than everything else
until the first response.
"""

from __future__ import annotations

import argparse
import ipaddress
import signal
from collections.abc import Sequence
from pathlib import Path

from hightide import private_files
from hightide.cli.local_cluster import LocalCluster
from hightide.cli.local_console import CONSOLE_PORT, LocalConsole
from hightide.cli.render import say, write
from hightide.control import ControlServer
from hightide.process import BrokerProcess, ServiceFailed, ZooKeeperProcess, free_port, is_free
from hightide.settings.secrets import is_secret, variable_of
from hightide.zookeeper import DATABASE, OLD_DATABASE

DATA = Path(".hightide")
ZOOKEEPER_PORT = 2181
METRICS_PORT = 9404
"""As in the files of `hightide generate`, and in Strimzi."""
LISTENERS = "metrics.listeners"
MOST_REPLICAS = 3
GROUP_DELAY_MS = 100
"""How long a new group waits for more members.  Without a delay the first member is alone until its
next heartbeat, three seconds later; with this delay ten members that start together wait 0.25 s."""
HEARTBEAT_MS = 300
"""How often members of the consumer protocol send heartbeats, and so learn of each other.  With
Kafka's default, five seconds, ten members take that long to get their assignments; with this 0.7 s.
"""
DESCRIPTION = """\
Start a local cluster and keep it running until Ctrl-C.

When every broker serves, one line goes to stdout:

    bootstrap: HOST:PORT,HOST:PORT,...
"""

EPILOG = """\
examples:
  hightide up                            a broker on 127.0.0.1:9092 with data in ./.hightide
  hightide up --brokers 3                three brokers on 9092, 9093 and 9094
  hightide up --memory --port 0          nothing on disk, free ports
  hightide up --data /var/tmp/ht --override auto.create.topics.enable=false
"""


def parser() -> argparse.ArgumentParser:
    built = argparse.ArgumentParser(
        prog="hightide up",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    built.add_argument(
        "--brokers", type=int, default=1, metavar="N", help="how many brokers (default: 1)"
    )
    add_addresses(built)
    where = built.add_mutually_exclusive_group()
    where.add_argument(
        "--data",
        type=Path,
        default=DATA,
        metavar="DIR",
        help="folder for data and logs (default: ./.hightide)",
    )
    where.add_argument("--memory", action="store_true", help="keep all data in memory")
    console = built.add_mutually_exclusive_group()
    console.add_argument(
        "--console-port",
        type=int,
        metavar="PORT",
        help="port of the console, on 127.0.0.1; 0 picks a free one (default: "
        f"{CONSOLE_PORT} or the next that is free; a free one with --port 0)",
    )
    console.add_argument("--no-console", action="store_true", help="start no console")
    built.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a broker setting, with Kafka's name; repeatable",
    )
    return built


def add_addresses(built: argparse.ArgumentParser) -> None:
    """Add the options for where the processes listen."""
    built.add_argument(
        "--port",
        type=int,
        default=9092,
        help="port of the first broker; the others follow. 0 picks free ports (default: 9092)",
    )
    built.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    built.add_argument(
        "--zookeeper-port",
        "--coordinator-port",  # its name in earlier versions
        type=int,
        metavar="PORT",
        help="port of ZooKeeper, on 127.0.0.1; 0 picks a free one (default: "
        f"{ZOOKEEPER_PORT} if it is free and --port is not 0, else a free one)",
    )
    built.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="port of the first broker's /metrics, /livez and /readyz; the others follow. 0 picks"
        f" free ports (default: {METRICS_PORT} or the next that is free; free ones with --port 0)",
    )


def parse(argv: list[str]) -> argparse.Namespace:
    known = parser()
    options = known.parse_args(argv)
    if options.brokers < 1:
        known.error(f"--brokers {options.brokers} is too few; a cluster has at least one broker")
    for name, port in (
        ("--port", options.port),
        ("--zookeeper-port", options.zookeeper_port),
        ("--metrics-port", options.metrics_port),
        ("--console-port", options.console_port),
    ):
        if port is not None and not 0 <= port <= 65535:
            known.error(f"{name} {port} is not a port number (0 to 65535)")
    for name, port in (("--port", options.port), ("--metrics-port", options.metrics_port)):
        if port and port + options.brokers - 1 > 65535:
            known.error(f"{name} {port} leaves no room for {options.brokers} brokers")
    if options.zookeeper_port and options.zookeeper_port in broker_ports(options):
        known.error(f"--zookeeper-port {options.zookeeper_port} is the port of a broker")
    taken = {*broker_ports(options), options.zookeeper_port}
    if options.metrics_port and taken & {*wanted_metrics_ports(options)}:
        known.error(f"--metrics-port {options.metrics_port} has the port of another server")
    taken |= {*wanted_metrics_ports(options)}
    if options.console_port and options.console_port in taken:
        known.error(f"--console-port {options.console_port} is the port of another server")
    for override in options.override:
        name, equals, _ = override.partition("=")
        if not equals or not name.strip():
            known.error(f"--override {override!r} is not a setting; it should be NAME=VALUE")
        if is_secret(name):
            # `up` has no file of settings; brokers inherit its environment.
            known.error(
                f"--override {name}: every user of this host can read arguments; put the secret"
                f" into the variable {variable_of(name)}"
            )
    return options


def run(argv: list[str]) -> int:
    options = parse(argv)
    # Handle SIGTERM like Ctrl-C. Both handlers are set before anything starts, even if a shell
    # started this command with SIGINT ignored, as it does for background commands.
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
    """Start everything, watch it, stop everything, and return the exit code."""
    cluster = control = console = None
    try:
        move_old_zookeeper_data(folder)
        metrics = metrics_ports(options)
        port = console_port(options, metrics)
        cluster = local_cluster(options, folder, metrics)
        cluster.start()
        addresses = [broker.address for broker in cluster.brokers]
        control = ControlServer(addresses, cluster.execute)
        write(f"bootstrap: {','.join(addresses)}\n")
        say(f"zookeeper: {cluster.zookeeper.address}")
        if metrics:
            say(f"metrics: {'  '.join(metrics_url(options.host, port) for port in metrics)}")
        say(f"data: {'in memory' if options.memory else folder}   logs: {folder}/*.log")
        if not serves_this_host_only(options.host):
            say(f"--host {options.host}: other hosts can read, change and delete everything.")
        say("Ctrl-C stops it.")
        if port:
            more = [word for at in metrics for word in ("--metrics", metrics_url(options.host, at))]
            console = LocalConsole(port, addresses, folder, more)
            console.start()
        cluster.watch()
    except KeyboardInterrupt:
        say("stopping")
        if console:
            console.end()
        return cluster.stop() if cluster else 0
    except (ServiceFailed, OSError) as error:
        say(f"hightide: {error}")
    finally:
        if control:
            control.close()
        if console:
            console.end()
            console.wait()
    if cluster:
        cluster.stop()
    return 1


def local_cluster(
    options: argparse.Namespace, folder: Path, metrics: Sequence[int] = ()
) -> LocalCluster:
    """The processes for these options, not started yet; `metrics` are the ports of /metrics."""
    port = zookeeper_port(options, metrics)
    zookeeper = ZooKeeperProcess(
        zookeeper_arguments(options, folder, port), folder / "zookeeper.log"
    )
    brokers = []
    for broker_id in range(1, options.brokers + 1):
        broker = BrokerProcess(
            broker_arguments(options, folder, broker_id, port, metrics[broker_id - 1 :][:1]),
            folder / f"broker-{broker_id}.log",
            f"broker {broker_id}" if options.brokers > 1 else "",
        )
        broker.zookeeper = f"127.0.0.1:{port}"
        brokers.append(broker)
    return LocalCluster(zookeeper, brokers, keeps_data=not options.memory)


def serves_this_host_only(host: str) -> bool:
    """Whether an address is loopback; a name may be anything but `localhost`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def broker_ports(options: argparse.Namespace) -> range:
    """The ports of the brokers; empty if the brokers pick free ports."""
    return range(options.port, options.port + options.brokers) if options.port else range(0)


def zookeeper_port(options: argparse.Namespace, metrics: Sequence[int] = ()) -> int:
    """Choose ZooKeeper's port before it runs, because all processes start at once."""
    wanted: int | None = options.zookeeper_port
    if wanted and not is_free(wanted):
        # Checked here, before the brokers connect to another process on that port.
        raise ServiceFailed(f"Port {wanted} is in use; choose another --zookeeper-port.")
    if wanted is None and options.port != 0 and ZOOKEEPER_PORT not in broker_ports(options):
        if is_free(ZOOKEEPER_PORT):
            return ZOOKEEPER_PORT
        say(f"hightide: port {ZOOKEEPER_PORT} is in use; ZooKeeper gets another port.")
    while not wanted or wanted in {*broker_ports(options), *metrics}:
        wanted = free_port()
    return wanted


def wanted_metrics_ports(options: argparse.Namespace) -> range:
    """The ports that --metrics-port names; empty if free ones are picked."""
    first: int = options.metrics_port or 0
    return range(first, first + options.brokers) if first else range(0)


def metrics_ports(options: argparse.Namespace) -> list[int]:
    """Choose a port for the metrics of each broker; none if the user sets metrics.listeners."""
    if any(override.partition("=")[0].strip() == LISTENERS for override in options.override):
        return []
    ports = list(wanted_metrics_ports(options))
    for port in ports:
        if not is_free(port):
            raise ServiceFailed(f"Port {port} is in use; choose another --metrics-port.")
    if not ports and (options.metrics_port == 0 or options.port == 0):
        while len(ports) < options.brokers:
            ports = list({*ports, free_port()} - {options.zookeeper_port, *broker_ports(options)})
    taken = {*broker_ports(options), options.zookeeper_port or ZOOKEEPER_PORT}
    port = METRICS_PORT
    while len(ports) < options.brokers:
        if port > 65535:
            raise ServiceFailed("There is no free port for metrics; choose a --metrics-port.")
        if port not in taken and is_free(port):
            ports.append(port)
        port += 1
    return ports


def console_port(options: argparse.Namespace, metrics: Sequence[int] = ()) -> int:
    """Choose the port of the console; 0 if there is none."""
    if options.no_console:
        return 0
    taken = {*broker_ports(options), *metrics, options.zookeeper_port or ZOOKEEPER_PORT}
    wanted: int | None = options.console_port
    if wanted:
        if not is_free(wanted):
            raise ServiceFailed(f"Port {wanted} is in use; choose another --console-port.")
        return wanted
    if wanted == 0 or options.port == 0:
        return next(port for port in iter(free_port, 0) if port not in taken)
    for port in range(CONSOLE_PORT, 65536):
        if port not in taken and is_free(port):
            return port
    raise ServiceFailed("There is no free port for the console; choose a --console-port.")


def metrics_url(host: str, port: int) -> str:
    """The address of a broker's metrics, as a browser on this host takes it."""
    return f"http://{bracketed('127.0.0.1' if host == '0.0.0.0' else host)}:{port}/metrics"


def bracketed(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def zookeeper_arguments(options: argparse.Namespace, folder: Path, port: int) -> list[str]:
    where = ["--memory"] if options.memory else ["--data", str(folder.resolve() / "zookeeper")]
    return ["--listen", f"127.0.0.1:{port}", *where]


def broker_arguments(
    options: argparse.Namespace,
    folder: Path,
    broker_id: int,
    zookeeper_port: int,
    metrics: Sequence[int] = (),
) -> list[str]:
    port = options.port + broker_id - 1 if options.port else 0
    arguments = ["--host", options.host, "--port", str(port)]
    settings = [f"broker.id={broker_id}", f"zookeeper.connect=127.0.0.1:{zookeeper_port}"]
    # Several brokers are started to have replicas.
    settings.append(f"default.replication.factor={min(options.brokers, MOST_REPLICAS)}")
    settings.append(f"group.initial.rebalance.delay.ms={GROUP_DELAY_MS}")
    settings.append(f"group.consumer.heartbeat.interval.ms={HEARTBEAT_MS}")
    settings += [f"{LISTENERS}=HTTP://{bracketed(options.host)}:{port}" for port in metrics]
    if options.memory:
        arguments.append("--memory")
    else:
        settings.append(f"log.dirs={folder.resolve() / f'broker-{broker_id}'}")
    for setting in [*settings, *options.override]:
        arguments += ["--override", setting]
    return arguments


def move_old_zookeeper_data(folder: Path) -> None:
    """Take over the ZooKeeper data of earlier versions.

    They kept it in a folder `coordinator`, and before that a single broker kept it among its own
    data. The latter is one database in two files. Both are first moved into a folder of another
    name, and that folder is renamed when it has both. If this is interrupted, the next start
    finishes it.
    """
    old, moving, new = folder / "broker-1", folder / "zookeeper.moving", folder / "zookeeper"
    for before, after in ((folder / "coordinator.moving", moving), (folder / "coordinator", new)):
        if before.exists() and not after.exists():
            before.rename(after)
    databases = (OLD_DATABASE, DATABASE)
    if new.exists() or not (moving.exists() or any((old / name).exists() for name in databases)):
        return
    moving.mkdir(private_files.DIRECTORY_MODE, exist_ok=True)
    for name in (file for database in databases for file in (f"{database}-wal", database)):
        if (old / name).exists():
            (old / name).rename(moving / name)
    moving.rename(new)
