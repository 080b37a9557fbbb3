"""The options and the loop of `--watch`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from hightide.cli import render
from hightide.cli.options import ask
from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.errors import KafkaError

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")]
Interval = Annotated[
    float,
    typer.Option(
        "--interval", min=0.1, metavar="SECONDS", help="Time between two repetitions of --watch."
    ),
]
LiveInterval = Annotated[
    float | None,
    typer.Option(
        "--interval",
        min=0.05,
        metavar="SECONDS",
        help="Time between two looks of --watch. The default is 0.2 at a terminal, and else 1.",
        show_default=False,
    ),
]


def look(
    bootstrap: str,
    once: Callable[[Admin], Coroutine[Any, Any, None]],
    *,
    watch: bool,
    interval: float,
) -> None:
    """Run `once` one time, or repeatedly until Ctrl-C."""

    async def run(admin: Admin) -> None:
        while True:
            try:
                await once(admin)
            except (ConnectionFailed, KafkaError) as error:
                # Keep watching: the user wants to see when the cluster is back.
                if not watch:
                    raise
                render.say(f"hightide: {error}")
            if not watch:
                return
            await asyncio.sleep(interval)

    try:
        ask(bootstrap, run)
    except KeyboardInterrupt:
        if not watch:
            raise
