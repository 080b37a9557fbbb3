"""Transactions with deleted topics, many producers, admin tools and follower fetches."""

from __future__ import annotations

import subprocess
import threading
import time

import confluent_kafka
import pytest

from hightide.testing import Cluster
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.frame import decode_response, encode_request
from hightide.wire.messages import RESPONSES
from hightide.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.conformance.adapters import Record, confluent, kafka_python, kcat, values
from tests.conformance.adapters.transactional import transactional
from tests.conformance.conftest import TRANSACTING
from tests.conformance.raw import Raw, produce_request, produced
from tests.conformance.raw_transactions import (
    COMMITTED,
    UNCOMMITTED,
    RawProducer,
    committed_values,
    describe_transaction,
    end_offset,
    find_coordinator,
    positions,
    transactional_batch,
)
from tests.conformance.replicated import fetch, values_of
from tests.support.eventually import eventually
from tests.support.proxy import Proxy


@pytest.fixture
def topic(transacting):
    return transacting.create_topic(partitions=2)


def begun(cluster, name, **given):
    made = RawProducer(cluster, name, **given)
    assert made.init() == 0
    return made


# -- tools ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not kcat.is_installed(), reason="kcat is not installed (Debian package: kcat)")
def test_kcat_writes_a_transaction(transacting, topic):
    command = ["kcat", "-P", "-b", transacting.bootstrap, "-t", topic, "-p", "0"]
    done = subprocess.run(
        [*command, "-X", f"transactional.id=kcat-{topic}"],
        input=b"one\ntwo\n",
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert committed_values(transacting, topic) == [b"one", b"two"]
    assert end_offset(transacting, topic, UNCOMMITTED) == 3
    assert describe_transaction(transacting, f"kcat-{topic}").transaction_state == "CompleteCommit"


def test_the_tools_of_kafka_python_look_at_transactions(transacting, topic):
    """KIP-664: a hanging transaction is found and aborted."""
    producer = begun(transacting, f"tools-{topic}")
    producer.begin(topic, b"x")
    name = producer.transactional_id
    with kafka_python.admin(transacting.bootstrap) as admin:
        assert name in str(admin.list_transactions())
        described = str(admin.describe_transactions([name]))
        assert "Ongoing" in described
        assert topic in described
        assert str(producer.id) in str(
            admin.describe_producers([kafka_python.TopicPartition(topic, 0)])
        )
    assert producer.end(commit=False) == 0


# -- concurrent changes --------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_topic_that_is_deleted_holds_no_transaction_up(transacting, topic, commit):
    producer = begun(transacting, f"deleted-{topic}")
    other = transacting.create_topic()
    producer.begin(topic, b"x")
    producer.begin(other, b"y")
    confluent.delete_topic(transacting.bootstrap, other)
    assert producer.end(commit=commit) == 0
    eventually(lambda: committed_values(transacting, topic) == ([b"x"] if commit else []))
    done = "CompleteCommit" if commit else "CompleteAbort"
    eventually(
        lambda: (
            describe_transaction(transacting, producer.transactional_id).transaction_state == done
        )
    )
    producer.begin(topic, b"z")
    assert producer.end() == 0


def test_of_many_that_want_an_id_at_once_each_gets_an_epoch_of_its_own(transacting, topic):
    name = f"storm-{topic}"
    holders = [RawProducer(transacting, name) for _ in range(8)]
    codes = []
    threads = [
        threading.Thread(target=lambda holder=holder: codes.append(holder.init()))
        for holder in holders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [ErrorCode.NONE] * 8
    assert len({(holder.id, holder.epoch) for holder in holders}) == 8
    newest = max(holders, key=lambda holder: holder.epoch)
    newest.begin(topic, b"newest")
    for holder in holders:
        if holder is not newest:
            assert holder.end() == ErrorCode.PRODUCER_FENCED
    assert newest.end() == 0
    assert committed_values(transacting, topic) == [b"newest"]


def test_a_transaction_may_have_many_partitions(transacting):
    wide = transacting.create_topic(partitions=100)
    with transactional("confluent-kafka", transacting.bootstrap, "wide") as producer:
        producer.begin()
        for index in range(100):
            producer.send(wide, b"%d" % index, index)
        producer.commit()
    for index in (0, 50, 99):
        assert committed_values(transacting, wide, index) == [b"%d" % index]
    assert describe_transaction(transacting, "wide").transaction_state == "CompleteCommit"


@pytest.mark.extended
def test_an_id_that_is_unused_for_long_is_forgotten():
    settings = {
        "transactional.id.expiration.ms": 1000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    with Cluster(settings=settings) as cluster:
        topic = cluster.create_topic()
        idle, busy = begun(cluster, "idle"), begun(cluster, "busy")
        busy.begin(topic, b"x")
        missing = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        eventually(lambda: describe_transaction(cluster, "idle").error_code == missing, 10)
        # A producer with an open transaction is not idle.
        assert describe_transaction(cluster, "busy").transaction_state == "Ongoing"
        assert idle.add((topic, 0)) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        former = idle.id
        assert idle.init() == 0
        assert (idle.id, idle.epoch) != (former, 0)
        assert busy.end() == 0
        assert committed_values(cluster, topic) == [b"x"]
        assert "Traceback" not in cluster.log()


def test_offsets_with_too_long_a_text_are_refused(transacting, topic):
    group = f"group-{topic}"
    producer = begun(transacting, f"text-{topic}")
    assert producer.add_offsets(group) == 0
    places = [
        TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=5, committed_metadata=text
        )
        for index, text in ((0, "x" * 4097), (1, "x" * 4096))
    ]
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=places)],
    )
    with Raw(transacting) as raw:
        answer = raw.ask(request, 3)
    codes = [partition.error_code for partition in answer.topics[0].partitions]
    assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert producer.end() == 0
    eventually(lambda: positions(transacting, group, topic, 0, 1, stable=True) == [(-1, 0), (5, 0)])


