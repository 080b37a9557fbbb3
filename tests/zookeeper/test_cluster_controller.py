"""The controller: there is one, another broker takes over, and the old one writes no more.

Three brokers with each kind of ZooKeeper serve all tests; each test leaves them all running.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from hightide.client.admin import Admin
from hightide.client.broker_connection import Connection
from hightide.process import environment
from hightide.wire.errors import ErrorCode
from tests.support.eventually import eventually, seconds_until
from tests.zookeeper.broker_world import HOST, SESSION_S, Brokers, create_request

KINDS = ("embedded", "zookeeper", "ensemble")


@pytest.fixture(scope="module", params=KINDS)
def brokers(request, _shared):
    with Brokers(_shared(request.param).hosts, 3) as cluster:
        cluster.kind = request.param
        yield cluster


@pytest.fixture
def cluster(brokers):
    """Three brokers that run and agree on the controller."""
    for broker_id in brokers.brokers:
        if not brokers.is_running(broker_id):
            brokers.restart(broker_id)
    eventually(lambda: agreed(brokers))
    return brokers


def agreed(cluster: Brokers) -> int:
    """Return the controller if all brokers and ZooKeeper agree on it; else 0."""
    seen = {cluster.elected(), *(named_by(cluster, broker_id) for broker_id in cluster.brokers)}
    return seen.pop() if len(seen) == 1 else 0


def named_by(cluster: Brokers, broker_id: int) -> int:
    return cluster.metadata(broker_id).controller_id


async def resign(cluster: Brokers) -> tuple[int, int]:
    async with Admin(cluster.bootstrap) as admin:
        return await admin.cluster.resign_controller()


def hightide(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "hightide", *words]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )


def test_there_is_one_and_every_broker_names_it(cluster):
    controller = agreed(cluster)
    found = cluster.tree.json("/controller")
    assert time.time() - int(found.pop("timestamp")) / 1000 < 300
    assert found == {"version": 1, "brokerid": controller}
    assert cluster.tree.data("/controller_epoch") == str(cluster.controller_epoch()).encode()
    saying = [
        broker_id
        for broker_id in cluster.brokers
        if f"this broker is the controller, in epoch {cluster.controller_epoch()}"
        in cluster.log(broker_id)
    ]
    assert saying == [controller]


def test_another_takes_over_when_it_dies(cluster, record_testsuite_property):
    old, epoch = agreed(cluster), cluster.controller_epoch()
    cluster.kill(old)
    failover_s = seconds_until(lambda: cluster.elected() not in (0, old))
    record_testsuite_property(f"{cluster.kind}: failover s", round(failover_s, 2))
    assert failover_s < SESSION_S + 2
    new = cluster.elected()
    assert cluster.controller_epoch() == epoch + 1
    eventually(
        lambda: all(named_by(cluster, broker_id) == new for broker_id in cluster.others(old)), 1
    )
    assert cluster.create(new, f"after-death-{epoch}") == ErrorCode.NONE
    cluster.restart(old)
    eventually(lambda: named_by(cluster, old) == new)
    assert cluster.controller_epoch() == epoch + 1


@pytest.mark.extended
def test_who_slept_through_its_session_writes_nothing_more(cluster):
    """Clients send CreateTopics while it is paused; it reads the requests when it resumes."""
    old, epoch = agreed(cluster), cluster.controller_epoch()
    broker_epoch = cluster.epoch(old)

    async def ask_a_sleeper() -> list[tuple[str, ErrorCode]]:
        connections = [await Connection.open(HOST, cluster.port(old)) for _ in range(10)]
        names = [f"ghost-{epoch}-{number}" for number in range(20)]
        cluster.pause(old)
        answers = [
            asyncio.create_task(connections[at % 10].send(create_request(name)))
            for at, name in enumerate(names)
        ]
        await asyncio.to_thread(eventually, lambda: cluster.elected() not in (0, old))
        cluster.resume(old)
        codes = [ErrorCode((await answer).topics[0].error_code) for answer in answers]
        for connection in connections:
            connection.close()
        return list(zip(names, codes, strict=True))

    try:
        answers = asyncio.run(ask_a_sleeper())
    finally:
        cluster.resume(old)
    assert cluster.controller_epoch() == epoch + 1
    eventually(lambda: cluster.epoch(old) > broker_epoch)
    eventually(lambda: cluster.epochs_logged(old)[-1] == cluster.epoch(old))
    eventually(lambda: named_by(cluster, old) == cluster.elected() != old)
    assert "this broker is no longer the controller" in cluster.log(old)

    assert {code for _, code in answers} <= {ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT}
    topics = cluster.tree.children("/brokers/topics")
    assert [name for name, _ in answers if name in topics] == []
    assert cluster.create(cluster.elected(), answers[0][0]) == ErrorCode.NONE


def test_a_controller_whose_znode_was_deleted_by_hand_is_elected_again(cluster):
    old, epoch = agreed(cluster), cluster.controller_epoch()
    cluster.tree.client.delete("/controller")
    eventually(lambda: cluster.elected() and cluster.controller_epoch() == epoch + 1, 2)
    new = eventually(lambda: agreed(cluster), 2)
    assert cluster.create(new, f"after-deletion-{epoch}") == ErrorCode.NONE
    if new != old:
        assert cluster.create(old, f"by-the-old-{epoch}") == ErrorCode.NOT_CONTROLLER


def test_resigning_moves_the_task_while_topics_are_made_and_loses_none(cluster):
    """Every topic was created by the controller of that time, and acknowledged."""
    acknowledged: list[str] = []
    epochs = [(cluster.tree.stat("/controller_epoch").mzxid, cluster.controller_epoch())]
    stopped = Event()

    async def make_topics(worker: int) -> None:
        connections = {
            broker_id: await Connection.open(HOST, cluster.port(broker_id))
            for broker_id in (1, 2, 3)
        }
        number = 0
        while not stopped.is_set():
            name = f"stream-{epochs[0][1]}-{worker}-{number}"
            for connection in connections.values():
                answer = await connection.send(create_request(name))
                if answer.topics[0].error_code == ErrorCode.NONE:
                    acknowledged.append(name)
                    number += 1
        for connection in connections.values():
            connection.close()

    async def make_many() -> None:
        await asyncio.gather(*map(make_topics, range(4)))

    with ThreadPoolExecutor() as pool:
        making = pool.submit(asyncio.run, make_many())
        try:
            for _ in range(4):
                enough = len(acknowledged) + 4
                eventually(lambda enough=enough: len(acknowledged) > enough or making.done())
                before = cluster.elected()
                assert asyncio.run(resign(cluster)) == (before, cluster.elected())
                assert cluster.elected() != before
                epochs.append(
                    (cluster.tree.stat("/controller_epoch").mzxid, cluster.controller_epoch())
                )
        finally:
            stopped.set()
        making.result(60)
    assert len({epoch for _, epoch in epochs}) == 5

    topics = [f"/brokers/topics/{name}" for name in acknowledged]
    states = [f"{topic}/partitions/0/state" for topic in topics]
    found = zip(cluster.tree.many(topics), cluster.tree.many(states), strict=True)
    for (_, born), (state, _) in found:
        reigning = max(epoch for since, epoch in epochs if since <= born.czxid)
        assert json.loads(state)["controller_epoch"] == reigning, (state, born, epochs)
    made = set(cluster.tree.children("/brokers/topics"))
    for broker_id in cluster.brokers:
        eventually(
            lambda broker_id=broker_id: made == {t.name for t in cluster.metadata(broker_id).topics}
        )


# -- the command line ----------------------------------------------------------------------------


def test_the_command_line_shows_and_moves_it(embedded):
    with Brokers(embedded.hosts, 2) as cluster:
        eventually(lambda: agreed(cluster))
        before, other = cluster.elected(), cluster.others(cluster.elected())[0]
        eventually(lambda: len(cluster.metadata(before).brokers) == 2)
        at = ("-b", cluster.bootstrap, "-o", "json")
        shown = json.loads(hightide("cluster", "controller", *at).stdout)
        expected = {"id": before, "host": HOST, "port": cluster.port(before), "rack": None}
        assert shown == expected | {"controller": True}
        moved = hightide("cluster", "resign", *at)
        assert json.loads(moved.stdout) == {"was": before, "controller": other}
        assert json.loads(hightide("cluster", "controller", *at).stdout)["id"] == other


def test_the_only_broker_cannot_resign(embedded):
    with Brokers(embedded.hosts) as cluster:
        refused = hightide("cluster", "controller", "resign", "-b", cluster.bootstrap, "-o", "json")
        assert refused.returncode == 1
        assert refused.stdout == ""
        assert "broker 1 is the only broker, so no other can take over" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert cluster.elected() == 1
        assert cluster.controller_epoch() == 1
