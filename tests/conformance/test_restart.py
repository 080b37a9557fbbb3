"""A broker that stops or is killed comes back with every acknowledged record."""

from __future__ import annotations

import pytest

from hightide.process import BrokerFailed
from hightide.testing import Cluster
from tests.conformance.adapters import Record, confluent, values


@pytest.fixture
def own_broker():
    """A broker that the test may kill."""
    with Cluster() as cluster:
        yield cluster


def stop_in_order(cluster):
    cluster.restart()


def kill(cluster):
    cluster.kill()
    cluster.restart()


@pytest.mark.extended
@pytest.mark.parametrize("stop", [stop_in_order, kill])
def test_topics_settings_and_records_survive(own_broker, stop):
    bootstrap = own_broker.bootstrap
    topic = own_broker.create_topic(partitions=3, config={"retention.ms": "86400000000"})
    sent = {
        at: [Record(b"%d-%d" % (at, n), key=b"k", headers=(("h", b"v"),)) for n in range(50)]
        for at in range(3)
    }
    for at, records in sent.items():
        confluent.produce(bootstrap, topic, records, partition=at, codec="zstd", idempotent=True)
    cluster_id = confluent.cluster(bootstrap)[0]
    before = confluent.describe_topic(bootstrap, topic)
    stop(own_broker)
    assert own_broker.bootstrap == bootstrap
    assert confluent.cluster(bootstrap)[0] == cluster_id
    assert set(confluent.describe_topic(bootstrap, topic)) == set(before)
    assert confluent.get_config(bootstrap, topic)["retention.ms"] == "86400000000"
    for at, records in sent.items():
        found = confluent.read(bootstrap, topic, 50, partition=at)
        assert [(r.key, r.value, r.headers) for r in found] == [
            (r.key, r.value, r.headers) for r in records
        ]
        assert confluent.produce(bootstrap, topic, [Record(b"more")], partition=at) == [50]


@pytest.mark.needs("produce", "read")
def test_every_acknowledged_record_survives_kill_9(own_broker, client):
    topic = own_broker.create_topic()
    sent = [Record(b"%d" % at) for at in range(30)]
    client.produce(own_broker.bootstrap, topic, sent)
    kill(own_broker)
    assert values(client.read(own_broker.bootstrap, topic, 30)) == values(sent)


@pytest.mark.extended
def test_the_start_of_a_purged_log_survives_kill_9(own_broker):
    topic = own_broker.create_topic()
    confluent.produce(own_broker.bootstrap, topic, [Record(b"%d" % at) for at in range(10)])
    confluent.delete_records(own_broker.bootstrap, topic, 4)
    own_broker.restart()
    assert confluent.bounds(own_broker.bootstrap, topic) == (4, 10)


@pytest.mark.extended
@pytest.mark.parametrize("stop", [stop_in_order, kill])
def test_a_deleted_topic_stays_deleted(own_broker, stop):
    kept, gone = own_broker.create_topic(), own_broker.create_topic()
    confluent.produce(own_broker.bootstrap, gone, [Record(b"x")])
    confluent.delete_topic(own_broker.bootstrap, gone)
    stop(own_broker)
    assert confluent.topics(own_broker.bootstrap) == {kept}


@pytest.mark.extended
def test_a_client_that_stays_connects_again_by_itself(own_broker):
    """One producer and one consumer outlive a kill and lose nothing."""
    from confluent_kafka import Producer

    topic = own_broker.create_topic()
    producer = Producer(
        {
            "bootstrap.servers": own_broker.bootstrap,
            "enable.idempotence": True,
            "reconnect.backoff.max.ms": 200,
            "message.timeout.ms": 25_000,
        }
    )
    failures = []

    def delivered(error, _message):
        if error is not None:
            failures.append(error)

    with confluent.consumer(own_broker.bootstrap, **{"reconnect.backoff.max.ms": 200}) as source:
        source.assign([confluent.TopicPartition(topic, 0, 0)])
        for at in range(100):
            producer.produce(topic, b"%d" % at, on_delivery=delivered)
            if at == 50:
                producer.flush()
                kill(own_broker)
        producer.flush(25)
        assert not failures
        assert values(confluent.poll(source, 100)) == [b"%d" % at for at in range(100)]


@pytest.mark.extended
def test_memory_is_forgotten_at_a_restart():
    with Cluster(memory=True) as cluster:
        topic = cluster.create_topic()
        confluent.produce(cluster.bootstrap, topic, [Record(b"x")])
        assert values(confluent.read(cluster.bootstrap, topic, 1)) == [b"x"]
        assert not cluster.data().exists()
        cluster.restart()
        assert confluent.topics(cluster.bootstrap) == set()


def test_two_brokers_cannot_share_one_directory(own_broker):
    other = Cluster(settings={"log.dirs": own_broker.data()})
    with pytest.raises(BrokerFailed, match="another"):
        other.start()
    assert confluent.topics(own_broker.bootstrap) == set()
