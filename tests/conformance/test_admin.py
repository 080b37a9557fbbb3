"""Topics and settings through the admin interface of each client."""

from __future__ import annotations

import uuid

import pytest

from tests.conformance.adapters import Record, Refused, confluent, kafka_python, values


def fresh():
    return f"admin-{uuid.uuid4().hex[:12]}"


@pytest.mark.needs("admin")
def test_a_topic_is_created_described_and_deleted(broker, client):
    topic = fresh()
    client.create_topic(broker.bootstrap, topic, partitions=3)
    assert topic in client.topics(broker.bootstrap)
    assert client.describe_topic(broker.bootstrap, topic) == {at: (1, [1], [1]) for at in range(3)}
    client.delete_topic(broker.bootstrap, topic)
    assert topic not in client.topics(broker.bootstrap)


@pytest.mark.needs("admin")
def test_a_topic_that_exists_cannot_be_created_again(broker, topic, client):
    with pytest.raises(Refused) as refusal:
        client.create_topic(broker.bootstrap, topic)
    assert refusal.value.name == "TOPIC_ALREADY_EXISTS"


@pytest.mark.needs("admin")
@pytest.mark.parametrize("name", ["", ".", "..", "white space", "a/b", "ü", "x" * 250])
def test_a_bad_name_is_refused(broker, client, name):
    with pytest.raises(Refused) as refusal:
        client.create_topic(broker.bootstrap, name)
    assert refusal.value.name in {"INVALID_TOPIC_EXCEPTION", "_INVALID_ARG"}
    assert name not in confluent.topics(broker.bootstrap)


@pytest.mark.needs("admin")
def test_the_longest_name_is_accepted(broker, client):
    name = fresh() + "-._" + "n" * 200
    name += "n" * (249 - len(name))
    client.create_topic(broker.bootstrap, name)
    confluent.produce(broker.bootstrap, name, [Record(b"x")])
    assert values(confluent.read(broker.bootstrap, name, 1)) == [b"x"]


@pytest.mark.needs("admin")
def test_a_topic_of_no_partitions_is_refused(broker, client):
    topic = fresh()
    with pytest.raises(Refused) as refusal:
        client.create_topic(broker.bootstrap, topic, partitions=0)
    assert refusal.value.name in {"INVALID_PARTITIONS", "_INVALID_ARG"}


@pytest.mark.needs("admin")
def test_only_validating_creates_nothing(broker, client):
    topic = fresh()
    client.create_topic(broker.bootstrap, topic, validate_only=True)
    assert topic not in client.topics(broker.bootstrap)


@pytest.mark.needs("admin")
def test_a_topic_that_is_not_there_cannot_be_deleted(strict_broker, client):
    with pytest.raises(Refused) as refusal:
        client.delete_topic(strict_broker.bootstrap, fresh())
    assert refusal.value.name == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.needs("admin")
def test_a_deleted_topic_can_be_created_again_and_is_empty(broker, topic, client):
    confluent.produce(broker.bootstrap, topic, [Record(b"old")] * 3)
    client.delete_topic(broker.bootstrap, topic)
    client.create_topic(broker.bootstrap, topic)
    assert confluent.bounds(broker.bootstrap, topic) == (0, 0)
    confluent.produce(broker.bootstrap, topic, [Record(b"new")])
    assert values(confluent.read(broker.bootstrap, topic, 1)) == [b"new"]


@pytest.mark.needs("admin")
def test_partitions_can_be_added_but_not_taken_away(broker, topic, client):
    client.add_partitions(broker.bootstrap, topic, 4)
    assert set(client.describe_topic(broker.bootstrap, topic)) == {0, 1, 2, 3}
    confluent.produce(broker.bootstrap, topic, [Record(b"x")], partition=3)
    assert values(confluent.read(broker.bootstrap, topic, 1, partition=3)) == [b"x"]
    with pytest.raises(Refused) as refusal:
        client.add_partitions(broker.bootstrap, topic, 2)
    assert refusal.value.name == "INVALID_PARTITIONS"


@pytest.mark.needs("admin")
def test_settings_are_given_at_creation_and_read_back(broker, client):
    topic = fresh()
    config = {"retention.ms": "12345", "cleanup.policy": "compact"}
    client.create_topic(broker.bootstrap, topic, config=config)
    found = client.get_config(broker.bootstrap, topic)
    assert {name: found[name] for name in config} == config
    assert found["segment.bytes"] == "1073741824"


@pytest.mark.needs("admin", "incremental")
def test_one_setting_is_changed_and_the_others_stay(broker, client):
    topic = broker.create_topic(config={"retention.ms": "12345"})
    client.set_config(broker.bootstrap, topic, {"max.message.bytes": "2000"})
    found = client.get_config(broker.bootstrap, topic)
    assert (found["retention.ms"], found["max.message.bytes"]) == ("12345", "2000")


@pytest.mark.needs("admin")
def test_a_changed_setting_takes_effect_at_once(broker, topic, client):
    confluent.produce(broker.bootstrap, topic, [Record(b"x" * 5000)])
    client.set_config(broker.bootstrap, topic, {"max.message.bytes": "1000"})
    with pytest.raises(Refused) as refusal:
        confluent.produce(broker.bootstrap, topic, [Record(b"x" * 5000)])
    assert refusal.value.name == "MESSAGE_TOO_LARGE"


