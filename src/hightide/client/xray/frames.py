"""One look at a partition as a value: each replica's offsets, its standing, and what holds the
high watermark.

A frame is small and has no text that changes by itself, so that a history of frames can store
differences.  The sentences are made when a frame is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from hightide.client.model.health import listed
from hightide.client.model.replicas import PartitionReplicas, ReplicaReport, ReplicaStatus, Role
from hightide.client.model.standstill import SLOW_MS
from hightide.core.partition.follower_progress import Progress
from hightide.core.partition.state import NO_BROKER, effective_min_isr

ROLES: Mapping[Role | None, str] = {
    None: "none",
    Role.WAITING: "waiting",
    Role.LEADER: "leader",
    Role.FOLLOWER: "follower",
}


class Hold(IntEnum):
    """What holds the high watermark back."""

    NOTHING = 0
    MOVES = 1
    """A replica is behind for a moment, as always while records are written."""
    SLOW = 2
    MIN_ISR = 3
    OFFLINE = 4
    SILENT = 5
    """The leader does not answer."""
    FAILED = 6
    """The leader's log cannot be written."""


@dataclass(frozen=True, slots=True)
class ReplicaFrame:
    """One replica; None means unknown."""

    broker: int
    role: str
    in_sync: bool
    eligible: bool
    alive: bool
    silent: bool
    """Whether its broker is alive and does not answer."""
    start_offset: int | None
    high_watermark: int | None
    end_offset: int | None
    lag: int | None
    lag_ms: int | None
    why: str
    approximate: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "role": self.role,
            "in_sync": self.in_sync,
            "eligible": self.eligible,
            "alive": self.alive,
            "silent": self.silent,
            "start_offset": self.start_offset,
            "high_watermark": self.high_watermark,
            "end_offset": self.end_offset,
            "lag": self.lag,
            "lag_ms": self.lag_ms,
            "why": self.why,
            "approximate": self.approximate,
        }


@dataclass(frozen=True, slots=True)
class PartitionFrame:
    """One partition and its replicas."""

    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    min_isr: int
    high_watermark: int | None
    last_stable_offset: int | None
    held: Hold
    held_by: tuple[int, ...]
    replicas: tuple[ReplicaFrame, ...]

    @property
    def accepts_all(self) -> bool:
        """Whether the leader accepts writes with acks=all."""
        return self.leader != NO_BROKER and self.held not in (Hold.MIN_ISR, Hold.FAILED)

    @property
    def end_offset(self) -> int | None:
        """The leader's log end."""
        ends = (one.end_offset for one in self.replicas if one.broker == self.leader)
        return next(ends, None)

    @property
    def held_why(self) -> str:
        """What holds the high watermark back, as a sentence; "" if it moves."""
        which = f"replica {self.held_by[0]}" if self.held_by else "a replica"
        if len(self.held_by) > 1:
            which = f"replicas {listed(self.held_by)}"
        match self.held:
            case Hold.SLOW:
                return f"The high watermark waits for {which} of the ISR."
            case Hold.MIN_ISR:
                return (
                    f"{len(self.isr)} of the {self.min_isr} replicas that min.insync.replicas needs"
                    f" {'is' if len(self.isr) == 1 else 'are'} in sync."
                )
            case Hold.OFFLINE:
                return "There is no leader."
            case Hold.SILENT:
                return f"Broker {self.leader}, the leader, does not answer."
            case Hold.FAILED:
                return "The leader's log cannot be written."
        return ""

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "partition_epoch": self.partition_epoch,
            "isr": self.isr,
            "elr": self.elr,
            "adding": self.adding,
            "removing": self.removing,
            "min_isr": self.min_isr,
            "high_watermark": self.high_watermark,
            "last_stable_offset": self.last_stable_offset,
            "end_offset": self.end_offset,
            "held_by": self.held_by,
            "held_why": self.held_why,
            "accepts_all": self.accepts_all,
            "replicas": [replica.to_json() for replica in self.replicas],
        }


class TimedFrame(NamedTuple):
    """A frame, and when the look was; it holds until the next one."""

    time_ms: int
    frame: PartitionFrame