# -- three brokers -------------------------------------------------------------------------------


def apart(cluster):
    """A topic and a producer whose coordinator is not the leader of the topic."""
    producer = begun(cluster, f"apart-{time.monotonic_ns()}")
    coordinator = find_coordinator(cluster, producer.transactional_id)
    others = [broker for broker in cluster.brokers if broker != coordinator]
    return cluster.place_topic({0: [*others, coordinator]}), producer


def test_batches_that_come_while_the_first_is_verified_stay_in_order(three_transacting):
    """A client has several requests in flight; only the first of a transaction is verified."""
    cluster = three_transacting
    topic, producer = apart(cluster)
    for turn in range(3):
        assert producer.add((topic, 0)) == [0]
        requests = [
            produce_request(
                topic,
                transactional_batch(producer, b"%d" % number, sequence=number),
                acks=-1,
                transactional_id=producer.transactional_id,
            )
            for number in range(turn * 5, turn * 5 + 5)
        ]
        with Raw(cluster, cluster.leader_now(topic)) as raw:
            raw.send(b"".join(encode_request(request, 9, 7, "raw") for request in requests))
            for _ in requests:
                _, answer = decode_response(RESPONSES[0], raw.receive(), 9)
                assert produced(answer).error_code == 0, ErrorCode(produced(answer).error_code)
        assert producer.end() == 0
    assert committed_values(cluster, topic) == [b"%d" % number for number in range(15)]


