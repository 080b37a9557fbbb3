"""Measure a cluster of three brokers: what it costs that records are on all of them.

    python bench/replication.py                             everything, a few minutes
    python bench/replication.py --only throughput --rounds 10 --json result.json

Brokers, coordinator and client share the machine. Wherever it can be, a figure is a ratio of two
turns of the same round: what others do on the machine meanwhile touches both.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from harness.broker import BrokerFailure
from harness.generator import Generators, Sample, prepare
from harness.lab import OTHERS, Measure, Metric
from harness.machine import facts
from harness.process import cpu_s, rss_mb, wait_for_quiet
from harness.report import Outcome, as_data, as_text, environment_text
from harness.wire import Connection
from kazoo.client import KazooClient

from hightide.testing import Cluster

HIGHTIDE = "hightide"
BROKERS = (1, 2, 3)
SPREAD = [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2), (2, 1, 3), (3, 2, 1)]
"""Six partitions, each broker leads two of them."""
MANY = 1000
SESSION_MS = 3000
PATIENCE_S = 60.0
KB = 1024
MB, GB = 1_000_000, 1_000_000_000
TOUCHED_MB = 1000
# What is deleted shall be gone before it is written to the disk.
SETTINGS = {
    "log.segment.delete.delay.ms": 100,
    "zookeeper.session.timeout.ms": SESSION_MS,
    "auto.create.topics.enable": False,
    "leader.imbalance.check.interval.seconds": 1,
}


@dataclass(frozen=True, slots=True)
class Bench:
    """How much to do, and with what."""

    generators: Generators
    folder: Path
    seconds: float
    warm_up_s: float
    quiet_s: float
    autogroup_nice: int | None


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    metrics: tuple[Metric, ...]
    open: Callable[[Bench], AbstractContextManager[Measure]]
    most_rounds: int | None = None


class Subject:
    """Three brokers, as the generators and the questions of a bench see them."""

    def __init__(self, bench: Bench, cluster: Cluster) -> None:
        self.bench = bench
        self.cluster = cluster
        self.port = cluster.port(1)
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    @property
    def pids(self) -> list[int]:
        return [self.cluster.pid(each) for each in BROKERS if self.cluster.is_running(each)]

    def favour(self) -> None:
        """Every broker is in a session, and so in a scheduling group, of its own."""
        if self.bench.autogroup_nice is not None:
            for pid in self.pids:
                Path(f"/proc/{pid}/autogroup").write_text(str(self.bench.autogroup_nice))

    def create(self, topic: str, assignment: Sequence[Sequence[int]]) -> None:
        wanted = NewTopic(topic, len(assignment), replica_assignment=[list(r) for r in assignment])
        for future in self._admin.create_topics([wanted], request_timeout=PATIENCE_S).values():
            future.result()
        self.wait_until_led(topic, len(assignment))

    def delete(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic], request_timeout=PATIENCE_S).values():
            future.result()

    @contextmanager
    def topic(self, name: str, assignment: Sequence[Sequence[int]]) -> Iterator[None]:
        self.create(name, assignment)
        try:
            yield
        finally:
            self.delete(name)

    def wait_until_led(self, topic: str, partitions: int, by: Sequence[int] = BROKERS) -> None:
        """Until all of these brokers know a leader for each partition."""
        give_up_at = time.monotonic() + PATIENCE_S
        for broker_id in by:
            while True:
                with Connection(self.cluster.port(broker_id)) as connection:
                    if connection.led_partitions(topic) >= partitions:
                        break
                if time.monotonic() > give_up_at:
                    raise BrokerFailure(f"broker {broker_id} knows no leaders of {topic}")
                time.sleep(0.002)

    def wait_until_preferred(self) -> None:
        """Until everybody leads again what he is the first replica of."""
        give_up_at = time.monotonic() + PATIENCE_S
        for broker_id in BROKERS:
            with Connection(self.cluster.port(broker_id)) as connection:
                while any(connection.leaders(f"led-by-{each}") != {0: each} for each in BROKERS):
                    if time.monotonic() > give_up_at:
                        raise BrokerFailure("a broker that came back does not lead again")
                    time.sleep(0.05)

    def load(self, leader: int, *arguments: str) -> Sample:
        """Run a generator that asks this broker first."""
        self.port = self.cluster.port(leader)
        bench = self.bench
        times = ("--seconds", str(bench.seconds), "--warm-up-seconds", str(bench.warm_up_s))
        return bench.generators.run(self, [*arguments, *times])


@contextmanager
def running(bench: Bench) -> Iterator[Subject]:
    with tempfile.TemporaryDirectory(prefix="cluster-", dir=bench.folder) as folder:
        cluster = Cluster(len(BROKERS), settings=SETTINGS, data=folder)
        cluster.start()
        subject = Subject(bench, cluster)
        try:
            subject.favour()
            yield subject
        finally:
            # In order would be slower, and write what is about to be removed.
            for broker_id in BROKERS:
                if cluster.is_running(broker_id):
                    cluster.kill(broker_id)
            cluster.stop()


# ---- throughput --------------------------------------------------------------------------------


@contextmanager
def open_throughput(bench: Bench) -> Iterator[Measure]:
    with running(bench) as subject:
        yield lambda: throughput_round(subject)


def throughput_round(subject: Subject) -> Sample:
    sample: Sample = {}
    produced(subject, sample, "one", [(1,)] * 6, "1")
    produced(subject, sample, "all", SPREAD, "all")
    produced(subject, sample, "idempotent", SPREAD, "all", "--idempotence", "true")
    produced(subject, sample, "alone", [(1,)] * 6, "all", "--idempotence", "true")
    sample["ratio"] = sample["all_mb"] / sample["one_mb"]
    sample["idempotent_ratio"] = sample["idempotent_mb"] / sample["all_mb"]
    return sample


def produced(
    subject: Subject,
    sample: Sample,
    key: str,
    assignment: Sequence[Sequence[int]],
    acks: str,
    *more: str,
) -> None:
    shape = ("--message-bytes", str(KB), "--batch-bytes", str(64 * KB), "--partitions", "6")
    with subject.topic(key, assignment):
        touch_memory(subject.bench.folder)
        wait_for_quiet(subject.bench.quiet_s)
        load = ("rdkafka", "produce", "--topic", key, "--acks", acks, *shape, *more)
        found = subject.load(1, *load)
    gigabytes = found["bytes"] / GB
    sample[f"{key}_mb"] = found["bytes"] / MB / found["seconds"]
    sample[f"{key}_broker"] = found["broker_cpu_s"] / gigabytes
    sample[f"{key}_client"] = found["client_cpu_s"] / gigabytes
    sample["other_cores"] = max(sample.get("other_cores", 0.0), found["other_cores"])


def touch_memory(folder: Path) -> None:
    """Have pages at hand that the logs can grow into.

    A virtual machine may get memory from its host only when it is first touched, and give it back
    when it is free for a while: then a page costs ten times as much as on a real machine.
    """
    data = bytes(MB)
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(TOUCHED_MB):
            file.write(data)


# ---- requests ----------------------------------------------------------------------------------


@contextmanager
def open_requests(bench: Bench) -> Iterator[Measure]:
    with running(bench) as subject, subject.topic("t", [BROKERS]):
        yield lambda: requests_round(subject)


def requests_round(subject: Subject) -> Sample:
    sample: Sample = {}
    for acks, name in (("1", "one"), ("-1", "all")):
        for key, more in (
            ("paced", ("--rate", "500")),
            ("single", ("--in-flight", "1")),
            ("pipelined", ("--in-flight", "16")),
        ):
            wait_for_quiet(subject.bench.quiet_s)
            found = subject.load(1, "raw", "produce", "--topic", "t", "--acks", acks, *more)
            requests = found["requests"]
            sample[f"{name}_{key}"] = requests / found["seconds"]
            sample[f"{name}_{key}_ms"] = found["p50_us"] / 1000
            sample[f"{name}_{key}_p99_ms"] = found["p99_us"] / 1000
            sample[f"{name}_{key}_cpu"] = found["broker_cpu_s"] / requests * 1e6
            sample["other_cores"] = max(sample.get("other_cores", 0.0), found["other_cores"])
    sample["added_ms"] = sample["all_paced_ms"] - sample["one_paced_ms"]
    sample["pipelining"] = sample["all_pipelined"] / sample["all_single"]
    return sample


# ---- failover ----------------------------------------------------------------------------------


@contextmanager
def watching(subject: Subject, broker_id: int) -> Iterator[Callable[[], float]]:
    """A function that waits until the cluster takes the broker for dead, and tells when it was."""
    client = KazooClient(subject.cluster.coordinator)
    client.start(PATIENCE_S)
    gone_at: list[float] = []
    is_gone = threading.Event()

    def look(_event: object) -> None:
        gone_at.append(time.monotonic())
        is_gone.set()

    def wait() -> float:
        if not is_gone.wait(PATIENCE_S):
            raise BrokerFailure(f"broker {broker_id} is not missed")
        return gone_at[0]

    try:
        if client.exists(f"/brokers/ids/{broker_id}", watch=look) is None:
            raise BrokerFailure(f"broker {broker_id} is not registered")
        yield wait
    finally:
        client.stop()
        client.close()


def fail_over(subject: Subject, topic: str, partitions: int, victim: int) -> Sample:
    """Kill the leader of all partitions; seconds until both others know others for all."""
    others = [each for each in BROKERS if each != victim]
    with watching(subject, victim) as missed:
        killed_at = time.monotonic()
        subject.cluster.kill(victim)
        missed_at = missed()
        for broker_id in others:
            with Connection(subject.cluster.port(broker_id)) as connection:
                wait_for_leaders(connection, topic, partitions, victim)
        known_at = time.monotonic()
    return {
        "beyond_s": known_at - killed_at - SESSION_MS / 1000,
        "after_s": known_at - missed_at,
    }


def wait_for_leaders(connection: Connection, topic: str, partitions: int, victim: int) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        leaders = connection.leaders(topic)
        if len(leaders) == partitions and not {-1, victim} & set(leaders.values()):
            return
        if time.monotonic() > give_up_at:
            raise BrokerFailure(f"{topic} has not got other leaders")
        time.sleep(0.002)


@contextmanager
def open_failover(bench: Bench) -> Iterator[Measure]:
    with running(bench) as subject:
        for broker_id in BROKERS:
            others = [each for each in BROKERS if each != broker_id]
            subject.create(f"led-by-{broker_id}", [(broker_id, *others)])

        def kill(victim: int) -> Sample:
            sample = fail_over(subject, f"led-by-{victim}", 1, victim)
            subject.cluster.restart(victim)
            subject.favour()
            subject.wait_until_preferred()
            return sample

        def measure() -> Sample:
            controller = subject.cluster.controller()
            sample = kill(next(each for each in BROKERS if each != controller))
            sample["controller_beyond_s"] = kill(controller)["beyond_s"]
            return sample

        yield measure


# ---- many partitions ---------------------------------------------------------------------------


@contextmanager
def open_partitions(bench: Bench) -> Iterator[Measure]:
    def measure() -> Sample:
        with running(bench) as subject:
            return partitions_round(subject)

    yield measure


def partitions_round(subject: Subject) -> Sample:
    pids = subject.pids
    empty_mb = rss_mb(pids) / len(pids)
    used_s, began = cpu_s(pids), time.monotonic()
    # Led by one broker all of them: it is the failover of that one that is measured.
    subject.create("many", [(1, 2, 3), (1, 3, 2)] * (MANY // 2))
    sample: Sample = {
        "created_s": time.monotonic() - began,
        "created_cpu_s": cpu_s(pids) - used_s,
        "each_mb": rss_mb(pids) / len(pids) - empty_mb,
    }
    time.sleep(3.0)
    used_s, began = cpu_s(pids), time.monotonic()
    time.sleep(5.0)
    sample["idle_percent"] = 100 * (cpu_s(pids) - used_s) / (time.monotonic() - began)
    found = subject.load(1, "raw", "produce", "--topic", "many", "--acks", "-1")
    sample["busy_ms"] = found["p50_us"] / 1000
    sample |= fail_over(subject, "many", MANY, 1)
    return sample


# ---- the command -------------------------------------------------------------------------------

WORKLOADS = (
    Workload(
        "throughput",
        "librdkafka produces 1 KB messages in 64 KB batches to 6 partitions",
        (
            Metric("one_mb", "acks=1, one broker, MB/s", more_is_better=True),
            Metric("all_mb", "acks=all, three replicas, MB/s", more_is_better=True),
            Metric("ratio", "the second over the first", 2, more_is_better=True, goal=0.35),
            Metric("one_broker", "broker CPU, acks=1, s/GB", 2),
            Metric("all_broker", "brokers' CPU, acks=all, s/GB", 2),
            Metric("one_client", "client CPU, acks=1, s/GB", 2),
            Metric("all_client", "client CPU, acks=all, s/GB", 2),
            Metric("idempotent_mb", "idempotent, three replicas, MB/s", more_is_better=True),
            Metric("idempotent_ratio", "over acks=all", 2, more_is_better=True),
            Metric("idempotent_client", "client CPU, idempotent, s/GB", 2),
            Metric("idempotent_broker", "brokers' CPU, idempotent, s/GB", 2),
            Metric("alone_mb", "idempotent, one broker, MB/s", more_is_better=True),
            OTHERS,
        ),
        open_throughput,
    ),
    Workload(
        "requests",
        "raw: one record of 100 B in a request, one partition of three replicas",
        (
            Metric("one_paced_ms", "500 a second, acks=1, p50, ms", 2),
            Metric("all_paced_ms", "500 a second, acks=all, p50, ms", 2),
            Metric("added_ms", "added by acks=all, ms", 2, goal=2.0),
            Metric("all_paced_p99_ms", "500 a second, acks=all, p99, ms", 2),
            Metric("one_single", "1 in flight, acks=1, requests/s", more_is_better=True),
            Metric("all_single", "1 in flight, acks=all, requests/s", more_is_better=True),
            Metric("one_pipelined", "16 in flight, acks=1, requests/s", more_is_better=True),
            Metric("all_pipelined", "16 in flight, acks=all, requests/s", more_is_better=True),
            Metric("pipelining", "16 in flight over 1", 1, more_is_better=True, goal=4.0),
            Metric("all_single_cpu", "brokers' CPU, 1 in flight, acks=all, µs", 0),
            Metric("all_pipelined_cpu", "brokers' CPU, 16 in flight, acks=all, µs", 0),
            OTHERS,
        ),
        open_requests,
    ),
    Workload(
        "failover",
        f"kill -9 of a leader until all know another; the session is {SESSION_MS / 1000:g} s",
        (
            Metric("beyond_s", "beyond the session, s", 2, goal=1.0),
            Metric("after_s", "after the session's end, s", 2),
            Metric("controller_beyond_s", "beyond it, of the controller, s", 2, goal=1.0),
        ),
        open_failover,
        most_rounds=3,
    ),
    Workload(
        "partitions",
        f"{MANY:,} partitions of three replicas, led by one broker",
        (
            Metric("created_s", "creation of the topic, s", 2),
            Metric("created_cpu_s", "brokers' CPU for it, s", 2),
            Metric("each_mb", "added to each broker's RSS, MB", 1),
            Metric("idle_percent", "CPU of three idle brokers, % of a core", 1),
            Metric("busy_ms", "acks=all to one of them, p50, ms", 2),
            Metric("after_s", "all leaders replaced after detection, s", 2, goal=1.0),
        ),
        open_partitions,
        most_rounds=3,
    ),
)


def measure(bench: Bench, workload: Workload, rounds: int) -> Outcome:
    outcome = Outcome(workload, {HIGHTIDE: []})
    with outcome.attempt(HIGHTIDE), workload.open(bench) as one_round:
        for _ in range(min(rounds, workload.most_rounds or rounds)):
            outcome.rounds[HIGHTIDE].append(one_round())
    return outcome


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="PATTERN", help="workloads by name")
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=0.6, help="length of a turn")
    add("--warm-up", type=float, default=0.3, help="seconds before it that do not count")
    add("--data", type=Path, default=Path(tempfile.gettempdir()), help="where brokers write")
    add("--json", type=Path, help="write all figures to this file")
    add("--quiet", type=float, default=0.0, help="wait up to so many seconds for a calm machine")
    add("--autogroup-nice", type=int, help="nice value of brokers and clients (root)")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    generators = prepare()
    about = facts(options.data) | {"librdkafka client": generators.rdkafka_is}
    print(environment_text(about, generators.notes), flush=True)
    if options.autogroup_nice is not None:
        Path("/proc/self/autogroup").write_text(str(options.autogroup_nice))
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.data) as folder:
        bench = Bench(
            generators,
            Path(folder),
            options.seconds,
            options.warm_up,
            options.quiet,
            options.autogroup_nice,
        )
        for workload in WORKLOADS:
            if options.only and not any(fnmatch(workload.name, one) for one in options.only):
                continue
            outcomes.append(measure(bench, workload, options.rounds))
            print("\n" + as_text(outcomes[-1], HIGHTIDE), flush=True)
    if options.json:
        result: dict[str, Any] = {
            "environment": about | {"notes": generators.notes},
            "workloads": [as_data(outcome, HIGHTIDE) for outcome in outcomes],
        }
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if any(outcome.failures for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
