"""A shop's orders, written to topics as JSON, and read back with read_committed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer

from tests.spark.topics import DEADLINE_S, read

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(seconds):
    """Return the time this many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def order(number, user, amount, seconds):
    return {"id": number, "user": user, "amount": amount, "ts": at(seconds).isoformat()}


def send(cluster, topic, rows, *, key=None, partition=-1):
    """Write dicts as JSON, and bytes or None unchanged; `key` names the key field."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for row in rows:
        name, value = row if isinstance(row, tuple) else (None, row)
        if key is not None and isinstance(value, dict):
            name = str(value[key])
        data = json.dumps(value).encode() if isinstance(value, dict) else value
        producer.produce(topic, data, name, partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def received(cluster, topic):
    """Return the committed records: keys as text, values as dicts."""
    found = read(cluster, subscribe=topic, kafka_isolation_level="read_committed")
    return [(row["key"] and row["key"].decode(), json.loads(row["value"])) for row in found]


def values(cluster, topic):
    return [value for _, value in received(cluster, topic)]


def window_start(seconds, size):
    return at(seconds // size * size)


def moment(text):
    return datetime.fromisoformat(text)
