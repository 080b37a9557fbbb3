"""Groups: their lag in seconds and records, members, rebalances, offsets; reset and delete.

    GET    /api/v1/groups
    GET    /api/v1/groups/{group}
    POST   /api/v1/groups/{group}/reset           to, value, partitions   (see group_reset)
    POST   /api/v1/groups/{group}/delete-offsets  partitions
    DELETE /api/v1/groups/{group}                 name, as a person has typed it

A group's name may have any characters, so `{group}` is the rest of the path and the names of the
changes come first in the routing.  Every change takes `?dry_run=1`, and answers with the command
that does the same.  The lag comes from one survey for all browsers (`group_watch`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Partition, by_topic
from hightide.client.model.groups import GroupDescription, GroupLag, GroupListing, GroupMember
from hightide.console.commands import command
from hightide.console.context import Console
from hightide.console.group_reset import HAS_MEMBERS, Refused, plan, refuse_members, target
from hightide.console.group_watch import GroupHistory, GroupWatch, point, watch_of
from hightide.console.json_body import flag, json_body
from hightide.console.open_transactions import stable_offsets
from hightide.console.replies import failed, ok
from hightide.wire.errors import ErrorCode, KafkaError

MOST_NAMES = 10_000
HIGHEST_PARTITION = 2**31 - 1


def routes(console: Console) -> list[Route]:
    api = GroupRoutes(console)
    group = "/api/v1/groups/{group:path}"
    return [
        Route("/api/v1/groups", api.list, methods=["GET"]),
        Route(f"{group}/reset", api.reset, methods=["POST"]),
        Route(f"{group}/delete-offsets", api.delete_offsets, methods=["POST"]),
        Route(group, api.describe, methods=["GET"]),
        Route(group, api.delete, methods=["DELETE"]),
    ]


class GroupRoutes:
    """The handlers, and the survey that they share."""

    def __init__(self, console: Console, watch: GroupWatch | None = None) -> None:
        self._console = console
        self._watch = watch or watch_of(console)

    @property
    def _admin(self) -> Admin:
        return self._console.admin

    def _command(self, *words: object) -> str:
        return command(self._console.options.bootstrap, "group", *words)

    # -- read ------------------------------------------------------------------------------

    async def list(self, _request: Request) -> Response:
        watch = self._watch
        await watch.seen()
        if watch.time_ms is None:
            return failed(503, watch.error or "The groups are not known yet.")
        now_ms = watch.time_ms
        surveyed = watch.surveyed
        return ok(
            {
                "groups": [
                    summary(
                        listing,
                        surveyed.lags.get(listing.group),
                        watch.histories.get(listing.group),
                        now_ms,
                    )
                    for listing in surveyed.listed
                ],
                "time_ms": now_ms,
                "notes": [
                    *([f"The last look failed: {watch.error}"] if watch.error else []),
                    *(
                        f"Broker {broker} does not answer for its groups: {why}"
                        for broker, why in surveyed.silent.items()
                    ),
                ],
            }
        )

    async def describe(self, request: Request) -> Response:
        name = request.path_params["group"]
        lag, _ = await asyncio.gather(self._admin.groups.lag(name), self._watch.seen())
        now_ms = time.time_ns() // 1_000_000
        history = self._watch.histories.get(name)
        held, notes = await self._held(lag)
        return ok(
            {
                **described(lag.group),
                **totals(lag, now_ms),
                "time_ms": now_ms,
                "partitions": partition_rows(lag, held, now_ms),
                "notes": notes,
                "history": history_of(history),
                "rebalances": self._watch.rebalances(name),
                "has_events": self._watch.has_events,
            }
        )

    async def _held(self, lag: GroupLag) -> tuple[set[Partition], Sequence[str]]:
        """The partitions where the group has everything that is stable: who reads committed records
        waits there for an open transaction, however many records there are."""
        behind = {
            (one.topic, one.partition): one.commit.offset
            for one in lag.partitions
            if one.lag_records and one.commit is not None
        }
        if not behind:
            return set(), []
        try:
            stable = await stable_offsets(self._admin, behind)
        except (KafkaError, ConnectionFailed) as error:
            return set(), [f"Open transactions are not known now: {error}"]
        return {key for key, offset in behind.items() if stable[key] <= offset}, []

    # -- change ----------------------------------------------------------------------------

    async def reset(self, request: Request) -> Response:
        name, dry_run = request.path_params["group"], flag(request, "dry_run")
        given = await json_body(request)
        try:
            wanted = target(given)
            names = named(given.get("partitions"))
        except Refused as refusal:
            return failed(400, str(refusal))
        line = self._command("reset", name, *topic_options(names), *wanted.words)
        try:
            rows = await plan(self._admin, name, wanted, names)
            if not rows:
                raise Refused(f"Group {name!r} has no commits; choose partitions.")
            if not dry_run:
                offsets = {(row.topic, row.partition): row.after for row in rows}
                refusals = await self._admin.groups.commit(name, offsets)
                if any(error and error.code in HAS_MEMBERS for error in refusals.values()):
                    raise Refused(f"A member has just joined {name!r}; the offsets were not set.")
                rows = [
                    replace(row, result=_result(refusals.get((row.topic, row.partition)), "reset"))
                    for row in rows
                ]
                self._watch.changed()
        except Refused as refusal:
            return failed(409, str(refusal), command=line)
        return ok({"command": line, "dry_run": dry_run, "rows": rows})

    async def delete_offsets(self, request: Request) -> Response:
        name, dry_run = request.path_params["group"], flag(request, "dry_run")
        try:
            names = named((await json_body(request)).get("partitions"))
        except Refused as refusal:
            return failed(400, str(refusal))
        line = self._command("offset-delete", name, *partition_names(names))
        await self._admin.groups.describe(name)
        commits = await self._admin.groups.committed(name)
        wanted = [key for key in sorted(commits) if key in names or (key[0], None) in names]
        if not wanted:
            return failed(409, f"Group {name!r} has no committed offset there.", command=line)
        results: dict[Partition, ErrorCode | None] = {}
        if not dry_run:
            results = await self._admin.groups.delete_offsets(name, wanted)
            self._watch.changed()
        rows = [
            {
                "topic": topic,
                "partition": partition,
                "before": commits[topic, partition].offset,
                "result": "would be deleted"
                if dry_run
                else _deleted(results.get((topic, partition))),
            }
            for topic, partition in wanted
        ]
        return ok({"command": line, "dry_run": dry_run, "rows": rows})

    async def delete(self, request: Request) -> Response:
        name, dry_run = request.path_params["group"], flag(request, "dry_run")
        line = self._command("delete", name)
        try:
            refuse_members(await self._admin.groups.describe(name), "deleted")
            commits = await self._admin.groups.committed(name)
            if not dry_run:
                if (await json_body(request)).get("name") != name:
                    return failed(400, f"Type the name of the group, {name}, to delete it.")
                await self._delete(name)
        except Refused as refusal:
            return failed(409, str(refusal), command=line)
        return ok({"command": line, "dry_run": dry_run, "offsets": len(commits)})

    async def _delete(self, name: str) -> None:
        try:
            await self._admin.groups.delete(name)
        except KafkaError as error:
            if error.code != ErrorCode.NON_EMPTY_GROUP:
                raise
            raise Refused(
                f"A member has just joined {name!r}; the group was not deleted."
            ) from None
        self._watch.changed()


# -- rows ----------------------------------------------------------------------------------------


def summary(
    listing: GroupListing, lag: GroupLag | None, history: GroupHistory | None, now_ms: int
) -> dict[str, Any]:
    """One group in the list; what its coordinator does not say is null."""
    row: dict[str, Any] = {
        "group": listing.group,
        "type": listing.type,
        "state": listing.state,
        "protocol": listing.protocol,
        "coordinator": listing.coordinator,
        "members": None,
        "partitions": None,
        "topics": [],
        "lag_ms": None,
        "lag_records": None,
        "trend": None,
        "recent": [],
    }
    if lag is None:
        return row
    now = point(lag, now_ms)
    return row | {
        "state": lag.group.state,
        "members": now.members,
        "partitions": len(lag.partitions),
        "topics": sorted({one.topic for one in lag.partitions}),
        "lag_ms": now.lag_ms,
        "lag_records": now.lag_records,
        "trend": None if history is None else history.trend(now),
        "recent": [] if history is None else [one.lag_ms for one in history.points][-36:],
    }


def described(group: GroupDescription) -> dict[str, Any]:
    last = group.last_rebalance
    return {
        "group": group.group,
        "type": group.type,
        "state": group.state,
        "since_ms": group.since_ms,
        "coordinator": group.coordinator,
        "protocol": group.protocol_type,
        "assignor": group.assignor,
        "generation": group.generation,
        "leader": group.leader,
        "last_rebalance": None
        if last is None
        else {"reason": last.reason, "time_ms": last.at_ms, "generation": last.generation},
        "members": [member_row(member) for member in group.members],
    }


def member_row(member: GroupMember) -> dict[str, Any]:
    return {
        "id": member.id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host.removeprefix("/"),
        "epoch": member.epoch,
        "assignment": None if member.assignment is None else by_topic(member.assignment),
        "target": None if member.target is None else by_topic(member.target),
    }


def totals(lag: GroupLag, now_ms: int) -> dict[str, Any]:
    now = point(lag, now_ms)
    return {"lag_ms": now.lag_ms, "lag_records": now.lag_records}


def partition_rows(lag: GroupLag, held: Collection[Partition], now_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "topic": one.topic,
            "partition": one.partition,
            "committed": None if one.commit is None else one.commit.offset,
            "committed_ms": None if one.commit is None else one.commit.committed_ms,
            "metadata": None if one.commit is None else one.commit.metadata,
            "start_offset": None if one.extent is None else one.extent.start_offset,
            "end_offset": None if one.extent is None else one.extent.end_offset,
            "lag_records": one.lag_records,
            "lag_ms": one.lag_ms(now_ms),
            "owner": None if one.owner is None else one.owner.id,
            "held": (one.topic, one.partition) in held,
        }
        for one in lag.partitions
    ]


def history_of(history: GroupHistory | None) -> dict[str, list[int | None]]:
    """The last 15 minutes as columns, as a chart takes them."""
    points = [] if history is None else [*history.points]
    return {
        "time_ms": [one.time_ms for one in points],
        "lag_ms": [one.lag_ms for one in points],
        "lag_records": [one.lag_records for one in points],
        "members": [one.members for one in points],
    }


# -- names ---------------------------------------------------------------------------------------


def named(value: Any) -> Sequence[tuple[str, int | None]]:
    """`orders` or `orders/0`, as pairs; no list means all."""
    if value is None:
        return []
    if (
        not isinstance(value, list)
        or len(value) > MOST_NAMES
        or not all(isinstance(name, str) and name for name in value)
    ):
        raise Refused("partitions should be a list of names like orders or orders/0.")
    found: list[tuple[str, int | None]] = []
    for name in value:
        topic, slash, index = name.partition("/")
        if slash and (not index.isdecimal() or int(index) > HIGHEST_PARTITION):
            raise Refused(f"{name!r} is not a partition; it should be like orders/0.")
        found.append((topic, int(index) if slash else None))
    return found


def partition_names(names: Iterable[tuple[str, int | None]]) -> list[str]:
    """Names as the command line takes them: `orders/0,2`."""
    by_name: dict[str, list[int]] = {}
    whole = {topic for topic, index in names if index is None}
    for topic, index in names:
        known = by_name.setdefault(topic, [])
        if index is not None and topic not in whole:
            known.append(index)
    return [
        f"{topic}/{','.join(map(str, sorted(set(indexes))))}" if indexes else topic
        for topic, indexes in by_name.items()
    ]


def topic_options(names: Iterable[tuple[str, int | None]]) -> list[str]:
    return [word for name in partition_names([*names]) for word in ("--topic", name)]


def _result(refusal: KafkaError | None, done: str) -> str:
    return done if refusal is None else f"{refusal.detail} ({refusal.code.name})"


def _deleted(refusal: ErrorCode | None) -> str:
    if refusal is None:
        return "deleted"
    if refusal == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return "a member subscribes to the topic"
    return refusal.name
