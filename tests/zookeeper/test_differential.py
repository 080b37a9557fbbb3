"""The embedded server and Apache ZooKeeper give the same responses to the same requests.

Every run draws new histories. The report of a difference has the history's seed; HIGHTIDE_SEED
runs that history alone. HIGHTIDE_STEPS sets the length of a run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.seeds import first_seed
from tests.zookeeper import jute
from tests.zookeeper.histories import History
from tests.zookeeper.kazoo_world import KazooWorld
from tests.zookeeper.wire_world import WireWorld

STEPS = int(os.environ.get("HIGHTIDE_STEPS", "10000"))
HISTORY_STEPS = 500
SHOWN = 5


@dataclass
class Comparison:
    """The results of histories on both servers."""

    steps: int = 0
    events: int = 0
    differences: list[str] = field(default_factory=list)


def seeds(count: int) -> Iterator[int]:
    given = os.environ.get("HIGHTIDE_SEED")
    if given:
        yield int(given)
        return
    first = first_seed(is_new="HIGHTIDE_STEPS" in os.environ)
    yield from range(first, first + count)


def make_root(hosts: str, root: str) -> None:
    with jute.Wire(hosts) as wire:
        body = jute.text(root) + jute.buffer(b"") + jute.acl_list(jute.OPEN) + jute.int32(0)
        assert wire.call(jute.CREATE, body).code == 0
        wire.close()


def run(seed: int, worlds: list[Any], is_odd: bool, comparison: Comparison) -> None:
    """Run one history until its end or the first difference: the rest would differ too."""
    ours, theirs = worlds
    for number, step in enumerate(History(seed, is_odd).steps(HISTORY_STEPS)):
        actual, expected = ours.do(step), theirs.do(step)
        comparison.steps += 1
        if actual != expected:
            comparison.differences.append(
                f"HIGHTIDE_SEED={seed}, step {number}: {step!s:.500}\n"
                f"  ours      {actual!s:.700}\n  ZooKeeper {expected!s:.700}"
            )
            return
    actual, expected = ours.settle(), theirs.settle()
    if actual != expected:
        comparison.differences.append(
            f"HIGHTIDE_SEED={seed}, at the end\n  ours      {actual}\n  ZooKeeper {expected}"
        )


def compare(embedded: Any, zookeeper: Any, kind: Any, is_odd: bool, steps: int) -> Comparison:
    comparison = Comparison()
    for seed in seeds(steps // HISTORY_STEPS):
        worlds = []
        for server in (embedded.server, zookeeper.server):
            root = f"/{kind.__name__}-{seed}"
            make_root(server.hosts, root)
            worlds.append(kind(server.hosts, root))
        try:
            run(seed, worlds, is_odd, comparison)
        finally:
            for world in worlds:
                world.close()
        comparison.events += worlds[0].events
        if len(comparison.differences) >= SHOWN:
            break
    return comparison


@pytest.mark.extended
@pytest.mark.timeout(300 + STEPS / 50)
@pytest.mark.parametrize(
    ("kind", "is_odd", "share"), [(WireWorld, True, 1.0), (KazooWorld, False, 0.5)]
)
def test_random_histories_are_answered_as_zookeeper_answers_them(
    embedded, zookeeper, kind, is_odd, share, capsys
):
    began = time.monotonic()
    found = compare(embedded, zookeeper, kind, is_odd, int(STEPS * share))
    with capsys.disabled():
        print(
            f"\n{kind.__name__}: {found.steps} steps, {found.events} events, "
            f"{len(found.differences)} differences, {time.monotonic() - began:.0f} s"
        )
    assert not found.differences, "\n".join(found.differences)
