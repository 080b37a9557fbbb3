"""`hightide topic …`: create, list, describe, alter, trim and delete topics."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from hightide.cli import completion, render
from hightide.cli.names import PartitionNames, existing, named
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    DryRun,
    Failed,
    OutputOption,
    Yes,
    ask,
    confirm,
    pairs,
    wrong_usage,
)
from hightide.cli.render import Output, counted
from hightide.client.admin import Admin
from hightide.client.model.cluster import (
    ConfigSource,
    Extent,
    Partition,
    ResourceType,
    Timestamp,
    TopicDescription,
)
from hightide.wire.errors import ErrorCode, KafkaError

app = typer.Typer(
    no_args_is_help=True, help="Create, list, describe, alter, trim and delete topics."
)

WOULD_BE, WOULD_BE_TRIMMED = "would be deleted", "would be trimmed"

Name = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC", autocompletion=completion.topics)]
Config = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic config; repeatable."),
]


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic: str
    partitions: int
    replication_factor: int
    internal: bool


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """The result of a change to one topic."""

    topic: str
    result: str


@dataclass(frozen=True, slots=True)
class DeleteRow:
    topic: str
    result: str
    partitions: int
    records: int


@dataclass(frozen=True, slots=True)
class TrimRow:
    """A partition, its first offset before and after, and how many offsets are between them."""

    topic: str
    partition: int
    start: int
    to: int
    records: int
    result: str


@dataclass(frozen=True, slots=True)
class PartitionRow:
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    start_offset: int | None
    end_offset: int | None


@dataclass(frozen=True, slots=True)
class TopicDetails:
    topic: str
    topic_id: str
    internal: bool
    replication_factor: int
    config: dict[str, str | None]
    partitions: list[PartitionRow]


@app.command()
def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Default: the broker's.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, help="Default: the broker's.")
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do not fail if the topic exists.")
    ] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create topics."""
    settings = pairs(config, "topic config")

    async def run(admin: Admin) -> list[ChangeRow]:
        rows = []
        for name in topics:
            try:
                await admin.topics.create(
                    name,
                    partitions=partitions or -1,
                    replication_factor=replication_factor or -1,
                    config=settings,
                    validate_only=dry_run,
                )
                rows.append(ChangeRow(name, "would be created" if dry_run else "created"))
            except KafkaError as error:
                if not (if_not_exists and error.code == ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise
                rows.append(ChangeRow(name, "exists"))
        return rows

    render.show(ask(bootstrap, run), output)


@app.command("list")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """List topics."""

    async def run(admin: Admin) -> list[TopicRow]:
        return [
            TopicRow(topic.name, len(topic.partitions), topic.replication_factor, topic.internal)
            for topic in await admin.topics.list()
            if internal or not topic.internal
        ]

    rows = ask(bootstrap, run)
    if not rows:
        render.say("There are no topics.")
    render.show(rows, output, ("topic", "partitions", "replication_factor"))


@app.command()
def describe(
    topics: Names, bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE
) -> None:
    """Show a topic's configs and its partitions: leader, replicas, ISR and offsets."""

    async def run(admin: Admin) -> list[TopicDetails]:
        return [await _details(admin, topic) for topic in await admin.topics.describe(topics)]

    found = ask(bootstrap, run)
    if output is Output.JSON:
        render.show(found, output)
        return
    for number, topic in enumerate(found):
        render.write("\n" if number else "")
        render.show_one(topic, output)


@app.command()
def alter(
    topic: Name,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="The new number; it can only grow."),
    ] = None,
    config: Config = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="Return to the default; repeatable."),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a topic's configs, or give it more partitions."""
    settings = pairs(config, "topic config")
    unset = delete_config or []
    if partitions is None and not settings and not unset:
        wrong_usage("nothing to alter: give --partitions, --config or --delete-config")

    async def run(admin: Admin) -> list[ChangeRow]:
        await admin.topics.describe([topic])
        if settings or unset:
            await admin.configs.alter(
                ResourceType.TOPIC, topic, values=settings, unset=unset, validate_only=dry_run
            )
        if partitions is not None:
            await admin.topics.create_partitions(topic, partitions, validate_only=dry_run)
        return [ChangeRow(topic, "would be altered" if dry_run else "altered")]

    render.show(ask(bootstrap, run), output)


