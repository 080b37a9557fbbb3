"""Topics: list, describe, create, alter, grow and delete.

    GET    /api/v1/topics?internal=1
    POST   /api/v1/topics                         name, partitions, replication_factor, configs
    GET    /api/v1/topics/{topic}
    GET    /api/v1/topics/{topic}/consumers
    POST   /api/v1/topics/{topic}/configs         set, unset
    POST   /api/v1/topics/{topic}/partitions      count
    DELETE /api/v1/topics/{topic}                 name, as a person has typed it
    GET    /api/v1/topic-settings

Every change takes `?dry_run=1`, and answers with the command that does the same.  The requests are
Kafka's own, so that they work with any cluster.  What a broker does not tell is null, and `notes`
says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import (
    Extent,
    Partition,
    ResourceType,
    TopicDescription,
)
from hightide.client.model.groups import lags, unread
from hightide.console import commands, topic_view
from hightide.console.context import Console
from hightide.console.json_body import flag, json_body, texts
from hightide.console.replies import failed, ok
from hightide.console.topic_view import Rates, Sizes
from hightide.wire.errors import KafkaError

GROUPS_AT_ONCE = 8
MOST_GROUPS = 500
FAILURES = (KafkaError, ConnectionFailed)


class TopicState(NamedTuple):
    """What one round of requests says about some topics."""

    configs: Mapping[str, Mapping[str, str]]
    extents: Mapping[Partition, Extent]
    sizes: Sizes
    notes: list[str]


def routes(console: Console) -> list[Route]:
    api = TopicRoutes(console)
    return [
        Route("/api/v1/topics", api.list, methods=["GET"]),
        Route("/api/v1/topics", api.create, methods=["POST"]),
        Route("/api/v1/topic-settings", api.settings, methods=["GET"]),
        Route("/api/v1/topics/{topic}", api.describe, methods=["GET"]),
        Route("/api/v1/topics/{topic}", api.delete, methods=["DELETE"]),
        Route("/api/v1/topics/{topic}/consumers", api.consumers, methods=["GET"]),
        Route("/api/v1/topics/{topic}/configs", api.alter, methods=["POST"]),
        Route("/api/v1/topics/{topic}/partitions", api.add_partitions, methods=["POST"]),
    ]


class TopicRoutes:
    """The handlers, and the looks that rates come from."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._all_rates = Rates()
        self._rates: dict[str, Rates] = {}

    @property
    def _admin(self) -> Admin:
        return self._console.admin

    @property
    def _bootstrap(self) -> str:
        return self._console.options.bootstrap

    # -- read ------------------------------------------------------------------------------

    async def list(self, request: Request) -> Response:
        every = await self._admin.topics.list()
        with_internal = flag(request, "internal")
        topics = [topic for topic in every if with_internal or not topic.internal]
        state = await self._look(topics, self._all_rates)
        return ok(
            {
                "topics": [
                    topic_view.topic_row(
                        topic,
                        state.configs.get(topic.name, {}),
                        state.extents,
                        state.sizes,
                        self._all_rates,
                    )
                    for topic in topics
                ],
                "internal": sum(topic.internal for topic in every),
                "brokers": len(self._admin.router.nodes),
                "notes": state.notes,
            }
        )

    async def describe(self, request: Request) -> Response:
        name = request.path_params["topic"]
        (topic,) = await self._admin.topics.describe([name])
        if len(self._rates) > 256:
            self._rates.clear()
        rates = self._rates.setdefault(name, Rates())
        state = await self._look([topic], rates)
        entries = await self._admin.configs.describe(ResourceType.TOPIC, name)
        configs = state.configs.get(name, {})
        min_isr = int(configs.get("min.insync.replicas") or 1)
        return ok(
            {
                **topic_view.topic_row(topic, configs, state.extents, state.sizes, rates),
                "topic_id": str(topic.topic_id),
                "min_isr": min_isr,
                "partition_rows": [
                    topic_view.partition_row(name, partition, min_isr, extent, state.sizes, rates)
                    for partition in topic.partitions
                    for extent in [state.extents.get((name, partition.partition))]
                ],
                "settings": [topic_view.setting_row(entry) for entry in entries],
                "notes": state.notes,
            }
        )

    async def settings(self, _request: Request) -> Response:
        return ok({"settings": topic_view.declared_settings()})

    async def _look(self, topics: Sequence[TopicDescription], rates: Rates) -> TopicState:
        """Ask for the configs, offsets and sizes of topics; a part that fails becomes a note."""
        names = [topic.name for topic in topics]
        keys = [(topic.name, p.partition) for topic in topics for p in topic.partitions]
        configs, extents, directories = await asyncio.gather(
            self._admin.configs.topic_values(names, topic_view.SHOWN_CONFIGS),
            self._admin.records.extents(keys),
            self._admin.cluster.log_dirs(),
            return_exceptions=True,
        )
        notes: list[str] = []
        for what, answer in (
            ("Settings", configs), ("Offsets", extents), ("Sizes", directories)
        ):  # fmt: skip
            if isinstance(answer, FAILURES):
                notes.append(f"{what} are not known now: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
        if isinstance(configs, BaseException):
            configs = {}
        if isinstance(extents, BaseException):
            extents = {}
        found = Sizes({}, {})
        if not isinstance(directories, BaseException):
            found = topic_view.sizes(directories.directories, topics)
            for broker, why in directories.silent.items():
                notes.append(f"Broker {broker} does not tell its sizes: {why}")
        rates.add(
            time.monotonic(),
            {key: extent.end_offset for key, extent in extents.items()},
            found.leader,
        )
        return TopicState(configs, extents, found, notes)

    async def consumers(self, request: Request) -> Response:
        """The groups that have committed offsets of a topic, or have members that read it."""
        name = request.path_params["topic"]
        (topic,) = await self._admin.topics.describe([name])
        keys = [(name, partition.partition) for partition in topic.partitions]
        listing = await self._admin.groups.list()
        extents = await self._admin.records.extents(keys)
        asked = listing.groups[:MOST_GROUPS]
        gate = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def one(group: str) -> dict[str, Any] | None:
            async with gate:
                return await self._consumer(group, keys, extents)

        answers = await asyncio.gather(
            *(one(group.group) for group in asked), return_exceptions=True
        )
        found, notes = (
            [],
            [f"Broker {b} does not answer: {why}" for b, why in listing.silent.items()],
        )
        for group, answer in zip(asked, answers, strict=True):
            if isinstance(answer, FAILURES):
                notes.append(f"Group {group.group} cannot be read: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None:
                found.append({"group": group.group, "state": group.state, **answer})
        if len(asked) < len(listing.groups):
            notes.append(f"Only the first {MOST_GROUPS} of {len(listing.groups)} groups are shown.")
        return ok({"groups": found, "notes": notes})

    async def _consumer(
        self, group: str, keys: Sequence[Partition], extents: Mapping[Partition, Extent]
    ) -> dict[str, Any] | None:
        """The lag of a group in the partitions of a topic; None if it does not read them."""
        description, commits = await asyncio.gather(
            self._admin.groups.describe(group),
            self._admin.groups.committed(group, partitions=keys),
        )
        wanted = set(keys)
        owners = {key: member for key, member in description.owners().items() if key in wanted}
        if not commits and not owners:
            return None
        oldest_ms = await self._admin.records.timestamps(unread(commits, extents))
        rows = [
            lag
            for lag in lags(description, commits, extents, oldest_ms)
            if (lag.topic, lag.partition) in wanted
        ]
        now_ms = time.time_ns() // 1_000_000
        records = [lag.lag_records for lag in rows if lag.lag_records is not None]
        ages = [age for lag in rows if (age := lag.lag_ms(now_ms)) is not None]
        return {
            "members": len({member.id for member in owners.values()}),
            "lag_records": sum(records) if records else None,
            "lag_ms": max(ages, default=None),
            "partitions": [
                {
                    "partition": lag.partition,
                    "committed": None if lag.commit is None else lag.commit.offset,
                    "lag_records": lag.lag_records,
                    "lag_ms": lag.lag_ms(now_ms),
                    "client_id": None if lag.owner is None else lag.owner.client_id,
                }
                for lag in rows
            ],
        }

    # -- change ----------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        given = await json_body(request)
        name = str(given.get("name") or "").strip()
        if not name:
            return failed(400, "A topic needs a name.")
        partitions = _count(given.get("partitions"), "partitions")
        replicas = _count(given.get("replication_factor"), "replicas")
        configs = texts(given.get("configs"), "configs")
        dry_run = flag(request, "dry_run")
        await self._admin.topics.create(
            name,
            partitions=partitions,
            replication_factor=replicas,
            config=configs,
            validate_only=dry_run,
        )
        line = commands.create_topic(self._bootstrap, name, partitions, replicas, configs)
        return ok({"command": line, "name": name, "dry_run": dry_run})

    async def alter(self, request: Request) -> Response:
        name = request.path_params["topic"]
        given = await json_body(request)
        values = texts(given.get("set"), "set")
        unset = given.get("unset") or []
        if not isinstance(unset, list) or not all(isinstance(key, str) for key in unset):
            return failed(400, "unset should be a list of names.")
        if not values and not unset:
            return failed(400, "There is nothing to change.")
        dry_run = flag(request, "dry_run")
        await self._admin.topics.describe([name])
        await self._admin.configs.alter(
            ResourceType.TOPIC, name, values=values, unset=unset, validate_only=dry_run
        )
        line = commands.alter_topic(self._bootstrap, name, values, unset)
        return ok({"command": line, "dry_run": dry_run})

    async def add_partitions(self, request: Request) -> Response:
        name = request.path_params["topic"]
        count = _count((await json_body(request)).get("count"), "partitions")
        (topic,) = await self._admin.topics.describe([name])
        if count <= len(topic.partitions):
            return failed(
                400,
                f"{name} has {len(topic.partitions)} partitions; the new number must be larger.",
            )
        dry_run = flag(request, "dry_run")
        await self._admin.topics.create_partitions(name, count, validate_only=dry_run)
        line = commands.add_partitions(self._bootstrap, name, count)
        return ok({"command": line, "dry_run": dry_run, "before": len(topic.partitions)})

    async def delete(self, request: Request) -> Response:
        name = request.path_params["topic"]
        (topic,) = await self._admin.topics.describe([name])
        line = commands.delete_topic(self._bootstrap, name)
        dry_run = flag(request, "dry_run")
        if not dry_run:
            if (await json_body(request)).get("name") != name:
                return failed(400, f"Type the name of the topic, {name}, to delete it.")
            await self._admin.topics.delete(name)
            self._rates.pop(name, None)
        return ok({"command": line, "dry_run": dry_run, "partitions": len(topic.partitions)})


def _count(value: Any, what: str) -> int:
    """A positive number, or -1 for the broker's default."""
    if value is None or value == "":
        return -1
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ValueError(f"The number of {what} should be at least 1, not {value!r}.")
    return count
