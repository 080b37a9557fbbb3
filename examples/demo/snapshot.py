"""Everything that is shown at one moment, and the same as one line of text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.demo.observer import ClusterState
from examples.demo.order_check import OrderCheck
from hightide.spark.pipelines.status import AppStatus

MAX_EVENTS = 200
RATE_WINDOW_S = 5.0
STALL_S = 1.5
"""How long without an acknowledgement is worth a word."""


@dataclass(frozen=True, slots=True)
class Event:
    at: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    bootstrap: str
    elapsed_s: float
    rates: Mapping[str, float]
    """Acknowledged records per second, by topic."""
    silent_s: float
    """Seconds since the last acknowledgement."""
    acknowledged: int
    read_back: int
    outstanding: int
    duplicates: int
    cluster: ClusterState
    dead: Sequence[int]
    pipeline: str
    app: AppStatus | None
    revenue: Sequence[Mapping[str, Any]]
    events: Sequence[Event]
    console: str = ""
    """Where the console is; "" if there is none yet."""


class EventLog:
    """The latest events; each is also passed to a listener at once."""

    def __init__(self, listen: Callable[[Event], None]) -> None:
        self._listen = listen
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def add(self, sentence: str) -> None:
        event = Event(time.strftime("%H:%M:%S"), sentence)
        self.events.append(event)
        self._listen(event)


class Rate:
    """How fast a count grows, over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def at(self, now: float, count: int) -> float:
        self._points.append((now, count))
        while len(self._points) > 2 and now - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()
        since, before = self._points[0]
        return (count - before) / (now - since) if now > since else 0.0


def line(snapshot: Snapshot) -> str:
    """Return the snapshot as one line."""
    rates = ", ".join(f"{topic} {rate:.0f}/s" for topic, rate in snapshot.rates.items())
    if snapshot.dead:
        health = f"broker {','.join(map(str, snapshot.dead))} down"
    else:
        health = "all in sync" if snapshot.cluster.is_fully_replicated else "catching up"
    return (
        f"{rates} | orders: {order_counts(snapshot)} | {health} | "
        f"pipeline: {snapshot.pipeline}{_lag(snapshot)}"
    )


def order_counts(snapshot: Snapshot) -> str:
    return (
        f"{snapshot.acknowledged} acknowledged, {snapshot.read_back} read back, "
        f"{snapshot.outstanding} in flight, {snapshot.duplicates} duplicated"
    )


def banner(snapshot: Snapshot) -> tuple[str, str]:
    """Return the ledger for the console's banner, and its level."""
    missing = f"{snapshot.outstanding:,} on their way" if snapshot.outstanding else "0 missing"
    text = (
        f"Orders: {snapshot.acknowledged:,} acknowledged, {snapshot.read_back:,} read back,"
        f" {missing}, {snapshot.duplicates:,} duplicated"
    )
    if snapshot.duplicates:
        return text, "bad"
    if snapshot.silent_s > STALL_S:
        return f"{text}; none acknowledged for {snapshot.silent_s:.0f} s", "warn"
    return text, "ok"


def _lag(snapshot: Snapshot) -> str:
    queries = snapshot.app.queries if snapshot.app else ()
    lags = [query.lag for query in queries if query.lag is not None]
    return f", lag {sum(lags)}" if lags else ""


def verdict(check: OrderCheck, *, is_drained: bool) -> str:
    """Return the demo's last line; without draining, missing orders may still be in flight."""
    if is_drained and check.is_complete:
        return (
            f"Nothing was lost: {check.acknowledged} orders acknowledged, {check.acknowledged} "
            "read back, 0 missing, 0 duplicated."
        )
    missing = "missing" if is_drained else "still in flight"
    return (
        f"{check.acknowledged} orders acknowledged, {check.read_back} read back, "
        f"{check.outstanding} {missing}, {check.duplicates} duplicated."
    )
