"""Options that many commands share, and the connection from a command to a cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from hightide.cli.render import Output, say, visible
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
    typer.Option(
        "-X",
        metavar="NAME=VALUE|@FILE",
        help="A librdkafka setting, or a file with one per line (@- is stdin); repeatable."
        " Passwords must come from a file.",
    ),
]

LOCALHOST = "localhost:9092"
LIMIT_S = ContextVar("limit_s", default=5.0)
"""How long a broker may take to accept a connection, and to answer the first request on it."""


def set_limit(seconds: float) -> float:
    LIMIT_S.set(seconds)
    return seconds


Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        max=3600,
        metavar="SECONDS",
        expose_value=False,
        callback=set_limit,
        help="How long to wait for a broker that is silent.",
    ),
]


def timeout_option(timeout: Timeout = 5.0) -> None:
    """Declare the option of all commands that ask a broker; see `parameters.add_option`."""


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
    if not yes and sys.stdin.isatty() and not typer.confirm(visible(question), err=True):
        raise Failed("Nothing was changed.")


def warn_about_silent(silent: Mapping[int, str], what: str) -> None:
    """Name the brokers that did not answer, so that users know that the output has gaps."""
    for broker, why in silent.items():
        say(f"Broker {broker} did not report its {what}. {why}")


def pairs(texts: Iterable[str] | None, what: str) -> dict[str, str]:
    """Parse `name=value` texts; refuse secrets, because every user can list arguments."""
    from hightide.settings.secrets import is_secret  # most commands take no pairs

    found: dict[str, str] = {}
    for text in texts or ():
        name = text.partition("=")[0].strip()
        if is_secret(name):
            wrong_usage(
                f"{name}: every user of this host can read arguments; put the secret into a file"
                " or a descriptor. Client settings take -X @FILE"
            )
        found |= _pair(text, what)
    return found


def client_settings(texts: Iterable[str] | None) -> dict[str, str]:
    """Parse librdkafka settings, given as `name=value` or as `@FILE`."""
    from hightide.settings import properties

    found: dict[str, str] = {}
    for text in texts or ():
        if not text.startswith("@"):
            found |= pairs([text], "client setting")
            continue
        try:
            lines = sys.stdin.read() if text == "@-" else Path(text[1:]).read_text("utf-8")
            found |= {name: value for _, name, value in properties.parse(lines)}
        except (OSError, UnicodeDecodeError, properties.BadProperties) as error:
            wrong_usage(f"-X {text}: {error}")
    return found


def _pair(text: str, what: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        wrong_usage(f"{text!r} is not a {what}; it should be NAME=VALUE")
    return {name.strip(): value.strip()}


def ask(bootstrap: str, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Connect to a cluster, run one function, and disconnect."""

    async def run() -> T:
        async with Admin(bootstrap, connect_timeout_ms=round(LIMIT_S.get() * 1000)) as admin:
            return await question(admin)

    try:
        addresses(bootstrap)
    except ValueError as error:
        wrong_usage(str(error))
    return asyncio.run(run())
