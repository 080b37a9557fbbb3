"""Which client runs which behaviour, and the brokers they run against.

A test that takes `client` runs once with each client that has the abilities of its `needs` marker.
Tests of a session share brokers where they do not disturb each other: each creates its topics.
"""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    # The clients use deprecated features of Python; that is their business.
    warnings.simplefilter("ignore")
    from tests.conformance.adapters import aio, confluent, kafka_python, kcat

from hightide.testing import Cluster
from tests.conformance.replicated import SETTINGS, Replicated

TRANSACTING = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
    # Compaction soon, of synced records only.
    "log.initial.task.delay.ms": 0,
    "log.flush.offset.checkpoint.interval.ms": 500,
    "log.cleaner.backoff.ms": 200,
}

CLIENTS = {adapter.NAME: adapter for adapter in (confluent, kafka_python, aio, kcat)}


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*abilities): what a client must be able to do")


def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("needs")
    needed = set(marker.args) if marker else set()
    if "client" in metafunc.fixturenames:
        able = [name for name, adapter in CLIENTS.items() if needed <= adapter.CAN]
        metafunc.parametrize("client", able, indirect=True)
    for role, ability in (("producer", "produce"), ("consumer", "read")):
        if role in metafunc.fixturenames:
            able = [name for name, adapter in CLIENTS.items() if ability in adapter.CAN]
            metafunc.parametrize(role, able, indirect=True)


def client_named(name):
    if name == kcat.NAME and not kcat.is_installed():
        pytest.skip("kcat is not installed on this machine (Debian package: kcat)")
    return CLIENTS[name]


@pytest.fixture
def client(request):
    return client_named(request.param)


@pytest.fixture
def producer(request):
    return client_named(request.param)


@pytest.fixture
def consumer(request):
    return client_named(request.param)


@pytest.fixture(scope="session")
def broker():
    """A broker with Kafka's defaults that many tests share.

    Only retention is off: the tests' timestamps are fixed ones, and long past.
    """
    with Cluster(settings={"log.retention.ms": -1}) as cluster:
        yield cluster
        assert cluster.is_running(), cluster.log()


@pytest.fixture(scope="session")
def strict_broker():
    """A broker that creates no topics by itself."""
    with Cluster(settings={"auto.create.topics.enable": False}) as cluster:
        yield cluster
        assert cluster.is_running(), cluster.log()


GROUP_SETTINGS = {
    "log.retention.ms": -1,
    "auto.create.topics.enable": False,
    # Groups form at once, and sessions of members expire soon.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 2000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "offsets.topic.num.partitions": 5,
    "offsets.topic.replication.factor": 1,
}


@pytest.fixture(scope="session")
def group_broker():
    """A broker for groups, with short delays and sessions."""
    with Cluster(settings=GROUP_SETTINGS) as cluster:
        yield cluster
        assert cluster.is_running(), cluster.log()
        assert "Traceback" not in cluster.log(), cluster.log()


@pytest.fixture
def topic(broker):
    """A topic of one partition that no other test uses."""
    return broker.create_topic()


@pytest.fixture(scope="session")
def transacting():
    """A broker for transactions, which aborts expired transactions soon."""
    with Cluster(settings={"log.retention.ms": -1, **TRANSACTING}) as cluster:
        yield cluster
        assert cluster.is_running(), cluster.log()
        assert "Traceback" not in cluster.log(), cluster.log()


# -- three brokers -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _three():
    """Brokers with short sessions, so that a failure is detected soon.

    Leaders stay where they are: a test moves them explicitly.
    """
    settings = {
        **SETTINGS,
        "zookeeper.session.timeout.ms": 2000,
        "auto.leader.rebalance.enable": False,
    }
    with Replicated(3, settings=settings) as cluster:
        yield cluster
        cluster.check_brokers_failed_at_nothing()


@pytest.fixture(scope="session")
def _racked():
    """Brokers in two racks, with the default session timeout and automatic preferred leaders."""
    settings = {
        **SETTINGS,
        "zookeeper.session.timeout.ms": 6000,
        "auto.leader.rebalance.enable": True,
        "leader.imbalance.check.interval.seconds": 1,
        "leader.imbalance.per.broker.percentage": 0,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "default.replication.factor": 2,
        "offsets.topic.num.partitions": 4,
        "auto.create.topics.enable": True,
    }
    racks = {broker_id: {"broker.rack": rack} for broker_id, rack in ((1, "a"), (2, "a"), (3, "b"))}
    with Replicated(3, settings=settings, broker_settings=racks) as cluster:
        yield cluster
        cluster.check_brokers_failed_at_nothing()


@pytest.fixture
def three(_three):
    """Three running brokers, with all replicas in sync."""
    _three.heal()
    return _three


@pytest.fixture
def racked(_racked):
    """Three running brokers in the racks a, a and b, with all replicas in sync."""
    _racked.heal()
    return _racked


@pytest.fixture(scope="session")
def _three_transacting():
    """Three brokers with the replicated internal topics of transactions."""
    settings = {
        **SETTINGS,
        **TRANSACTING,
        "zookeeper.session.timeout.ms": 2000,
        "auto.leader.rebalance.enable": False,
        "transaction.state.log.replication.factor": 3,
        "transaction.state.log.min.isr": 2,
        "offsets.topic.replication.factor": 3,
        "group.min.session.timeout.ms": 1000,
    }
    with Replicated(3, settings=settings) as cluster:
        yield cluster
        cluster.check_brokers_failed_at_nothing()


@pytest.fixture
def three_transacting(_three_transacting):
    """Three running brokers, with all replicas in sync and short transaction timeouts."""
    _three_transacting.heal()
    return _three_transacting
