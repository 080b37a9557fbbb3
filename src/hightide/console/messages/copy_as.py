"""A reading of the page as a command of the CLI, and as a Python program with a Kafka client.

The programs run as they are: they need confluent-kafka, or kafka-python, and print each record.
"""

from __future__ import annotations

from dataclasses import dataclass

from hightide.console.commands import command
from hightide.console.messages.positions import Position


@dataclass(frozen=True, slots=True)
class Reading:
    """What the page reads; `count` None means to the end, `follow` to go on for ever."""

    topic: str
    position: Position
    partitions: tuple[int, ...] = ()
    count: int | None = None
    follow: bool = False
    read_committed: bool = True


def as_command(bootstrap: str, reading: Reading) -> str:
    """`hightide consume …` with the same position."""
    words: list[object] = ["consume", reading.topic, "--from", _position(reading.position)]
    for partition in reading.partitions:
        words += ["--partition", partition]
    if reading.count is not None:
        words += ["--count", reading.count]
    if reading.follow and reading.position.start != "end":
        words.append("--follow")
    if not reading.read_committed:
        words += ["-X", "isolation.level=read_uncommitted"]
    return command(bootstrap, *words, "--output", "json")


def _position(position: Position) -> str:
    match position.start:
        case "last":
            return f"-{position.count}"
        case "time":
            return f"@{position.time_ms}"
        case "offset":
            return str(position.offset)
        case "at":
            return str(min(position.at.values(), default=0))
    return position.start


def as_python(bootstrap: str, reading: Reading) -> str:
    """A program for confluent-kafka."""
    return _PROGRAM.format(
        bootstrap=bootstrap,
        topic=reading.topic,
        partitions=list(reading.partitions) or None,
        begin=_confluent_begin(reading.position),
        isolation="read_committed" if reading.read_committed else "read_uncommitted",
        stop="None" if reading.count is None else reading.count,
        follow=reading.follow,
    )


def _confluent_begin(position: Position) -> str:
    match position.start:
        case "beginning":
            return "first"
        case "end":
            return "end"
        case "last":
            return f"max(first, end - {position.count})"
        case "time":
            return (
                "consumer.offsets_for_times("
                f"[TopicPartition(TOPIC, partition, {position.time_ms})])[0].offset"
            )
        case "offset":
            return f"min(max(first, {position.offset}), end)"
    return f"{dict(position.at)!r}.get(partition, end)"


_PROGRAM = '''\
"""Reads records of a topic: pip install confluent-kafka."""

from confluent_kafka import Consumer, KafkaError, TopicPartition

TOPIC = {topic!r}
PARTITIONS = {partitions}  # None: all of them
COUNT = {stop}  # None: to the end
FOLLOW = {follow}

consumer = Consumer(
    {{
        "bootstrap.servers": {bootstrap!r},
        "group.id": "read-by-hand",  # required by the client, but nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": {isolation!r},
    }}
)
found = PARTITIONS or list(consumer.list_topics(TOPIC).topics[TOPIC].partitions)
assigned = []
for partition in found:
    first, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition))
    assigned.append(TopicPartition(TOPIC, partition, {begin}))
consumer.assign(assigned)

seen, unfinished = 0, set(found)
try:
    while (FOLLOW or unfinished) and (COUNT is None or seen < COUNT):
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            if message.error().code() != KafkaError._PARTITION_EOF:
                raise SystemExit(message.error().str())
            unfinished.discard(message.partition())
            continue
        seen += 1
        _, time_ms = message.timestamp()
        print(message.partition(), message.offset(), time_ms, message.key(), message.value(),
              message.headers())
finally:
    consumer.close()
'''


def as_kafka_python(bootstrap: str, reading: Reading) -> str:
    """A program for kafka-python."""
    return _KAFKA_PYTHON.format(
        bootstrap=[address.strip() for address in bootstrap.split(",")],
        topic=reading.topic,
        partitions=list(reading.partitions) or None,
        begin=_kafka_python_begin(reading.position),
        isolation="read_committed" if reading.read_committed else "read_uncommitted",
        stop="None" if reading.count is None else reading.count,
        follow=reading.follow,
    )


def _kafka_python_begin(position: Position) -> str:
    if position.start == "time":
        return (
            f"(consumer.offsets_for_times({{part: {position.time_ms}}})[part]"
            " or end_of(part)).offset"
        )
    begin = _confluent_begin(position)
    return begin.replace(".get(partition", ".get(part.partition")


_KAFKA_PYTHON = '''\
"""Reads records of a topic: pip install kafka-python."""

from collections import namedtuple

from kafka import KafkaConsumer, TopicPartition

TOPIC = {topic!r}
PARTITIONS = {partitions}  # None: all of them
COUNT = {stop}  # None: to the end
FOLLOW = {follow}

consumer = KafkaConsumer(
    bootstrap_servers={bootstrap!r},
    enable_auto_commit=False,
    auto_offset_reset="earliest",
    isolation_level={isolation!r},
)
End = namedtuple("End", "offset")
found = PARTITIONS or sorted(consumer.partitions_for_topic(TOPIC))
parts = [TopicPartition(TOPIC, partition) for partition in found]
consumer.assign(parts)
firsts, ends = consumer.beginning_offsets(parts), consumer.end_offsets(parts)


def end_of(part):
    return End(ends[part])


for part in parts:
    first, end = firsts[part], ends[part]
    consumer.seek(part, {begin})

seen = 0
try:
    while FOLLOW or any(consumer.position(part) < ends[part] for part in parts):
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                if COUNT is not None and seen >= COUNT:
                    raise SystemExit
                seen += 1
                print(record.partition, record.offset, record.timestamp, record.key, record.value,
                      record.headers)
finally:
    consumer.close()
'''
