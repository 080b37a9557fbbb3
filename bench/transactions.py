"""Measure transactions: how many are committed in a second, and how long one commit takes.

    python bench/transactions.py                            everything, under a minute
    python bench/transactions.py --only rate --rounds 10 --json result.json

A transaction is a hundred records of a hundred bytes to one partition, committed by librdkafka,
which waits for each commit: so one producer shows how long it takes, and several at once how many
the broker can do.  They are threads of this process and share the machine with the broker.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness.broker import BrokerFailure
from harness.command import Bench, Workload, run
from harness.generator import Sample
from harness.lab import OTHERS, Measure, Metric
from harness.process import cpu_s, machine_busy_s, wait_for_quiet, with_descendants

from hightide.testing import Cluster

TOPIC, PARTITIONS = "t", 6
RECORDS, VALUE = 100, b"x" * 100
MANY = 8
GOAL = 300
PATIENCE_S = 30.0


class Transactor:
    """A producer that commits one transaction after the other, until it is told to stop."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.times_s: list[float] = []
        """How long each commit took, the records and their delivery included."""
        self.failure: Exception | None = None
        self._partition = number % PARTITIONS
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"bench-{number}",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(PATIENCE_S)

    def run(self, is_over: threading.Event) -> None:
        try:
            while not is_over.is_set():
                began = time.perf_counter()
                self._transact()
                self.times_s.append(time.perf_counter() - began)
        except Exception as error:
            self.failure = error

    def _transact(self) -> None:
        produce, partition = self._producer.produce, self._partition
        self._producer.begin_transaction()
        for _ in range(RECORDS):
            produce(TOPIC, VALUE, partition=partition)
        self._producer.commit_transaction(PATIENCE_S)


@dataclass(slots=True)
class Subject:
    """A cluster, and the producers that know it already."""

    bench: Bench
    cluster: Cluster
    producers: list[Transactor]

    def commit(self, sample: Sample, key: str, count: int) -> None:
        """Let so many producers commit for the time of a round."""
        wait_for_quiet(self.bench.quiet_s)
        producers, is_over = self.producers[:count], threading.Event()
        for each in producers:
            each.times_s.clear()
        threads = [threading.Thread(target=each.run, args=(is_over,)) for each in producers]
        pids = [
            each
            for broker in self.cluster._brokers.values()
            for each in with_descendants(broker.process.pid)
        ]
        busy_s, own_s, used_s = machine_busy_s(), time.process_time(), cpu_s(pids)
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        time.sleep(self.bench.seconds)
        is_over.set()
        for thread in threads:
            thread.join()
        elapsed, used_s = time.perf_counter() - began, cpu_s(pids) - used_s
        for each in producers:
            if each.failure is not None:
                raise BrokerFailure(f"a transaction failed: {each.failure}")
        times_s = sorted(taken for each in producers for taken in each.times_s)
        sample[f"{key}_rate"] = len(times_s) / elapsed
        sample[f"{key}_p50_ms"] = times_s[len(times_s) // 2] * 1000
        sample[f"{key}_p99_ms"] = times_s[len(times_s) * 99 // 100] * 1000
        sample[f"{key}_cpu_ms"] = used_s / len(times_s) * 1000
        others = machine_busy_s() - busy_s - used_s - (time.process_time() - own_s)
        sample["other_cores"] = max(sample.get("other_cores", 0.0), others / elapsed)


@contextmanager
def running(bench: Bench, brokers: int) -> Iterator[Subject]:
    with (
        tempfile.TemporaryDirectory(prefix="transactions-", dir=bench.folder) as folder,
        Cluster(brokers=brokers, data=Path(folder)) as cluster,
    ):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, brokers)]).values():
            made.result()
        producers = [Transactor(cluster.bootstrap, number) for number in range(MANY)]
        subject = Subject(bench, cluster, producers)
        subject.commit({}, "warm", MANY)
        yield subject


def opened(brokers: int) -> Callable[[Bench], AbstractContextManager[Measure]]:
    @contextmanager
    def open_(bench: Bench) -> Iterator[Measure]:
        with running(bench, brokers) as subject:

            def measure() -> Sample:
                sample: Sample = {}
                subject.commit(sample, "one", 1)
                subject.commit(sample, "many", MANY)
                return sample

            yield measure

    return open_


def metrics(goal: float | None) -> tuple[Metric, ...]:
    return (
        Metric("one_rate", "1 producer, transactions/s", more_is_better=True),
        Metric("one_p50_ms", "each takes, median, ms", 2),
        Metric("one_p99_ms", "each takes, 99 of 100, ms", 2),
        Metric("many_rate", f"{MANY} producers, transactions/s", more_is_better=True, goal=goal),
        Metric("many_p99_ms", "each takes, 99 of 100, ms", 2),
        Metric("many_cpu_ms", "CPU of the brokers for each, ms", 2),
        OTHERS,
    )


# ---- the command -------------------------------------------------------------------------------

WORKLOADS = (
    Workload(
        "rate",
        f"transactions of {RECORDS} records, one broker, one replica",
        metrics(GOAL),
        opened(1),
    ),
    Workload(
        "replicated",
        f"transactions of {RECORDS} records, three brokers, three replicas",
        metrics(None),
        opened(3),
    ),
)


if __name__ == "__main__":
    run(WORKLOADS, __doc__, seconds=2.0)
