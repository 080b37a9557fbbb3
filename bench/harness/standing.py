"""Clusters that serve many workloads, so that each is measured warm.

A Java broker needs load for a while until its JIT compiler is done. A comparison with a broker that
has just started would favour the other side. So both sides are started once, warmed by the same
load, and then keep running, side by side, for all workloads of their size.
"""

from contextlib import ExitStack
from pathlib import Path

from bench.harness.broker import Candidate
from bench.harness.cluster import Cluster, cluster
from bench.harness.generator import Generators

WARM_UP_TOPIC = "warm-up"
# Deleted files are gone before the kernel writes them to disk.
SETTINGS = {"log.segment.delete.delay.ms": "100"}


class Standing:
    def __init__(self, generators: Generators, directory: Path, warm_up_s: float) -> None:
        self._generators = generators
        self._directory = directory
        self._warm_up_s = warm_up_s
        self._stack = ExitStack()
        self._clusters: dict[str, Cluster] = {}
        self._count = 0

    def cluster(self, candidate: Candidate, count: int = 1) -> Cluster:
        """Return the standing cluster of this many brokers; stop those of another size first."""
        if count != self._count:
            self.close()
            self._count = count
        if candidate.name not in self._clusters:
            made = self._stack.enter_context(
                cluster(candidate, self._directory, count, SETTINGS, "standing")
            )
            self._warm_up(made, count)
            self._clusters[candidate.name] = made
        return self._clusters[candidate.name]

    def close(self) -> None:
        self._clusters.clear()
        self._stack.close()
        self._count = 0

    def _warm_up(self, made: Cluster, replicas: int) -> None:
        """Produce in large and in smaller batches, consume, single records: a quarter each.

        Brokers share the machine, so three of them need three times as long.
        """
        seconds = self._warm_up_s * len(made.brokers) / 4
        options = ("--topic", WARM_UP_TOPIC, "--seconds", str(seconds))
        run = self._generators.run
        with made.topic(WARM_UP_TOPIC, 6, replicas):
            run(made, ["rdkafka", "produce", *options, "--acks", "all"])
            run(made, ["rdkafka", "consume", *options])
            run(made, ["rdkafka", "produce", *options, "--batch-bytes", "16384"])
        if self._generators.raw:
            # The generator connects to the first broker, which is the leader.
            with made.topic(WARM_UP_TOPIC, 1, assignment=[tuple(made.brokers)]):
                run(made, ["raw", "produce", *options, "--acks", "-1", "--in-flight", "16"])
