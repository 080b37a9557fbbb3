"""Brokers whose ZooKeeper is unavailable: clients produce and consume as before.

Three brokers with each kind of ZooKeeper serve the tests; none of them is ever restarted.
"""

from __future__ import annotations

import random
import time
import warnings
from functools import partial

import pytest

from hightide.wire.errors import ErrorCode
from tests.support.eventually import eventually
from tests.support.proxy import Proxy
from tests.zookeeper.broker_world import TOPIC, Brokers, Tree, configure, create, setting
from tests.zookeeper.traffic import traffic

KINDS = ("embedded", "zookeeper", "ensemble")
# The longest pause between two attempts to connect to ZooKeeper must fit into it.
SESSION_MS = 4000
RETRIABLE = {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.LEADER_NOT_AVAILABLE,
}


@pytest.fixture(scope="module", params=KINDS)
def world(request, _shared):
    """A server and three brokers, which keep running whatever happens to the server."""
    backend = _shared(request.param)
    with Brokers(backend.hosts, 3, session_ms=SESSION_MS) as cluster:
        pids = [cluster.pid(broker_id) for broker_id in cluster.brokers]
        yield backend, cluster
        assert [
            cluster.pid(broker_id) for broker_id in cluster.brokers if cluster.is_running(broker_id)
        ] == pids


@pytest.fixture
def backend(world):
    world[0].heal()
    yield world[0]
    world[0].heal()


@pytest.fixture
def cluster(world, backend):
    eventually(lambda: is_whole(world[1]))
    return world[1]


def is_whole(cluster: Brokers) -> bool:
    """Return whether all brokers are registered, know each other, and agree on the controller."""
    if not all(map(cluster.is_connected, cluster.brokers)):
        return False
    if cluster.tree.children("/brokers/ids") != ["1", "2", "3"]:
        return False
    seen = [cluster.metadata(broker_id) for broker_id in cluster.brokers]
    controllers = {response.controller_id for response in seen}
    return all(len(response.brokers) == 3 for response in seen) and controllers == {
        cluster.elected()
    }


@pytest.fixture
def topic(cluster):
    """A topic with one partition led by each broker, replicated on all, known to all."""
    name = f"away-{random.randbytes(4).hex()}"
    cluster.create_topic(name, partitions=3, replication_factor=3)
    eventually(lambda: all(len(cluster.partitions(n, name)) == 3 for n in cluster.brokers))
    return name


