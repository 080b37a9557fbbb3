"""Options that many commands share, and the connection from a command to a cluster."""

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
        help="A broker of the cluster, or several with commas.",
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="The output format.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Do not ask for confirmation. Without a terminal there is no question."
    ),
]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="NAME=VALUE", help="A librdkafka setting; repeatable."),
]

LOCALHOST = "localhost:9092"


class Failed(Exception):
    """A command failed; the text is one sentence for users."""


def wrong_usage(sentence: str) -> NoReturn:
    """End the command with a sentence and exit code 2."""
    raise typer.BadParameter(sentence)


def spelt(text: str, known: Sequence[str], what: str) -> str:
    """The known word that equals `text` without regard to case."""
    for word in known:
        if word.lower() == text.strip().lower():
            return word
    wrong_usage(f"{text!r} is not a {what}; known are {', '.join(known)}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation at a terminal.  Without a terminal there is no question."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise Failed("Nothing was changed.")


def warn_about_silent(silent: Mapping[int, str], what: str) -> None:
    """Name the brokers that did not answer, so that users know that the output has gaps."""
    for broker, why in silent.items():
        say(f"Broker {broker} did not report its {what}. {why}")


def pairs(texts: Iterable[str] | None, what: str) -> dict[str, str]:
    """Parse `name=value` texts."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            wrong_usage(f"{text!r} is not a {what}; it should be NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def ask(bootstrap: str, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Connect to a cluster, run one function, and disconnect."""

    async def run() -> T:
        async with Admin(bootstrap) as admin:
            return await question(admin)

    try:
        addresses(bootstrap)
    except ValueError as error:
        wrong_usage(str(error))
    return asyncio.run(run())
