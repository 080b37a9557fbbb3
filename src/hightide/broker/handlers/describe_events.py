"""DescribeEvents (30008): what has happened on this broker.

Kafka has no such request; there, it takes the logs of every broker.

INVALID_REQUEST   there is no such kind of event, or no such severity
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hightide import event_log
from hightide.broker.handlers.describe_replicas import departed_brokers
from hightide.broker.handlers.request_context import Context
from hightide.broker.network.turn import Steps
from hightide.core.events import KINDS, SEVERITIES, Recorded
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.events import (
    DescribedEvent,
    DescribeEventsRequest,
    DescribeEventsResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

MOST_EVENTS = 1000
MOST_CHARACTERS = 512 * 1024
"""Limits of one response; a response has at least one event."""
_LOOKED_AT = 50
"""Events between two places where other requests may have their turn."""


def describe_events(
    broker: Broker, request: DescribeEventsRequest, context: Context
) -> Steps[DescribeEventsResponse]:
    why = _refusal(request)
    if why is not None:
        return DescribeEventsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=why, events=[]
        )
    is_newest = not request.start_id
    # Sequence numbers of another start say nothing about those of this one.
    after = request.after if request.start_id == event_log.START_ID else 0
    kept = event_log.newest(request.kinds) if is_newest else event_log.after(after, request.kinds)
    limit = max(0, min(request.limit, MOST_EVENTS))
    wanted = _Wanted(request)
    response = DescribeEventsResponse(
        start_id=event_log.START_ID,
        position=kept.last_sequence,
        dropped=kept.dropped_sequence,
        events=[],
        departed=departed_brokers(broker, context),
    )
    characters = 0
    for count, recorded in enumerate(kept.events if limit or not is_newest else ()):
        if count % _LOOKED_AT == 0:
            yield
        if not wanted.has(recorded):
            continue
        if len(response.events) >= limit or characters >= MOST_CHARACTERS:
            response.has_more = True
            break
        described = _described(recorded)
        characters += len(described.text) + len(described.data)
        response.events.append(described)
    if is_newest:
        response.events.reverse()
    elif response.has_more:
        response.position = response.events[-1].sequence if response.events else after
    return response


def _refusal(request: DescribeEventsRequest) -> str | None:
    unknown = [kind for kind in request.kinds if kind not in KINDS]
    if unknown:
        known = ", ".join(sorted(KINDS))
        return f"there is no kind of event {unknown[0][:100]!r}; known are {known}"
    if not 0 <= request.severity < len(SEVERITIES):
        return f"there is no severity {request.severity}"
    return None


class _Wanted:
    """Which events a request is for."""

    def __init__(self, request: DescribeEventsRequest) -> None:
        self._levels = frozenset(SEVERITIES[request.severity :])
        self._whole: set[str] = set()
        self._partitions: dict[str, set[int]] = {}
        for topic in request.topics:
            if topic.partitions:
                self._partitions.setdefault(topic.topic, set()).update(topic.partitions)
            else:
                self._whole.add(topic.topic)
        self._has_topics = bool(request.topics)

    def has(self, recorded: Recorded) -> bool:
        event = recorded.event
        if event.level not in self._levels:
            return False
        if not self._has_topics:
            return True
        topic, partition = event.place
        if topic in self._whole:
            return True
        found = self._partitions.get(topic or "")
        return found is not None and (partition is None or partition in found)


def _described(recorded: Recorded) -> DescribedEvent:
    event = recorded.event
    return DescribedEvent(
        sequence=recorded.sequence,
        time_ms=recorded.time_ms,
        monotonic_ms=recorded.monotonic_ms,
        kind=event.kind,
        severity=SEVERITIES.index(event.level),
        # The name of a directory may have bytes that are no text.
        text=str(event).encode(errors="backslashreplace").decode(),
        data=json.dumps(event.data(), separators=(",", ":"), default=str),
    )
