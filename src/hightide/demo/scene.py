"""All that is shown at a moment, and its form as one plain line."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hightide.demo.ledger import Ledger
from hightide.demo.observer import Picture
from hightide.spark.pipelines.status import AppStatus

KEPT = 200
SPAN_S = 5.0


@dataclass(frozen=True, slots=True)
class Event:
    at: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Scene:
    bootstrap: str
    elapsed_s: float
    rates: Mapping[str, float]
    """Acknowledged records in a second, by topic."""
    silent_s: float
    """How long no record has been acknowledged."""
    acknowledged: int
    read_back: int
    outstanding: int
    duplicates: int
    picture: Picture
    dead: Sequence[int]
    pipeline: str
    app: AppStatus | None
    revenue: Sequence[Mapping[str, Any]]
    events: Sequence[Event]


class Events:
    """What has happened; each is also told at once to whoever listens."""

    def __init__(self, listen: Callable[[Event], None]) -> None:
        self._listen = listen
        self.kept: deque[Event] = deque(maxlen=KEPT)

    def tell(self, sentence: str) -> None:
        event = Event(time.strftime("%H:%M:%S"), sentence)
        self.kept.append(event)
        self._listen(event)


class Rate:
    """How fast a count grows, over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def at(self, now: float, count: int) -> float:
        self._points.append((now, count))
        while len(self._points) > 2 and now - self._points[0][0] > SPAN_S:
            self._points.popleft()
        since, before = self._points[0]
        return (count - before) / (now - since) if now > since else 0.0


def line(scene: Scene) -> str:
    """The state of things in one line."""
    rates = ", ".join(f"{topic} {rate:.0f}/s" for topic, rate in scene.rates.items())
    if scene.dead:
        health = f"broker {','.join(map(str, scene.dead))} down"
    else:
        health = "all in sync" if scene.picture.is_whole else "catching up"
    return (
        f"{rates} | orders: {balance(scene)} | {health} | pipeline: {scene.pipeline}{_lag(scene)}"
    )


def balance(scene: Scene) -> str:
    return (
        f"{scene.acknowledged} acknowledged, {scene.read_back} read back, "
        f"{scene.outstanding} on the way, {scene.duplicates} duplicated"
    )


def _lag(scene: Scene) -> str:
    lags = [each.lag for each in scene.app.queries if each.lag is not None] if scene.app else []
    return f", lag {sum(lags)}" if lags else ""


def verdict(ledger: Ledger, *, is_complete: bool) -> str:
    """The last word."""
    if is_complete and ledger.is_settled:
        return (
            f"Nothing was lost: {ledger.acknowledged} orders acknowledged, {ledger.acknowledged} "
            "read back, 0 missing, 0 duplicated."
        )
    missing = "missing" if is_complete else "still on the way"
    return (
        f"{ledger.acknowledged} orders acknowledged, {ledger.read_back} read back, "
        f"{ledger.outstanding} {missing}, {ledger.duplicates} duplicated."
    )
