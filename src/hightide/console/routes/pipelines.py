"""Pipelines: the apps on Spark that have run with a state folder, as a graph and as figures.

    GET /api/v1/pipelines

An app replaces its status file after every look at its queries; this reads the files and asks the
brokers for the current lag.  It needs no Spark.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Timestamp
from hightide.client.routing import addresses
from hightide.console.context import Console
from hightide.console.pipeline_graph import graph
from hightide.console.replies import ok
from hightide.spark.pipelines.status import AppStatus, Positions, State, known, lag
from hightide.wire.errors import KafkaError

DEFAULT_FOLDER = Path(".hightide") / "pipelines"
BAD = (State.FAILED, State.DIED)
MOST_APPS = 200
LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0", socket.gethostname().lower())


def routes(console: Console) -> list[Route]:
    async def pipelines(_request: Request) -> Response:
        folder = console.options.pipelines or DEFAULT_FOLDER
        apps, unreadable = await asyncio.to_thread(read, folder)
        notes = [f"{name} cannot be read: {why}" for name, why in unreadable]
        mine = [is_here(console, app) for app in apps]
        try:
            ends = await ends_of(
                console.admin, [app for app, here in zip(apps, mine, strict=True) if here]
            )
        except (ConnectionFailed, KafkaError) as error:
            ends = {}
            notes.append(f"The lag is that of the last micro-batch: {error}")
        now_ms = time.time_ns() // 1_000_000
        return ok(
            {
                "folder": str(folder.absolute()),
                "is_given": console.options.pipelines is not None,
                "exists": folder.is_dir(),
                "time_ms": now_ms,
                "apps": [
                    app_row(app, ends if here else {}, here, now_ms)
                    for app, here in zip(apps, mine, strict=True)
                ],
                "graph": graph(apps),
                "notes": notes,
            }
        )

    return [Route("/api/v1/pipelines", pipelines, methods=["GET"])]


def read(folder: Path) -> tuple[list[AppStatus], list[tuple[str, str]]]:
    """The status of every app in the folder, and the folders that cannot be read."""
    apps: list[AppStatus] = []
    unreadable: list[tuple[str, str]] = []
    try:
        for status in known(folder):
            apps.append(status)
            if len(apps) >= MOST_APPS:
                unreadable.append(("the rest", f"only {MOST_APPS} apps are shown"))
                break
    except (OSError, TypeError, ValueError, KeyError, AttributeError) as error:
        unreadable.append((str(folder), str(error)))
    return apps, unreadable


def is_here(console: Console, app: AppStatus) -> bool:
    """Whether an app reads from this cluster, as far as the addresses say."""
    try:
        theirs = {_address(*one) for one in addresses(app.brokers)}
        ours = {_address(*one) for one in addresses(console.options.bootstrap)}
    except ValueError:
        return False
    nodes = console.admin.router.nodes.values()
    return bool(theirs & (ours | {_address(node.host, node.port) for node in nodes}))


def _address(host: str, port: int) -> tuple[str, int]:
    host = host.lower()
    return "localhost" if host in LOCAL else host, port


async def ends_of(admin: Admin, apps: Iterable[AppStatus]) -> Positions:
    """Where the partitions end that the queries read; those that are gone are left out."""
    wanted = {
        (topic, int(partition))
        for app in apps
        for query in app.queries
        for topic, partitions in query.positions.items()
        for partition in partitions
    }
    if not wanted:
        return {}
    topics = await admin.topics.list()
    led = {
        (topic.name, one.partition)
        for topic in topics
        for one in topic.partitions
        if one.leader in admin.router.nodes
    }
    found = await admin.records.offsets(dict.fromkeys(wanted & led, Timestamp.LATEST))
    ends: Positions = {}
    for (topic, partition), at in found.items():
        ends.setdefault(topic, {})[str(partition)] = at.offset
    return ends


def app_row(app: AppStatus, ends: Positions, is_here: bool, now_ms: int) -> dict[str, Any]:
    return {
        **{
            name: getattr(app, name)
            for name in ("app", "file", "brokers", "master", "pid", "started_ms", "updated_ms")
        },
        "state": str(app.state),
        "level": level(app.state, [query.state for query in app.queries]),
        "error": app.error,
        "seen_ms": max(0, now_ms - app.updated_ms),
        "is_here": is_here,
        "queries": [query_row(query, ends) for query in app.queries],
    }


def query_row(query: Any, ends: Positions) -> dict[str, Any]:
    row = dataclasses.asdict(query) | {"state": str(query.state)}
    row["reads"] = sorted(row.pop("positions"))
    row["lag_is_current"] = bool(query.positions) and all(
        topic in ends for topic in query.positions
    )
    if row["lag_is_current"]:
        row["lag"] = lag(query.positions, ends)
    return row


def level(state: State, queries: Sequence[State]) -> str:
    if state in BAD or any(query in BAD for query in queries):
        return "bad"
    return "ok" if state in (State.RUNNING, State.FINISHED) else "off"
