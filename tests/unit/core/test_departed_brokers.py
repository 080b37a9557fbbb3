"""The brokers that are gone: their addresses, and since when."""

from __future__ import annotations

from hightide.core.metadata import departed_brokers
from hightide.core.metadata.departed_brokers import DepartedBrokers
from hightide.wire.messages.replication import PublishedBroker, PublishedEndpoint


def brokers(*ids, listener="PLAINTEXT"):
    return {
        broker: PublishedBroker(
            broker_id=broker,
            broker_epoch=broker,
            endpoints=[
                PublishedEndpoint(
                    listener=listener,
                    host=f"host{broker}",
                    port=9092,
                    security_protocol="PLAINTEXT",
                )
            ],
        )
        for broker in ids
    }


def remembered(departed, listener="PLAINTEXT"):
    return {
        broker: (endpoint and endpoint.host, at_ms)
        for broker, endpoint, at_ms in departed.endpoints(listener)
    }


def test_a_broker_that_left_is_remembered_until_it_returns():
    departed = DepartedBrokers()
    departed.published(brokers(1, 2, 3), 100)
    assert remembered(departed) == {}
    departed.published(brokers(1, 3), 200)
    departed.published(brokers(1), 300)
    assert remembered(departed) == {2: ("host2", 200), 3: ("host3", 300)}
    assert remembered(departed, "TLS") == {2: (None, 200), 3: (None, 300)}
    departed.published(brokers(1, 2), 400)
    assert remembered(departed) == {3: ("host3", 300)}


def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(departed_brokers, "REMEMBERED", 2)
    departed = DepartedBrokers()
    for broker in range(5):
        departed.published(brokers(broker), broker)
    assert remembered(departed) == {2: ("host2", 3), 3: ("host3", 4)}
