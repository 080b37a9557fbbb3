"""High watermarks that stand still although their leaders have newer records, and why.

looked at every few seconds ──the same for STALLED_MS──▶ HighWatermarkStalled
                            ──it has moved since───────▶ HighWatermarkMoves
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from hightide.core.events import Event, Severity, partition_name
from hightide.core.partition.leader import Leader

STALLED_MS = 5_000

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HighWatermarkStalled(Event):
    """The high watermark of a partition has not moved for a while, and records wait for it."""

    severity: ClassVar[Severity] = Severity.WARNING
    topic: str
    partition: int
    high_watermark: int
    end_offset: int
    held_by: tuple[int, ...]
    why: str

    def __str__(self) -> str:
        return (
            f"{partition_name(self.topic, self.partition)}: the high watermark stands at"
            f" {self.high_watermark}, and {self.end_offset - self.high_watermark} newer records"
            f" wait: {self.why}"
        )


@dataclass(frozen=True, slots=True)
class HighWatermarkMoves(Event):
    """A high watermark that stood still moves again."""

    topic: str
    partition: int
    high_watermark: int
    stalled_ms: int

    def __str__(self) -> str:
        return (
            f"{partition_name(self.topic, self.partition)}: the high watermark moves again, to"
            f" {self.high_watermark}, after {self.stalled_ms} ms"
        )


@dataclass(slots=True)
class _Stall:
    leader_epoch: int
    high_watermark: int
    since_ms: int
    is_reported: bool = False


class StallWatch:
    """Finds the high watermarks of one broker that stand still."""

    def __init__(self) -> None:
        self._waiting: dict[Partition, _Stall] = {}

    def look(self, leaders: Iterable[tuple[Partition, Leader]], now_ms: int) -> list[Event]:
        """Look at all partitions that this broker leads; return what has begun or ended."""
        events: list[Event] = []
        waiting: dict[Partition, _Stall] = {}
        for partition, leader in leaders:
            stall = self._waiting.get(partition)
            if stall is None and leader.high_watermark == leader.end_offset:
                continue
            known = stall if stall and stall.leader_epoch == leader.state.leader_epoch else None
            if known is not None and known.high_watermark != leader.high_watermark:
                if known.is_reported:
                    took_ms = now_ms - known.since_ms
                    events.append(HighWatermarkMoves(*partition, leader.high_watermark, took_ms))
                known = None
            if leader.high_watermark == leader.end_offset:
                continue
            if known is None:
                known = _Stall(leader.state.leader_epoch, leader.high_watermark, now_ms)
            waiting[partition] = known
            if not known.is_reported and now_ms - known.since_ms >= STALLED_MS:
                known.is_reported = True
                events.append(_stalled(partition, leader, now_ms))
        self._waiting = waiting
        return events


def _stalled(partition: Partition, leader: Leader, now_ms: int) -> HighWatermarkStalled:
    held_by, why = leader.held_back(now_ms)
    return HighWatermarkStalled(*partition, leader.high_watermark, leader.end_offset, held_by, why)
