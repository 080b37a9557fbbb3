"""The lag of all groups of a cluster, with few requests.

`admin.groups.lag` asks about one group.  A survey asks each coordinator about all of its groups at
once, and each leader about all partitions at once:

    ListGroups ─▶ by coordinator: describe, commits, status ─▶ extents ─▶ timestamps of the oldest
                                                                          records not consumed

A record's timestamp never changes, so the timestamps of a survey are used by the next one: a group
whose consumers have stopped costs nothing.  What is not known in time is unknown, and is looked up
by the next survey.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from hightide.client.admin.groups import (
    TAKES_GROUPS,
    classic_group,
    committed_offsets,
    consumer_group,
    with_status,
    with_times,
)
from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.client.model.cluster import Partition
from hightide.client.model.groups import (
    Commit,
    GroupDescription,
    GroupLag,
    GroupListing,
    lags,
    unread,
)
from hightide.wire.errors import KafkaError
from hightide.wire.messages.consumer_groups import ConsumerGroupDescribeRequest
from hightide.wire.messages.group_status import GroupStatus, GroupStatusRequest, GroupStatusResponse
from hightide.wire.messages.groups import DescribeGroupsRequest
from hightide.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from hightide.wire.types import api_of

if TYPE_CHECKING:
    from hightide.client.admin import Admin

T = TypeVar("T")
AT_ONCE = 100
"""Groups in one request."""
MOST_LOOKUPS = 40
"""Rounds of fetches for timestamps in one survey: groups at different offsets of one partition need
a round each."""
MOST_TIMESTAMPS = 50_000

_Place = tuple[str, int, int]
"""A topic, a partition and an offset."""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What one survey found, by group."""

    listed: list[GroupListing] = field(default_factory=list)
    lags: Mapping[str, GroupLag] = field(default_factory=dict)
    """Without the groups whose coordinator did not describe them."""
    silent: Mapping[int, str] = field(default_factory=dict)
    """Brokers that did not answer, and why."""


