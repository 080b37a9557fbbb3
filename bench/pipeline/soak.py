"""One windowed query for a long time: whether its state, lag and memory stay constant.

A producer writes records at a steady rate with current timestamps; a query counts them by key and
window, drops records older than the watermark and writes exactly once to a topic. Every few seconds
a line shows the figures of Spark and the group. Flat means: the last third is on average not larger
than the middle third by more than a fifth and a little.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import pyarrow as pa

from bench.harness.process import rss_mb
from bench.pipeline.sides import HIGHTIDE, Stand
from hightide.spark.blocking_client import shared_client
from hightide.spark.columns.encode import encode

PARTITIONS = 4
RATE = 5_000
KEYS = 2_000
EVERY_S = 0.05
# In step neither with the windows nor with the triggers, so that samples hit all phases of them.
LINE_S = 13.7
SLACK = {"state_rows": 1_000, "state_mb": 10, "lag": 2 * RATE, "rss_mb": 150, "batch_ms": 500}
Line = dict[str, float]


def soak(stand: Stand, minutes: float) -> int:
    """Print the figures; return 1 as the exit code if one of them grew."""
    source, target = "soak-in", "soak-out"
    cluster = shared_client({"bootstrap.servers": stand.bootstrap})
    for name in (source, target):
        cluster.create_topic(name, PARTITIONS)
    with _producing(stand.bootstrap, source):
        query = _start(stand, source, target)
        lines = list(_lines(stand, query, source, time.monotonic() + minutes * 60))
        query.stop()
    if query.exception() is not None:
        print(f"the query failed: {query.exception()}")
        return 1
    grown = [key for key in SLACK if has_grown([line[key] for line in lines], SLACK[key])]
    print(f"grown: {', '.join(grown)}" if grown else "state, lag, memory and batch time are flat")
    return 1 if grown else 0


def _start(stand: Stand, source: str, target: str) -> Any:
    from pyspark.sql import functions as f

    rows = stand.stream(HIGHTIDE, source, **{"kafka.group.id": "soak"})
    counts = (
        rows.withWatermark("timestamp", "5 seconds")
        .groupBy(f.window("timestamp", "10 seconds"), "key")
        .count()
        .select("key", f.to_json(f.struct("window", "count")).alias("value"))
    )
    writer = stand.write(HIGHTIDE, counts, target).outputMode("append")
    checkpoint = str(stand.folder / "soak")
    trigger = {"processingTime": "2 seconds"}
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


@contextmanager
def _producing(bootstrap: str, topic: str) -> Iterator[None]:
    is_over = threading.Event()

    def produce() -> None:
        cluster = shared_client({"bootstrap.servers": bootstrap})
        writers = [cluster.writer(topic, index) for index in range(PARTITIONS)]
        count = int(RATE * EVERY_S / PARTITIONS)
        due = time.monotonic()
        number = 0
        while not is_over.is_set():
            for writer in writers:
                keys = [b"key-%d" % ((number + index) % KEYS) for index in range(count)]
                number += count
                made = pa.record_batch({"key": keys, "value": [b"x" * 100] * count})
                for batch, records in encode(made, now_ms=int(time.time() * 1000)):
                    writer.append(batch, records)
            due += EVERY_S
            is_over.wait(max(0.0, due - time.monotonic()))
        for writer in writers:
            writer.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _lines(stand: Stand, query: Any, source: str, until: float) -> Iterator[Line]:
    began = time.monotonic()
    print("   min   rows/s      lag  state rows  state MB  batch ms   RSS MB", flush=True)
    while time.monotonic() < until and query.exception() is None:
        time.sleep(LINE_S)
        progress = query.lastProgress
        if progress is None or not progress["stateOperators"]:
            continue
        state = progress["stateOperators"][0]
        line = {
            "minutes": (time.monotonic() - began) / 60,
            "rate": progress["processedRowsPerSecond"],
            "lag": float(_lag(stand.bootstrap, source)),
            "state_rows": float(state["numRowsTotal"]),
            "state_mb": state["memoryUsedBytes"] / 1e6,
            "batch_ms": float(progress["durationMs"]["triggerExecution"]),
            "rss_mb": rss_mb(stand.pids),
        }
        print(
            f"{line['minutes']:6.1f} {line['rate']:8.0f} {line['lag']:8.0f} "
            f"{line['state_rows']:11.0f} {line['state_mb']:9.1f} {line['batch_ms']:9.0f} "
            f"{line['rss_mb']:8.0f}",
            flush=True,
        )
        yield line


def _lag(bootstrap: str, topic: str) -> int:
    """Return the number of records that the group has not committed yet."""
    cluster = shared_client({"bootstrap.servers": bootstrap})
    places = [(topic, index) for index in range(PARTITIONS)]
    ends = cluster.offsets(dict.fromkeys(places, -1))
    committed = cluster.committed("soak", places)
    return sum(ends[place] - committed.get(place, (0, ""))[0] for place in places)


def has_grown(values: Sequence[float], slack: float) -> bool:
    third = len(values) // 3
    if not third:
        return False
    # Means, not medians: a median of an alternating figure is one of its two values.
    return fmean(values[2 * third :]) > fmean(values[third : 2 * third]) * 1.2 + slack
