"""`hightide cluster …`: the brokers and their controller."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from hightide.cli import render
from hightide.cli.options import LOCALHOST, Bootstrap, Failed, OutputOption, ask
from hightide.cli.render import Output
from hightide.client.admin import Admin

app = typer.Typer(no_args_is_help=True, help="Look at the cluster as a whole.")


@dataclass(frozen=True, slots=True)
class NodeRow:
    id: int
    host: str
    port: int
    rack: str | None
    controller: bool


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str | None
    controller: int
    nodes: list[NodeRow]


@app.command()
def info(bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE) -> None:
    """Show the cluster's id, its brokers and which of them is the controller."""

    async def run(admin: Admin) -> ClusterInfo:
        found = await admin.describe_cluster()
        return ClusterInfo(
            cluster_id=found.cluster_id,
            controller=found.controller,
            nodes=[
                NodeRow(node.id, node.host, node.port, node.rack, node.id == found.controller)
                for node in found.nodes
            ],
        )

    render.show_one(ask(bootstrap, run), output)


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
        found = ask(bootstrap, lambda admin: admin.describe_cluster())
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
    was, now = ask(bootstrap, lambda admin: admin.resign_controller())
    render.show_one(Resigned(was, now), output)


app.command("resign", hidden=True)(resign)
