"""Describes the cluster every second through the admin API, and reports what has changed."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from examples.demo.topics import SHOWN
from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Partition
from hightide.client.model.replicas import PartitionReplicas
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import KafkaError

PAUSE_S = 0.7
TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class PartitionState:
    leader: int | None
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    high_watermark: int | None
    end_offset: int | None


@dataclass(frozen=True, slots=True)
class ClusterState:
    live: frozenset[int] = frozenset()
    controller: int = NO_BROKER
    partitions: Mapping[Partition, PartitionState] = field(default_factory=dict)

    def led_by(self, broker: int) -> list[Partition]:
        return [partition for partition, state in self.partitions.items() if state.leader == broker]

    def is_in_any_isr(self, broker: int) -> bool:
        return any(broker in state.isr for state in self.partitions.values())

    @property
    def is_fully_replicated(self) -> bool:
        return bool(self.partitions) and all(
            state.leader is not None and set(state.isr) == set(state.replicas)
            for state in self.partitions.values()
        )


def partition_state(described: PartitionReplicas) -> PartitionState:
    report = described.leader_report
    return PartitionState(
        leader=None if described.is_offline else described.leader,
        epoch=described.state.leader_epoch,
        replicas=tuple(described.state.replicas),
        isr=tuple(sorted(described.state.isr)),
        high_watermark=report.high_watermark if report else None,
        end_offset=report.end_offset if report else None,
    )


def changes(before: ClusterState, after: ClusterState) -> list[str]:
    """Return the differences between two states, as sentences."""
    sentences = []
    if before.live:
        sentences += [f"Broker {broker} is gone." for broker in sorted(before.live - after.live)]
        sentences += [f"Broker {broker} is back." for broker in sorted(after.live - before.live)]
    if before.controller not in (after.controller, NO_BROKER):
        sentences.append(f"Broker {after.controller} is the controller now.")
    led: dict[int | None, list[str]] = defaultdict(list)
    in_sync: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = defaultdict(list)
    for partition, now in after.partitions.items():
        was, name = before.partitions.get(partition, now), f"{partition[0]}/{partition[1]}"
        if now.leader != was.leader:
            led[now.leader].append(name)
        if now.isr != was.isr:
            in_sync[was.isr, now.isr].append(name)
    for leader, names in led.items():
        leads = "No broker leads" if leader is None else f"Broker {leader} leads"
        sentences.append(f"{leads} {', '.join(names)} now.")
    for (old, new), names in in_sync.items():
        sentences.append(f"ISR is {listed(new)}, was {listed(old)}: {', '.join(names)}.")
    return sentences


def listed(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "empty"


class Observer:
    """A thread that refreshes the cluster's state, and reports each change."""

    def __init__(self, bootstrap: str, report: Callable[[str], None]) -> None:
        self._bootstrap = bootstrap
        self._report = report
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-observer", daemon=True)
        self.state = ClusterState()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.run(self._observe())

    async def _observe(self) -> None:
        async with Admin(self._bootstrap, timeout_ms=TIMEOUT_MS) as admin:
            while not self._stopped.is_set():
                try:
                    fresh = await self._describe(admin)
                except (KafkaError, ConnectionFailed):
                    # The demo kills brokers, so requests fail now and then; ask again.
                    pass
                else:
                    for sentence in changes(self.state, fresh):
                        self._report(sentence)
                    self.state = fresh
                await asyncio.sleep(PAUSE_S)

    async def _describe(self, admin: Admin) -> ClusterState:
        existing = {topic.name for topic in await admin.topics.list()}
        found = await admin.replicas.describe([topic for topic in SHOWN if topic in existing])
        return ClusterState(
            live=found.live,
            controller=found.controller,
            partitions={
                (described.topic, described.partition): partition_state(described)
                for described in found.partitions
            },
        )
