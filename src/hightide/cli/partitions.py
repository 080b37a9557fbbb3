"""`hightide partition …`: who leads, who is in sync and how far behind the others are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from hightide.cli import elections, reassignments, render
from hightide.cli.options import LOCALHOST, Bootstrap, OutputOption, ask
from hightide.cli.partition_rows import (
    chosen,
    named,
    page,
    partition_details,
    partition_row,
)
from hightide.cli.render import Output
from hightide.cli.watch import Interval, Watch, look
from hightide.client.admin import Admin
from hightide.client.model.replicas import PartitionReplicas, ReplicasDescription

app = typer.Typer(
    no_args_is_help=True,
    help="Look at partitions and their replicas, elect leaders, and move replicas.",
)
app.command()(elections.elect)
app.command()(reassignments.reassign)


@app.command()
def show(
    partitions: Annotated[list[str], typer.Argument(metavar="TOPIC[/PARTITION]")],
    watch: Watch = False,
    interval: Interval = 1.0,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a partition's leader, AR, ISR, OSR and ELR, and how far each replica is.

    LEO is the end of a replica's log and HW its high watermark; the lag is how far its leader is
    ahead, in records, and for how long, in milliseconds. WHY says in words what keeps a replica
    out of sync. With --watch and -o json each look is one line.
    """
    names = [named(text) for text in partitions]

    async def once(admin: Admin) -> None:
        topics = list(dict.fromkeys(topic for topic, _ in names))
        found = await admin.replicas.describe(topics)
        tell_silence(found)
        wanted = chosen(found.partitions, names)
        print_partitions(wanted, await admin.configs.min_insync_replicas(topics), output, watch)

    look(bootstrap, once, watch=watch, interval=interval)


@app.command("list")
def list_(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only of this topic; repeatable.")
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only those with a replica out of sync.")
    ] = False,
    under_min_isr: Annotated[
        bool, typer.Option("--under-min-isr", help="Only those that cannot commit.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only those that nobody leads.")
    ] = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """List partitions; of several filters, it is enough to fit one."""
    filters = {
        "under-replicated": under_replicated,
        "under-min-isr": under_min_isr,
        "offline": offline,
    }
    wanted = {word for word, is_wanted in filters.items() if is_wanted}

    async def run(admin: Admin) -> tuple[ReplicasDescription, Mapping[str, int]]:
        found = await admin.replicas.describe(topic)
        topics = sorted({each.topic for each in found.partitions})
        return found, await admin.configs.min_insync_replicas(topics)

    found, min_isr = ask(bootstrap, run)
    tell_silence(found)
    rows = [partition_row(each, min_isr) for each in found.partitions]
    if wanted:
        rows = [row for row in rows if wanted & set(row.status)]
    if not rows:
        render.say("There are no such partitions." if wanted else "There are no partitions.")
    columns = ("topic", "partition", "leader", "leader_epoch", "replicas", "isr", "elr", "status")
    render.show(rows, output, columns)


def print_partitions(
    found: list[PartitionReplicas], min_isr: Mapping[str, int], output: Output, watch: bool
) -> None:
    if output is Output.JSON:
        details = [partition_details(each, min_isr) for each in found]
        if watch:
            render.write(render.json_line(render.plain(details)))
        else:
            render.show(details, output)
        return
    text = "\n".join(page(each, min_isr) for each in found)
    render.write(render.fresh_page(text) if watch else text)


def tell_silence(found: ReplicasDescription) -> None:
    """Say whose word is missing, so that nobody takes a gap for a fact."""
    for broker, why in found.silent.items():
        render.say(f"Broker {broker} cannot be asked how its replicas are. {why}")
    if found.others:
        brokers = ",".join(map(str, sorted(found.others)))
        render.say(f"Brokers {brokers} are not Hightide's: they tell no offsets of replicas.")
