"""aiokafka, each call in a new event loop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager

import aiokafka.codec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import (
    AIOKafkaAdminClient,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
)
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.conformance.adapters import DEADLINE_S, Read, Refused, name_of

NAME = "aiokafka"
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
    "group-offsets",
}
RESETS = {"error": "none"}


def codecs():
    found = {"none", "gzip"}
    for name in ("snappy", "lz4", "zstd"):
        if getattr(aiokafka.codec, f"has_{name}")():
            found.add(name)
    return found


def refused(error):
    code = getattr(error, "errno", None)
    name = name_of(code) if isinstance(code, int) and code > 0 else type(error).__name__
    return Refused(name, error)


def run(work):
    async def bounded():
        try:
            return await asyncio.wait_for(work, DEADLINE_S * 2)
        except KafkaError as error:
            raise refused(error) from None

    return asyncio.run(bounded())


def produce(
    bootstrap, topic, records, *, partition=0, acks="all", codec="none", idempotent=False, **given
):
    async def work():
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=20,
            request_timeout_ms=int(given.get("timeout_ms", DEADLINE_S * 1000)),
            max_request_size=given.get("max_bytes", 2**20),
            max_batch_size=given.get("max_bytes", 16384),
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            found = [await future for future in futures]
            return [None if record is None else record.offset for record in found]
        finally:
            await producer.stop()

    return run(work())


@asynccontextmanager
async def consumer(bootstrap, **settings):
    made = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        **{"auto_offset_reset": "none", **settings},
    )
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def as_read(record):
    return Read(
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
    )


async def poll(source, count):
    found = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            batches = await source.getmany(timeout_ms=1000, max_records=count - len(found))
            found += [as_read(record) for records in batches.values() for record in records]
    return found


async def start_at(source, where, start):
    source.assign([where])
    if start == "earliest":
        await source.seek_to_beginning(where)
    elif start == "latest":
        await source.seek_to_end(where)
    else:
        source.seek(where, start)


def read(bootstrap, topic, count, *, partition=0, start="earliest", reset="error", **given):
    async def work():
        async with consumer(
            bootstrap,
            auto_offset_reset=RESETS.get(reset, reset),
            max_partition_fetch_bytes=given.get("max_bytes", 2**20),
            isolation_level=given.get("isolation", "read_uncommitted"),
        ) as source:
            await start_at(source, TopicPartition(topic, partition), start)
            return await poll(source, count)

    return run(work())


@contextmanager
def waiting(bootstrap, topic, offset, *, partition=0, isolation="read_uncommitted"):
    with asyncio.Runner() as runner:
        stack = consumer(
            bootstrap,
            fetch_max_wait_ms=60_000,
            request_timeout_ms=90_000,
            fetch_min_bytes=1,
            isolation_level=isolation,
        )
        source = runner.run(stack.__aenter__())
        try:
            runner.run(start_at(source, TopicPartition(topic, partition), offset))
            runner.run(source.getmany(timeout_ms=500))
            yield lambda: runner.run(poll(source, 1))[0]
        finally:
            runner.run(stack.__aexit__(None, None, None))


def bounds(bootstrap, topic, partition=0, isolation="read_uncommitted"):
    where = TopicPartition(topic, partition)

    async def work():
        async with consumer(bootstrap, isolation_level=isolation) as source:
            first = await source.beginning_offsets([where])
            return first[where], (await source.end_offsets([where]))[where]

    return run(work())


def offset_at(bootstrap, topic, timestamp, partition=0):
    where = TopicPartition(topic, partition)

    async def work():
        async with consumer(bootstrap) as source:
            return (await source.offsets_for_times({where: timestamp}))[where]

    found = run(work())
    return None if found is None else found.offset


# -- admin -----------------------------------------------------------------------------------


def ask(bootstrap, question):
    async def work():
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        try:
            return await question(client)
        finally:
            await client.close()

    return run(work())


def check(code, message=""):
    if code:
        raise Refused(name_of(code), message)


def create_topic(bootstrap, topic, partitions=1, config=None, validate_only=False):
    wanted = NewTopic(topic, partitions, 1, topic_configs=config or {})
    found = ask(bootstrap, lambda c: c.create_topics([wanted], validate_only=validate_only))
    for _, code, message, *_ in found.topic_errors:
        check(code, message)


def delete_topic(bootstrap, topic):
    found = ask(bootstrap, lambda c: c.delete_topics([topic]))
    for _, code, *_ in found.topic_error_codes:
        check(code)


def add_partitions(bootstrap, topic, count):
    ask(bootstrap, lambda c: c.create_partitions({topic: NewPartitions(count)}))


def topics(bootstrap):
    return set(ask(bootstrap, lambda c: c.list_topics()))


def describe_topic(bootstrap, topic):
    (found,) = ask(bootstrap, lambda c: c.describe_topics([topic]))
    check(found["error_code"])
    return {
        partition["partition"]: (partition["leader"], partition["replicas"], partition["isr"])
        for partition in found["partitions"]
    }


def cluster(bootstrap):
    found = ask(bootstrap, lambda c: c.describe_cluster())
    brokers = sorted(broker["node_id"] for broker in found["brokers"])
    return found["cluster_id"], brokers, found["controller_id"]


def get_config(bootstrap, topic):
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    (found,) = ask(bootstrap, lambda c: c.describe_configs([resource]))
    code, message, _, _, entries = found.resources[0]
    check(code, message)
    return {entry[0]: entry[1] for entry in entries}


def set_config(bootstrap, topic, values):
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=values)
    (found,) = ask(bootstrap, lambda c: c.alter_configs([resource]))
    code, message, *_ = found.resources[0]
    check(code, message)


def delete_records(bootstrap, topic, before, partition=0):
    where = TopicPartition(topic, partition)
    return ask(bootstrap, lambda c: c.delete_records({where: RecordsToDelete(before)}))[where]


# -- groups ----------------------------------------------------------------------------------


def group_offsets(bootstrap, group):
    found = ask(bootstrap, lambda client: client.list_consumer_group_offsets(group))
    return {
        (place.topic, place.partition): (committed.offset, committed.metadata)
        for place, committed in found.items()
    }
