"""Workloads with streams that the client compresses. Rates are those of messages before it.

Both brokers decompress every batch that they accept and validate its records. No broker
decompresses anything for a consumer, so the client's codec takes most of the time there.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness.broker import Candidate
from bench.harness.cluster import Cluster
from bench.harness.lab import PARTITIONS, TOPIC, Lab, Measure, Workload
from bench.harness.throughput import BATCHES, CONSUME_BARS, KB, MB, SIZES, Load, produce, put

CODECS = ("lz4", "zstd")
SIZE = "1kb"
BATCH = "64kb"


def _fill(lab: Lab, cluster: Cluster, codec: str) -> None:
    """Messages of the same shape as the producing workloads write."""
    how = ["rdkafka", "produce", "--compression", codec, "--message-bytes", str(SIZES[SIZE])]
    how += ["--batch-bytes", str(BATCHES[BATCH]), "--messages", str(lab.fill_mb * MB // KB)]
    lab.generators.run(cluster, [*how, "--topic", TOPIC, "--partitions", str(PARTITIONS)])


def _consume(codec: str) -> Workload:
    load = Load(("rdkafka", "consume"), PARTITIONS, reads_record_bytes=SIZES[SIZE])

    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        cluster = lab.standing.cluster(candidate)
        with cluster.topic(TOPIC, PARTITIONS):
            _fill(lab, cluster, codec)
            yield lambda: put(lab, cluster, load)

    return Workload(
        f"consume-{SIZE}-p{PARTITIONS}-{codec}",
        f"librdkafka consumes 1 KB messages in 64 KB batches, {PARTITIONS} partitions, {codec},"
        " from the page cache",
        CONSUME_BARS,
        open_,
    )


def _produce(codec: str, size: str) -> Workload:
    how = ("--compression", codec)
    is_extra = size != SIZE
    return produce(size, BATCH, PARTITIONS, "1", 1, *how, name=f"-{codec}", is_extra=is_extra)


WORKLOADS = (
    *(_produce(codec, size) for size in SIZES for codec in CODECS),
    *map(_consume, CODECS),
)