def test_followers_show_readers_what_is_decided_and_no_more(three_transacting):
    """KIP-392: a reader of committed records may fetch from any replica."""
    cluster = three_transacting
    topic, aborted = apart(cluster)
    open_ = begun(cluster, f"open-{topic}")
    cluster.write(topic, b"plain")
    aborted.begin(topic, b"aborted")
    assert aborted.end(commit=False) == 0
    open_.begin(topic, b"open")
    end = 3
    # EndTxn is answered before its markers are written.
    eventually(lambda: end_offset(cluster, topic, COMMITTED) == end)

    def seen(broker_id):
        with Raw(cluster, broker_id) as raw:
            part = fetch(raw, topic, 0, rack_id="any", isolation_level=COMMITTED)
        skipped = [
            (aborted_transaction.producer_id, aborted_transaction.first_offset)
            for aborted_transaction in part.aborted_transactions
        ]
        return part.last_stable_offset, skipped, values_of(part.records)[:2]

    expected = (end, [(aborted.id, 1)], [b"plain", b"aborted"])
    for broker_id in cluster.brokers:
        eventually(lambda broker_id=broker_id: seen(broker_id) == expected)
        with Raw(cluster, broker_id) as raw:
            part = fetch(raw, topic, end, rack_id="any", isolation_level=COMMITTED)
        assert not part.records
    assert open_.end() == 0
    found = confluent.read(cluster.bootstrap, topic, 2, isolation="read_committed")
    assert values(found) == [b"plain", b"open"]


def test_a_coordinator_that_sleeps_holds_up_no_other_producer(three_transacting):
    cluster = three_transacting
    topic, producer = apart(cluster)
    assert producer.add((topic, 0)) == [0]
    coordinator = find_coordinator(cluster, producer.transactional_id)
    leader = cluster.leader_now(topic)
    request = produce_request(
        topic,
        transactional_batch(producer, b"late"),
        acks=-1,
        transactional_id=producer.transactional_id,
    )
    plain = produce_request(topic, plain_batch(b"plain"), acks=1)
    with Raw(cluster, leader) as waiting, Raw(cluster, leader) as other:
        cluster.pause(coordinator)
        try:
            waiting.send(encode_request(request, 9, 7, "raw"))
            assert produced(other.ask(plain, 9)).error_code == 0
        finally:
            cluster.resume(coordinator)
        _, answer = decode_response(RESPONSES[0], waiting.receive(), 9)
        assert produced(answer).error_code == 0
    assert producer.end() == 0
    eventually(lambda: committed_values(cluster, topic) == [b"plain", b"late"])


def plain_batch(value):
    return batch.build([batch.Record(0, 0, None, value, ())])


@pytest.mark.extended
def test_a_transaction_waits_until_its_coordinator_may_write_again(three_transacting):
    """With too few replicas no transaction is decided, and none is lost."""
    cluster = three_transacting
    topic = cluster.create_topic()
    with transactional("confluent-kafka", cluster.bootstrap, f"few-{topic}") as producer:
        producer.begin()
        producer.send(topic, b"x")
        producer.flush()
        coordinator = find_coordinator(cluster, f"few-{topic}")
        others = [broker for broker in cluster.brokers if broker != coordinator]
        for other in others:
            cluster.kill(other)
        ended = []
        thread = threading.Thread(target=lambda: ended.append(producer.commit()))
        thread.start()
        thread.join(1.5)
        assert not ended
        for other in others:
            cluster.restart(other)
        thread.join(25)
        assert ended == [None]
    cluster.heal()
    assert committed_values(cluster, topic) == [b"x"]


def test_plain_producers_beside_transactions_are_read_in_their_order(transacting, topic):
    """A reader of committed records gets every decided transaction, in the log's order."""
    confluent.produce(transacting.bootstrap, topic, [Record(b"%d" % at) for at in range(3)])
    one, two = begun(transacting, f"one-{topic}"), begun(transacting, f"two-{topic}")
    one.begin(topic, b"one")
    two.begin(topic, b"two")
    confluent.produce(transacting.bootstrap, topic, [Record(b"3")])
    assert two.end() == 0
    # Two is committed, but one, which began before it, is not.
    assert end_offset(transacting, topic, COMMITTED) == 3
    assert one.end() == 0
    expected = [b"0", b"1", b"2", b"one", b"two", b"3"]
    eventually(lambda: committed_values(transacting, topic) == expected)


