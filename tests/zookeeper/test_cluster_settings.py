"""Settings that change while brokers run: through any broker, or by hand in ZooKeeper.

Three brokers with each kind of ZooKeeper serve the tests; each test uses its own topics.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, Producer

from hightide.wire.errors import ErrorCode
from tests.support.eventually import eventually
from tests.zookeeper.broker_world import BROKER, TOPIC, Brokers, configure, setting

KINDS = ("embedded", "zookeeper", "ensemble")
SOON_S = 1.0


@pytest.fixture(scope="module", params=KINDS)
def brokers(request, _shared):
    with Brokers(_shared(request.param).hosts, 3) as cluster:
        cluster.kind = request.param
        yield cluster


@pytest.fixture
def cluster(brokers):
    eventually(
        lambda: all(len(brokers.metadata(broker_id).brokers) == 3 for broker_id in brokers.brokers)
    )
    return brokers


@pytest.fixture
def topic(cluster):
    """A topic that every broker knows."""
    name = cluster.create_topic()
    eventually(lambda: all(cluster.partitions(broker_id, name) for broker_id in cluster.brokers))
    return name


def shown_everywhere(cluster: Brokers, kind: int, resource: str, name: str, value: str) -> float:
    """Wait until every broker describes a setting with this value; return the seconds."""
    began = time.monotonic()
    for broker_id in cluster.brokers:
        own = str(broker_id) if kind == BROKER else resource
        address = cluster.address(broker_id)
        eventually(lambda own=own, at=address: setting(at, kind, own, name) == value, 10)
    return time.monotonic() - began


def send(cluster: Brokers, topic: str, size: int) -> KafkaError | None:
    """Produce one record of this size; return the error."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": 20_000})
    producer.produce(
        topic, random.randbytes(size), on_delivery=lambda error, _: errors.append(error)
    )
    producer.flush(30)
    return errors[0]


@pytest.mark.extended
def test_a_change_through_any_broker_is_seen_by_all_at_once(
    cluster, topic, record_testsuite_property
):
    times = []
    for number, broker_id in enumerate(cluster.brokers * 5):
        value = str(1_000_000 + number)
        assert cluster.configure(broker_id, TOPIC, topic, retention_ms=value) == ErrorCode.NONE
        times.append(shown_everywhere(cluster, TOPIC, topic, "retention.ms", value))
    record_testsuite_property(
        f"{cluster.kind}: change seen everywhere after ms",
        [round(seconds * 1000) for seconds in times],
    )
    assert max(times) < SOON_S
    assert cluster.tree.json(f"/config/topics/{topic}") == {
        "version": 1,
        "config": {"retention.ms": value},
    }
    newest = cluster.tree.children("/config/changes")[-1]
    notification = cluster.tree.json(f"/config/changes/{newest}")
    assert notification == {"version": 2, "entity_path": f"topics/{topic}"}


def test_a_default_of_all_brokers_changes_at_all(cluster):
    for broker_id, value in zip(cluster.brokers, ("1500000", "1600000", "1048588"), strict=True):
        assert cluster.configure(broker_id, BROKER, "", message_max_bytes=value) == ErrorCode.NONE
        assert shown_everywhere(cluster, BROKER, "", "message.max.bytes", value) < SOON_S
    assert cluster.tree.json("/config/brokers/<default>")["config"]["message.max.bytes"] == value


def test_one_broker_alone_can_be_changed(cluster):
    one, *others = cluster.brokers
    changed = cluster.configure(one, BROKER, str(one), log_cleaner_threads="2")
    assert changed == ErrorCode.NONE
    assert cluster.tree.json(f"/config/brokers/{one}")["config"] == {"log.cleaner.threads": "2"}
    shown = {
        broker_id: setting(
            cluster.address(broker_id), BROKER, str(broker_id), "log.cleaner.threads"
        )
        for broker_id in cluster.brokers
    }
    assert shown == {one: "2", **dict.fromkeys(others, "1")}


def test_a_change_acts_where_the_partition_is(cluster, topic):
    elsewhere = cluster.others(cluster.leader(topic))[0]
    assert send(cluster, topic, 5000) is None
    cluster.configure(elsewhere, TOPIC, topic, max_message_bytes="1000")
    shown_everywhere(cluster, TOPIC, topic, "max.message.bytes", "1000")
    assert send(cluster, topic, 5000).code() == KafkaError.MSG_SIZE_TOO_LARGE
    cluster.configure(elsewhere, TOPIC, topic, max_message_bytes="9000")
    shown_everywhere(cluster, TOPIC, topic, "max.message.bytes", "9000")
    assert send(cluster, topic, 5000) is None


def test_a_change_right_after_the_creation_is_not_missed(cluster):
    """A broker may read the config before the change, and learn of the topic after it."""
    names = [f"young-{random.randbytes(4).hex()}" for _ in range(25)]
    for name in names:
        controller = cluster.elected()
        assert cluster.create(controller, name) == ErrorCode.NONE
        assert cluster.configure(controller, TOPIC, name, retention_ms="77000") == ErrorCode.NONE
    for name in names:
        shown_everywhere(cluster, TOPIC, name, "retention.ms", "77000")


