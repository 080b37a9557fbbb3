"""One event of each kind, as brokers record them; docs/guide/events.md shows the same."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import hightide
from hightide.broker.handlers.prove_broker import RequestDenied
from hightide.broker.network.server import SlowRequest
from hightide.broker.replication.replica_failures import ReplicaFailed, ReplicaRecovered
from hightide.core.controller.controller_events import (
    BrokersChanged,
    ControllerElected,
    ControllerResigned,
    LeaderElected,
    LeadersElected,
    PartitionOffline,
    PartitionRecovered,
    PartitionsAdded,
    ReplicasReassigned,
    StatePublished,
    TopicCreated,
    TopicDeleted,
    UncleanLeaderElected,
)
from hightide.core.events import KINDS, Event
from hightide.core.groups.group_events import GroupRebalanced, GroupRebalancing
from hightide.core.partition.follower import LogTruncated, RecordsLost
from hightide.core.partition.isr import IsrGrown, IsrShrunk
from hightide.core.partition.stall import HighWatermarkMoves, HighWatermarkStalled
from hightide.core.partition.state import NO_BROKER, FailureKind, FirstWrite, Role, RoleChanged
from hightide.core.transactions.transaction_coordinator import TransactionAborted
from hightide.log.disk_state import DiskChanged, DiskStatus
from hightide.log.recovery import LogRecovered
from hightide.log.repair import RecordsDamaged
from hightide.zookeeper.client import SessionChanged
from hightide.zookeeper.interface import SessionState

SOURCE = Path(hightide.__file__).parent
WHERE = ("orders", 0)

EXAMPLES: tuple[Event, ...] = (
    SessionChanged(
        SessionState.CONNECTED,
        "zk1:2181,zk2:2181",
        "session 0x13c71038e875f88, timeout 18000 ms",
        False,
    ),
    ControllerElected(2, 7, True, 1),
    ControllerResigned(7, "another broker is the controller"),
    BrokersChanged((1,), (), (), (2, 3)),
    LeadersElected("broker 1 is gone", 18, 0, 53, 0, 7),
    StatePublished("broker 1 is gone", 9, True),
    FirstWrite(*WHERE, 5, 31),
    LeaderElected(*WHERE, 2, 1, 5, (2, 3), "broker 1 is gone"),
    UncleanLeaderElected(*WHERE, 3, 6, (), (1, 2), 1),
    PartitionRecovered(*WHERE, 2, 6, (1, 2)),
    PartitionOffline(*WHERE, 1, (1, 2), "broker 1 is gone"),
    ReplicasReassigned(*WHERE, (2, 3, 4, 1), (4,), (1,)),
    TopicCreated("orders", "3f1c9a52-5d0e-4f57-9a3e-0c6f0d5a7b11", 6),
    PartitionsAdded("orders", 6, 12),
    TopicDeleted("orders"),
    IsrShrunk(
        *WHERE,
        (3,),
        (1, 2),
        1,
        "replica 3 is 912 records behind and was last caught up 30040 ms ago",
    ),
    IsrGrown(*WHERE, (3,), (1, 2, 3), 1, "caught up"),
    HighWatermarkStalled(
        *WHERE,
        4021,
        4933,
        (3,),
        "replica 3 is 912 records behind and was last caught up 5003 ms ago",
    ),
    HighWatermarkMoves(*WHERE, 4933, 30120),
    RoleChanged(*WHERE, Role.FOLLOWS, 2, 5),
    LogTruncated(*WHERE, 4940, 4, 4933, 4933, 2, 5, False, False),
    RecordsLost(
        *WHERE,
        7,
        4926,
        4932,
        3,
        6,
        "the leader elected in leader epoch 6 was not known to have all committed records",
    ),
    LogRecovered(*WHERE, 4000, 4933, 118, 42),
    RecordsDamaged(
        "/data",
        "orders-0",
        4100,
        4163,
        "orders-0.1795077012972-damaged",
        "at byte 52011 of orders-0/00000000000000004000.log: there is no record batch",
    ),
    ReplicaFailed(*WHERE, FailureKind.OFFLINE, "cannot read /data/orders-0: Input/output error"),
    ReplicaRecovered(*WHERE, FailureKind.OFFLINE),
    DiskChanged("/data", DiskStatus.FULL, "No space left on device"),
    GroupRebalancing("billing", 4, 3, "left: app-2-61f0"),
    GroupRebalanced("billing", 5, 2, 812),
    TransactionAborted("shop-1", 4001, 3, 2, "it has not ended within 60000 ms", False),
    SlowRequest("Metadata", 12, "dashboard", "10.0.0.7", 240),
    RequestDenied("PublishState as broker 2", "10.0.0.9 (client id 'x')", 0),
)

# Kinds whose level depends on the facts have an example of each.
OTHER_LEVELS: tuple[Event, ...] = (
    SessionChanged(
        SessionState.LOST,
        "zk1:2181,zk2:2181",
        "session 0x13c71038e875f88 is closed or expired",
        False,
    ),
    BrokersChanged((), (1,), (77,), (1, 2, 3)),
    LeaderElected(*WHERE, 1, NO_BROKER, 0, (1, 2, 3), "topic created"),
    LogRecovered(*WHERE, 4000, 4933, 0, 42),
    ReplicaFailed(*WHERE, FailureKind.FULL, "No space left on device"),
    ReplicaRecovered(*WHERE, FailureKind.FULL),
    DiskChanged("/data", DiskStatus.WORKS, ""),
    TransactionAborted("shop-1", 4001, 3, 2, "its client asked", True),
)


def every_kind() -> dict[str, type[Event]]:
    """All kinds that the source declares, by name; kinds that tests declare are left out."""
    for path in SOURCE.rglob("*.py"):
        if re.search(r"^class \w+\(Event\):", path.read_text("utf-8"), re.MULTILINE):
            module = path.relative_to(SOURCE.parent).with_suffix("")
            importlib.import_module(".".join(module.parts))
    return {name: kind for name, kind in KINDS.items() if kind.__module__.startswith("hightide.")}
