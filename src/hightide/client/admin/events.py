"""Events: what has happened on the brokers, read once or followed.

DescribeEvents is Hightide's own request.  It goes to all brokers at once; one that does not answer
is named instead of waited for.

    reader = admin.events.reader()
    found = await reader.newest(100)      # the newest events of all brokers
    found = await reader.newer()          # what has happened since

The reader keeps a position for each broker.  A broker that was away continues where it was, or
after a restart with its first event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass

from hightide.client.broker_connection import Connection, ConnectionFailed, check
from hightide.client.model.events import BrokerEvent, EventFilter, FoundEvents
from hightide.client.routing import Router
from hightide.core.events import SEVERITIES
from hightide.wire.errors import KafkaError
from hightide.wire.messages.events import DescribeEventsRequest, DescribeEventsResponse
from hightide.wire.messages.replicas import DepartedBroker, TopicPartitions

ANSWER_S = 5.0
"""How long a broker may take to answer; a working one takes milliseconds."""
SILENT_ANSWER_S = 1.0
"""The same for a broker that did not answer the request before."""
MOST_EVENTS = 1000
"""How many events to ask a broker for at once."""
_MOST_REQUESTS = 100
_FIRST = "-"
"""As a start id, it means the first event that the broker has."""


class EventAdmin:
    """Requests about what has happened."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def newest(self, limit: int = 100, wanted: EventFilter | None = None) -> FoundEvents:
        """The newest events of all brokers together."""
        return await self.reader(wanted).newest(limit)

    def reader(
        self, wanted: EventFilter | None = None, *, answer_s: float = ANSWER_S
    ) -> EventReader:
        """`answer_s` is how long to wait for a broker that is silent."""
        return EventReader(self._router, wanted or EventFilter(), answer_s)


@dataclass(slots=True)
class _Position:
    """How far the events of a broker have been read."""

    start_id: str
    sequence: int


class EventReader:
    """Reads the events of a cluster, each once."""

    def __init__(self, router: Router, wanted: EventFilter, answer_s: float) -> None:
        self._router = router
        self._wanted = wanted
        self._answer_s = answer_s
        self._positions: dict[int, _Position] = {}
        self._silent: set[int] = set()

    async def newest(self, limit: int) -> FoundEvents:
        """The newest events of all brokers together; `newer` continues after them."""
        await self._router.metadata([])
        found = await self._ask_all(limit if limit <= MOST_EVENTS else None)
        del found.events[: max(0, len(found.events) - limit)]
        return found

    async def newer(self) -> FoundEvents:
        """What has happened since the last call.

        Brokers that are new in the cluster are asked by the next call.
        """
        if not self._router.nodes:
            await self._router.metadata([])
        found, _ = await asyncio.gather(self._ask_all(None), self._look_for_brokers())
        return found

    async def _look_for_brokers(self) -> None:
        """Ask for the live brokers, while those that are known are asked for their events."""
        with contextlib.suppress(TimeoutError, ConnectionFailed):
            async with asyncio.timeout(self._answer_s):
                await self._router.metadata([])

    async def _ask_all(self, limit: int | None) -> FoundEvents:
        found = FoundEvents()
        departed: dict[int, DepartedBroker] = {}
        brokers = [broker for broker in sorted(self._router.nodes) if self._is_wanted(broker)]
        await asyncio.gather(*(self._read(broker, limit, found, departed) for broker in brokers))
        for broker, seen in departed.items():
            is_known = broker in self._router.nodes or broker in found.answered
            if not is_known and self._is_wanted(broker):
                found.silent[broker] = _gone(seen)
        lost = {*self._positions, *self._wanted.brokers} - {
            *self._router.nodes,
            *found.silent,
            *found.answered,
        }
        for broker in lost:
            found.silent[broker] = "It is not in the cluster."
        found.events.sort(key=lambda event: event.order)
        self._silent = set(found.silent)
        return found

    def _is_wanted(self, broker: int) -> bool:
        return not self._wanted.brokers or broker in self._wanted.brokers

    # -- one broker ------------------------------------------------------------------------

    async def _read(
        self,
        broker: int,
        limit: int | None,
        found: FoundEvents,
        departed: dict[int, DepartedBroker],
    ) -> None:
        """Read the newest events of a broker, or all after its position if there is no limit."""
        limit_s = self._answer_s
        if broker in self._silent:
            limit_s = min(limit_s, SILENT_ANSWER_S)
        try:
            async with asyncio.timeout(limit_s):
                for _ in range(_MOST_REQUESTS):
                    answer = await self._ask(broker, limit)
                    if answer is None:
                        found.foreign.add(broker)
                        return
                    self._take(broker, answer, found)
                    for seen in answer.departed:
                        known = departed.get(seen.broker_id)
                        if known is None or seen.last_seen_ms > known.last_seen_ms:
                            departed[seen.broker_id] = seen
                    if limit is not None or not answer.has_more:
                        return
        except TimeoutError:
            found.silent[broker] = f"It did not answer within {self._answer_s:g} s."
            self._router.disconnect(broker)
        except (ConnectionFailed, KafkaError) as error:
            if isinstance(error, KafkaError) and not error.code.retriable:
                raise
            found.silent[broker] = str(error)

    def _take(self, broker: int, answer: DescribeEventsResponse, found: FoundEvents) -> None:
        found.answered.add(broker)
        before = self._positions.get(broker)
        if before is not None:
            is_same = before.start_id == answer.start_id
            if not is_same:
                found.restarted.add(broker)
            if answer.dropped > (before.sequence if is_same else 0):
                found.missed.add(broker)
        self._positions[broker] = _Position(answer.start_id, answer.position)
        found.events += (
            BrokerEvent(
                event.time_ms,
                event.monotonic_ms,
                broker,
                answer.start_id,
                event.sequence,
                event.kind,
                SEVERITIES[event.severity],
                event.text,
                json.loads(event.data),
            )
            for event in answer.events
        )

    async def _ask(self, broker: int, limit: int | None) -> DescribeEventsResponse | None:
        """Ask one broker; None if it is not Hightide's."""
        request = self._request(broker, limit)
        connection = await self._router.broker(broker)
        try:
            return await self._send(connection, broker, request)
        except ConnectionFailed:
            # Other brokers close the connection on a request that they do not know.  A broker that
            # has died cannot be reached, and raises here; one that has restarted answers.
            connection = await self._router.broker(broker)
        try:
            return await self._send(connection, broker, request)
        except ConnectionFailed:
            await self._router.broker(broker)
            if broker in self._positions:
                raise
            return None

    async def _send(
        self, connection: Connection, broker: int, request: DescribeEventsRequest
    ) -> DescribeEventsResponse:
        answer: DescribeEventsResponse = await connection.send(request, version=0)
        check(answer.error_code, answer.error_message, about=f"broker {broker}")
        return answer

    def _request(self, broker: int, limit: int | None) -> DescribeEventsRequest:
        position = self._positions.get(broker, _Position(_FIRST, 0))
        return DescribeEventsRequest(
            start_id="" if limit is not None else position.start_id,
            after=position.sequence,
            limit=MOST_EVENTS if limit is None else limit,
            severity=SEVERITIES.index(self._wanted.severity),
            kinds=list(self._wanted.kinds),
            topics=_topics(self._wanted.topics),
        )


def _topics(wanted: Iterable[tuple[str, int | None]]) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic=topic, partitions=[] if partition is None else [partition])
        for topic, partition in wanted
    ]


def _gone(seen: DepartedBroker) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seen.last_seen_ms / 1000))
    address = f" ({seen.host}:{seen.port})" if seen.host else ""
    return f"It is gone since {at}{address}."
