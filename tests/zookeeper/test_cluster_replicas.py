"""Replicas and ZooKeeper: expired sessions, killed controllers, all brokers killed at once.

Three brokers with each kind of ZooKeeper serve the tests; each test leaves them all running.
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
# The longest pause between two attempts to connect to ZooKeeper must fit into it.
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
    """Three brokers that run and know each other and the controller."""
    backend, cluster = world
    backend.heal()
    for broker_id in cluster.brokers:
        if not cluster.is_running(broker_id):
            cluster.restart(broker_id)
        cluster.resume(broker_id)
    eventually(lambda: is_whole(cluster))
    return cluster


def is_whole(cluster: Brokers) -> bool:
    seen = [cluster.metadata(broker_id) for broker_id in cluster.brokers]
    named = {response.controller_id for response in seen}
    return all(len(response.brokers) == 3 for response in seen) and named == {cluster.elected()}


@pytest.fixture
def topic(cluster):
    """A topic of which every broker leads one partition and has a replica of all."""
    name = cluster.create_topic(f"held-{random.randbytes(4).hex()}", partitions=PARTITIONS)
    eventually(lambda: is_in_sync(cluster, name))
    return name


def states(cluster: Brokers, topic: str) -> list[Any]:
    paths = [
        f"/brokers/topics/{topic}/partitions/{partition}/state" for partition in range(PARTITIONS)
    ]
    return [cluster.tree.json(path) for path in paths]


def is_in_sync(cluster: Brokers, topic: str) -> bool:
    """Return whether all replicas are in the ISR with the current broker epochs."""
    epochs = {str(broker_id): str(cluster.epoch(broker_id)) for broker_id in cluster.brokers}
    return all(
        sorted(state["isr"]) == cluster.brokers and state["broker_epochs"] == epochs
        for state in states(cluster, topic)
    )


def copies(cluster: Brokers, topic: str) -> list[dict[str, bytes]]:
    """Return the log files of every broker."""
    return [
        {
            file.parent.name: file.read_bytes()
            for file in sorted(cluster.data(broker_id).glob(f"{topic}-?/*.log"))
        }
        for broker_id in cluster.brokers
    ]


def is_copied(cluster: Brokers, topic: str) -> bool:
    first, *others = copies(cluster, topic)
    return len(first) == PARTITIONS and all(other == first for other in others)


# -- one broker -----------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("who", ["the controller", "another"])
def test_who_slept_through_its_session_follows_and_is_in_sync_again(cluster, topic, who):
    controller = cluster.elected()
    sleeper = controller if who == "the controller" else cluster.others(controller)[0]
    before = cluster.epoch(sleeper)
    assert {state["leader"] for state in states(cluster, topic)} == set(cluster.brokers)
    with traffic(cluster, topic, shaken=True) as running:
        cluster.pause(sleeper)
        eventually(lambda: all(sleeper not in state["isr"] for state in states(cluster, topic)))
        running.goes_on()
        assert not any(sleeper in state["isr"] for state in states(cluster, topic))
        cluster.resume(sleeper)
        eventually(lambda: cluster.epoch(sleeper) > before)
        eventually(lambda: is_in_sync(cluster, topic))
        running.goes_on()
    assert sleeper not in {state["leader"] for state in states(cluster, topic)}
    assert cluster.epochs_logged(sleeper)[-1] == cluster.epoch(sleeper)
    eventually(lambda: is_copied(cluster, topic))


@pytest.mark.extended
def test_a_killed_controller_disturbs_only_the_partitions_that_it_leads(
    cluster, topic, record_testsuite_property
):
    """Its partitions get new leaders when there is a new controller."""
    dead = cluster.elected()
    alive = cluster.others(dead)
    undisturbed = create_on(cluster, alive)
    paths = [f"/brokers/topics/{undisturbed}/partitions/{partition}/state" for partition in (0, 1)]
    before = [cluster.tree.stat(path).mzxid for path in paths]
    with OneByOne(cluster.bootstrap, undisturbed, 2) as running:
        sent = len(running.took_s)
        cluster.kill(dead)
        failover_s = seconds_until(lambda: cluster.elected() in alive)
        led_s = failover_s + seconds_until(
            lambda: all(state["leader"] in alive for state in states(cluster, topic))
        )
        took_s = running.took_s[sent:]
    record_testsuite_property(f"{cluster.kind}: failover s", round(failover_s, 2))
    record_testsuite_property(f"{cluster.kind}: all led again s", round(led_s, 2))
    assert failover_s < SESSION_S + 1
    assert led_s < SESSION_S + 2
    assert running.errors == []
    assert len(took_s) > 5
    assert max(took_s) < SESSION_S / 2, "a producer waited for a controller"
    assert [cluster.tree.stat(path).mzxid for path in paths] == before
    cluster.restart(dead)
    eventually(lambda: is_in_sync(cluster, topic))


def create_on(cluster: Brokers, brokers: list[int]) -> str:
    """A topic of which two brokers lead one partition each and both have all replicas."""
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
    for broker_id in cluster.brokers:
        cluster.launch(broker_id)
    for broker_id in cluster.brokers:
        cluster.wait_until_it_listens(broker_id)


@pytest.mark.extended
@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_all_brokers_at_once_come_back_with_everything(
    cluster, topic, end, record_testsuite_property
):
    written = fill(cluster, topic, 300)
    before = states(cluster, topic)
    log_size = {broker_id: len(cluster.log(broker_id)) for broker_id in cluster.brokers}
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
    for broker_id in cluster.brokers:
        news = cluster.log(broker_id)[log_size[broker_id] :]
        assert "Traceback" not in news
        assert "set aside" not in news
        if end == "terminate":
            assert "UNCLEAN" not in news


def fill(cluster: Brokers, topic: str, count: int) -> list[list[bytes]]:
    """Write records with acks=all; return them by partition, in order."""
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
                on_delivery=lambda error, _: errors.extend([error] if error else []),
            )
    assert producer.flush(60) == 0
    assert errors == []
    return written


def content(cluster: Brokers, topic: str) -> list[list[bytes]]:
    """Read all records of every partition with a client."""
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
                values.append(message.value() or b"")
        found.append(values)
    consumer.close()
    return found


# -- ZooKeeper ------------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_zookeeper_that_is_restarted_moves_no_leader_and_no_replica(world, cluster, topic):
    """The sessions survive the restart."""
    backend, _ = world
    before = states(cluster, topic)
    epochs = [cluster.epoch(broker_id) for broker_id in cluster.brokers]
    with traffic(cluster, topic) as running:
        for _ in range(2):
            backend.kill()
            running.goes_on()
            backend.start()
            running.goes_on()
            eventually(lambda: all(map(cluster.is_connected, cluster.brokers)))
    assert [cluster.epoch(broker_id) for broker_id in cluster.brokers] == epochs
    assert states(cluster, topic) == before
    eventually(lambda: is_whole(cluster))
    eventually(lambda: is_copied(cluster, topic))


@pytest.mark.extended
def test_brokers_that_stop_while_it_is_away_do_so_soon_and_come_back_whole(world, cluster, topic):
    """No leader can be elected and no session closed; the clean shutdown is enough."""
    backend, _ = world
    written = fill(cluster, topic, 30)
    log_size = {broker_id: len(cluster.log(broker_id)) for broker_id in cluster.brokers}
    backend.kill()
    began = time.monotonic()
    assert at_once(cluster.terminate, cluster.brokers) == [0, 0, 0]
    assert time.monotonic() - began < 8
    backend.start()
    start_all(cluster)
    eventually(lambda: is_in_sync(cluster, topic))
    assert content(cluster, topic) == written
    for broker_id in cluster.brokers:
        assert "UNCLEAN" not in cluster.log(broker_id)[log_size[broker_id] :]
