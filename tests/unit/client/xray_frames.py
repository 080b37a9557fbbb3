"""Frames of a partition for tests."""

from __future__ import annotations

from typing import Any

from hightide.client.xray.frames import Hold, PartitionFrame, ReplicaFrame


def replica(broker: int, end_offset: int | None = 10, **values: Any) -> ReplicaFrame:
    given: dict[str, Any] = {
        "broker": broker,
        "role": "follower",
        "in_sync": True,
        "eligible": False,
        "alive": True,
        "silent": False,
        "start_offset": 0,
        "high_watermark": end_offset,
        "end_offset": end_offset,
        "lag": 0,
        "lag_ms": 0,
        "why": "in sync",
    }
    return ReplicaFrame(**{**given, **values})


def frame(
    *replicas: ReplicaFrame, leader: int = 1, epoch: int = 0, **values: Any
) -> PartitionFrame:
    """By default brokers 1 to 3, led by 1."""
    shown = replicas or (replica(1, role="leader"), replica(2), replica(3))
    given: dict[str, Any] = {
        "partition": 0,
        "leader": leader,
        "leader_epoch": epoch,
        "partition_epoch": 0,
        "isr": tuple(one.broker for one in shown if one.in_sync),
        "elr": tuple(one.broker for one in shown if one.eligible),
        "adding": (),
        "removing": (),
        "min_isr": 2,
        "high_watermark": 10,
        "last_stable_offset": 10,
        "held": Hold.NOTHING,
        "held_by": (),
        "replicas": shown,
    }
    return PartitionFrame(**{**given, **values})
