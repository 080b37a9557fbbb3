"""`hightide cluster …`: the brokers, the controller, and the health of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from hightide.cli import completion, moment, next_step, render
from hightide.cli.names import Names, named, topic_option
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    Failed,
    OutputOption,
    ask,
    warn_about_silent,
)
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.model.cluster import (
    ClientConnection,
    ClusterDescription,
    LogDir,
    TopicDescription,
)
from hightide.client.model.diagnosis import Cause, CauseKind, Effect, causes, short_names
from hightide.client.model.health import Problem, ProblemKind, problems
from hightide.client.model.replicas import ReplicasDescription

app = typer.Typer(no_args_is_help=True, help="Inspect the cluster as a whole.")


UNHEALTHY = 3
CONSEQUENCES = {
    ProblemKind.OFFLINE: "offline: neither read nor written",
    ProblemKind.UNDER_MIN_ISR: "under min ISR: writes with acks=all are refused",
    ProblemKind.LOST_RECORDS: "with lost records",
    ProblemKind.REPLICA_FAILED: "with a failed replica",
    ProblemKind.UNDER_REPLICATED: "under-replicated",
}


@dataclass(frozen=True, slots=True)
class NodeRow:
    id: int
    host: str
    port: int
    rack: str | None
    controller: bool


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker that is alive, or one that is not alive and has replicas."""

    id: int
    host: str | None
    port: int | None
    rack: str | None
    version: str | None
    alive: bool
    controller: bool
    leads: int
    in_sync: int
    replicas: int


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str | None
    controller: int | None
    topics: int
    partitions: int
    nodes: list[BrokerRow]


@dataclass(frozen=True, slots=True)
class Health:
    healthy: bool
    controller: int | None
    brokers: list[int]
    partitions: int
    offline: int
    under_min_isr: int
    under_replicated: int
    reassigning: int
    causes: list[Cause]
    problems: list[Problem]


@app.command()
def info(bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE) -> None:
    """Show the cluster's id, its controller, and what each broker leads and holds.

    VERSION is the version of Hightide; brokers of Apache Kafka do not tell theirs.
    """

    async def run(admin: Admin) -> ClusterInfo:
        topics = await admin.topics.list()
        versions = await admin.cluster.versions()
        return cluster_info(await admin.cluster.describe(), topics, versions)

    render.show_one(ask(bootstrap, run), output)


def cluster_info(
    cluster: ClusterDescription,
    topics: Sequence[TopicDescription],
    versions: Mapping[int, str | None],
) -> ClusterInfo:
    partitions = [partition for topic in topics for partition in topic.partitions]
    leads = Counter(partition.leader for partition in partitions)
    in_sync = Counter(broker for partition in partitions for broker in partition.isr)
    holds = Counter(broker for partition in partitions for broker in partition.replicas)
    alive = {node.id: node for node in cluster.nodes}
    rows = []
    for broker in sorted(alive.keys() | holds.keys()):
        node = alive.get(broker)
        rows.append(
            BrokerRow(
                id=broker,
                host=node.host if node else None,
                port=node.port if node else None,
                rack=node.rack if node else None,
                version=(versions.get(broker) or "unknown") if node else None,
                alive=node is not None,
                controller=broker == cluster.controller,
                leads=leads[broker],
                in_sync=in_sync[broker],
                replicas=holds[broker],
            )
        )
    controller = cluster.controller if cluster.controller in alive else None
    return ClusterInfo(cluster.cluster_id, controller, len(topics), len(partitions), rows)


@app.command()
def health(bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE) -> None:
    """Say what is wrong with the cluster, why, and what to do; exit code 3 if anything is.

    Each cause, such as a broker that is not alive, has the partitions that it affects, and the next
    command to type. -o json also lists the problem of each partition.

    Problems are: no controller, a partition without a leader, an ISR below min.insync.replicas, a
    replica that is out of sync, lost committed records, or is on a disk that is full or failed, a
    broker with replicas that is not alive, and a broker that does not answer.
    """

    async def run(admin: Admin) -> Health:
        found = await admin.replicas.describe()
        topics = sorted({partition.topic for partition in found.partitions})
        return health_of(found, await admin.configs.min_insync_replicas(topics), bootstrap)

    found = ask(bootstrap, run)
    render.show_one(found, output, leave_out=["causes", "problems"])
    if output is Output.TABLE:
        render.write("".join(f"\n{paragraph(cause)}" for cause in found.causes))
    if not found.healthy:
        raise typer.Exit(UNHEALTHY)


def health_of(
    found: ReplicasDescription, min_isr: Mapping[str, int], bootstrap: str = LOCALHOST
) -> Health:
    listed = problems(found, min_isr)
    why = causes(
        found,
        min_isr,
        is_local=bool(listed) and next_step.is_local(bootstrap),
        now_ms=moment.now_ms(),
    )
    partitions = found.partitions
    return Health(
        healthy=not listed,
        controller=found.controller if found.controller in found.live else None,
        brokers=sorted(found.live),
        partitions=len(partitions),
        offline=sum(partition.is_offline for partition in partitions),
        under_min_isr=sum(
            partition.is_under_min_isr(min_isr.get(partition.topic, 1)) for partition in partitions
        ),
        under_replicated=sum(bool(partition.missing) for partition in partitions),
        reassigning=sum(partition.state.is_reassigning for partition in partitions),
        causes=[replace(cause, next=next_step.here(cause.next, bootstrap)) for cause in why],
        problems=listed,
    )


