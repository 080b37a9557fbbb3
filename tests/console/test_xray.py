"""The X-ray of a real failover: phases in order, the truncation of the old leader, ribbons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from hightide.client.admin import Admin
from hightide.client.xray.page import page
from hightide.console.observer import Observer
from hightide.console.probe import Probe
from hightide.testing import Cluster
from hightide.testing.report import xray_files
from hightide.wire.batch import build
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

TOPIC = "orders"
KEY = TOPIC, 0
LIMIT_S = 60


async def until(what: str, holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if found := holds():
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {LIMIT_S} s: {what}")


async def produce(admin: Admin, leader: int, count: int, acks: int) -> None:
    connection = await admin.router.broker(leader)
    now_ms = time.time_ns() // 1_000_000
    records = bytes(build([(at, now_ms, None, b"x", ()) for at in range(count)]))
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=20_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
    )
    answer = await connection.send(request, version=11)
    (result,) = answer.responses[0].partition_responses
    assert result.error_code == 0, result


@pytest.fixture
def cluster():
    with Cluster(3) as started:
        started.create_topic(TOPIC)
        yield started


def test_a_failover_has_its_phases_and_the_old_leader_cuts_what_was_not_committed(
    cluster, tmp_path
):
    # The browser of other tests keeps an event loop in this thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, failover(cluster)).result()
    (path,) = xray_files(cluster, tmp_path)
    text = path.read_text()
    assert path.name == "xray-orders-0.html"
    assert "Epoch 0 → 1" in text
    assert "first write" in text


async def failover(cluster: Cluster) -> None:
    async with Observer(cluster.bootstrap) as observer, Admin(cluster.bootstrap) as admin:
        with observer.watch(TOPIC):
            await until("all in sync", lambda: len(frame(observer).isr) == 3)
            old = frame(observer).leader
            followers = [broker for broker in cluster.brokers if broker != old]
            await produce(admin, old, 10, -1)
            await until("seen", lambda: frame(observer).high_watermark == 10)
            for broker in followers:
                cluster.pause(broker)
            # The first goes into responses that the followers still get; the second stays here.
            await produce(admin, old, 3, 1)
            await produce(admin, old, 7, 1)
            await until("not committed", lambda: frame(observer).end_offset == 20)
            cluster.kill(old)
            for broker in followers:
                cluster.resume(broker)
            await until("a new leader", lambda: frame(observer).leader in followers)
            async with Admin(cluster.bootstrap) as fresh:
                await produce(fresh, frame(observer).leader, 3, -1)
            await asyncio.to_thread(cluster.restart, old)
            await until("back in sync", lambda: len(frame(observer).isr) == 3)
            await until("its events", lambda: phases(observer)[-1:] == ["in_sync"])
            await until("the truncation", lambda: timeline(observer).truncations())
        check_timeline(observer, old, followers)
        async with Admin(cluster.bootstrap) as fresh:
            await fresh.cluster.describe()
            await check_probe(fresh, observer)


def check_timeline(observer: Observer, old: int, followers: list[int]) -> None:
    (found,) = timeline(observer).failovers()
    assert (found["from"], found["epoch_from"], found["epoch_to"]) == (old, 0, 1)
    assert found["to"] in followers
    names = [phase["name"] for phase in found["phases"]]
    assert names == ["detected", "elected", "published", "first_write", "back", "in_sync"]
    times = [phase["time_ms"] for phase in found["phases"]]
    assert times == sorted(times)
    assert found["no_writes_ms"] >= found["leaderless_ms"] >= 0
    (cut,) = timeline(observer).truncations()
    assert (cut["broker"], cut["from"], cut["count"]) == (old, 20, 20 - cut["to"])
    assert 10 <= cut["to"] <= 13
    assert cut["committed_lost"] == 0
    assert "Never committed" in cut["why"]
    now_ms = time.time_ns() // 1_000_000
    ribbons = {one["broker"]: one["spans"] for one in timeline(observer).ribbons(0, now_ms)}
    states = [span["state"] for span in ribbons[old]]
    assert states[0] == "leads"
    assert states[-1] == "in_sync"
    assert {"gone", "silent", "eligible"} & set(states)
    assert ribbons[found["to"]][-1]["state"] == "leads"
    for spans in ribbons.values():
        assert all(a["to_ms"] == b["from_ms"] for a, b in pairwise(spans))
    text = page(timeline(observer), 0, now_ms, observer.overview)
    assert f"{cut['count']} records, offsets {cut['to']} to 19" in text
    assert "http" not in text


async def check_probe(admin: Admin, observer: Observer) -> None:
    found = await Probe(admin, TOPIC, frame(observer), is_foreign=False).run()
    steps = {(step["name"], step["broker"]): step["after_ms"] for step in found["steps"]}
    leader = frame(observer).leader
    appended = steps["appended", leader]
    for broker in {1, 2, 3} - {leader}:
        assert steps["fetched", broker] is not None
    assert appended is not None
    assert steps["high watermark passes", leader] is not None
    assert found["acknowledged_ms"] is not None
    assert found["offset"] >= 13


def frame(observer: Observer) -> Any:
    """The newest frame of the partition; before the first, one without replicas in sync."""
    found = observer.partition_frame(KEY)
    return found if found is not None else _Nothing()


class _Nothing:
    isr: tuple[int, ...] = ()
    leader = -1
    high_watermark = end_offset = None


def timeline(observer: Observer) -> Any:
    return observer.timeline(KEY, 0, time.time_ns() // 1_000_000)


def phases(observer: Observer) -> list[str]:
    found = timeline(observer).failovers()
    return [phase["name"] for phase in found[-1]["phases"]] if found else []
