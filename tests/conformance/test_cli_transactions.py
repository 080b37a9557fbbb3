"""`hightide txn` beside real producers, and with a hanging transaction."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import KafkaException, Producer

from hightide.testing import Cluster
from tests.conformance.commands import runner
from tests.conformance.raw_transactions import RawProducer


@pytest.fixture
def run(transacting, capfd, monkeypatch):
    return runner(transacting.bootstrap, capfd, monkeypatch)


@pytest.fixture
def name():
    return f"txn-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(transacting):
    return transacting.create_topic(partitions=2)


def producing(cluster, name, topic, *values, index=0):
    """A producer with an open transaction that has these values."""
    made = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 30_000,
            "log_level": 0,
        }
    )
    made.init_transactions(20)
    made.begin_transaction()
    for value in values:
        made.produce(topic, value, partition=index)
    assert made.flush(20) == 0
    return made


def described(run, name):
    (found,) = run("txn", "describe", name, "-o", "json").json
    return found


def committed(run, topic):
    """Return the committed records, up to the last stable offset."""
    settings = ("-X", "isolation.level=read_committed")
    return run("consume", topic, *settings, "--from", "beginning").out.split()


def test_an_open_transaction_is_listed_described_and_found_in_its_partition(
    transacting, run, name, topic
):
    producer = producing(transacting, name, topic, b"a", b"b", index=1)
    rows = {row["transactional_id"]: row for row in run("txn", "list", "-o", "json").json}
    assert (rows[name]["state"], rows[name]["coordinator"]) == ("Ongoing", 1)
    assert name in run("txn", "list", "--state", "ongoing").out
    assert name not in run("txn", "list", "--state", "Empty").out
    assert name not in run("txn", "list", "--longer-than", "1h").out
    found = described(run, name)
    assert (found["state"], found["partitions"]) == ("Ongoing", {topic: [1]})
    assert (found["timeout_ms"], found["producer_id"]) == (30_000, rows[name]["producer_id"])
    assert found["started"]
    assert found["open_for"]
    (one,) = run("txn", "producers", f"{topic}/1", "-o", "json").json
    assert (one["producer_id"], one["start_offset"]) == (found["producer_id"], 0)
    assert (one["last_sequence"], one["producer_epoch"]) == (1, found["producer_epoch"])
    none = run("txn", "find-hanging", "--topic", topic)
    assert (none.code, none.out, none.err) == (0, "", "No transaction hangs.\n")
    producer.commit_transaction(20)
    assert described(run, name)["state"] in ("PrepareCommit", "CompleteCommit")
    assert name in run("txn", "list", "--producer-id", one["producer_id"]).out


def test_aborting_an_id_ends_its_transaction_and_fences_its_producer(transacting, run, name, topic):
    producer = producing(transacting, name, topic, b"lost")
    would = run("txn", "abort", name, "--dry-run", "-o", "json").json
    assert would == [
        {"transaction": name, "result": "would be aborted", "partitions": {topic: [0]}}
    ]
    assert described(run, name)["state"] == "Ongoing"
    (done,) = run("txn", "abort", name, "-o", "json").json
    assert done["result"] == "aborted"
    after = described(run, name)
    assert (after["state"], after["timeout_ms"], after["partitions"]) == ("Empty", 30_000, {})
    with pytest.raises(KafkaException, match="fenced"):
        producer.commit_transaction(20)
    (again,) = run("txn", "abort", name, "-o", "json").json
    assert again["result"] == "has nothing open"
    producing(transacting, name, topic, b"kept").commit_transaction(20)
    assert committed(run, topic) == ["kept"]


def test_one_partition_of_a_transaction_with_a_live_producer_is_not_aborted(
    transacting, run, name, topic
):
    producer = producing(transacting, name, topic, b"kept")
    place = ("--topic", topic, "--partition", 0)
    refused = run("txn", "abort", *place, "--start-offset", 0)
    assert (refused.code, refused.out) == (1, "")
    assert f"does not hang: it belongs to '{name}', in state Ongoing" in refused.err
    assert f"`hightide txn abort {name}`" in refused.err
    elsewhere = run("txn", "abort", *place, "--start-offset", 7)
    assert "has no such open transaction" in elsewhere.err
    producer.commit_transaction(20)
    assert committed(run, topic) == ["kept"]


def test_what_does_not_exist_is_said(run, name):
    for verb in ("describe", "abort"):
        missing = run("txn", verb, name)
        assert (missing.code, missing.out) == (1, "")
        assert f"There is no transactional id '{name}'" in missing.err
    assert run("txn", "producers", "nowhere").code == 1


@pytest.mark.extended
def test_a_transaction_that_hangs_is_found_and_aborted(capfd, monkeypatch, name):
    """Without verification a late batch opens a transaction that no coordinator knows."""
    settings = {
        "transaction.partition.verification.enable": False,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
    }
    with Cluster(settings=settings) as cluster:
        run = runner(cluster.bootstrap, capfd, monkeypatch)
        topic = cluster.create_topic()
        run("produce", topic, "before")
        late = RawProducer(cluster, name)
        late.init()
        assert late.write(topic, b"late").error_code == 0
        run("produce", topic, "after")
        assert described(run, name)["state"] == "Empty"
        assert committed(run, topic) == ["before"]
        (found,) = run("txn", "find-hanging", "-o", "json").json
        assert (found["topic"], found["partition"], found["start_offset"]) == (topic, 0, 1)
        place = ("--topic", topic, "--partition", 0, "--start-offset", 1)
        assert "would be aborted" in run("txn", "abort", *place, "--dry-run").out
        assert len(run("txn", "find-hanging", "-o", "json").json) == 1
        (done,) = run("txn", "abort", *place, "-o", "json").json
        assert (done["result"], done["partitions"]) == ("aborted", {topic: [0]})
        assert run("txn", "find-hanging", "-o", "json").json == []
        assert committed(run, topic) == ["before", "after"]