def paragraph(cause: Cause) -> str:
    """A cause for people: what is wrong, what it affects, and the next command."""
    lines = [cause.cause]
    if cause.kind not in (CauseKind.OFFLINE, CauseKind.UNDER_MIN_ISR):
        lines += [f"  {affected(effect)}" for effect in cause.effects]
    elif len(cause.effects[0].partitions) > 1:
        lines.append(f"  {affected(cause.effects[0])}")
    lines.append(f"  {next_step.line(cause.next)}")
    return "".join(f"{line}\n" for line in lines)


def affected(effect: Effect) -> str:
    return (
        f"{len(effect.partitions)} {CONSEQUENCES[effect.kind]}:"
        f" {short_names(effect.partitions, effect.internal)}"
    )


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    broker: int
    client_id: str
    software: str
    version: str
    address: str
    port: int
    listener: str
    connected: str | None
    connected_for: str | None
    idle_seconds: float
    requests: int
    last_api: str | None
    peer_broker: int | None


CONNECTION_COLUMNS = {
    "broker": "broker",
    "client_id": "client-id",
    "software": "software",
    "version": "version",
    "address": "address",
    "port": "port",
    "listener": "listener",
    "connected_for": "connected",
    "requests": "requests",
    "last_api": "last-api",
}


@app.command()
def connections(
    broker: Annotated[
        list[int] | None,
        typer.Option(
            "--broker",
            min=0,
            autocompletion=completion.brokers,
            help="Only this broker; repeatable.",
        ),
    ] = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the open connections of each broker: the client, its software, its requests.

    Names and versions are what clients say about themselves. Connections between brokers have the
    id of the other broker in PEER-BROKER, with -o json. Brokers of Apache Kafka do not list theirs.
    """
    found = ask(bootstrap, lambda admin: admin.cluster.connections())
    warn_about_silent(found.silent, "connections")
    for foreign in found.foreign:
        render.say(f"Broker {foreign} does not list its connections. Only brokers of Hightide do.")
    now_ms = moment.now_ms()
    rows = [
        connection_row(one, now_ms)
        for one in found.connections
        if not broker or one.broker in broker
    ]
    if output is Output.TABLE and rows:
        render.write(render.table(rows, headings=CONNECTION_COLUMNS))
    else:
        render.show(rows, output)


def connection_row(found: ClientConnection, now_ms: int) -> ConnectionRow:
    return ConnectionRow(
        broker=found.broker,
        client_id=found.client_id,
        software=found.software,
        version=found.version,
        address=found.address,
        port=found.port,
        listener=found.listener,
        connected=moment.iso(found.connected_ms),
        connected_for=moment.age(found.connected_ms, now_ms),
        idle_seconds=found.idle_ms / 1000,
        requests=found.requests,
        last_api=found.last_api,
        peer_broker=found.peer_broker,
    )


@dataclass(frozen=True, slots=True)
class LogDirRow:
    broker: int
    log_dir: str
    status: str
    replicas: int
    size_bytes: int
    usable_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    broker: int
    log_dir: str
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    future: bool


@app.command()
def logdirs(
    broker: Annotated[
        list[int] | None,
        typer.Option(
            "--broker",
            min=0,
            autocompletion=completion.brokers,
            help="Only this broker; repeatable.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        topic_option("Show the replicas of these partitions; repeatable."),
    ] = None,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Show each replica instead of each directory.")
    ] = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the log directories of each broker, their replicas and their free space.

    Sizes are in bytes. USABLE and TOTAL are those of the disk, and unknown of older brokers.
    """
    names = named(topic)
    found = ask(bootstrap, lambda admin: admin.cluster.log_dirs())
    warn_about_silent(found.silent, "log directories")
    listed = [one for one in found.directories if not broker or one.broker in broker]
    if names or replicas:
        render.show(replica_rows(listed, names), output)
    else:
        render.show([log_dir_row(directory) for directory in listed], output)


def log_dir_row(directory: LogDir) -> LogDirRow:
    return LogDirRow(
        broker=directory.broker,
        log_dir=directory.log_dir,
        status="ok" if directory.error is None else directory.error.name,
        replicas=len(directory.replicas),
        size_bytes=sum(replica.size_bytes for replica in directory.replicas),
        usable_bytes=directory.usable_bytes,
        total_bytes=directory.total_bytes,
    )


def replica_rows(directories: Sequence[LogDir], names: Names) -> list[ReplicaRow]:
    """The replicas of the named partitions, or all, by partition and broker."""
    rows = [
        ReplicaRow(
            broker=directory.broker,
            log_dir=directory.log_dir,
            topic=replica.topic,
            partition=replica.partition,
            size_bytes=replica.size_bytes,
            offset_lag=replica.offset_lag,
            future=replica.is_future,
        )
        for directory in directories
        for replica in directory.replicas
        if not names
        or (replica.topic, None) in names
        or (replica.topic, replica.partition) in names
    ]
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.broker))


controller_app = typer.Typer(
    invoke_without_command=True, help="Show which broker is the controller, or make it resign."
)
app.add_typer(controller_app, name="controller")


@controller_app.callback()
def controller(
    context: typer.Context, bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE
) -> None:
    """Show which broker is the controller, or make it resign."""
    if context.invoked_subcommand is None:
        found = ask(bootstrap, lambda admin: admin.cluster.describe())
        rows = [
            NodeRow(node.id, node.host, node.port, node.rack, True)
            for node in found.nodes
            if node.id == found.controller
        ]
        if not rows:
            raise Failed("The cluster has no controller now.")
        render.show_one(rows[0], output)


@dataclass(frozen=True, slots=True)
class Resigned:
    was: int
    controller: int


@controller_app.command()
def resign(bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE) -> None:
    """Make the controller resign, and wait until another broker is the controller.

    This is the safe form of deleting the znode /controller.
    """
    was, now = ask(bootstrap, lambda admin: admin.cluster.resign_controller())
    render.show_one(Resigned(was, now), output)


app.command("resign", hidden=True)(resign)
