"""Replicas and their coordinator: sessions that end, controllers that die, all brokers at once.

Three brokers at each kind of coordinator serve the tests here; each leaves them all running.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from hightide.wire.errors import ErrorCode
from hightide.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tests.support.eventually import eventually, seconds_until
from tests.zookeeper.broker_world import Brokers
from tests.zookeeper.traffic import OneByOne, traffic

T = TypeVar("T")

KINDS = ("embedded", "zookeeper")
PARTITIONS = 3
# The longest pause between two attempts to reach a coordinator must fit into it.
SESSION_S = 4.0


@pytest.fixture(scope="module", params=KINDS)
def world(request, _shared):
    backend = _shared(request.param)
    settings = {"default.replication.factor": 3, "min.insync.replicas": 2}
    with Brokers(backend.hosts, 3, session_ms=int(SESSION_S * 1000), settings=settings) as cluster:
        cluster.kind = request.param
        yield backend, cluster


@pytest.fixture
def cluster(world):
    """Three brokers that are up and know each other and their controller."""
    backend, cluster = world
    backend.heal()
    for broker_id in cluster.brokers:
        if not cluster.is_running(broker_id):
            cluster.restart(broker_id)
        cluster.resume(broker_id)
    eventually(lambda: is_whole(cluster))
    return cluster


def is_whole(cluster: Brokers) -> bool:
    seen = [cluster.metadata(each) for each in cluster.brokers]
    named = {each.controller_id for each in seen}
    return all(len(each.brokers) == 3 for each in seen) and named == {cluster.elected()}


@pytest.fixture
def topic(cluster):
    """A topic of which every broker leads one partition and holds all."""
    name = cluster.create_topic(f"held-{random.randbytes(4).hex()}", partitions=PARTITIONS)
    eventually(lambda: is_in_sync(cluster, name))
    return name


def states(cluster: Brokers, topic: str) -> list[Any]:
    paths = [f"/brokers/topics/{topic}/partitions/{each}/state" for each in range(PARTITIONS)]
    return [cluster.tree.json(path) for path in paths]


def is_in_sync(cluster: Brokers, topic: str) -> bool:
    """Whether all replicas are in the ISR, each in the life that its broker has now."""
    lives = {str(each): str(cluster.epoch(each)) for each in cluster.brokers}
    return all(
        sorted(each["isr"]) == cluster.brokers and each["broker_epochs"] == lives
        for each in states(cluster, topic)
    )


def copies(cluster: Brokers, topic: str) -> list[dict[str, bytes]]:
    """The records that each broker has, as they are on its disk."""
    return [
        {
            file.parent.name: file.read_bytes()
            for file in sorted(cluster.data(each).glob(f"{topic}-?/*.log"))
        }
        for each in cluster.brokers
    ]


def is_copied(cluster: Brokers, topic: str) -> bool:
    first, *others = copies(cluster, topic)
    return len(first) == PARTITIONS and all(each == first for each in others)


# -- one broker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["the controller", "another"])
def test_who_slept_through_its_session_follows_and_is_in_sync_again(cluster, topic, who):
    controller = cluster.elected()
    sleeper = controller if who == "the controller" else cluster.others(controller)[0]
    before = cluster.epoch(sleeper)
    assert {each["leader"] for each in states(cluster, topic)} == set(cluster.brokers)
    with traffic(cluster, topic, shaken=True) as running:
        cluster.pause(sleeper)
        eventually(lambda: all(sleeper not in each["isr"] for each in states(cluster, topic)))
        running.goes_on()
        assert not any(sleeper in each["isr"] for each in states(cluster, topic))
        cluster.resume(sleeper)
        eventually(lambda: cluster.epoch(sleeper) > before)
        eventually(lambda: is_in_sync(cluster, topic))
        running.goes_on()
    assert sleeper not in {each["leader"] for each in states(cluster, topic)}
    assert cluster.epochs_logged(sleeper)[-1] == cluster.epoch(sleeper)
    eventually(lambda: is_copied(cluster, topic))


def test_a_controllers_death_disturbs_nobody_whom_it_does_not_lead(
    cluster, topic, record_testsuite_property
):
    """Its partitions have new leaders as soon as there is a new controller."""
    dead = cluster.elected()
    alive = cluster.others(dead)
    undisturbed = create_on(cluster, alive)
    paths = [f"/brokers/topics/{undisturbed}/partitions/{each}/state" for each in (0, 1)]
    before = [cluster.tree.stat(path).mzxid for path in paths]
    with OneByOne(cluster.bootstrap, undisturbed, 2) as running:
        sent = len(running.took_s)
        cluster.kill(dead)
        failover_s = seconds_until(lambda: cluster.elected() in alive)
        led_s = failover_s + seconds_until(
            lambda: all(each["leader"] in alive for each in states(cluster, topic))
        )
        took_s = running.took_s[sent:]
    record_testsuite_property(f"{cluster.kind}: failover s", round(failover_s, 2))
    record_testsuite_property(f"{cluster.kind}: all led again s", round(led_s, 2))
    assert failover_s < SESSION_S + 1
    assert led_s < SESSION_S + 2
    assert running.errors == []
    assert len(took_s) > 5
    assert max(took_s) < SESSION_S / 2, "somebody waited for a controller"
    assert [cluster.tree.stat(path).mzxid for path in paths] == before
    cluster.restart(dead)
    eventually(lambda: is_in_sync(cluster, topic))


def create_on(cluster: Brokers, brokers: list[int]) -> str:
    """A topic with one partition that each of two brokers leads, and both hold."""
    name = f"pair-{random.randbytes(4).hex()}"
    places = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
        for index, replicas in enumerate((brokers, brokers[::-1]))
    ]
    wanted = CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=places, configs=[]
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)
    (answer,) = cluster.ask(cluster.elected(), request).topics
    assert answer.error_code == ErrorCode.NONE
    return name


# -- all at once ----------------------------------------------------------------------------------


def at_once(do: Callable[[int], T], brokers: list[int]) -> list[T]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(do, brokers))


def start_all(cluster: Brokers) -> None:
    for each in cluster.brokers:
        cluster.launch(each)
    for each in cluster.brokers:
        cluster.wait_until_it_listens(each)


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_all_brokers_at_once_come_back_with_everything(
    cluster, topic, end, record_testsuite_property
):
    written = fill(cluster, topic, 300)
    before = states(cluster, topic)
    said = {each: len(cluster.log(each)) for each in cluster.brokers}
    at_once(getattr(cluster, end), cluster.brokers)
    began = time.monotonic()
    start_all(cluster)
    record_testsuite_property(f"{cluster.kind}: {end}: up s", round(time.monotonic() - began, 2))
    eventually(lambda: is_whole(cluster))
    eventually(lambda: is_in_sync(cluster, topic))
    record_testsuite_property(
        f"{cluster.kind}: {end}: in sync s", round(time.monotonic() - began, 2)
    )
    assert content(cluster, topic) == written
    for was, now in zip(before, states(cluster, topic), strict=True):
        assert now["leader_epoch"] > was["leader_epoch"]
    more = fill(cluster, topic, 30)
    assert content(cluster, topic) == [a + b for a, b in zip(written, more, strict=True)]
    eventually(lambda: is_copied(cluster, topic))
    for each in cluster.brokers:
        news = cluster.log(each)[said[each] :]
        assert "Traceback" not in news
        assert "set aside" not in news
        if end == "terminate":
            assert "UNCLEAN" not in news


def fill(cluster: Brokers, topic: str, count: int) -> list[list[bytes]]:
    """Write records with acks=all; those of each partition, in order."""
    errors: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "message.timeout.ms": 30_000,
        }
    )
    written = [[random.randbytes(100) for _ in range(count)] for _ in range(PARTITIONS)]
    for partition, values in enumerate(written):
        for value in values:
            producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, _: error and errors.append(error),
            )
    assert producer.flush(60) == 0
    assert errors == []
    return written


def content(cluster: Brokers, topic: str) -> list[list[bytes]]:
    """All records of each partition, as a client reads them."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    found: list[list[bytes]] = []
    for partition in range(PARTITIONS):
        place = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        values: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(values) < end and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append(message.value())
        found.append(values)
    consumer.close()
    return found


