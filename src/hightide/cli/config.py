"""`hightide config …`: the configs of topics and brokers."""

from __future__ import annotations

from dataclasses import dataclass
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

app = typer.Typer(no_args_is_help=True, help="Show and change the configs of topics and brokers.")

Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        autocompletion=completion.resources,
        help="topic/NAME, broker/ID, or brokers for the cluster-wide defaults.",
    ),
]


@dataclass(frozen=True, slots=True)
class ChangeRow:
    resource: str
    name: str
    value: str | None
    result: str


def parse_resource(text: str) -> tuple[ResourceType, str]:
    """Parse `topic/NAME`, `broker/ID` or `brokers`."""
    kind, slash, name = text.partition("/")
    if kind == "topic" and name:
        return ResourceType.TOPIC, name
    if kind == "broker" and name.isdecimal():
        return ResourceType.BROKER, name
    if kind == "brokers" and not slash:
        return ResourceType.BROKER, ""
    return wrong_usage(f"{text!r} is not a resource; it should be topic/NAME, broker/ID or brokers")


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
