"""Clients: the connections of every broker, the software at their ends, and client metrics.

GET /api/v1/clients          connections; of brokers that do not list them, members of groups
GET /api/v1/client-metrics   subscriptions (KIP-714) and their settings
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import ClientConnection, ResourceType
from hightide.client.model.groups import GroupLag
from hightide.console.commands import command
from hightide.console.context import Console
from hightide.console.group_watch import watch_of
from hightide.console.replies import ok
from hightide.wire.errors import KafkaError

MOST_CONNECTIONS = 2_000
"""Of each broker."""
MOST_SUBSCRIPTIONS = 200


def routes(console: Console) -> list[Route]:
    admin, bootstrap = console.admin, console.options.bootstrap

    async def clients(_request: Request) -> Response:
        found = await admin.cluster.connections(MOST_CONNECTIONS)
        members: list[dict[str, Any]] = []
        if found.foreign:
            watch = watch_of(console)
            await watch.seen()
            members = members_of(watch.surveyed.lags.values())
        return ok(
            {
                "connections": found.connections,
                "open_connections": found.open_connections,
                "software": software_of(found.connections),
                "foreign": found.foreign,
                "members": members,
                "notes": [
                    f"Broker {broker} does not answer: {why}"
                    for broker, why in found.silent.items()
                ],
                "command": command(bootstrap, "cluster", "connections"),
            }
        )

    async def client_metrics(_request: Request) -> Response:
        kind = ResourceType.CLIENT_METRICS
        try:
            names = [name for _, name in await admin.configs.resources([kind])]
            subscriptions = [
                {
                    "name": name,
                    "settings": {
                        entry.name: entry.value
                        for entry in await admin.configs.describe(kind, name)
                    },
                    "command": command(bootstrap, "config", "get", f"client-metrics/{name}"),
                }
                for name in names[:MOST_SUBSCRIPTIONS]
            ]
        except (KafkaError, ConnectionFailed) as error:
            return ok({"subscriptions": None, "why": str(error)})
        return ok({"subscriptions": subscriptions, "why": None})

    return [
        Route("/api/v1/clients", clients, methods=["GET"]),
        Route("/api/v1/client-metrics", client_metrics, methods=["GET"]),
    ]


def software_of(connections: Iterable[ClientConnection]) -> list[dict[str, Any]]:
    """How many connections and clients each software has, without those between brokers."""
    open_now: Counter[tuple[str, str]] = Counter()
    clients: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    requests: Counter[tuple[str, str]] = Counter()
    for one in connections:
        if one.peer_broker is None:
            key = (one.software, one.version)
            open_now[key] += 1
            requests[key] += one.requests
            clients[key].add((one.client_id, one.address))
    return [
        {
            "software": software,
            "version": version,
            "connections": count,
            "clients": len(clients[software, version]),
            "requests": requests[software, version],
        }
        for (software, version), count in open_now.most_common()
    ]


def members_of(lags: Iterable[GroupLag]) -> list[dict[str, Any]]:
    """The members of all groups: the clients that Kafka's protocol lists."""
    return [
        {
            "client_id": member.client_id,
            "host": member.host.removeprefix("/"),
            "group": lag.group.group,
            "id": member.id,
        }
        for lag in lags
        for member in lag.group.members
    ]
