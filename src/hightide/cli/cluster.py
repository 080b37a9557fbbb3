"""`hightide cluster …`: the brokers, their controller, and whether all is well."""

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
from hightide.client.model.health import ProblemKind, problems
from hightide.client.model.replicas import ReplicasDescription

app = typer.Typer(no_args_is_help=True, help="Look at the cluster as a whole.")


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
    """A broker that is alive, or that is not and holds replicas."""

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
class ProblemRow:
    kind: ProblemKind
    topic: str | None
    partition: int | None
    broker: int | None
    problem: str


@dataclass(frozen=True, slots=True)
class Health:
    healthy: bool
    controller: int | None
    brokers: list[int]
    partitions: int
    offline: int
    under_min_isr: int
    under_replicated: int
    problems: list[ProblemRow]


@app.command()
def info(bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE) -> None:
    """Show the cluster's id, its controller, and what each broker leads and holds."""

    async def run(admin: Admin) -> ClusterInfo:
        topics = await admin.topics.list()
        return cluster_info(await admin.cluster.describe(), topics)

    render.show_one(ask(bootstrap, run), output)


def cluster_info(cluster: ClusterDescription, topics: Sequence[TopicDescription]) -> ClusterInfo:
    partitions = [each for topic in topics for each in topic.partitions]
    leads = Counter(each.leader for each in partitions)
    in_sync = Counter(broker for each in partitions for broker in each.isr)
    holds = Counter(broker for each in partitions for broker in each.replicas)
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
    """Say what is wrong with the cluster; exit code 3 if anything is.

    Wrong is: no controller, a partition without a leader, too few replicas in sync to commit, a
    replica that is out of sync, one that lost committed records, a broker that is assigned
    replicas and not alive, and one that does not answer.
    """

    async def run(admin: Admin) -> Health:
        found = await admin.replicas.describe()
        topics = sorted({each.topic for each in found.partitions})
        return judged(found, await admin.configs.min_insync_replicas(topics))

    found = ask(bootstrap, run)
    render.show_one(found, output, leave_out=["problems"])
    if output is Output.TABLE:
        render.write("".join(f"{sentence}\n" for sentence in sentences(found.problems)))
    if not found.healthy:
        raise typer.Exit(UNHEALTHY)


def judged(found: ReplicasDescription, min_isr: Mapping[str, int]) -> Health:
    listed = problems(found, min_isr)
    partitions = found.partitions
    return Health(
        healthy=not listed,
        controller=found.controller if found.controller in found.live else None,
        brokers=sorted(found.live),
        partitions=len(partitions),
        offline=sum(each.is_offline for each in partitions),
        under_min_isr=sum(each.is_under_min_isr(min_isr.get(each.topic, 1)) for each in partitions),
        under_replicated=sum(bool(each.missing) for each in partitions),
        problems=[
            ProblemRow(each.kind, each.topic, each.partition, each.broker, each.sentence)
            for each in listed
        ],
    )


def sentences(found: Sequence[ProblemRow]) -> list[str]:
    """The problems as sentences; of very many of a kind, the first and how many more there are."""
    kinds: dict[ProblemKind, list[str]] = {}
    for each in found:
        kinds.setdefault(each.kind, []).append(each.problem)
    said = []
    for kind, told in kinds.items():
        said += told[:SHOWN]
        if len(told) > SHOWN:
            said.append(f"… and {len(told) - SHOWN} more that are {kind.value}; -o json has all.")
    return ["", *said] if said else []


controller_app = typer.Typer(
    invoke_without_command=True, help="Show which broker is the controller, or move that task."
)
app.add_typer(controller_app, name="controller")


@controller_app.callback()
def controller(
    context: typer.Context, bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE
) -> None:
    """Show which broker is the controller, or move that task."""
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
    """Let the controller hand its task to another broker, and wait until that has it.

    This is the safe form of deleting the znode /controller.
    """
    was, now = ask(bootstrap, lambda admin: admin.cluster.resign_controller())
    render.show_one(Resigned(was, now), output)


app.command("resign", hidden=True)(resign)
