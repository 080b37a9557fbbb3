"""`hightide topic …`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import Annotated

import typer

from hightide.cli import render
from hightide.cli.options import LOCALHOST, Bootstrap, DryRun, OutputOption, ask, pairs, wrong_usage
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.model.cluster import ConfigSource, ResourceType, Timestamp, TopicDescription
from hightide.wire.errors import ErrorCode, KafkaError

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC...")]
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
    topics: Names,
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
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete topics and all their records.

    If one of several topics does not exist, none is deleted.
    """

    async def run(admin: Admin) -> list[DeleteRow]:
        known = {topic.name: topic for topic in await admin.topics.list()}
        missing = [name for name in topics if name not in known]
        if missing and not if_exists:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {missing[0]!r}."
            )
        rows = [DeleteRow(name, "does not exist", 0, 0) for name in missing]
        for name in (name for name in topics if name in known):
            records = sum(end - start for start, end in (await _ends(admin, known[name])).values())
            if not dry_run:
                await admin.topics.delete(name)
            result = "would be deleted" if dry_run else "deleted"
            rows.append(DeleteRow(name, result, len(known[name].partitions), records))
        return rows

    render.show(ask(bootstrap, run), output)


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