class GroupSurvey:
    """Surveys the groups of a cluster, again and again."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._timestamps: dict[_Place, int] = {}

    async def look(self) -> Surveyed:
        """Find the lag of all groups."""
        listed = await self._admin.groups.list()
        silent = dict(listed.silent)
        by_coordinator: dict[int, list[GroupListing]] = defaultdict(list)
        for group in listed.groups:
            by_coordinator[group.coordinator].append(group)
        found: dict[str, tuple[GroupDescription, dict[Partition, Commit]]] = {}

        async def ask(broker: int, groups: list[GroupListing]) -> None:
            try:
                found.update(await self._ask_coordinator(broker, groups))
            except (ConnectionFailed, KafkaError) as error:
                silent[broker] = str(error)

        await asyncio.gather(*(ask(broker, groups) for broker, groups in by_coordinator.items()))
        partitions = {
            partition
            for group, commits in found.values()
            for partition in (*commits, *group.owners())
        }
        extents = await self._admin.records.extents(partitions) if partitions else {}
        places = {
            name: {
                partition: (*partition, offset)
                for partition, offset in unread(commits, extents).items()
            }
            for name, (_, commits) in found.items()
        }
        await self._look_up(place for mine in places.values() for place in mine.values())
        return Surveyed(
            listed.groups,
            {
                name: GroupLag(group, lags(group, commits, extents, self._oldest_ms(places[name])))
                for name, (group, commits) in found.items()
            },
            silent,
        )

    def _oldest_ms(self, places: Mapping[Partition, _Place]) -> dict[Partition, int]:
        return {
            partition: self._timestamps[place]
            for partition, place in places.items()
            if place in self._timestamps
        }

    # -- coordinators ----------------------------------------------------------------------

    async def _ask_coordinator(
        self, broker: int, listed: Sequence[GroupListing]
    ) -> dict[str, tuple[GroupDescription, dict[Partition, Commit]]]:
        """Describe groups, with their commits, in chunks."""
        found: dict[str, tuple[GroupDescription, dict[Partition, Commit]]] = {}
        for chunk in _chunks(listed):
            names = [group.group for group in chunk]
            connection = await self._admin.router.broker(broker)
            described = await self._describe(connection, broker, chunk)
            commits = await self._commits(connection, names)
            statuses = await self._statuses(broker, names)
            for name, group in described.items():
                status = statuses.get(name)
                found[name] = (
                    with_status(group, status),
                    with_times(commits.get(name, {}), status),
                )
        return found

    async def _describe(
        self, connection: Connection, broker: int, listed: Sequence[GroupListing]
    ) -> dict[str, GroupDescription]:
        has_consumers = api_of(ConsumerGroupDescribeRequest).key in connection.versions
        consumers = [g.group for g in listed if g.type == "Consumer" and has_consumers]
        classics = [group.group for group in listed if group.type in ("Classic", "")]
        found: dict[str, GroupDescription] = {}
        timeout_ms = self._admin.router.timeout_ms
        if consumers:
            request = ConsumerGroupDescribeRequest(
                group_ids=consumers, include_authorized_operations=False
            )
            answer = await connection.send(request, timeout_ms=timeout_ms)
            for one in answer.groups:
                if not one.error_code:
                    found[one.group_id] = consumer_group(one, broker)
        if classics:
            answer = await connection.send(
                DescribeGroupsRequest(groups=classics), timeout_ms=timeout_ms
            )
            for one in answer.groups:
                if not one.error_code:
                    found[one.group_id] = classic_group(one, broker)
        return found

    async def _commits(
        self, connection: Connection, names: Sequence[str]
    ) -> dict[str, dict[Partition, Commit]]:
        if connection.version_for(OffsetFetchRequest) < TAKES_GROUPS:
            return {name: await self._admin.groups.committed(name) for name in names}
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names],
            require_stable=False,
        )
        answer = await connection.send(request, timeout_ms=self._admin.router.timeout_ms)
        return {
            group.group_id: committed_offsets(group)
            for group in answer.groups
            if not group.error_code
        }

    async def _statuses(self, broker: int, names: list[str]) -> dict[str, GroupStatus]:
        """What only Hightide's coordinators know; nothing of others."""

        async def send(connection: Connection) -> GroupStatusResponse:
            answer: GroupStatusResponse = await connection.send(
                GroupStatusRequest(group_ids=names), version=0
            )
            return answer

        answer = await self._admin.router.ask_hightide(broker, send)
        if answer is None:
            return {}
        return {group.group_id: group for group in answer.groups if not group.error_code}

    # -- timestamps ------------------------------------------------------------------------

    async def _look_up(self, places: Iterable[_Place]) -> None:
        """Learn the timestamps of the records at these places, and forget those of others."""
        wanted = dict.fromkeys(places)
        self._timestamps = {
            place: timestamp for place, timestamp in self._timestamps.items() if place in wanted
        }
        missing = [place for place in wanted if place not in self._timestamps]
        for positions in _rounds(missing[: MOST_TIMESTAMPS - len(self._timestamps)]):
            found = await self._admin.records.timestamps(positions)
            for partition, timestamp in found.items():
                self._timestamps[*partition, positions[partition]] = timestamp


def _rounds(places: Iterable[_Place]) -> list[dict[Partition, int]]:
    """Positions to look up, each with one offset of a partition."""
    by_partition: dict[Partition, list[int]] = defaultdict(list)
    for topic, partition, offset in places:
        by_partition[topic, partition].append(offset)
    most = max(map(len, by_partition.values()), default=0)
    return [
        {key: offsets[at] for key, offsets in by_partition.items() if at < len(offsets)}
        for at in range(min(most, MOST_LOOKUPS))
    ]


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), AT_ONCE):
        yield items[at : at + AT_ONCE]
