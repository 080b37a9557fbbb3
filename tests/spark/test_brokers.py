"""The blocking client of drivers and executors, against real brokers that are killed meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from hightide.client.broker_connection import ConnectionFailed
from hightide.spark.blocking_client import Fenced, OffsetOutOfRange, ignored_options, shared_client
from hightide.testing import Cluster
from hightide.testing.cluster import free_port
from hightide.wire.errors import ErrorCode, KafkaError
from tests.spark.batches import NO_PRODUCER, made, values
from tests.support import processes

LATEST, EARLIEST = -1, -2


@pytest.fixture(scope="module")
def one(broker):
    return shared_client({"bootstrap.servers": broker.bootstrap})


def write(cluster, topic, partition, count, identity=None, **named):
    """Write records "0", "1", … in batches of ten, and return the writer."""
    writer = cluster.writer(topic, partition, identity=identity, **named)
    for first in range(0, count, 10):
        numbers = [b"%d" % number for number in range(first, min(first + 10, count))]
        sequence = writer.next_sequence if identity else -1
        batch = made(
            numbers,
            identity or NO_PRODUCER,
            sequence,
            transactional="transactional_id" in named,
        )
        writer.append(batch, len(numbers))
    writer.flush()
    return writer


def numbers(count):
    return [b"%d" % number for number in range(count)]


def test_what_was_written_is_read_and_counted(one):
    assert one.create_topic("brokers-plain", 2)
    assert not one.create_topic("brokers-plain", 2)
    assert one.topics(["brokers-plain"]) == {"brokers-plain": 2}
    assert one.topics()["brokers-plain"] == 2
    writer = write(one, "brokers-plain", 0, 1000, one.producer())
    assert writer.flush() == 1000
    assert writer.next_sequence == 1000
    everywhere = [("brokers-plain", 0), ("brokers-plain", 1)]
    assert list(one.offsets(dict.fromkeys(everywhere, LATEST)).values()) == [1000, 0]
    assert one.offsets({everywhere[0]: 1_005, everywhere[1]: 1_005}) == {
        everywhere[0]: 5,
        everywhere[1]: -1,
    }
    fetched = list(one.read("brokers-plain", 0, 15, 995, max_bytes=500))
    assert len(fetched) > 20
    assert values(fetched, 15, 995) == numbers(1000)[15:995]
    assert fetched[0].high_watermark == fetched[0].last_stable == 1000


def test_offsets_of_transactions_and_aborted_ones_are_gaps_in_a_range(one):
    one.create_topic("brokers-gaps")
    place = ("brokers-gaps", 0)
    for commit in (False, True, False):
        identity = one.producer("brokers-gaps")
        write(one, *place, 20, identity, transactional_id="brokers-gaps")
        one.end_transaction("brokers-gaps", identity, commit=commit)
        assert one.producer("brokers-gaps") > identity  # Waits until the marker is written.
    end = one.offsets({place: LATEST}, read_committed=True)[place]
    assert end == 63
    assert values(one.read(*place, 0, end, read_committed=True), 0, end) == numbers(20)
    assert values(one.read(*place, 0, end), 0, end) == 3 * numbers(20)
    # The last offset is that of a marker; the range ends there although it holds no record.
    assert values(one.read(*place, 62, end), 62, end) == []


def test_an_open_transaction_is_not_read_and_its_offsets_are_waited_for(one):
    one.create_topic("brokers-open")
    place = ("brokers-open", 0)
    identity = one.producer("brokers-open")
    write(one, *place, 10, identity, transactional_id="brokers-open")
    one.commit_offsets_in_transaction("brokers-open", identity, "open-group", {place: (7, "seven")})
    assert one.offsets({place: LATEST})[place] == 10
    assert one.offsets({place: LATEST}, read_committed=True)[place] == 0
    assert one.committed("open-group", [place], require_stable=False) == {}
    found = []
    waiting = threading.Thread(target=lambda: found.append(one.committed("open-group", [place])))
    waiting.start()
    one.end_transaction("brokers-open", identity, commit=True)
    one.end_transaction("brokers-open", identity, commit=True)  # As after a lost response.
    waiting.join()
    assert found == [{place: (7, "seven")}]


def test_a_group_without_members_keeps_what_is_committed_for_it(one):
    one.create_topic("brokers-group", 2)
    one.commit("plain-group", {("brokers-group", 0): 5, ("brokers-group", 1): (6, "text")})
    assert one.committed("plain-group") == {
        ("brokers-group", 0): (5, ""),
        ("brokers-group", 1): (6, "text"),
    }
    assert one.committed("plain-group", [("brokers-group", 1)]) == {
        ("brokers-group", 1): (6, "text")
    }


CHILD = """
import sys
from tests.spark.batches import made
from hightide.spark.blocking_client import Fenced, Identity, shared_client
bootstrap, topic, who, epoch = sys.argv[1:]
identity = Identity(int(who), int(epoch))
cluster = shared_client({"bootstrap.servers": bootstrap})
writer = cluster.writer(topic, 1, identity=identity, transactional_id=topic)
try:
    writer.append(made([b"from afar"], identity, writer.next_sequence, transactional=True), 1)
    print(writer.flush())
except Fenced:
    print("fenced")
