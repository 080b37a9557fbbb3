"""kafka-python."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager

import kafka.codec
import kafka.errors
from kafka import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, NoError

from tests.conformance.adapters import DEADLINE_S, Read, Refused, name_of

NAME = "kafka-python"
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
    "groups",
    "group-offsets",
    "group-changes",
    "group-offset-deletion",
}
RESETS = {"error": "none"}


def codecs():
    found = {"none", "gzip", "lz4", "zstd"}
    return found | {"snappy"} if kafka.codec.has_snappy() else found


def refused(error):
    code = getattr(error, "errno", None)
    name = name_of(code) if isinstance(code, int) and code > 0 else type(error).__name__
    return Refused(name, error)


def produce(
    bootstrap, topic, records, *, partition=0, acks="all", codec="none", idempotent=False, **given
):
    timeout_ms = int(given.get("timeout_ms", DEADLINE_S * 1000))
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks=acks if acks == "all" else int(acks),
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        linger_ms=20,
        max_block_ms=timeout_ms,
        request_timeout_ms=timeout_ms,
        delivery_timeout_ms=timeout_ms + 1000,
        max_request_size=given.get("max_bytes", 2**20),
        batch_size=(given.get("per_batch", 0) and 1) or 16384,
    )
    try:
        futures = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                partition=partition,
                headers=list(record.headers),
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        return [future.get(DEADLINE_S).offset for future in futures]
    except KafkaError as error:
        raise refused(error) from None
    finally:
        producer.close(DEADLINE_S)


@contextmanager
def consumer(bootstrap, **settings):
    made = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        **{"auto_offset_reset": "none", **settings},
    )
    with closing(made):
        yield made


def poll(source, count):
    found = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        for records in source.poll(timeout_ms=1000, max_records=count - len(found)).values():
            found += [
                Read(
                    partition=record.partition,
                    offset=record.offset,
                    timestamp=record.timestamp,
                    key=record.key,
                    value=record.value,
                    headers=tuple(record.headers or ()),
                )
                for record in records
            ]
    return found


def start_at(source, where, start):
    source.assign([where])
    if start == "earliest":
        source.seek_to_beginning(where)
    elif start == "latest":
        source.seek_to_end(where)
    else:
        source.seek(where, start)


def read(bootstrap, topic, count, *, partition=0, start="earliest", reset="error", **given):
    settings = {
        "max_partition_fetch_bytes": given.get("max_bytes", 2**20),
        "isolation_level": given.get("isolation", "read_uncommitted"),
    }
    try:
        with consumer(bootstrap, auto_offset_reset=RESETS.get(reset, reset), **settings) as source:
            start_at(source, TopicPartition(topic, partition), start)
            return poll(source, count)
    except KafkaError as error:
        raise refused(error) from None


@contextmanager
def waiting(bootstrap, topic, offset, *, partition=0, isolation="read_uncommitted"):
    with consumer(
        bootstrap,
        fetch_max_wait_ms=60_000,
        request_timeout_ms=90_000,
        fetch_min_bytes=1,
        isolation_level=isolation,
    ) as source:
        start_at(source, TopicPartition(topic, partition), offset)
        source.poll(timeout_ms=500)
        yield lambda: poll(source, 1)[0]


def bounds(bootstrap, topic, partition=0, isolation="read_uncommitted"):
    where = TopicPartition(topic, partition)
    with consumer(bootstrap, isolation_level=isolation) as source:
        return source.beginning_offsets([where])[where], source.end_offsets([where])[where]


def offset_at(bootstrap, topic, timestamp, partition=0):
    where = TopicPartition(topic, partition)
    with consumer(bootstrap) as source:
        found = source.offsets_for_times({where: timestamp})[where]
    return None if found is None else found.offset


# -- admin -----------------------------------------------------------------------------------


@contextmanager
def admin(bootstrap):
    try:
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as made:
            yield made
    except KafkaError as error:
        raise refused(error) from None


def create_topic(bootstrap, topic, partitions=1, config=None, validate_only=False):
    wanted = {
        topic: {"num_partitions": partitions, "replication_factor": 1, "configs": config or {}}
    }
    with admin(bootstrap) as client:
        client.create_topics(wanted, validate_only=validate_only)


def delete_topic(bootstrap, topic):
    with admin(bootstrap) as client:
        client.delete_topics([topic])


def add_partitions(bootstrap, topic, count):
    with admin(bootstrap) as client:
        client.create_partitions({topic: count})


def topics(bootstrap):
    with admin(bootstrap) as client:
        return set(client.list_topics())


def describe_topic(bootstrap, topic):
    with admin(bootstrap) as client:
        (found,) = client.describe_topics([topic])
    if found["error_code"]:
        raise Refused(name_of(found["error_code"]))
    return {
        partition["partition_index"]: (
            partition["leader_id"],
            partition["replica_nodes"],
            partition["isr_nodes"],
        )
        for partition in found["partitions"]
    }


def cluster(bootstrap):
    with admin(bootstrap) as client:
        found = client.describe_cluster()
    brokers = sorted(broker["broker_id"] for broker in found["brokers"])
    return found["cluster_id"], brokers, found["controller_id"]


def get_config(bootstrap, topic):
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    with admin(bootstrap) as client:
        found = client.describe_configs([resource], config_filter="all")
    (entries,) = found if isinstance(found, list) else (found["topic"][topic],)
    return {name: entry["value"] for name, entry in entries.items()}


def set_config(bootstrap, topic, values):
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=values)
    with admin(bootstrap) as client:
        found = client.alter_configs([resource], raise_on_unknown=False)
    result = found["topic"][topic]
    if result not in ("OK", None):
        raise Refused(str(result))


def delete_records(bootstrap, topic, before, partition=0):
    where = TopicPartition(topic, partition)
    with admin(bootstrap) as client:
        return client.delete_records({where: before})[where]["low_watermark"]


# -- groups ----------------------------------------------------------------------------------


def groups(bootstrap, *, state=None, kind=None):
    """Return state and type of each group, in lower case."""
    with admin(bootstrap) as client:
        found = client.list_groups(
            states_filter=state and [state], types_filter=kind and [kind.lower()]
        )
    return {
        group["group_id"]: (group["group_state"].lower(), group["group_type"]) for group in found
    }


def describe_group(bootstrap, group):
    with admin(bootstrap) as client:
        found = client.describe_groups([group])[group]
    return found["group_state"].lower(), {
        member["member_id"]: {
            (topic, index)
            for topic, indexes in shares(member["member_assignment"])
            for index in indexes
        }
        for member in found["members"]
    }


def shares(assignment):
    if not assignment:
        return []
    return [(topic["topic"], topic["partitions"]) for topic in assignment["assigned_partitions"]]


def check(error):
    if isinstance(error, str):
        error = getattr(kafka.errors, error, NoError if error == "OK" else KafkaError)
    if error not in (NoError, None):
        raise refused(error())


def delete_group(bootstrap, group):
    with admin(bootstrap) as client:
        check(client.delete_groups([group])[group])


def group_offsets(bootstrap, group):
    with admin(bootstrap) as client:
        found = client.list_group_offsets([group])[group]
    return {
        (place.topic, place.partition): (committed.offset, committed.metadata)
        for place, committed in found.items()
    }


def set_group_offsets(bootstrap, group, offsets):
    wanted = {
        TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
        for place, offset in offsets.items()
    }
    with admin(bootstrap) as client:
        for error in client.alter_group_offsets(group, wanted).values():
            check(error)


def delete_group_offsets(bootstrap, group, places):
    with admin(bootstrap) as client:
        found = client.delete_group_offsets(group, [TopicPartition(*place) for place in places])
        for error in found.values():
            check(error)
