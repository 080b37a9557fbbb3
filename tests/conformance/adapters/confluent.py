"""confluent-kafka: librdkafka under Python."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.conformance.adapters import DEADLINE_S, Read, Refused, name_of

NAME = "confluent-kafka"
CAN = {
    "produce",
    "timestamps",
    "offsets",
    "idempotence",
    "transactions",
    "isolation",
    "read",
    "bounds",
    "times",
    "reset",
    "tell-out-of-range",
    "admin",
    "describe",
    "incremental",
    "max-timestamp",
    "groups",
    "group-offsets",
    "group-changes",
}
PLACES = {"earliest": -2, "latest": -1}


def codecs():
    return {"none", "gzip", "snappy", "lz4", "zstd"}


def refused(error):
    if isinstance(error, KafkaException):
        error = error.args[0]
    return Refused(name_of(error.code()) if error.code() >= 0 else error.name(), error.str())


def produce(
    bootstrap, topic, records, *, partition=0, acks="all", codec="none", idempotent=False, **given
):
    producer = KafkaProducer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "linger.ms": 20,
            "message.timeout.ms": int(given.get("timeout_ms", DEADLINE_S * 1000)),
            "topic.metadata.propagation.max.ms": 1000,
            "message.max.bytes": given.get("max_bytes", 1_000_000),
            "batch.num.messages": given.get("per_batch", 10_000),
        }
    )
    offsets, errors = {}, []

    def delivered(at):
        def report(error, message):
            if error is not None:
                errors.append(error)
            else:
                offsets[at] = message.offset()

        return report

    for at, record in enumerate(records):
        arguments = {} if record.timestamp is None else {"timestamp": record.timestamp}
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=partition,
            headers=list(record.headers),
            on_delivery=delivered(at),
            **arguments,
        )
    producer.flush(DEADLINE_S)
    if errors:
        raise refused(errors[0])
    return [offsets.get(at) for at in range(len(records))]


@contextmanager
def consumer(bootstrap, **settings):
    made = KafkaConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "conformance",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            **settings,
        }
    )
    try:
        yield made
    finally:
        made.close()


def as_read(message):
    return Read(
        partition=message.partition(),
        offset=message.offset(),
        timestamp=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )


def poll(source, count):
    found = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        message = source.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            raise refused(message.error())
        found.append(as_read(message))
    return found


def read(bootstrap, topic, count, *, partition=0, start="earliest", reset="error", **given):
    settings = {
        "auto.offset.reset": reset,
        "fetch.message.max.bytes": given.get("max_bytes", 2**20),
        "isolation.level": given.get("isolation", "read_committed"),
    }
    with consumer(bootstrap, **settings) as source:
        source.assign([TopicPartition(topic, partition, PLACES.get(start, start))])
        return poll(source, count)


@contextmanager
def waiting(bootstrap, topic, offset, *, partition=0, isolation="read_committed"):
    """A consumer whose fetch may wait a minute; yields a function that waits for one record."""
    settings = {"fetch.wait.max.ms": 60_000, "fetch.min.bytes": 1, "isolation.level": isolation}
    with consumer(bootstrap, **settings) as source:
        source.assign([TopicPartition(topic, partition, offset)])
        source.poll(0.5)
        yield lambda: poll(source, 1)[0]


def bounds(bootstrap, topic, partition=0, isolation="read_committed"):
    with consumer(bootstrap, **{"isolation.level": isolation}) as source:
        return source.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)


def offset_at(bootstrap, topic, timestamp, partition=0):
    with consumer(bootstrap) as source:
        (found,) = source.offsets_for_times(
            [TopicPartition(topic, partition, timestamp)], timeout=DEADLINE_S
        )
    if found.error:
        raise refused(found.error)
    return None if found.offset < 0 else found.offset


# -- admin -----------------------------------------------------------------------------------


def admin(bootstrap):
    return AdminClient({"bootstrap.servers": bootstrap})


def ask(bootstrap, question):
    """Send one request; the client must outlive the response, or its futures never end."""
    client = admin(bootstrap)
    try:
        (future,) = question(client).values()
        return future.result(DEADLINE_S)
    except KafkaException as error:
        raise refused(error) from None


def create_topic(bootstrap, topic, partitions=1, config=None, validate_only=False):
    wanted = NewTopic(topic, partitions, 1, config=config or {})
    ask(bootstrap, lambda client: client.create_topics([wanted], validate_only=validate_only))


def delete_topic(bootstrap, topic):
    ask(bootstrap, lambda client: client.delete_topics([topic]))


def add_partitions(bootstrap, topic, count):
    ask(bootstrap, lambda client: client.create_partitions([NewPartitions(topic, count)]))


def topics(bootstrap):
    return set(admin(bootstrap).list_topics(timeout=DEADLINE_S).topics)


def describe_topic(bootstrap, topic):
    found = admin(bootstrap).list_topics(topic, timeout=DEADLINE_S).topics[topic]
    if found.error is not None:
        raise refused(found.error)
    return {
        at: (partition.leader, list(partition.replicas), list(partition.isrs))
        for at, partition in found.partitions.items()
    }


def cluster(bootstrap):
    found = admin(bootstrap).list_topics(timeout=DEADLINE_S)
    return found.cluster_id, sorted(found.brokers), found.controller_id


def get_config(bootstrap, topic):
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = ask(bootstrap, lambda client: client.describe_configs([resource]))
    return {name: entry.value for name, entry in found.items()}


def set_config(bootstrap, topic, values):
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ],
    )
    ask(bootstrap, lambda client: client.incremental_alter_configs([resource]))


def delete_records(bootstrap, topic, before, partition=0):
    found = ask(
        bootstrap, lambda client: client.delete_records([TopicPartition(topic, partition, before)])
    )
    return found.low_watermark


def max_timestamp(bootstrap, topic, partition=0):
    wanted = {TopicPartition(topic, partition): OffsetSpec.max_timestamp()}
    found = ask(bootstrap, lambda client: client.list_offsets(wanted))
    return found.offset, found.timestamp


# -- groups ----------------------------------------------------------------------------------


def groups(bootstrap, *, state=None, kind=None):
    """Return state and type of each group, in lower case."""
    wanted: dict[str, Any] = {}
    if state is not None:
        wanted["states"] = {ConsumerGroupState[state.upper()]}
    if kind is not None:
        wanted["types"] = {ConsumerGroupType[kind.upper()]}
    client = admin(bootstrap)
    found = client.list_consumer_groups(**wanted).result(DEADLINE_S)
    assert not found.errors, found.errors
    return {group.group_id: (plain(group.state), plain(group.type)) for group in found.valid}


def plain(value):
    return value.name.lower().replace("_", "")


def describe_group(bootstrap, group):
    found = ask(bootstrap, lambda client: client.describe_consumer_groups([group]))
    return plain(found.state), {
        member.member_id: {(p.topic, p.partition) for p in member.assignment.topic_partitions}
        for member in found.members
    }


def delete_group(bootstrap, group):
    ask(bootstrap, lambda client: client.delete_consumer_groups([group]))


def group_offsets(bootstrap, group):
    wanted = [ConsumerGroupTopicPartitions(group)]
    found = ask(bootstrap, lambda client: client.list_consumer_group_offsets(wanted))
    # Without metadata: the client reads one byte too many, unless it wrote the metadata itself.
    return {
        (topic_partition.topic, topic_partition.partition): (topic_partition.offset, None)
        for topic_partition in found.topic_partitions
    }


def set_group_offsets(bootstrap, group, offsets):
    places = [TopicPartition(topic, index, offset) for (topic, index), offset in offsets.items()]
    wanted = [ConsumerGroupTopicPartitions(group, places)]
    found = ask(bootstrap, lambda client: client.alter_consumer_group_offsets(wanted))
    for topic_partition in found.topic_partitions:
        if topic_partition.error is not None:
            raise refused(topic_partition.error)