"""


def afar(cluster, topic, identity):
    """The same producer in another process."""
    arguments = [cluster.bootstrap, topic, *map(str, identity)]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        env=processes.checkout_environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_two_processes_write_in_one_transaction_until_another_takes_over(one, broker):
    topic = "brokers-shared"
    one.create_topic(topic, 2)
    identity = one.producer(topic)
    write(one, topic, 0, 10, identity, transactional_id=topic)
    assert afar(broker, topic, identity) == "1"
    one.end_transaction(topic, identity, commit=True)
    one.producer(topic)  # Another producer; InitProducerId waits until the commit is complete.
    ends = one.offsets({(topic, 0): LATEST, (topic, 1): LATEST}, read_committed=True)
    assert list(ends.values()) == [11, 2]
    assert values(one.read(topic, 1, 0, 2, read_committed=True), 0, 2) == [b"from afar"]
    assert afar(broker, topic, identity) == "fenced"
    with pytest.raises(Fenced):
        write(one, topic, 0, 10, identity, transactional_id=topic, first_sequence=10)
    with pytest.raises(Fenced):
        one.end_transaction(topic, identity, commit=True)
    with pytest.raises(Fenced):
        one.commit_offsets_in_transaction(topic, identity, "g", {(topic, 0): (1, "")})


FORKING = """
import os, sys
from tests.spark.batches import made, values
from hightide.spark.blocking_client import shared_client
options = {"bootstrap.servers": sys.argv[1]}
place = (sys.argv[2], 0)
before = shared_client(options)
assert before is shared_client(options)
assert before.offsets({place: -1}) == {place: 1}
for _ in range(2):
    if os.fork() == 0:
        assert shared_client(options) is not before
        print(values(shared_client(options).read(*place, 0, 1), 0, 1), flush=True)
        sys.exit()
    os.wait()
print(before.offsets({place: -1}) == {place: 1})
"""


def test_a_forked_worker_has_connections_of_its_own(one, broker):
    one.create_topic("brokers-forked")
    write(one, "brokers-forked", 0, 1)
    done = subprocess.run(
        [sys.executable, "-c", FORKING, broker.bootstrap, "brokers-forked"],
        env=processes.checkout_environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split("\n") == ["[b'0']", "[b'0']", "True", ""]


@pytest.mark.extended
def test_what_is_wrong_is_told_in_words(one):
    with pytest.raises(KafkaError, match="There is no topic 'brokers-none'") as answer:
        one.topics(["brokers-none"])
    assert answer.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    one.create_topic("brokers-short")
    write(one, "brokers-short", 0, 5)
    with pytest.raises(OffsetOutOfRange, match="at offset 9: it begins at 0 and ends at 5") as out:
        list(one.read("brokers-short", 0, 9, 12))
    assert (out.value.log_start, out.value.log_end) == (0, 5)
    writer = one.writer("brokers-short", 0)
    writer.append(made([bytes(2_000_000)]), 1)
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        writer.flush()
    with pytest.raises(ValueError, match=r"bootstrap\.servers is not set"):
        shared_client({})
    unreachable = shared_client({"bootstrap.servers": f"127.0.0.1:{free_port()}"})
    with pytest.raises(ConnectionFailed, match="Is a broker running there"):
        unreachable.topics()
    assert ignored_options(
        {"bootstrap.servers": "a:1", "fetch.min.bytes": "7", "ssl.ca.pem": ""}
    ) == ["fetch.min.bytes"]


@pytest.mark.extended
def test_a_leader_that_is_killed_costs_neither_reader_nor_writer_a_record(three):
    cluster = shared_client({"bootstrap.servers": three.bootstrap})
    topic, count = "brokers-killed", 4000
    cluster.create_topic(topic, 4, 3)
    leader = three.leader(topic, 0)
    same = next(index for index in (3, 1, 2) if three.leader(topic, index) == leader)
    identity = cluster.producer()
    write(cluster, topic, same, count, identity)

    reading = cluster.read(topic, same, 0, count, max_bytes=300)
    found = [next(reading)]
    writer = cluster.writer(topic, 0, identity=identity)
    for number in range(count):
        if number == count // 4:
            three.kill(leader)
        writer.append(made([b"%d" % number], identity, writer.next_sequence), 1)
    found += reading
    assert writer.flush() == count
    assert values(found, 0, count) == numbers(count)
    three.restart(leader)

    end = cluster.offsets({(topic, 0): LATEST})[topic, 0]
    assert values(cluster.read(topic, 0, 0, end), 0, end) == numbers(count)


def test_a_range_that_ends_after_the_log_is_not_waited_for_forever(one):
    one.create_topic("brokers-cut")
    write(one, "brokers-cut", 0, 5)
    reading = one.read("brokers-cut", 0, 0, 9, retry_ms=300)
    assert values([next(reading)], 0, 9) == numbers(5)
    with pytest.raises(OffsetOutOfRange, match="at offset 5: it begins at 0 and ends at 5"):
        next(reading)


COMPACTING = {
    "log.initial.task.delay.ms": 0,
    "log.cleaner.backoff.ms": 50,
    # Only what is flushed to disk is compacted.
    "log.flush.offset.checkpoint.interval.ms": 50,
}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
}


def test_what_compaction_has_emptied_is_passed_over():
    with Cluster(settings=COMPACTING) as broker:
        cluster = shared_client({"bootstrap.servers": broker.bootstrap})
        cluster.create_topic("compacted", 1, 1, COMPACTED)
        writer = cluster.writer("compacted", 0)
        for number in range(40):
            value, key = b"%02d" % number + bytes(1000), b"%d" % (number % 3)
            writer.append(made([value], key=key if number < 34 else b"f%d" % number), 1)
        writer.flush()

        def found(start, end):
            return [int((value or b"")[:2]) for value in values(read(start, end), start, end)]

        def read(start, end):
            return cluster.read("compacted", 0, start, end, max_bytes=3000)

        deadline = time.monotonic() + 60
        while len(kept := found(0, 40)) > 12:
            assert time.monotonic() < deadline, kept
        for start in range(0, 40, 3):
            for end in range(start, 41, 4):
                # Compaction may continue, but the last record of each key stays.
                least = set(range(max(31, start), end))
                assert least <= set(found(start, end)) <= {at for at in kept if at < end}
        cluster.close()
