"""`hightide partition …`: leaders, ISRs, and how far replicas are behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from hightide.cli import render
from hightide.cli.names import PartitionNames, named, topic_option, topics_of
from hightide.cli.options import LOCALHOST, Bootstrap, OutputOption, ask
from hightide.cli.partition import elect, live, reassign
from hightide.cli.partition.rows import (
    chosen,
    page,
    partition_details,
    partition_row,
)
from hightide.cli.render import Output
from hightide.cli.watch import LiveInterval, Watch
from hightide.client.admin import Admin
from hightide.client.model.replicas import PartitionReplicas, ReplicasDescription

app = typer.Typer(
    no_args_is_help=True,
    help="Inspect partitions and replicas, elect leaders, and reassign replicas.",
)
app.command()(elect.elect)
app.command()(reassign.reassign)


@app.command()
def show(
    partitions: PartitionNames,
    watch: Watch = False,
    interval: LiveInterval = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a partition's leader, AR, ISR, OSR and ELR, and the offsets of each replica.

    LEO is a replica's log end offset and HW its high watermark. LAG is how far the replica is
    behind its leader, in records, and LAG-MS for how long, in milliseconds. WHY says what keeps a
    replica out of sync. If the high watermark stands still, a sentence says why, and which replica
    holds it back.

    With --watch it draws the replicas at a terminal, with their states of the last minute and the
    newest events. In a pipe it prints the same as text, and with -o json one line for each look.
    """
    names = named(partitions)
    if watch:
        live.watch(names, bootstrap, output, interval)
        return

    async def run(admin: Admin) -> None:
        topics = topics_of(names)
        found = await admin.replicas.describe(topics)
        warn_about_silent(found)
        wanted = chosen(found.partitions, names)
        min_isr = await admin.configs.min_insync_replicas(topics)
        print_partitions(wanted, min_isr, output, bootstrap)

    ask(bootstrap, run)


@app.command("list")
def list_(
    topic: Annotated[
        list[str] | None,
        topic_option("Only these partitions; repeatable."),
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica out of sync.")
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option(
            "--under-min-isr", help="Only partitions with an ISR below min.insync.replicas."
        ),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only partitions without a leader.")
    ] = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """List partitions; with several filters, those that match any of them."""
    filters = {
        "under-replicated": under_replicated,
        "under-min-isr": under_min_isr,
        "offline": offline,
    }
    wanted = {word for word, is_wanted in filters.items() if is_wanted}
    names = named(topic)

    async def run(admin: Admin) -> tuple[ReplicasDescription, Mapping[str, int]]:
        found = await admin.replicas.describe(topics_of(names) or None)
        topics = sorted({partition.topic for partition in found.partitions})
        return found, await admin.configs.min_insync_replicas(topics)

    found, min_isr = ask(bootstrap, run)
    warn_about_silent(found)
    listed = chosen(found.partitions, names) if names else found.partitions
    rows = [partition_row(partition, min_isr) for partition in listed]
    if wanted:
        rows = [row for row in rows if wanted & set(row.status)]
    if not rows:
        render.say("There are no such partitions." if wanted else "There are no partitions.")
    columns = ("topic", "partition", "leader", "leader_epoch", "replicas", "isr", "elr", "status")
    render.show(rows, output, columns)


def print_partitions(
    found: list[PartitionReplicas],
    min_isr: Mapping[str, int],
    output: Output,
    bootstrap: str,
) -> None:
    if output is Output.JSON:
        details = [partition_details(partition, min_isr, bootstrap) for partition in found]
        render.show(details, output)
        return
    render.write("\n".join(page(partition, min_isr, bootstrap) for partition in found))


def warn_about_silent(found: ReplicasDescription) -> None:
    """Name the brokers without a report, so that users know that the output has gaps."""
    for broker, why in found.silent.items():
        render.say(f"Broker {broker} did not report its replicas. {why}")
    if found.others:
        brokers = ",".join(map(str, sorted(found.others)))
        render.say(f"Brokers {brokers} are not Hightide's: they do not report replica offsets.")
