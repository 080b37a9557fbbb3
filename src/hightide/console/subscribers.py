"""Browsers that listen: each gets what is newest, however slowly it reads.

A subscriber has one place for the overview, one for its topic, and a short list of events.  What is
newer replaces what has not been taken yet, so nothing grows while a browser is slow.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

MOST_EVENTS = 500


class Message:
    """Something to send; it is encoded once for all subscribers."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    @cached_property
    def text(self) -> str:
        return json.dumps(self.data, separators=(",", ":"), allow_nan=False)


class Subscriber:
    """What one browser has not taken yet."""

    def __init__(self, topic: str | None) -> None:
        self.topic = topic
        self._newest: dict[str, Message] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._wake = asyncio.Event()

    def put(self, message: Message) -> None:
        """Replace the message of this type that has not been taken."""
        self._newest[message.data["type"]] = message
        self._wake.set()

    def put_events(self, events: list[dict[str, Any]]) -> None:
        self._events += events
        self._wake.set()

    async def take(self) -> list[Message]:
        """Wait until there is something, and take all of it."""
        await self._wake.wait()
        self._wake.clear()
        found = [*self._newest.values()]
        self._newest.clear()
        if self._events:
            found.append(Message({"type": "events", "events": [*self._events]}))
            self._events.clear()
        return found


class Subscribers:
    """All browsers that listen."""

    def __init__(self) -> None:
        self._all: set[Subscriber] = set()

    @contextmanager
    def added(self, topic: str | None) -> Iterator[Subscriber]:
        subscriber = Subscriber(topic)
        self._all.add(subscriber)
        try:
            yield subscriber
        finally:
            self._all.discard(subscriber)

    def __len__(self) -> int:
        return len(self._all)

    def publish(self, data: dict[str, Any], topic: str | None = None) -> None:
        """Publish a message to all, or to those that listen to a topic."""
        message = Message(data)
        for subscriber in self._all:
            if topic is None or subscriber.topic == topic:
                subscriber.put(message)

    def publish_events(self, events: list[dict[str, Any]]) -> None:
        for subscriber in self._all:
            subscriber.put_events(events)
