"""`hightide cluster …`: the brokers, the controller, and the health of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import typer

from hightide.cli import render
from hightide.cli.options import LOCALHOST, Bootstrap, Failed, OutputOption, ask
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.model.cluster import ClusterDescription, TopicDescription
from hightide.client.model.health import Problem, ProblemKind, problems
from hightide.client.model.replicas import ReplicasDescription

app = typer.Typer(no_args_is_help=True, help="Inspect the cluster as a whole.")


UNHEALTHY = 3
SHOWN = 20


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
    problems: list[Problem]


@app.command()
def info(bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE) -> None:
    """Show the cluster's id, its controller, and what each broker leads and holds."""

    async def run(admin: Admin) -> ClusterInfo:
        topics = await admin.topics.list()
        return cluster_info(await admin.cluster.describe(), topics)

    render.show_one(ask(bootstrap, run), output)


def cluster_info(cluster: ClusterDescription, topics: Sequence[TopicDescription]) -> ClusterInfo:
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
    """List what is wrong with the cluster; exit code 3 if anything is.

    Problems are: no controller, a partition without a leader, an ISR below min.insync.replicas, a
    replica that is out of sync, lost committed records, or is on a disk that is full or failed, a
    broker with replicas that is not alive, and a broker that does not answer.
    """

    async def run(admin: Admin) -> Health:
        found = await admin.replicas.describe()
        topics = sorted({partition.topic for partition in found.partitions})
        return health_of(found, await admin.configs.min_insync_replicas(topics))

    found = ask(bootstrap, run)
    render.show_one(found, output, leave_out=["problems"])
    if output is Output.TABLE:
        render.write("".join(f"{sentence}\n" for sentence in sentences(found.problems)))
    if not found.healthy:
        raise typer.Exit(UNHEALTHY)


def health_of(found: ReplicasDescription, min_isr: Mapping[str, int]) -> Health:
    listed = problems(found, min_isr)
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
        problems=listed,
    )


def sentences(found: Sequence[Problem]) -> list[str]:
    """The problems as sentences; of very many of one kind, the first and the number of the rest."""
    kinds: dict[ProblemKind, list[str]] = {}
    for problem in found:
        kinds.setdefault(problem.kind, []).append(problem.problem)
    lines = []
    for kind, listed in kinds.items():
        lines += listed[:SHOWN]
        if len(listed) > SHOWN:
            lines.append(
                f"… and {len(listed) - SHOWN} more that are {kind.value}; -o json has all."
            )
    return ["", *lines] if lines else []


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
