"""Topics to read, filled and spoilt by a client that is not ours, and readers without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from hightide.spark.source import BatchReader, StreamReader, for_batch, for_stream

DEADLINE_S = 60


def produce(
    cluster, topic, values: Iterable[bytes], *, partition=0, key=None, settings=None, **fields
):
    """Write records; each value is the key of its record too, unless `key` makes another of it."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **(settings or {})})
    for each in values:
        made = each if key is None else key(each)
        producer.produce(topic, each, made, partition=partition, **fields)
    assert producer.flush(DEADLINE_S) == 0


def transaction(cluster, topic, values, *, commit, partition=0):
    """Write records in a transaction that ends one way or the other."""
    name = f"tx-{topic}-{time.monotonic_ns()}"
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for each in values:
        producer.produce(topic, each, each, partition=partition)
    producer.flush(DEADLINE_S)
    if commit is None:
        return producer
    if commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.abort_transaction(DEADLINE_S)
    return producer


def administer(cluster, what):
    """Have an administrator do something, and wait until it is done."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for each in what(client).values():
        each.result(DEADLINE_S)


def create_topic(cluster, name, partitions=1):
    """For a cluster that is not of our making; others make topics themselves."""
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
    """Options of a source: `kafka_` at the beginning stands for the prefix."""
    found = {"kafka.bootstrap.servers": cluster.bootstrap}
    for key, value in given.items():
        name = key.replace("kafka_", "kafka.").replace("_", ".") if "_" in key else key
        found[name] = str(value)
    return found


def read(cluster, **given):
    """A batch, without Spark: rows as dicts, in the order of partitions and offsets."""
    reader = BatchReader(for_batch(options(cluster, **given)))
    return rows(reader, reader.partitions())


def rows(reader, partitions):
    return [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]


def values(found):
    return [row["value"] for row in found]


def stream(cluster, **given):
    """A stream, without Spark."""
    return StreamReader(for_stream(options(cluster, **given)))


def named(*numbers):
    """Values that tell where they belong."""
    return [b"%03d" % each for each in numbers]


def eventually(condition):
    """A cluster works in its own time; a test can only look until it has."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found
