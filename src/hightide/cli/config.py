"""`hightide config …`: configs of topics, brokers and client metrics; log levels of brokers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from hightide.cli import completion, render
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    DryRun,
    Failed,
    OutputOption,
    ask,
    pairs,
    wrong_usage,
)
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.model.cluster import ConfigEntry, ConfigSource, ResourceType

app = typer.Typer(no_args_is_help=True, help="Show and change configs and log levels.")

Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        autocompletion=completion.resources,
        help="topic/NAME, broker/ID, brokers for the cluster-wide defaults, or broker-logger/ID for"
        " the log levels of a running broker. client-metrics/NAME is a subscription: which clients"
        " push which of their metrics.",
    ),
]


class Kind(StrEnum):
    """The types of resources, as they begin."""

    TOPIC = "topic"
    BROKER = "broker"
    BROKER_LOGGER = "broker-logger"
    CLIENT_METRICS = "client-metrics"


@dataclass(frozen=True, slots=True)
class ChangeRow:
    resource: str
    name: str
    value: str | None
    result: str


def parse_resource(text: str) -> tuple[ResourceType, str]:
    """Parse `topic/NAME`, `broker/ID`, `brokers`, `broker-logger/ID` or `client-metrics/NAME`."""
    kind, slash, name = text.partition("/")
    if kind == "topic" and name:
        return ResourceType.TOPIC, name
    if kind == "broker" and name.isdecimal():
        return ResourceType.BROKER, name
    if kind == "broker-logger" and name.isdecimal():
        return ResourceType.BROKER_LOGGER, name
    if kind == "client-metrics" and name:
        return ResourceType.CLIENT_METRICS, name
    if kind == "brokers" and not slash:
        return ResourceType.BROKER, ""
    return wrong_usage(
        f"{text!r} is not a resource; it should be topic/NAME, broker/ID, brokers,"
        " broker-logger/ID or client-metrics/NAME"
    )


@dataclass(frozen=True, slots=True)
class ResourceRow:
    resource: str


@app.command("list")
def list_(
    kinds: Annotated[
        list[Kind] | None,
        typer.Argument(metavar="TYPE", help=f"Only these: {', '.join(Kind)}."),
    ] = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the resources that have configs."""

    async def run(admin: Admin) -> list[tuple[ResourceType, str]]:
        return await admin.configs.resources([ResourceType[kind.name] for kind in kinds or ()])

    found = [(Kind[kind.name], name) for kind, name in ask(bootstrap, run)]
    render.show([ResourceRow(f"{kind}/{name}") for kind, name in found], output)


@app.command()
def get(
    resource: Resource,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these configs.")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only configs that differ from the built-in default.")
    ] = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show configs, their values, and where each value comes from."""
    kind, name = parse_resource(resource)

    async def run(admin: Admin) -> list[ConfigEntry]:
        if kind is ResourceType.TOPIC:
            await admin.topics.describe([name])
        return await admin.configs.describe(kind, name, names or None)

    entries = ask(bootstrap, run)
    unknown = set(names or ()) - {entry.name for entry in entries}
    if unknown:
        raise Failed(f"{resource} has no config {', '.join(sorted(unknown))}.")
    if changed:
        entries = [entry for entry in entries if entry.source is not ConfigSource.DEFAULT_CONFIG]
    render.show(entries, output, ("name", "value", "source"))


@app.command("set")
def set_(
    resource: Resource,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE")],
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change configs; the others keep their values."""
    kind, name = parse_resource(resource)
    values = pairs(settings, "config")

    async def run(admin: Admin) -> None:
        await admin.configs.alter(kind, name, values=values, validate_only=dry_run)

    ask(bootstrap, run)
    result = "would be set" if dry_run else "set"
    render.show([ChangeRow(resource, key, values[key], result) for key in values], output)


@app.command()
def unset(
    resource: Resource,
    names: Annotated[list[str], typer.Argument(metavar="NAME")],
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Return configs to their defaults."""
    kind, name = parse_resource(resource)

    async def run(admin: Admin) -> None:
        await admin.configs.alter(kind, name, unset=names, validate_only=dry_run)

    ask(bootstrap, run)
    result = "would be unset" if dry_run else "unset"
    render.show([ChangeRow(resource, key, None, result) for key in names], output)


@app.command()
def delete(
    resource: Resource,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a subscription of client metrics, with all its configs."""
    kind, name = parse_resource(resource)
    if kind is not ResourceType.CLIENT_METRICS:
        wrong_usage(f"{resource} stays: only client-metrics/NAME can be deleted here")

    async def run(admin: Admin) -> list[ConfigEntry]:
        entries = [
            entry
            for entry in await admin.configs.describe(kind, name)
            if entry.source is ConfigSource.CLIENT_METRICS_CONFIG
        ]
        if not entries:
            raise Failed(f"There is no {resource}.")
        names = [entry.name for entry in entries]
        await admin.configs.alter(kind, name, unset=names, validate_only=dry_run)
        return entries

    result = "would be deleted" if dry_run else "deleted"
    rows = [ChangeRow(resource, entry.name, entry.value, result) for entry in ask(bootstrap, run)]
    render.show(rows, output)
