"""When a broker is ready, and what it says if it is not."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from hightide.broker.metrics import health
from hightide.broker.metrics.health import Check
from hightide.broker.network.turn import Turn
from hightide.core.partition.state import PartitionState

ME, OTHER, THIRD = 1, 2, 3


@dataclass
class Image:
    live: dict[int, int] = field(default_factory=lambda: {ME: 1, OTHER: 1})


@dataclass
class FakeReplica:
    """What the check reads of a replica."""

    state: PartitionState | None
    follower: object | None = "follows"
    failure: object | None = None
    topic: str = "t"
    partition: int = 0


def state(**facts: Any) -> PartitionState:
    given = {"replicas": (OTHER, ME), "leader": OTHER, "leader_epoch": 1, "isr": (OTHER,)}
    return PartitionState(**{**given, **facts})


def catching_up(*replicas: FakeReplica) -> list[str]:
    found: Any = replicas
    image: Any = Image()
    return asyncio.run(health.catching_up(found, image, ME, Turn()))


def test_a_replica_outside_of_the_isr_is_catching_up() -> None:
    assert catching_up(FakeReplica(state(), partition=3)) == ["t-3"]


@pytest.mark.parametrize(
    "replica",
    [
        FakeReplica(state(isr=(OTHER, ME))),
        FakeReplica(state(), follower=None),
        FakeReplica(state(), failure="the disk is dead"),
        FakeReplica(state(adding=(ME,))),
        FakeReplica(state(leader=THIRD, isr=(THIRD,), replicas=(THIRD, ME))),
        FakeReplica(None),
    ],
    ids=["in sync", "no follower", "failed", "reassigned here", "leader is gone", "no state"],
)
def test_other_replicas_do_not_make_a_broker_unready(replica: FakeReplica) -> None:
    assert catching_up(replica) == []


def test_a_broker_that_has_not_joined_is_not_ready() -> None:
    found = health.checks(None, is_stopping=False)
    assert not health.is_ready(found)
    assert health.report(found, verbose=False) == (
        "[-] start: ZooKeeper has not been reached, or the logs are not recovered yet\nnot ready\n"
    )


def test_a_broker_that_stops_is_not_ready() -> None:
    found = health.checks(None, is_stopping=True)
    assert "[-] stop: the broker stops\n" in health.report(found, verbose=False)


def test_a_report_has_all_checks_if_asked() -> None:
    found = [Check("start", None), Check("roles", "2 partitions wait")]
    assert health.report(found, verbose=False) == "[-] roles: 2 partitions wait\nnot ready\n"
    assert health.report(found, verbose=True).startswith("[+] start\n[-] roles")
    assert json.loads(health.json_report(found)) == {
        "ready": False,
        "checks": [
            {"name": "start", "ok": True, "problem": None},
            {"name": "roles", "ok": False, "problem": "2 partitions wait"},
        ],
    }
    assert health.report([Check("start", None)], verbose=False) == "ready\n"
