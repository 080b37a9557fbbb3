"""Frames of the past, from events alone: who led, who was in sync, which brokers were alive.

Without looks there are no offsets.  The report of a failed test looks once, at the failure, and
events tell the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hightide.client.xray.frames import Hold, PartitionFrame, ReplicaFrame, TimedFrame
from hightide.client.xray.timeline import ELECTIONS, Event
from hightide.core.partition.state import NO_BROKER

ISR_CHANGES = ("isr_shrunk", "isr_grown")
CHANGES = (*ELECTIONS, *ISR_CHANGES, "partition_offline", "log_truncated", "records_lost")
"""Events that make the X-ray of a partition worth a look."""


def replayed(events: Iterable[Event], now: PartitionFrame) -> list[TimedFrame]:
    """The frames that events about a partition, and about brokers, lead to; `now` has its replicas.

    The first is at the first event that says who led.
    """
    leader, epoch, isr = NO_BROKER, -1, tuple[int, ...]()
    gone: set[int] = set()
    found: list[TimedFrame] = []
    for event in sorted(events, key=lambda event: event["time_ms"]):
        kind, data = event["kind"], event["data"]
        if kind in ELECTIONS:
            leader, epoch = data["leader"], data["leader_epoch"]
            isr = tuple(data.get("isr", [leader]))
        elif kind in ISR_CHANGES:
            leader, isr = data.get("leader", leader), tuple(data["isr"])
        elif kind == "partition_offline":
            leader, isr = NO_BROKER, ()
        elif kind == "brokers_changed":
            gone = (gone | set(data["gone"])) - set(data["up"])
        else:
            continue
        if epoch >= 0 or isr:
            frame = _frame(now, leader, epoch, isr, gone)
            found.append(TimedFrame(event["time_ms"], frame))
    return found


def _frame(
    now: PartitionFrame, leader: int, epoch: int, isr: tuple[int, ...], gone: set[int]
) -> PartitionFrame:
    return replace(
        now,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=-1,
        isr=isr,
        elr=(),
        adding=(),
        removing=(),
        high_watermark=None,
        last_stable_offset=None,
        held=Hold.OFFLINE if leader == NO_BROKER else Hold.NOTHING,
        held_by=(),
        replicas=tuple(_replica(one.broker, leader, isr, gone) for one in now.replicas),
    )


def _replica(broker: int, leader: int, isr: tuple[int, ...], gone: set[int]) -> ReplicaFrame:
    role = "leader" if broker == leader else "none" if leader == NO_BROKER else "follower"
    return ReplicaFrame(
        broker=broker,
        role=role,
        in_sync=broker in isr,
        eligible=False,
        alive=broker not in gone,
        silent=False,
        start_offset=None,
        high_watermark=None,
        end_offset=None,
        lag=None,
        lag_ms=None,
        why="from events",
    )
