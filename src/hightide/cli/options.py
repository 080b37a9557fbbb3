"""Options that many commands share, declared once, and the way from a command to a cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from hightide.cli.render import Output, say
from hightide.client.admin import Admin
from hightide.client.routing import addresses

T = TypeVar("T")

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="HIGHTIDE_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker of the cluster; more may follow after commas.",
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print the answer.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, change nothing.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal, never asked.")
]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="NAME=VALUE", help="A setting of the client library; repeatable."),
]

LOCALHOST = "localhost:9092"


class Failed(Exception):
    """A command that cannot do what it was asked; the text is one sentence for a person."""


def misused(sentence: str) -> NoReturn:
    """A command line that makes no sense: the sentence and exit code 2."""
    raise typer.BadParameter(sentence)


def spelt(text: str, known: Sequence[str], what: str) -> str:
    """One of some words in the spelling that brokers know, however it was typed."""
    for each in known:
        if each.lower() == text.strip().lower():
            return each
    misused(f"{text!r} is no {what}; there are {', '.join(known)}")


def confirm(question: str, *, yes: bool) -> None:
    """Let a person at a terminal decide.  Scripts have decided."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise Failed("Nothing was changed.")


def tell_silence(silent: Mapping[int, str], what: str) -> None:
    """Say whose word is missing, so that nobody takes a gap for a fact."""
    for broker, why in silent.items():
        say(f"Broker {broker} cannot be asked for its {what}. {why}")


def pairs(texts: Iterable[str] | None, what: str) -> dict[str, str]:
    """`name=value` texts as a mapping."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            misused(f"{text!r} is no {what}; it should be NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def ask(bootstrap: str, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Ask a cluster one thing and hang up."""

    async def run() -> T:
        async with Admin(bootstrap) as admin:
            return await question(admin)

    try:
        addresses(bootstrap)
    except ValueError as error:
        misused(str(error))
    return asyncio.run(run())
