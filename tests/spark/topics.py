"""Topics filled and changed by another client, and readers without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from hightide.spark.source import BatchReader, StreamReader, for_batch, for_stream

DEADLINE_S = 60


def produce(
    cluster,
    topic,
    values: Iterable[bytes | None],
    *,
    partition=0,
    key=None,
    settings=None,
    **fields,
):
    """Write records; the value is also the key, unless `key` makes another of it."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **(settings or {})})
    for value in values:
        made = value if key is None else key(value)
        producer.produce(topic, value, made, partition=partition, **fields)
    assert producer.flush(DEADLINE_S) == 0


def transaction(cluster, topic, values, *, commit, partition=0):
    """Write records in a transaction, and commit, abort, or leave it open."""
    name = f"tx-{topic}-{time.monotonic_ns()}"
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, value, partition=partition)
    producer.flush(DEADLINE_S)
    if commit is None:
        return producer
    if commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.abort_transaction(DEADLINE_S)
    return producer


def administer(cluster, what):
    """Call an admin function, and wait until it is done."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for found in what(client).values():
        found.result(DEADLINE_S)


def create_topic(cluster, name, partitions=1):
    """Create a topic in a cluster that is not of `hightide.testing`."""
    administer(cluster, lambda client: client.create_topics([NewTopic(name, partitions, 1)]))
    return name


def delete_records(cluster, topic, before, partition=0):
    where = TopicPartition(topic, partition, before)
    administer(cluster, lambda client: client.delete_records([where]))


def delete_topic(cluster, topic):
    administer(cluster, lambda client: client.delete_topics([topic]))


def grow(cluster, topic, partitions):
    administer(cluster, lambda client: client.create_partitions([NewPartitions(topic, partitions)]))


def options(cluster, **given):
    """Return options of a source; a leading `kafka_` stands for the prefix."""
    found = {"kafka.bootstrap.servers": cluster.bootstrap}
    for key, value in given.items():
        name = key.replace("kafka_", "kafka.").replace("_", ".") if "_" in key else key
        found[name] = str(value)
    return found


def read(cluster, **given):
    """Read a batch without Spark: rows as dicts, by partition and offset."""
    reader = BatchReader(for_batch(options(cluster, **given)))
    return rows(reader, reader.partitions())


def rows(reader, partitions):
    return [
        row
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def values(found):
    return [row["value"] for row in found]


def stream(cluster, **given):
    """Return a stream reader, without Spark."""
    return StreamReader(for_stream(options(cluster, **given)))


def named(*numbers):
    """Return values that contain their numbers."""
    return [b"%03d" % number for number in numbers]
