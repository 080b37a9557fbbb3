"""Transactions as clients see them: atomic, and only for the newest producer."""

from __future__ import annotations

import time
from contextlib import ExitStack

import confluent_kafka
import pytest

from tests.conformance.adapters import Record, Refused, confluent, values
from tests.conformance.adapters.transactional import FENCED, transactional
from tests.conformance.raw_transactions import (
    COMMITTED,
    UNCOMMITTED,
    RawProducer,
    committed_values,
    describe_transaction,
    end_offset,
    positions,
)
from tests.conformance.replicated import segments_in
from tests.support.eventually import eventually

END = b"the end"


@pytest.fixture
def topic(transacting):
    return transacting.create_topic(partitions=2)


@pytest.fixture
def name(topic):
    """A transactional id that no other test uses."""
    return f"id-{topic}"


def write(cluster, topic, *wanted, partition=0):
    """Write records outside of transactions."""
    confluent.produce(
        cluster.bootstrap, topic, [Record(value) for value in wanted], partition=partition
    )


# -- atomicity -----------------------------------------------------------------------------------


@pytest.mark.needs("transactions")
def test_a_commit_shows_everything_in_all_partitions_and_topics(transacting, client, topic, name):
    other = transacting.create_topic()
    with transactional(client, transacting.bootstrap, name) as producer:
        for number in range(2):
            producer.begin()
            producer.send(topic, b"left %d" % number, 0)
            producer.send(topic, b"right %d" % number, 1)
            producer.send(other, b"far %d" % number, 0)
            producer.commit()
    assert committed_values(transacting, topic, 0) == [b"left 0", b"left 1"]
    assert committed_values(transacting, topic, 1) == [b"right 0", b"right 1"]
    assert committed_values(transacting, other, 0) == [b"far 0", b"far 1"]


@pytest.fixture(scope="module")
def checkered(transacting):
    """A log of aborted and committed transactions of three clients, and of plain records."""
    made = transacting.create_topic()
    with ExitStack() as stack:
        names = ("confluent-kafka", "kafka-python", "aiokafka")
        producers = [
            stack.enter_context(transactional(name, transacting.bootstrap, f"checkered-{name}"))
            for name in names
        ]
        for number in range(3):
            # All of them are open at once, and end in another order than they began.
            for at, producer in enumerate(producers):
                producer.begin()
                producer.send(made, b"%d %d first" % (number, at))
                producer.flush()
            write(transacting, made, b"%d plain" % number)
            for at, producer in reversed(list(enumerate(producers))):
                producer.send(made, b"%d %d second" % (number, at))
                producer.flush()
                producer.abort() if (number + at) % 2 else producer.commit()
    write(transacting, made, END)
    return made


def checkered_values(*, committed):
    found = []
    for number in range(3):
        kept = [at for at in range(3) if not committed or (number + at) % 2 == 0]
        found += [b"%d %d first" % (number, at) for at in kept]
        found.append(b"%d plain" % number)
        found += [b"%d %d second" % (number, at) for at in reversed(kept)]
    return [*found, END]


@pytest.mark.needs("isolation")
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_records_are_for_readers_of_everything(transacting, client, checkered, isolation):
    expected = checkered_values(committed=isolation == "read_committed")
    found = client.read(transacting.bootstrap, checkered, len(expected), isolation=isolation)
    assert values(found) == expected


@pytest.mark.needs("isolation")
def test_an_open_transaction_holds_back_readers_of_committed_records(transacting, client, topic):
    """They read up to its first record and no further, whichever producer wrote the rest."""
    producer = RawProducer(transacting, f"open-{topic}")
    producer.init()
    write(transacting, topic, b"before")
    producer.begin(topic, b"inside")
    write(transacting, topic, b"behind")
    ends = {
        isolation: client.bounds(transacting.bootstrap, topic, isolation=isolation)[1]
        for isolation in ("read_committed", "read_uncommitted")
    }
    assert ends == {"read_committed": 1, "read_uncommitted": 3}
    isolation = "read_committed"
    with client.waiting(transacting.bootstrap, topic, 1, isolation=isolation) as next_record:
        began = time.monotonic()
        assert producer.end() == 0
        assert next_record().value == b"inside"
        # Its fetch would have waited a minute.
        assert time.monotonic() - began < 10
    found = client.read(transacting.bootstrap, topic, 3, isolation=isolation)
    assert values(found) == [b"before", b"inside", b"behind"]


