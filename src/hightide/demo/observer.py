"""The cluster as its brokers tell it, looked at every second, and what has changed since."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hightide.client.admin import Admin
from hightide.client.connection import ConnectionFailed
from hightide.client.replicas import Partition, PartitionReplicas
from hightide.core.partition.state import NOBODY
from hightide.demo.names import SHOWN
from hightide.wire.errors import KafkaError

PAUSE_S = 0.7
TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class Seen:
    """One partition."""

    leader: int | None
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    high_watermark: int | None
    end_offset: int | None


@dataclass(frozen=True, slots=True)
class Picture:
    live: frozenset[int] = frozenset()
    controller: int = NOBODY
    partitions: Mapping[Partition, Seen] = field(default_factory=dict)

    def led_by(self, broker: int) -> list[Partition]:
        return [place for place, each in self.partitions.items() if each.leader == broker]

    def is_in_sync_anywhere(self, broker: int) -> bool:
        return any(broker in each.isr for each in self.partitions.values())

    @property
    def is_whole(self) -> bool:
        return bool(self.partitions) and all(
            each.leader is not None and set(each.isr) == set(each.replicas)
            for each in self.partitions.values()
        )


def seen(found: PartitionReplicas) -> Seen:
    report = found.leader_report
    return Seen(
        leader=None if found.is_offline else found.leader,
        epoch=found.state.leader_epoch,
        replicas=tuple(found.state.replicas),
        isr=tuple(sorted(found.state.isr)),
        high_watermark=report.high_watermark if report else None,
        end_offset=report.end_offset if report else None,
    )


def changes(before: Picture, after: Picture) -> list[str]:
    """What has happened between two looks, in sentences."""
    told = []
    if before.live:
        told += [f"Broker {each} is gone." for each in sorted(before.live - after.live)]
        told += [f"Broker {each} is back." for each in sorted(after.live - before.live)]
    if before.controller not in (after.controller, NOBODY):
        told.append(f"Broker {after.controller} is the controller now.")
    led: dict[int | None, list[str]] = defaultdict(list)
    in_sync: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = defaultdict(list)
    for place, now in after.partitions.items():
        was, name = before.partitions.get(place, now), f"{place[0]}/{place[1]}"
        if now.leader != was.leader:
            led[now.leader].append(name)
        if now.isr != was.isr:
            in_sync[was.isr, now.isr].append(name)
    for leader, names in led.items():
        who = "Nobody" if leader is None else f"Broker {leader}"
        told.append(f"{who} leads {', '.join(names)} now.")
    for (old, new), names in in_sync.items():
        told.append(f"In sync: {listed(new)}, before {listed(old)}, in {', '.join(names)}.")
    return told


def listed(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "none"


class Observer:
    """A thread that keeps the picture fresh, and tells of changes."""

    def __init__(self, bootstrap: str, tell: Callable[[str], None]) -> None:
        self._bootstrap = bootstrap
        self._tell = tell
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-observer", daemon=True)
        self.picture = Picture()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.run(self._look_on())

    async def _look_on(self) -> None:
        async with Admin(self._bootstrap, timeout_ms=TIMEOUT_MS) as admin:
            while not self._stopped.is_set():
                try:
                    fresh = await self._look(admin)
                except (KafkaError, ConnectionFailed):
                    # Whoever watches a cluster in trouble goes on watching.
                    pass
                else:
                    for sentence in changes(self.picture, fresh):
                        self._tell(sentence)
                    self.picture = fresh
                await asyncio.sleep(PAUSE_S)

    async def _look(self, admin: Admin) -> Picture:
        there = {each.name for each in await admin.list_topics()}
        found = await admin.describe_replicas([each for each in SHOWN if each in there])
        return Picture(
            live=found.live,
            controller=found.controller,
            partitions={(each.topic, each.partition): seen(each) for each in found.partitions},
        )
