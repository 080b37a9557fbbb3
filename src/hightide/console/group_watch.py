"""The task that surveys the groups: their lag now, its last 15 minutes, and their rebalances.

One survey serves all browsers.  While a page shows groups it is repeated every two seconds, else
every five.  A group's history has a point every five seconds, so it is bounded: 180 points.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hightide.client.admin import Admin
from hightide.client.admin.group_survey import GroupSurvey, Surveyed
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.events import BrokerEvent, EventFilter
from hightide.client.model.groups import GroupLag
from hightide.wire.errors import KafkaError, WireError

if TYPE_CHECKING:
    from hightide.console.context import Console

log = logging.getLogger(__name__)

SEEN_EVERY_S = 2.0
UNSEEN_EVERY_S = 5.0
WATCHED_S = 10.0
"""A page that shows groups asks more often than this."""
POINT_EVERY_MS = 4_500
KEPT_MS = 15 * 60 * 1000
MOST_POINTS = 200
MOST_REBALANCES = 50
"""Kept for each group."""
MOST_GROUPS = 2_000
"""Groups with a history."""
TREND_MS = 60_000
REBALANCES = ("group_rebalancing", "group_rebalanced")


@dataclass(frozen=True, slots=True)
class Point:
    """A group at one time; None means unknown."""

    time_ms: int
    lag_ms: int | None
    lag_records: int | None
    members: int


@dataclass(slots=True)
class GroupHistory:
    """The last 15 minutes of one group."""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))

    def add(self, point: Point) -> None:
        if self.points and point.time_ms - self.points[-1].time_ms < POINT_EVERY_MS:
            return
        self.points.append(point)
        while self.points[0].time_ms < point.time_ms - KEPT_MS:
            self.points.popleft()

    def trend(self, now: Point) -> int | None:
        """How many records more the group is behind than a minute ago."""
        for before in self.points:
            if before.time_ms >= now.time_ms - TREND_MS:
                if before.lag_records is None or now.lag_records is None:
                    return None
                return now.lag_records - before.lag_records
        return None


def worst_ms(lag: GroupLag, now_ms: int) -> int | None:
    """The lag of the partition that is furthest behind; None if that is not known."""
    known = [partition.lag_ms(now_ms) for partition in lag.partitions if partition.lag_records]
    if None in known:
        return None
    return max((found for found in known if found is not None), default=0)


def total_records(lag: GroupLag) -> int | None:
    """How many records are left in all partitions; None if the group has no commits."""
    known = [found for one in lag.partitions if (found := one.lag_records) is not None]
    return sum(known) if known else None


def point(lag: GroupLag, now_ms: int) -> Point:
    return Point(now_ms, worst_ms(lag, now_ms), total_records(lag), len(lag.group.members))


class GroupWatch:
    """Surveys the groups from the first request on."""

    def __init__(self, admin: Admin) -> None:
        self.surveyed = Surveyed()
        self.time_ms: int | None = None
        """When the survey ended; None before the first."""
        self.error: str | None = None
        """Why the last survey failed."""
        self.has_events = True
        """Whether the brokers report rebalances: only Hightide's do."""
        self.histories: dict[str, GroupHistory] = {}
        self.admin = admin
        self._survey = GroupSurvey(admin)
        self._rebalances: dict[str, deque[dict[str, Any]]] = {}
        self._reader = admin.events.reader(EventFilter(kinds=REBALANCES))
        self._reads_newer = False
        self._seen_s = -WATCHED_S
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def start(self) -> None:
        """Start the task in the running loop, once."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def seen(self) -> None:
        """A page shows groups: survey more often, and wait for the first survey."""
        self.start()
        was_unseen = time.monotonic() - self._seen_s > WATCHED_S
        self._seen_s = time.monotonic()
        if was_unseen:
            self._wake.set()
        if not self._looked.is_set():
            await self._looked.wait()

    def changed(self) -> None:
        """A group was changed here: survey at once."""
        self._wake.set()

    def rebalances(self, group: str) -> list[dict[str, Any]]:
        """The newest rebalances of a group, newest first."""
        return [*self._rebalances.get(group, ())][::-1]

    # -- the task --------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self.look()
            is_seen = time.monotonic() - self._seen_s <= WATCHED_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SEEN_EVERY_S if is_seen else UNSEEN_EVERY_S):
                    await self._wake.wait()
            self._wake.clear()

    async def look(self) -> None:
        """Survey once; a failure is kept as a sentence."""
        try:
            self._take(await self._survey.look(), time.time_ns() // 1_000_000)
            self.error = None
            await self._read_events()
        except (ConnectionFailed, KafkaError, WireError, OSError) as error:
            self.error = str(error)
        except Exception:
            # The task must outlive a mistake in one survey.
            log.exception("the groups could not be surveyed")
            self.error = "The groups could not be surveyed; the log of the console has the reason."
        finally:
            self._looked.set()

    def _take(self, surveyed: Surveyed, now_ms: int) -> None:
        self.surveyed, self.time_ms = surveyed, now_ms
        for name, lag in surveyed.lags.items():
            history = self.histories.get(name)
            if history is None and len(self.histories) < MOST_GROUPS:
                history = self.histories[name] = GroupHistory()
            if history is not None:
                history.add(point(lag, now_ms))
        if not surveyed.silent:
            gone = self.histories.keys() - {group.group for group in surveyed.listed}
            for name in gone:
                del self.histories[name]
                self._rebalances.pop(name, None)

    async def _read_events(self) -> None:
        if not self.has_events:
            return
        found = await (self._reader.newer() if self._reads_newer else self._reader.newest(1000))
        self._reads_newer = True
        self.has_events = bool(found.answered) or not found.foreign
        self.take_events(found.events)

    def take_events(self, events: Iterable[BrokerEvent]) -> None:
        for event in events:
            group = str(event.data.get("group", ""))
            kept = self._rebalances.get(group)
            if kept is None:
                if len(self._rebalances) >= MOST_GROUPS:
                    continue
                kept = self._rebalances[group] = deque(maxlen=MOST_REBALANCES)
            kept.append(
                {
                    "time_ms": event.time_ms,
                    "broker": event.broker,
                    "kind": event.kind,
                    "text": event.text,
                    "generation": event.data.get("generation"),
                    "members": event.data.get("members"),
                    "why": event.data.get("why"),
                    "took_ms": event.data.get("took_ms"),
                }
            )


def watch_of(console: Console) -> GroupWatch:
    """The watch of a console, which all of its routes share."""
    if console.group_watch is None:
        console.group_watch = GroupWatch(console.admin)
    return console.group_watch
