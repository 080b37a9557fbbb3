"""A topic id in ZooKeeper that is not the one beside the logs: wrong, or of a topic made again."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from hightide.wire.errors import ErrorCode
from hightide.zookeeper import znodes
from tests.support.eventually import eventually
from tests.zookeeper.broker_world import Brokers, read, write


@pytest.fixture
def cluster(embedded: Any) -> Iterator[Brokers]:
    settings = {"default.replication.factor": 3, "min.insync.replicas": 2}
    with Brokers(embedded.hosts, 3, settings=settings) as brokers:
        yield brokers


def is_in_sync(cluster: Brokers, topic: str) -> bool:
    path = f"/brokers/topics/{topic}/partitions/0/state"
    return len(cluster.tree.json(path)["isr"]) == 3


def log_folders(cluster: Brokers, topic: str) -> list[str]:
    return [
        file.name
        for broker_id in cluster.brokers
        for file in cluster.data(broker_id).glob(f"{topic}-0*")
    ]


def start_all(cluster: Brokers) -> None:
    for broker_id in cluster.brokers:
        cluster.launch(broker_id)
    for broker_id in cluster.brokers:
        cluster.wait_until_it_listens(broker_id)


def change_id(cluster: Brokers, topic: str, topic_id: str) -> str:
    """Change the topic id in ZooKeeper, as a flipped bit would, and return the former one."""
    path = znodes.topic_path(topic)
    found = cluster.tree.json(path)
    cluster.tree.client.set(path, json.dumps({**found, "topic_id": topic_id}).encode())
    return str(found["topic_id"])


def test_a_wrong_topic_id_is_reported_and_no_log_is_given_up(cluster: Brokers) -> None:
    topic = cluster.create_topic("orders", partitions=1)
    eventually(lambda: is_in_sync(cluster, topic))
    write(cluster.bootstrap, topic, 0, b"kept")
    for broker_id in cluster.brokers:
        assert cluster.terminate(broker_id) == 0
    right = change_id(cluster, topic, znodes.id_text(uuid.UUID(int=7)))
    start_all(cluster)
    for broker_id in cluster.brokers:
        eventually(lambda: f"belongs to topic id {right}" in cluster.log(broker_id))  # noqa: B023
        assert "restore ZooKeeper from a backup" in cluster.log(broker_id)
        assert "set aside" not in cluster.log(broker_id)
    assert log_folders(cluster, topic) == ["orders-0"] * 3
    for broker_id in cluster.brokers:
        assert cluster.terminate(broker_id) == 0
    change_id(cluster, topic, right)
    start_all(cluster)
    eventually(lambda: is_in_sync(cluster, topic))
    assert read(cluster.bootstrap, topic, 0) == b"kept"


def test_a_topic_made_again_while_a_broker_was_away_replaces_its_log(cluster: Brokers) -> None:
    topic, new_id = cluster.create_topic("orders", partitions=1), znodes.id_text(uuid.uuid4())
    eventually(lambda: is_in_sync(cluster, topic))
    write(cluster.bootstrap, topic, 0, b"former")
    cluster.terminate(3)
    admin = AdminClient({"bootstrap.servers": f"{cluster.address(1)},{cluster.address(2)}"})
    admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: cluster.tree.data(znodes.topic_path(topic)) is None)
    # Only another tool gives a replica to a broker that is not there.
    made = {"version": 3, "partitions": {"0": [1, 2, 3]}, "topic_id": new_id}
    made |= {"adding_replicas": {}, "removing_replicas": {}}
    cluster.tree.client.create(znodes.topic_path(topic), json.dumps(made).encode())
    eventually(lambda: cluster.partitions(1, topic).get(0, (0, None))[1] is ErrorCode.NONE)
    write(f"{cluster.address(1)},{cluster.address(2)}", topic, 0, b"new")
    cluster.restart(3)
    eventually(lambda: is_in_sync(cluster, topic))
    assert "it belongs to a former topic of that name" in cluster.log(3)
    assert read(cluster.bootstrap, topic, 0) == b"new"
