"""Names for the shell's completion, asked of the cluster.

A shell waits for the answer on every press of TAB, so the cluster has one second.  Without a
cluster there are no names, and no message: it would appear in the middle of the line being typed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import typer

from hightide.cli.options import LOCALHOST
from hightide.client.admin import Admin
from hightide.client.model.cluster import ResourceType

LIMIT_S = 1.0


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics; internal ones only after an underscore."""

    async def ask(admin: Admin) -> list[str]:
        return [
            topic.name
            for topic in await admin.topics.list()
            if not topic.internal or incomplete.startswith("_")
        ]

    return _matching(incomplete, _ask(context, ask))


def partitions(context: typer.Context, incomplete: str) -> list[str]:
    """Names of topics, and after the slash those of their partitions."""
    topic, slash, _ = incomplete.partition("/")
    if not slash:
        return topics(context, incomplete)

    async def ask(admin: Admin) -> list[str]:
        (found,) = await admin.topics.describe([topic])
        return [f"{topic}/{partition.partition}" for partition in found.partitions]

    return _matching(incomplete, _ask(context, ask))


def groups(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: Admin) -> list[str]:
        return [group.group for group in (await admin.groups.list()).groups]

    return _matching(incomplete, _ask(context, ask))


def transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: Admin) -> list[str]:
        return [found.transactional_id for found in (await admin.transactions.list()).transactions]

    return _matching(incomplete, _ask(context, ask))


def brokers(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: Admin) -> list[str]:
        return [str(node.id) for node in (await admin.cluster.describe()).nodes]

    return _matching(incomplete, _ask(context, ask))


def subscriptions(context: typer.Context, incomplete: str) -> list[str]:
    """Subscriptions of client metrics."""

    async def ask(admin: Admin) -> list[str]:
        return [name for _, name in await admin.configs.resources([ResourceType.CLIENT_METRICS])]

    return _matching(incomplete, _ask(context, ask))


def resources(context: typer.Context, incomplete: str) -> list[str]:
    """What has configs: `topic/NAME`, `broker/ID`, `brokers` and so on."""
    kind, slash, name = incomplete.partition("/")
    if not slash:
        return _matching(
            incomplete, ["topic/", "broker/", "brokers", "broker-logger/", "client-metrics/"]
        )
    known = {
        "topic": topics,
        "broker": brokers,
        "broker-logger": brokers,
        "client-metrics": subscriptions,
    }.get(kind)
    return [] if known is None else [f"{kind}/{found}" for found in known(context, name)]


def _matching(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete) and name.isprintable()})


def _ask(
    context: typer.Context, question: Callable[[Admin], Coroutine[Any, Any, list[str]]]
) -> Iterator[str]:
    bootstrap = str(context.params.get("bootstrap") or LOCALHOST)

    async def ask() -> list[str]:
        async with (
            asyncio.timeout(LIMIT_S),
            Admin(bootstrap, timeout_ms=int(LIMIT_S * 1000)) as admin,
        ):
            return await question(admin)

    try:
        yield from asyncio.run(ask())
    except Exception:
        # A failed completion completes nothing, whatever the reason is.
        return