@pytest.mark.needs("admin")
@pytest.mark.parametrize(
    "config", [{"retention.ms": "soon"}, {"no.such.setting": "1"}, {"cleanup.policy": "burn"}]
)
def test_a_wrong_setting_is_refused_and_nothing_created(broker, client, config):
    topic = fresh()
    with pytest.raises(Refused) as refusal:
        client.create_topic(broker.bootstrap, topic, config=config)
    assert refusal.value.name == "INVALID_CONFIG"
    assert topic not in client.topics(broker.bootstrap)


@pytest.mark.needs("admin")
def test_records_are_deleted_up_to_an_offset(broker, topic, client):
    confluent.produce(broker.bootstrap, topic, [Record(b"%d" % at) for at in range(10)])
    assert client.delete_records(broker.bootstrap, topic, 7) == 7
    assert client.bounds(broker.bootstrap, topic) == (7, 10)
    assert values(client.read(broker.bootstrap, topic, 3)) == [b"7", b"8", b"9"]


@pytest.mark.needs("admin")
def test_records_past_the_end_cannot_be_deleted(broker, topic, client):
    confluent.produce(broker.bootstrap, topic, [Record(b"x")])
    with pytest.raises(Refused) as refusal:
        client.delete_records(broker.bootstrap, topic, 5)
    # kafka-python wraps every partition's error.
    assert refusal.value.name in {"OFFSET_OUT_OF_RANGE", "KafkaError"}
    assert client.bounds(broker.bootstrap, topic) == (0, 1)


@pytest.mark.needs("describe")
def test_the_cluster_is_one_broker_which_is_the_controller(broker, client):
    cluster_id, brokers, controller = client.cluster(broker.bootstrap)
    assert brokers == [1]
    assert controller == 1
    if cluster_id is not None:
        assert len(cluster_id) == 22


@pytest.mark.needs("describe")
def test_the_address_told_is_the_one_the_client_came_by(broker, client):
    """A client that uses another name of the machine gets that name in responses."""
    port = broker.port()
    for host in ("127.0.0.1", "localhost"):
        assert client.cluster(f"{host}:{port}")[1] == [1]
    told = {
        broker.host
        for broker in confluent.admin(f"127.0.0.1:{port}").list_topics(timeout=10).brokers.values()
    }
    assert told == {"127.0.0.1"}


# -- automatic topics ----------------------------------------------------------------------------


@pytest.mark.needs("produce", "read")
def test_producing_creates_the_topic_when_the_broker_is_set_to(broker, client):
    topic = fresh()
    client.produce(broker.bootstrap, topic, [Record(b"first")])
    assert values(client.read(broker.bootstrap, topic, 1)) == [b"first"]


@pytest.mark.extended
@pytest.mark.needs("produce")
def test_producing_to_an_unknown_topic_is_refused_when_it_is_not(strict_broker, client):
    topic = fresh()
    with pytest.raises(Refused) as refusal:
        client.produce(strict_broker.bootstrap, topic, [Record(b"x")], timeout_ms=3000)
    assert refusal.value.name in {
        "UNKNOWN_TOPIC_OR_PARTITION",
        "_UNKNOWN_TOPIC",
        # These two clients wait for the topic to appear and then give up.
        "KafkaTimeoutError",
        "_MSG_TIMED_OUT",
    }
    assert topic not in confluent.topics(strict_broker.bootstrap)


@pytest.mark.needs("describe")
def test_asking_about_an_unknown_topic_is_refused(strict_broker, client):
    with pytest.raises(Refused) as refusal:
        client.describe_topic(strict_broker.bootstrap, fresh())
    assert refusal.value.name == "UNKNOWN_TOPIC_OR_PARTITION"


# -- many ----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_three_hundred_topics_can_be_made_listed_and_deleted(strict_broker):
    """One request each: the admin interface takes them all at once."""
    names = [fresh() for _ in range(300)]
    with kafka_python.admin(strict_broker.bootstrap) as admin:
        admin.create_topics(
            {name: {"num_partitions": 1, "replication_factor": 1} for name in names}
        )
    assert set(names) <= confluent.topics(strict_broker.bootstrap)
    for name in names[::60]:
        confluent.produce(strict_broker.bootstrap, name, [Record(name.encode())])
        assert values(confluent.read(strict_broker.bootstrap, name, 1)) == [name.encode()]
    with kafka_python.admin(strict_broker.bootstrap) as admin:
        admin.delete_topics(names)
    assert not set(names) & confluent.topics(strict_broker.bootstrap)


def test_every_log_is_found_in_the_log_directory(broker, topic):
    confluent.produce(broker.bootstrap, topic, [Record(b"x" * 1000)])
    with kafka_python.admin(broker.bootstrap) as admin:
        (found,) = admin.describe_log_dirs()
    sizes = {
        (topic["name"], partition["partition_index"]): partition["partition_size"]
        for directory in found["log_dirs"]
        for topic in directory["topics"]
        for partition in topic["partitions"]
    }
    (segment,) = (broker.data() / f"{topic}-0").glob("*.log")
    assert sizes[topic, 0] == segment.stat().st_size > 1000