def test_an_open_transaction_moves_with_its_partition(three_transacting):
    """The new replica has the transaction from the copied log, and continues it as the leader."""
    cluster = three_transacting
    first, second = cluster.brokers[:2]
    topic = cluster.place_topic({0: [first]}, min_insync_replicas=1)
    producer = begun(cluster, f"moves-{topic}")
    producer.begin(topic, b"aborted")
    assert producer.end(commit=False) == 0
    producer.begin(topic, b"before")
    assert cluster.reassign(topic, [second]) is ErrorCode.NONE
    eventually(lambda: not cluster.reassignments())
    assert cluster.leader_now(topic, not_any_of=[first]) == second
    again = producer.write(topic, b"before", sequence=1)
    assert (again.error_code, again.base_offset) == (0, 2)
    assert producer.write(topic, b"after").error_code == 0
    assert end_offset(cluster, topic, COMMITTED) == 2
    assert producer.end() == 0
    eventually(lambda: committed_values(cluster, topic) == [b"before", b"after"])


def test_records_of_an_open_transaction_may_be_deleted(transacting, topic):
    producer = begun(transacting, f"deleting-{topic}")
    producer.begin(topic, b"0", b"1", b"2")
    confluent.produce(transacting.bootstrap, topic, [Record(b"plain")])
    assert confluent.delete_records(transacting.bootstrap, topic, 2) == 2
    # Readers cannot start before the log start offset.
    assert end_offset(transacting, topic, COMMITTED) == 2
    assert producer.end() == 0
    eventually(lambda: end_offset(transacting, topic, COMMITTED) == 5)
    found = confluent.read(
        transacting.bootstrap, topic, 2, start="earliest", isolation="read_committed"
    )
    assert values(found) == [b"2", b"plain"]


# -- librdkafka ----------------------------------------------------------------------------------


@pytest.fixture
def behind_proxy():
    """A broker that clients reach only through a proxy."""
    proxy = Proxy("127.0.0.1:1")
    settings = {**TRANSACTING, "advertised.listeners": f"PLAINTEXT://{proxy.hosts}"}
    with Cluster(settings=settings) as cluster:
        proxy.forward_to(cluster.bootstrap)
        yield cluster, proxy
        proxy.refuse()
    proxy.close()


def test_sequences_that_librdkafka_uses_again_after_an_abort_lose_no_record(behind_proxy):
    """The response of a batch is lost, and the transaction is aborted while the broker is away.
    librdkafka then takes the batch for unwritten, and the next transaction has its sequences."""
    cluster, proxy = behind_proxy
    topic = cluster.create_topic()
    limits = {"socket.timeout.ms": 3000, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 50}
    names = {"bootstrap.servers": proxy.hosts, "transactional.id": "reused", "log_level": 0}
    producer = confluent_kafka.Producer({**names, **limits, "linger.ms": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"first", partition=0)
    assert producer.flush(30) == 0
    proxy.hold_responses()
    producer.produce(topic, b"answer lost", partition=0)
    eventually(lambda: end_offset(cluster, topic, UNCOMMITTED) == 2)
    proxy.refuse()
    abort = threading.Thread(target=persist, args=(producer.abort_transaction,))
    abort.start()
    time.sleep(0.5)  # the abort drops what waits to be sent
    proxy.heal()
    abort.join(60)
    assert not abort.is_alive()
    producer.begin_transaction()
    producer.produce(topic, b"refused", partition=0)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        persist(producer.commit_transaction)
    assert caught.value.args[0].txn_requires_abort()
    persist(producer.abort_transaction)
    producer.begin_transaction()
    producer.produce(topic, b"kept", partition=0)
    persist(producer.commit_transaction)
    assert committed_values(cluster, topic) == [b"kept"]


def persist(work):
    """Call a function of a transactional producer, again after a retriable error."""
    while True:
        try:
            return work(5)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable():
                raise