def begin_librdkafka(bootstrap: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce("t", b"x")
    assert producer.flush(30) == 0


def begin_kafka_python(bootstrap: str) -> None:
    with warnings.catch_warnings():
        # The client uses a deprecated function of Python.
        warnings.simplefilter("ignore")
        from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    producer.send("t", b"x").get(30)
    producer.close(5)


def restart(backend) -> None:
    """Kill the server, or the leader of an ensemble, and restart it."""
    if backend.kind == "ensemble":
        leader = backend.leader()
        backend.kill(leader)
        assert backend.leader() != leader
        backend.restart(leader)
    else:
        backend.kill()
        backend.start()


@pytest.mark.extended
def test_a_zookeeper_that_is_killed_and_restarted_changes_nothing(backend, cluster, topic):
    epochs = {broker_id: cluster.epoch(broker_id) for broker_id in cluster.brokers}
    controller, reign = cluster.elected(), cluster.controller_epoch()
    log_size = {broker_id: len(cluster.log(broker_id)) for broker_id in cluster.brokers}
    with traffic(cluster, topic) as running:
        restart(backend)
        running.goes_on()
        eventually(lambda: is_whole(cluster))
    assert {broker_id: cluster.epoch(broker_id) for broker_id in cluster.brokers} == epochs
    assert (cluster.elected(), cluster.controller_epoch()) == (controller, reign)
    for broker_id in cluster.brokers:
        assert "registered" not in cluster.log(broker_id)[log_size[broker_id] :]
    see_changes_everywhere(cluster)


def see_changes_everywhere(cluster: Brokers) -> None:
    """Every kind of watch works at every broker: on topics, on one topic, on settings.

    An ensemble that has just come back may elect once more, so what may be tried again is.
    """
    name = f"seen-{random.randbytes(4).hex()}"
    made = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    eventually(lambda: create(cluster.address(eventually(cluster.elected)), name, 2) in made)
    eventually(lambda: all(len(cluster.partitions(n, name)) == 2 for n in cluster.brokers), 5)
    for broker_id in cluster.brokers:
        value = str(1_000_000 + broker_id)
        change = partial(configure, cluster.address(broker_id), TOPIC, name, retention_ms=value)
        eventually(lambda change=change: change() == ErrorCode.NONE)
        eventually(
            lambda value=value: all(
                cluster.setting(broker_id, name, "retention.ms") == value
                for broker_id in cluster.brokers
            ),
            5,
        )
    cluster.tree.client.create(f"/admin/delete_topics/{name}")
    eventually(
        lambda: not any(cluster.partitions(broker_id, name) for broker_id in cluster.brokers), 5
    )


@pytest.mark.extended
def test_a_zookeeper_that_is_silent_for_longer_than_a_session(backend, cluster, topic):
    epochs = {broker_id: cluster.epoch(broker_id) for broker_id in cluster.brokers}
    controller = cluster.elected()
    log_size = {broker_id: len(cluster.log(broker_id)) for broker_id in cluster.brokers}

    def news(broker_id: int) -> str:
        return cluster.log(broker_id)[log_size[broker_id] :]

    with traffic(cluster, topic) as running:
        backend.pause()
        try:
            refusals_in_time(cluster, controller, topic)
            for broker_id in cluster.brokers:
                eventually(
                    lambda broker_id=broker_id: "ZooKeeper session doubtful" in news(broker_id)
                )
            eventually(lambda: "this broker is no longer the controller" in news(controller))
            refusals_in_time(cluster, controller, topic)
            running.goes_on()
        finally:
            backend.resume()
        eventually(lambda: is_whole(cluster))
        running.goes_on()
    for broker_id in cluster.brokers:
        again = cluster.epoch(broker_id) != epochs[broker_id]
        assert ("registered as broker" in news(broker_id)) == again
        assert cluster.epochs_logged(broker_id)[-1] == cluster.epoch(broker_id) >= epochs[broker_id]
        assert "Traceback" not in news(broker_id)
    see_changes_everywhere(cluster)


def refusals_in_time(cluster: Brokers, controller: int, topic: str) -> None:
    """Requests that need ZooKeeper fail soon, with a retriable error."""
    began = time.monotonic()
    address = cluster.address(controller)
    assert create(address, "not-now") in RETRIABLE
    assert configure(address, TOPIC, topic, retention_ms="1000000") in RETRIABLE
    assert time.monotonic() - began < 2 * SESSION_MS / 1000
    assert setting(address, TOPIC, topic, "retention.ms") == "604800000"


@pytest.mark.parametrize("begin", [begin_librdkafka, begin_kafka_python])
def test_an_idempotent_producer_begins_while_zookeeper_is_away(embedded, begin):
    with Brokers(embedded.hosts, 1, session_ms=SESSION_MS) as cluster:
        cluster.create_topic("t", replication_factor=1)
        embedded.kill()
        try:
            begin(cluster.bootstrap)
        finally:
            embedded.start()


def test_a_connection_that_is_never_answered_costs_no_session(embedded):
    """A starting ZooKeeper accepts connections that it never answers."""
    proxy = Proxy(embedded.server.hosts)
    try:
        with Brokers(proxy.hosts + embedded.chroot, session_ms=6000) as cluster:
            cluster.tree.close()
            cluster.tree = Tree(embedded.hosts)
            epoch, before = cluster.epoch(), len(proxy.accepted_at)
            proxy.silence()
            proxy.cut()
            eventually(lambda: len(proxy.accepted_at) == before + 2)
            proxy.heal()
            eventually(lambda: cluster.is_connected(1))
            assert cluster.epoch() == epoch
            see_changes_everywhere(cluster)
    finally:
        proxy.close()


@pytest.mark.extended
@pytest.mark.parametrize("cut_after", ["ZooKeeper session connected", "registered as broker 1"])
def test_a_broker_starts_though_its_zookeeper_is_killed_meanwhile(embedded, cut_after):
    """The broker reads hundreds of znodes at the start, and leads as many partitions."""
    with Brokers(embedded.hosts, session_ms=SESSION_MS) as cluster:
        name = cluster.create_topic(partitions=250)
        cluster.terminate()
        log_size = len(cluster.log())
        cluster.launch(1)
        eventually(lambda: cut_after in cluster.log()[log_size:], every_s=0.001)
        cluster.pause()  # so that it makes no progress
        embedded.kill()
        embedded.start()
        cluster.resume()
        cluster.wait_until_it_listens(1)
        assert "ZooKeeper session suspended" in cluster.log()[log_size:]
        found = cluster.partitions(1, name)
        assert set(found.values()) == {(1, ErrorCode.NONE)}
        assert len(found) == 250
        see_changes_everywhere(cluster)


def test_a_broker_starts_while_an_ensemble_elects_its_leader(ensemble):
    with Brokers(ensemble.hosts, session_ms=SESSION_MS) as cluster:
        name = cluster.create_topic(partitions=5)
        cluster.terminate()
        leader = ensemble.leader()
        ensemble.kill(leader)
        cluster.restart()
        assert set(cluster.partitions(1, name).values()) == {(1, ErrorCode.NONE)}
