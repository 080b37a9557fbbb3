"""Topics full of records, written by Hightide's encoder because it is the fastest."""

import random
from collections.abc import Iterator

import pyarrow as pa

from hightide.spark.blocking_client import shared_client
from hightide.spark.columns.encode import encode

JAVA_BATCH_BYTES = 16 << 10
"""The default batch size of Java's producer; small batches are harder to read."""
CHUNK_ROWS = 50_000
KEYS = 1_000
KEPT = {"retention.ms": "-1"}
START_MS = 1_700_000_000_000


def rows(count: int, value_bytes: int, start_ms: int, ms_per_row: float) -> pa.RecordBatch:
    chance = random.Random(count)
    times = [start_ms + int(place * ms_per_row) for place in range(count)]
    return pa.record_batch(
        {
            "key": [b"key-%04d" % chance.randrange(KEYS) for _ in range(count)],
            "value": [chance.randbytes(value_bytes // 2).hex().encode() for _ in range(count)],
            "timestamp": pa.array(times, pa.timestamp("ms")),
        }
    )


def fill(bootstrap: str, topic: str, partitions: int, records: int, value_bytes: int) -> None:
    """Write records of one size, the same ones in each partition, repeatedly."""
    cluster = shared_client({"bootstrap.servers": bootstrap})
    cluster.create_topic(topic, partitions, settings=KEPT)
    chunk = min(CHUNK_ROWS, records // partitions)
    made = list(
        encode(rows(chunk, value_bytes, START_MS, 1.0), now_ms=START_MS, max_bytes=JAVA_BATCH_BYTES)
    )
    for partition in range(partitions):
        with cluster.writer(topic, partition) as writer:
            left = records // partitions
            while left > 0:
                for batch, count in made:
                    writer.append(batch, count)
                    left -= count
                    if left <= 0:
                        break
            writer.flush()


def fill_in_time(
    bootstrap: str, topic: str, partitions: int, records: int, value_bytes: int, span_s: float
) -> None:
    """Write records whose timestamps run evenly over a span, alike in all partitions."""
    cluster = shared_client({"bootstrap.servers": bootstrap})
    cluster.create_topic(topic, partitions, settings=KEPT)
    writers = [cluster.writer(topic, index) for index in range(partitions)]
    ms_per_row = span_s * 1000 / (records // partitions)
    for chunk in _chunks(records // partitions):
        start_ms = START_MS + int(chunk.start * ms_per_row)
        made = rows(len(chunk), value_bytes, start_ms, ms_per_row)
        for batch, count in encode(made, now_ms=START_MS, max_bytes=JAVA_BATCH_BYTES):
            for writer in writers:
                writer.append(batch, count)
    for writer in writers:
        writer.flush()
        writer.close()


def _chunks(count: int) -> Iterator[range]:
    for start in range(0, count, CHUNK_ROWS):
        yield range(start, min(start + CHUNK_ROWS, count))


def counted(bootstrap: str, topic: str) -> dict[int, int]:
    """How many offsets each partition has."""
    cluster = shared_client({"bootstrap.servers": bootstrap})
    places = [(topic, index) for index in range(cluster.topics([topic])[topic])]
    ends = cluster.offsets(dict.fromkeys(places, -1))
    starts = cluster.offsets(dict.fromkeys(places, -2))
    return {place[1]: ends[place] - starts[place] for place in places}