@app.command()
def delete(
    topics: Names,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Do not fail if the topic does not exist.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete topics and all their records.

    If one of several topics does not exist, none is deleted.
    """

    async def prepare(admin: Admin) -> list[DeleteRow]:
        known = {topic.name: topic for topic in await admin.topics.list()}
        missing = [name for name in topics if name not in known]
        if missing and not if_exists:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {missing[0]!r}."
            )
        rows = [DeleteRow(name, "does not exist", 0, 0) for name in missing]
        for name in dict.fromkeys(name for name in topics if name in known):
            records = sum(end - start for start, end in (await _ends(admin, known[name])).values())
            rows.append(DeleteRow(name, WOULD_BE, len(known[name].partitions), records))
        return rows

    async def run(admin: Admin) -> list[DeleteRow]:
        rows = []
        for row in before:
            if row.result == WOULD_BE:
                await admin.topics.delete(row.topic)
                row = replace(row, result="deleted")
            rows.append(row)
        return rows

    before = ask(bootstrap, prepare)
    due = [row for row in before if row.result == WOULD_BE]
    if due and not dry_run:
        names = ", ".join(row.topic for row in due)
        records = counted(sum(row.records for row in due), "record")
        confirm(f"Delete {names}, and {records}?", yes=yes)
    render.show(before if dry_run else ask(bootstrap, run), output)


@app.command()
def trim(
    topics: PartitionNames,
    to_offset: Annotated[
        int | None,
        typer.Option("--to-offset", min=0, help="Delete the records before this offset."),
    ] = None,
    to_end: Annotated[bool, typer.Option("--to-end", help="Delete all records.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete the oldest records of partitions: those before an offset, or all.

    The topic keeps its partitions, its configs and its offsets. If one of several partitions ends
    before the offset, nothing is deleted.
    """
    if (to_offset is None) == (not to_end):
        wrong_usage("give either --to-offset or --to-end")
    names = named(topics)

    async def prepare(admin: Admin) -> list[TrimRow]:
        partitions = await existing(admin, names)
        extents = await admin.records.extents(partitions)
        return [trimmed(at, extents.get(at), to_offset) for at in partitions]

    async def run(admin: Admin) -> list[TrimRow]:
        # "The end" is the end that was shown: records that are written now stay.
        wanted = {(row.topic, row.partition): row.to for row in due}
        starts = await admin.records.delete(wanted)
        return [
            replace(row, to=starts[row.topic, row.partition], result="trimmed")
            if row in due
            else row
            for row in before
        ]

    before = ask(bootstrap, prepare)
    due = [row for row in before if row.result == WOULD_BE_TRIMMED]
    if due and not dry_run:
        records = counted(sum(row.records for row in due), "record")
        confirm(f"Delete {records} of {counted(len(due), 'partition')}?", yes=yes)
    render.show(ask(bootstrap, run) if due and not dry_run else before, output)


def trimmed(partition: Partition, extent: Extent | None, offset: int | None) -> TrimRow:
    """What trimming a partition to an offset would do; None is its end."""
    topic, index = partition
    if extent is None:
        raise Failed(f"{topic}/{index} has no leader; nothing was deleted.")
    to = extent.end_offset if offset is None else offset
    if to > extent.end_offset:
        raise Failed(
            f"{topic}/{index} ends at offset {extent.end_offset}, before {to}; nothing was deleted."
        )
    if to <= extent.start_offset:
        return TrimRow(topic, index, extent.start_offset, extent.start_offset, 0, "there already")
    records = to - extent.start_offset
    return TrimRow(topic, index, extent.start_offset, to, records, WOULD_BE_TRIMMED)


async def _ends(admin: Admin, topic: TopicDescription) -> dict[int, tuple[int, int]]:
    """Start and end offset of each partition that has a leader."""
    asked = [
        (topic.name, partition.partition) for partition in topic.partitions if partition.leader >= 0
    ]
    starts = await admin.records.offsets(dict.fromkeys(asked, Timestamp.EARLIEST))
    ends = await admin.records.offsets(dict.fromkeys(asked, Timestamp.LATEST))
    return {index: (starts[name, index].offset, ends[name, index].offset) for name, index in asked}


async def _details(admin: Admin, topic: TopicDescription) -> TopicDetails:
    entries = await admin.configs.describe(ResourceType.TOPIC, topic.name)
    ends = await _ends(admin, topic)
    return TopicDetails(
        topic=topic.name,
        topic_id=kafka_uuid(topic.topic_id),
        internal=topic.internal,
        replication_factor=topic.replication_factor,
        config={
            entry.name: entry.value
            for entry in entries
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        },
        partitions=[
            PartitionRow(
                partition=partition.partition,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                start_offset=ends.get(partition.partition, (None, None))[0],
                end_offset=ends.get(partition.partition, (None, None))[1],
            )
            for partition in topic.partitions
        ],
    )


def kafka_uuid(value: uuid.UUID) -> str:
    """A topic id as Kafka prints it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
