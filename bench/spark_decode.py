"""Measure the conversion of record batches to Arrow batches for Spark, and back.

    python -m bench.spark_decode                            every codec
    python -m bench.spark_decode --only none --rounds 10 --json result.json

Everything happens in this process and in memory; figures are records per CPU second, with
checksums. Batches have 16 KB, the default of Java's producer, and 1 MB, that of librdkafka. `plain`
is the decoder that stands in where numba is not installed.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from bench.harness.command import Bench, Workload, run
from bench.harness.generator import Sample
from bench.harness.lab import Measure, Metric
from hightide.spark.columns import kernels
from hightide.spark.columns.decode import Decoder
from hightide.spark.columns.encode import CODECS, encode

MB = 1 << 20
SIZES = {"100b": 100, "1kb": 1000}
BATCHES = {"16k": 16 << 10, "1m": MB}
ANSWER_BYTES = 8 * MB
NOW_MS = 1_700_000_000_000
GOAL = 5.0


def rows_of(value_bytes: int) -> pa.RecordBatch:
    """Return rows whose values compress to about half, as text does."""
    chance = random.Random(7)
    words = [chance.randbytes(4).hex().encode() for _ in range(500)]
    count = ANSWER_BYTES // (value_bytes + 30)
    values = []
    for _ in range(count):
        text = b" ".join(chance.choices(words, k=value_bytes // 9 + 1))
        values.append(text[:value_bytes])
    keys = [b"key-%06d" % chance.randrange(100_000) for _ in range(count)]
    return pa.record_batch({"key": keys, "value": values})


def answer_of(rows: pa.RecordBatch, codec: str, max_bytes: int) -> tuple[memoryview, int]:
    """Return a Fetch response and its number of records; offsets restart at 0 in each batch."""
    batches = list(encode(rows, codec=codec, now_ms=NOW_MS, max_bytes=max_bytes))
    return memoryview(b"".join(batch for batch, _ in batches)), sum(count for _, count in batches)


def decoded(answer: memoryview) -> None:
    decoder = Decoder("topic", 0)
    for _ in decoder.feed(answer, 0, 1 << 60, None):
        pass
    for _ in decoder.flush():
        pass


def encoded(rows: pa.RecordBatch, codec: str) -> None:
    for _ in encode(rows, codec=codec, now_ms=NOW_MS):
        pass


def rate(work: Callable[[], None], records: int, seconds: float) -> float:
    """Return millions of records per CPU second."""
    began = time.process_time()
    times = 0
    while (taken := time.process_time() - began) < seconds or not times:
        work()
        times += 1
    return records * times / taken / 1e6


def of_codec(codec: str) -> Workload:
    @contextmanager
    def open_(bench: Bench) -> Iterator[Measure]:
        works: dict[str, tuple[Callable[[], None], int]] = {}
        for size, value_bytes in SIZES.items():
            rows = rows_of(value_bytes)
            for length, max_bytes in BATCHES.items():
                answer, count = answer_of(rows, codec, max_bytes)
                works[f"decode_{size}_{length}"] = (partial(decoded, answer), count)
            works[f"encode_{size}"] = (partial(encoded, rows, codec), rows.num_rows)
        for work, _ in works.values():
            work()

        def measure() -> Sample:
            return {
                key: rate(work, count, bench.seconds / len(works))
                for key, (work, count) in works.items()
            }

        yield measure

    goal = GOAL if codec == "none" else None
    metrics = [
        Metric(
            f"decode_{size}_{length}",
            f"decode {size} in batches of {length}, M records/CPU-s",
            1,
            more_is_better=True,
            goal=goal if size == "100b" else None,
        )
        for size in SIZES
        for length in BATCHES
    ]
    metrics += [
        Metric(f"encode_{size}", f"encode {size}, M records/CPU-s", 1, more_is_better=True)
        for size in SIZES
    ]
    return Workload(codec, f"records ⇄ Arrow, codec {codec}", tuple(metrics), open_)


@contextmanager
def open_plain(bench: Bench) -> Iterator[Measure]:
    answer, count = answer_of(rows_of(100), "none", MB)

    def measure() -> Sample:
        was, kernels.is_compiled = kernels.is_compiled, False
        try:
            return {"decode": rate(lambda: decoded(answer), count, bench.seconds)}
        finally:
            kernels.is_compiled = was

    yield measure


PLAIN = Workload(
    "plain",
    "the decoder without numba",
    (Metric("decode", "decode 100b in batches of 1m, M records/CPU-s", 2, more_is_better=True),),
    open_plain,
)

if __name__ == "__main__":
    run((*(of_codec(codec) for codec in CODECS), PLAIN), __doc__, seconds=1.5)