def frame_of(partition: PartitionReplicas, min_isr: int) -> PartitionFrame:
    """The frame of a partition of Hightide's brokers."""
    state, leader = partition.state, partition.leader_report
    needed = effective_min_isr(min_isr, state.replicas)
    held, held_by = _hold(partition, leader, needed)
    return PartitionFrame(
        partition=partition.partition,
        leader=partition.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        isr=state.isr,
        elr=state.elr,
        adding=state.adding,
        removing=state.removing,
        min_isr=needed,
        high_watermark=leader.high_watermark if leader else _best_mark(partition),
        last_stable_offset=leader.last_stable_offset if leader else None,
        held=held,
        held_by=held_by,
        replicas=tuple(_replica(partition, status) for status in partition.statuses()),
    )


def _replica(partition: PartitionReplicas, status: ReplicaStatus) -> ReplicaFrame:
    broker = status.replica
    return ReplicaFrame(
        broker=broker,
        role=ROLES[status.role],
        in_sync=status.in_sync,
        eligible=status.eligible,
        alive=broker in partition.live,
        silent=broker in partition.silent,
        start_offset=status.log_start_offset,
        high_watermark=status.high_watermark,
        end_offset=status.end_offset,
        lag=status.lag_records,
        lag_ms=status.lag_ms,
        why=status.why,
    )


def _best_mark(partition: PartitionReplicas) -> int | None:
    """Without a leader that reports: the newest high watermark that a replica knows."""
    return max((report.high_watermark for report in partition.reports.values()), default=None)


def _hold(
    partition: PartitionReplicas, report: ReplicaReport | None, needed: int
) -> tuple[Hold, tuple[int, ...]]:
    if partition.is_offline:
        return Hold.OFFLINE, ()
    if partition.leader in partition.silent:
        return Hold.SILENT, (partition.leader,)
    if report is not None and report.failure:
        return Hold.FAILED, (partition.leader,)
    if len(partition.state.isr) < needed:
        return Hold.MIN_ISR, partition.missing
    if report is None or report.high_watermark >= report.end_offset:
        return Hold.NOTHING, ()
    members = report.maximal_isr or partition.state.isr
    slow = [
        progress
        for broker, progress in sorted(report.progress.items())
        if broker in members
        and broker != report.broker
        and (progress.end_offset is None or progress.end_offset <= report.high_watermark)
    ]
    held_by = tuple(progress.replica for progress in slow)
    is_slow = any(map(_is_slow, slow))
    return (Hold.SLOW if is_slow else Hold.MOVES), held_by


def _is_slow(progress: Progress) -> bool:
    return progress.lag_ms is None or progress.lag_ms >= SLOW_MS


def foreign_frame(
    partition: PartitionReplicas,
    min_isr: int,
    offsets: tuple[int, int, int] | None,
    lags: Mapping[int, int],
) -> PartitionFrame:
    """The frame of a partition of brokers that do not know DescribeReplicas.

    `offsets` are the log start, the last stable offset and the high watermark from ListOffsets.
    The protocol has no log end of a replica: it follows from `lags`, of DescribeLogDirs, as far
    as it is behind the high watermark.
    """
    frame = frame_of(partition, min_isr)
    start, stable, mark = offsets or (None, None, None)
    held = Hold.NOTHING if frame.held is Hold.MOVES else frame.held
    return replace(
        frame,
        high_watermark=mark,
        last_stable_offset=stable,
        held=held,
        replicas=tuple(
            _foreign_replica(frame, replica, start, mark, lags.get(replica.broker))
            for replica in frame.replicas
        ),
    )


def _foreign_replica(
    frame: PartitionFrame,
    replica: ReplicaFrame,
    start: int | None,
    mark: int | None,
    lag: int | None,
) -> ReplicaFrame:
    is_leader = replica.broker == frame.leader
    if is_leader:
        lag = 0
    end = None if mark is None or lag is None else max(0, mark - lag)
    return replace(
        replica,
        role="leader" if is_leader else "follower" if frame.leader != NO_BROKER else "none",
        start_offset=start if is_leader else None,
        high_watermark=mark if is_leader else None,
        end_offset=end,
        lag=lag,
        approximate=True,
    )