@pytest.mark.needs("transactions")
def test_an_empty_transaction_ends_like_any_other(transacting, client, topic, name):
    with transactional(client, transacting.bootstrap, name) as producer:
        producer.begin()
        producer.commit()
        producer.begin()
        producer.abort()
        producer.begin()
        producer.send(topic, b"x")
        producer.commit()
    assert committed_values(transacting, topic) == [b"x"]


# -- fencing -------------------------------------------------------------------------------------


@pytest.mark.needs("transactions")
def test_a_later_producer_takes_the_id_over(transacting, client, topic, name):
    with transactional(client, transacting.bootstrap, name) as zombie:
        zombie.begin()
        zombie.send(topic, b"zombie")
        zombie.flush()
        with transactional(client, transacting.bootstrap, name) as producer:
            # The open transaction is aborted before another producer gets the id.
            assert end_offset(transacting, topic, COMMITTED) == 2
            producer.begin()
            producer.send(topic, b"heir")
            producer.flush()
            with pytest.raises(Refused) as refusal:
                zombie.commit()
            assert refusal.value.name in FENCED
            producer.commit()
    assert committed_values(transacting, topic) == [b"heir"]
    assert describe_transaction(transacting, name).transaction_state == "CompleteCommit"


@pytest.mark.extended
@pytest.mark.needs("transactions")
def test_a_transaction_that_takes_too_long_is_aborted(transacting, client, topic, name):
    with transactional(client, transacting.bootstrap, name, timeout_ms=1000) as slow:
        slow.begin()
        slow.send(topic, b"too slow")
        slow.flush()
        eventually(lambda: end_offset(transacting, topic, COMMITTED) == 2, 10)
        with pytest.raises(Refused) as refusal:
            slow.commit()
        assert refusal.value.name in FENCED
    write(transacting, topic, END)
    assert committed_values(transacting, topic) == [END]
    with transactional(client, transacting.bootstrap, name) as producer:
        producer.begin()
        producer.send(topic, b"in time")
        producer.commit()
    assert committed_values(transacting, topic) == [END, b"in time"]


# -- offsets -------------------------------------------------------------------------------------


@pytest.mark.needs("transactions")
def test_offsets_share_the_fate_of_their_transaction(transacting, client, topic, name):
    group = f"group-{topic}"
    write(transacting, topic, *(b"%d" % at for at in range(9)))
    with transactional(client, transacting.bootstrap, name) as producer:
        for offset, ends, expected in ((3, "commit", 3), (7, "abort", 3), (5, "commit", 5)):
            before = positions(transacting, group, topic)
            producer.begin()
            producer.send(topic, b"copy %d" % offset, 1)
            producer.offsets({(topic, 0): offset}, group)
            # It is not visible yet, and RequireStable makes the client wait.
            assert positions(transacting, group, topic) == before
            (stable,) = positions(transacting, group, topic, stable=True)
            assert stable[1].name == "UNSTABLE_OFFSET_COMMIT"
            getattr(producer, ends)()
            eventually(
                lambda expected=expected: (
                    positions(transacting, group, topic, stable=True) == [(expected, 0)]
                )
            )
    assert committed_values(transacting, topic, 1) == [b"copy 3", b"copy 5"]


