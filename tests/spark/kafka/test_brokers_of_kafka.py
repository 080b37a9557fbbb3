"""The same client against Apache Kafka: records, transactions, and all security protocols.

On demand: `make spark-kafka`.
"""

from __future__ import annotations

import pytest

from hightide.client.broker_connection import ConnectionFailed
from hightide.spark.blocking_client import Fenced, OffsetOutOfRange, shared_client
from hightide.wire.errors import KafkaError
from tests.spark.apache import PASSWORD, USER, escaped
from tests.spark.batches import made, values

LATEST = -1
JAAS = f'some.LoginModule required username="{USER}" password="{escaped(PASSWORD)}";'


@pytest.fixture(scope="module")
def cluster(kafka):
    return shared_client({"bootstrap.servers": kafka.address()})


def write(cluster, place, letters, identity, sequence=0, **named):
    with cluster.writer(*place, identity=identity, first_sequence=sequence, **named) as writer:
        for letter in letters:
            batch = made(
                [letter.encode()],
                identity,
                writer.next_sequence,
                transactional="transactional_id" in named,
            )
            writer.append(batch, 1)
        return writer.flush()


def read(cluster, place, **named):
    end = cluster.offsets({place: LATEST}, **named)[place]
    return values(cluster.read(*place, 0, end, **named), 0, end)


def test_records_are_written_in_order_and_read_back(cluster):
    cluster.create_topic("plain", 2)
    place = ("plain", 0)
    letters = "abcdefghijklmnopqrstuvwxyz" * 20
    assert write(cluster, place, letters, cluster.producer()) == len(letters)
    assert b"".join(read(cluster, place)).decode() == letters
    assert cluster.topics(["plain"]) == {"plain": 2}
    with pytest.raises(OffsetOutOfRange, match="begins at 0 and ends at 520"):
        list(cluster.read("plain", 0, 600, 700))


def test_transactions_keep_their_epoch_over_several_ends(cluster):
    """As for a driver with many micro-batches, also in a cluster with the new protocol."""
    cluster.create_topic("many")
    place, name = ("many", 0), "many"
    identity = cluster.producer(name)
    for number, letter in enumerate("abcd"):
        commit = letter != "b"
        write(cluster, place, letter, identity, number, transactional_id=name)
        cluster.commit_offsets_in_transaction(name, identity, "marks", {place: (number, letter)})
        cluster.end_transaction(name, identity, commit=commit)
        cluster.end_transaction(name, identity, commit=commit)
        wanted = "a" if letter == "b" else letter
        assert cluster.committed("marks", [place])[place][1] == wanted
    newer = cluster.producer(name)
    assert newer.epoch > identity.epoch
    assert read(cluster, place, read_committed=True) == [b"a", b"c", b"d"]
    assert read(cluster, place) == [b"a", b"b", b"c", b"d"]
    with pytest.raises(Fenced):
        write(cluster, place, "e", identity, 4, transactional_id=name)
    with pytest.raises(Fenced):
        cluster.end_transaction(name, identity, commit=True)
    with pytest.raises(Fenced):
        cluster.commit_offsets_in_transaction(name, identity, "marks", {place: (9, "")})


def test_a_newer_producer_aborts_what_an_older_left_open(cluster):
    cluster.create_topic("left")
    place = ("left", 0)
    write(cluster, place, "a", cluster.producer("left"), transactional_id="left")
    assert read(cluster, place, read_committed=True) == []
    newer = cluster.producer("left")
    write(cluster, place, "b", newer, transactional_id="left")
    cluster.end_transaction("left", newer, commit=True)
    cluster.producer("left")
    assert read(cluster, place, read_committed=True) == [b"b"]


def test_offsets_are_kept_for_a_group_without_members(cluster):
    cluster.create_topic("grouped")
    cluster.commit("lag", {("grouped", 0): (3, "text")})
    assert cluster.committed("lag") == {("grouped", 0): (3, "text")}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_user_is_let_in(kafka, protocol, mechanism):
    options = {
        "bootstrap.servers": kafka.address(protocol),
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": JAAS,
        "ssl.truststore.location": str(kafka.authority),
        "ssl.truststore.type": "PEM",
    }
    place, cluster = (f"{protocol}-{mechanism}", 0), shared_client(options)
    cluster.create_topic(place[0])
    write(cluster, place, "abc", cluster.producer(place[0]), transactional_id=place[0])
    assert read(cluster, place) == [b"a", b"b", b"c"]


def test_a_wrong_password_is_told(kafka):
    options = {
        "bootstrap.servers": kafka.address("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": "wrong",
    }
    with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
        shared_client(options).topics()
    options["sasl.mechanism"] = "OAUTHBEARER"
    options["sasl.oauthbearer.token"] = "x"
    with pytest.raises(KafkaError, match="does not offer OAUTHBEARER, only"):
        shared_client(options).topics()


def test_tls_trusts_the_authority_it_is_given(kafka):
    options = {"bootstrap.servers": kafka.address("SSL"), "security.protocol": "SSL"}
    trusted = {"ssl.ca.location": str(kafka.authority)}
    own = {"ssl.keystore.location": str(kafka.client_store)}
    for extra in (trusted, trusted | own):
        cluster = shared_client(options | extra)
        cluster.create_topic("tls")
        write(cluster, ("tls", 0), "x" * 50, cluster.producer())
    assert set(read(shared_client(options | own | trusted), ("tls", 0))) == {b"x"}
    with pytest.raises(ConnectionFailed, match="TLS handshake failed"):
        shared_client(options).topics()