# -- the coordinator ------------------------------------------------------------------------------


def test_a_coordinator_that_is_restarted_moves_no_leader_and_no_replica(world, cluster, topic):
    """Its sessions come back with it."""
    backend, _ = world
    before = states(cluster, topic)
    epochs = [cluster.epoch(each) for each in cluster.brokers]
    with traffic(cluster, topic) as running:
        for _ in range(2):
            backend.kill()
            running.goes_on()
            backend.start()
            running.goes_on()
            eventually(lambda: all(map(cluster.is_connected, cluster.brokers)))
    assert [cluster.epoch(each) for each in cluster.brokers] == epochs
    assert states(cluster, topic) == before
    eventually(lambda: is_whole(cluster))
    eventually(lambda: is_copied(cluster, topic))


def test_brokers_that_stop_while_it_is_away_do_so_soon_and_come_back_whole(world, cluster, topic):
    """Nobody can be elected and no session be closed; what they know of themselves is enough."""
    backend, _ = world
    written = fill(cluster, topic, 30)
    said = {each: len(cluster.log(each)) for each in cluster.brokers}
    backend.kill()
    began = time.monotonic()
    assert at_once(cluster.terminate, cluster.brokers) == [0, 0, 0]
    assert time.monotonic() - began < 8
    backend.start()
    start_all(cluster)
    eventually(lambda: is_in_sync(cluster, topic))
    assert content(cluster, topic) == written
    for each in cluster.brokers:
        assert "UNCLEAN" not in cluster.log(each)[said[each] :]
