"""`hightide cluster …`: the brokers and their controller."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from hightide.cli import render
from hightide.cli.options import LOCALHOST, Bootstrap, OutputOption, ask
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


# With one command only, typer would drop its name: `hightide cluster` instead of
# `hightide cluster info`. A callback keeps the group a group.
@app.callback()
def group() -> None:
    """Look at the cluster as a whole."""