def test_a_member_of_an_old_generation_commits_no_offsets(transacting, topic, name):
    """KIP-447: the group's generation fences, and not only the transactional id."""
    group = f"group-{topic}"
    settings = {
        "bootstrap.servers": transacting.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
    }
    write(transacting, topic, b"x")
    first, second = confluent_kafka.Consumer(settings), confluent_kafka.Consumer(settings)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": transacting.bootstrap, "transactional.id": name, "log_level": 0}
    )
    try:
        first.subscribe([topic])
        eventually(lambda: first.poll(0.1) is not None or first.assignment())
        old = first.consumer_group_metadata()
        second.subscribe([topic])
        eventually(lambda: (first.poll(0.05), second.poll(0.05)) and len(first.assignment()) == 1)
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(topic, b"copy", partition=1)
        with pytest.raises(confluent_kafka.KafkaException) as refusal:
            producer.send_offsets_to_transaction(
                [confluent_kafka.TopicPartition(topic, 0, 1)], old, 20
            )
        error = refusal.value.args[0]
        assert error.name() == "ILLEGAL_GENERATION"
        assert error.txn_requires_abort()
        producer.abort_transaction(20)
        producer.begin_transaction()
        new = first.consumer_group_metadata()
        producer.send_offsets_to_transaction([confluent_kafka.TopicPartition(topic, 0, 1)], new, 20)
        producer.commit_transaction(20)
    finally:
        first.close()
        second.close()
    assert positions(transacting, group, topic, stable=True) == [(1, 0)]


# -- many segments, compaction -------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_transaction_may_be_larger_than_a_segment(transacting, ends):
    topic = transacting.create_topic(config={"segment.bytes": 100_000})
    write(transacting, topic, b"before")
    small = {"batch.size": 20_000}
    with transactional("confluent-kafka", transacting.bootstrap, ends, **small) as producer:
        producer.begin()
        for number in range(1000):
            producer.send(topic, b"%04d" % number + bytes(996))
        producer.flush()
        getattr(producer, ends)()
    write(transacting, topic, END)
    folder = transacting.data() / f"{topic}-0"
    assert len(list(folder.glob("*.log"))) > 5
    inside = [b"%04d" % number + bytes(996) for number in range(1000)]
    expected = [b"before", *(inside if ends == "commit" else []), END]
    assert committed_values(transacting, topic) == expected
    for isolation, wanted in (
        ("read_committed", expected),
        ("read_uncommitted", [b"before", *inside, END]),
    ):
        found = confluent.read(transacting.bootstrap, topic, len(wanted), isolation=isolation)
        assert values(found) == wanted
    # A reader that begins in the middle gets the same aborted transactions.
    found = confluent.read(transacting.bootstrap, topic, 1, start=500, isolation="read_committed")
    assert values(found) == [inside[499] if ends == "commit" else END]


def test_compaction_keeps_what_is_committed_and_forgets_what_is_aborted(transacting):
    topic = transacting.create_topic(
        config={
            "cleanup.policy": "compact",
            "segment.bytes": 20_000,
            "min.cleanable.dirty.ratio": 0.01,
            "max.compaction.lag.ms": 100,
            "delete.retention.ms": 0,
        }
    )
    with transactional("confluent-kafka", transacting.bootstrap, "compacted") as producer:
        for number in range(40):
            producer.begin()
            for key in range(5):
                value = b"%s %d" % (b"kept" if number % 2 == 0 else b"aborted", number)
                producer.send(topic, value + bytes(500), key=b"%d" % key)
            producer.commit() if number % 2 == 0 else producer.abort()
        producer.begin()
        producer.send(topic, END, key=b"end")
        producer.commit()

    eventually(lambda: len(segments_in(transacting.data() / f"{topic}-0")) < 60_000, 20)
    found = committed_values(transacting, topic)
    assert not [record for record in found if record.startswith(b"aborted")]
    newest = [record for record in found if record.startswith(b"kept 38")]
    assert len(newest) == 5
    assert found[-1] == END


def test_transactions_and_plain_records_do_not_disturb_each_other(transacting, topic):
    """An idempotent producer beside a transaction is neither delayed by it nor part of it."""
    producer = RawProducer(transacting, f"beside-{topic}")
    producer.init()
    producer.begin(topic, b"inside")
    write(transacting, topic, *(b"%d" % at for at in range(100)))
    assert end_offset(transacting, topic, UNCOMMITTED) == 101
    assert end_offset(transacting, topic, COMMITTED) == 0
    assert producer.end(commit=False) == 0
    eventually(lambda: end_offset(transacting, topic, COMMITTED) == 102)
    assert committed_values(transacting, topic) == [b"%d" % at for at in range(100)]
