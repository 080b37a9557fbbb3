"""Exactly-once queries, drivers that die, and a `read_committed` consumer that checks the result.

A driver in these tests dies without a process: from some request on, its sink gets no responses,
the query fails, and another query continues from the checkpoint with another sink, as a restarted
process would.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import functions as F

from hightide.spark.blocking_client import shared_client
from hightide.spark.sink.foreach_batch import ExactlyOnce
from hightide.spark.sink.sink_options import of_client

DEADLINE_S = 180
KEYS = 5
BATCH = 40


class Dead(Exception):
    """The error of a dead driver's requests."""


class Mortal:
    """The client of a driver that dies before or after its nth request of a kind.

    Or that request or its response is lost.
    """

    def __init__(self, inner, request: str, when: str, nth: int) -> None:
        self._inner = inner
        self._last = request, when
        self._left = nth
        self._is_dead = False

    def __getattr__(self, name):
        wanted = getattr(self._inner, name)

        def ask(*arguments, **named):
            request, when = self._last
            is_last = False
            if name == request and not self._is_dead:
                self._left -= 1
                is_last = self._left == 0
                self._is_dead = is_last and when == "before"
            if self._is_dead or (is_last and when == "lost"):
                raise Dead(f"dead before {name}")
            answer = wanted(*arguments, **named)
            if is_last:
                self._is_dead = when == "after"
                raise Dead(f"dead after {name}")
            return answer

        return ask


class MortalSink(ExactlyOnce):
    """A sink whose driver dies at a moment; never, if it is None."""

    def __init__(self, *arguments, moment=None) -> None:
        super().__init__(*arguments)
        self.moment = moment
        self.replayed = []
        self.is_dead = False
        self._mortal: Mortal | None = None

    def _brokers(self):
        real = super()._brokers()
        if self.moment is None or self.moment[0] == "return":
            return real
        self._mortal = self._mortal or Mortal(real, *self.moment)
        return self._mortal

    def __call__(self, frame, batch_id) -> None:
        try:
            super().__call__(frame, batch_id)
        except Exception:
            self.is_dead = True
            raise
        if self.last.is_replay:
            self.replayed.append(batch_id)
        if self.moment is not None and self.moment[0] == "return":
            self.is_dead = True
            raise Dead("dead before Spark's commit log")


# Every moment of the first batch of a run. Before it, the run takes over, with one request of most
# kinds.
TAKING_OVER = [
    ("producer", "before", 1),
    ("producer", "after", 1),
    ("end_transaction", "before", 1),
    ("end_transaction", "after", 1),
]
WRITING = [
    ("producer", "before", 2),
    ("producer", "after", 2),
    ("committed", "after", 3),
    ("commit_offsets_in_transaction", "before", 2),
    ("commit_offsets_in_transaction", "after", 2),
]
ENDING = [
    ("end_transaction", "before", 2),
    ("end_transaction", "after", 2),
    ("return", "", 0),
]
LOSSES = [
    ("commit_offsets_in_transaction", "unheard", 2),
    ("end_transaction", "lost", 2),
    ("end_transaction", "unheard", 2),
]


@dataclass
class Copy:
    """A query that writes 40 rows in each batch, or the latest totals of five keys."""

    spark: Any
    bootstrap: str
    name: str
    mode: str
    checkpoint: str
    partitions: int = 3
    tasks: int = 2
    replicas: int = -1
    options: Mapping[str, str] = field(default_factory=dict)

    def create(self) -> Copy:
        client = shared_client({"bootstrap.servers": self.bootstrap})
        client.create_topic(self.name, self.partitions, self.replicas)
        return self

    def rows(self):
        numbers = (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", BATCH)
            .option("numPartitions", self.tasks)
            .load()
        )
        key = F.concat(F.lit("k"), (F.col("value") % KEYS).cast("string")).alias("key")
        if self.mode == "append":
            return numbers.select(key, F.col("value").cast("string").alias("value"))
        counted = numbers.groupBy(key).agg(F.count("*").alias("n"), F.max("value").alias("last"))
        return counted.select("key", F.to_json(F.struct("n", "last")).alias("value"))

    def sink(self, moment=None) -> MortalSink:
        client = {"bootstrap.servers": self.bootstrap, **self.options}
        return MortalSink(self.name, of_client(client, self.name), {}, 2, 60_000, moment=moment)

    def start(self, sink, **trigger):
        return (
            self.rows()
            .writeStream.foreachBatch(sink)
            .outputMode(self.mode)
            .option("checkpointLocation", self.checkpoint)
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def live(self, moment=None) -> MortalSink:
        """Run the driver until there is no more input, or until it dies."""
        sink = self.sink(moment)
        query = self.start(sink)
        try:
            assert query.awaitTermination(DEADLINE_S)
        except Exception as error:
            if moment is None or "dead" not in str(error).lower():
                raise
        return sink

    def expected(self, batches: int) -> Counter:
        """Return what consumers must see after this many batches."""
        if self.mode == "append":
            return Counter(
                (b"k%d" % (number % KEYS), b"%d" % number) for number in range(batches * BATCH)
            )
        found: Counter = Counter()
        for batch in range(1, batches + 1):
            for key in range(KEYS):
                mine = range(key, batch * BATCH, KEYS)
                text = json.dumps({"n": len(mine), "last": mine[-1]}, separators=(",", ":"))
                found[b"k%d" % key, text.encode()] += 1
        return found

    def check(self, batches: int) -> None:
        """Check that no record is missing or duplicated."""
        seen = Counter(
            (record.key(), record.value())
            for record in committed(self.bootstrap, self.name, self.partitions)
        )
        expected = self.expected(batches)
        assert not expected - seen, f"missing: {expected - seen}"
        assert not seen - expected, f"too many: {seen - expected}"


def committed(bootstrap: str, topic: str, partitions: int = 1) -> list[Any]:
    """Return the records of a topic that another client sees with read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found, ended = [], set()
    while len(ended) < partitions:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, f"{topic} has an end that readers do not reach"
        if message.error() is None:
            found.append(message)
        else:
            ended.add(message.partition())
    consumer.close()
    return found