def test_two_who_change_at_once_through_two_brokers_lose_nothing(cluster, topic):
    one, two, _ = cluster.brokers
    with ThreadPoolExecutor(2) as pool:
        for number in range(1_000_000, 1_000_015):
            changes = [
                pool.submit(
                    configure, cluster.address(one), TOPIC, topic, retention_ms=str(number)
                ),
                pool.submit(configure, cluster.address(two), TOPIC, topic, segment_ms=str(number)),
            ]
            assert [change.result() for change in changes] == [ErrorCode.NONE] * 2
            found = cluster.tree.json(f"/config/topics/{topic}")["config"]
            assert found == {"retention.ms": str(number), "segment.ms": str(number)}
    for name in ("retention.ms", "segment.ms"):
        shown_everywhere(cluster, TOPIC, topic, name, str(number))


# -- by hand in ZooKeeper ------------------------------------------------------------------------


def write_by_hand(cluster: Brokers, entity_path: str, data: bytes) -> None:
    path = f"/config/{entity_path}"
    if cluster.tree.client.exists(path):
        cluster.tree.client.set(path, data)
    else:
        cluster.tree.client.create(path, data)


def settings_json(**values: str) -> bytes:
    config = {name.replace("_", "."): value for name, value in values.items()}
    return json.dumps({"version": 1, "config": config}).encode()


def v1(entity_type: str, name: str) -> Callable[[Brokers], object]:
    notification = {"version": 1, "entity_type": entity_type, "entity_name": name}
    return lambda cluster: cluster.tree.client.create(
        "/config/changes/config_change_", json.dumps(notification).encode(), sequence=True
    )


def test_what_kafkas_own_tools_write_is_followed(cluster, topic):
    write_by_hand(cluster, f"topics/{topic}", settings_json(retention_ms="123456"))
    cluster.tree.notify(f"topics/{topic}")
    assert shown_everywhere(cluster, TOPIC, topic, "retention.ms", "123456") < SOON_S
    write_by_hand(cluster, f"topics/{topic}", settings_json(retention_ms="654321"))
    v1("topics", topic)(cluster)
    assert shown_everywhere(cluster, TOPIC, topic, "retention.ms", "654321") < SOON_S


JUNK_NOTIFICATIONS = [
    b"",
    b"not json",
    b"[]",
    b'{"version":2}',
    b'{"version":2,"entity_path":7}',
    b'{"version":2,"entity_path":""}',
    b'{"version":2,"entity_path":"topics"}',
    b'{"version":2,"entity_path":"topics/../../controller"}',
    b'{"version":2,"entity_path":"topics/there/is/no\\u0000such"}',
    b'{"version":2,"entity_path":"brokers/77"}',
    b'{"version":3,"something":"new"}',
    b"\xff\xfe",
]


def test_junk_among_the_notifications_is_reported_and_skipped(cluster, topic):
    log_size = {broker_id: len(cluster.log(broker_id)) for broker_id in cluster.brokers}
    for junk in JUNK_NOTIFICATIONS:
        cluster.tree.client.create("/config/changes/config_change_", junk, sequence=True)
    stranger = f"/config/changes/who-put-this-here-{topic}"
    cluster.tree.client.create(stranger, b"")
    assert cluster.configure(1, TOPIC, topic, retention_ms="99000") == ErrorCode.NONE
    assert shown_everywhere(cluster, TOPIC, topic, "retention.ms", "99000") < SOON_S
    for broker_id in cluster.brokers:
        new = cluster.log(broker_id)[log_size[broker_id] :]
        assert "config_change_" in new
        assert "Traceback" not in new
    cluster.tree.client.delete(stranger)


def test_junk_among_the_settings_is_reported_and_ignored_also_at_the_next_start(cluster, topic):
    cluster.configure(1, TOPIC, topic, retention_ms="55000")
    shown_everywhere(cluster, TOPIC, topic, "retention.ms", "55000")
    good = settings_json(retention_ms="soon", segment_ms="777000", no_such_setting="1")
    write_by_hand(cluster, f"topics/{topic}", good)
    cluster.tree.notify(f"topics/{topic}")
    assert shown_everywhere(cluster, TOPIC, topic, "segment.ms", "777000") < SOON_S

    write_by_hand(cluster, f"topics/{topic}", b'{"version":1,"config":{"retention.ms":5}}')
    write_by_hand(
        cluster,
        "brokers/<default>",
        settings_json(message_max_bytes="huge", log_segment_bytes="7777777", broker_id="9"),
    )
    cluster.tree.notify(f"topics/{topic}")
    cluster.tree.notify("brokers/<default>")
    assert shown_everywhere(cluster, BROKER, "", "log.segment.bytes", "7777777") < SOON_S
    shown_everywhere(cluster, TOPIC, topic, "segment.ms", "777000")  # the last valid value

    for broker_id in cluster.brokers[:1]:
        log_size = len(cluster.log(broker_id))
        cluster.restart(broker_id)
        assert (
            setting(cluster.address(broker_id), BROKER, str(broker_id), "log.segment.bytes")
            == "7777777"
        )
        assert setting(cluster.address(broker_id), BROKER, str(broker_id), "broker.id") == str(
            broker_id
        )
        assert setting(cluster.address(broker_id), TOPIC, topic, "segment.ms") == "604800000"
        new = cluster.log(broker_id)[log_size:]
        for complaint in ("message.max.bytes", "broker.id", f"/config/topics/{topic}"):
            assert any(complaint in line for line in new.splitlines() if " ERROR " in line), new

    # A change of a setting now overwrites the invalid data.
    assert cluster.configure(2, TOPIC, topic, retention_ms="88000") == ErrorCode.NONE
    shown_everywhere(cluster, TOPIC, topic, "retention.ms", "88000")
    write_by_hand(cluster, "brokers/<default>", settings_json())
    cluster.tree.notify("brokers/<default>")
    shown_everywhere(cluster, BROKER, "", "log.segment.bytes", "1073741824")
