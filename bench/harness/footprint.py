"""Workloads about the footprint: start, memory, many partitions, recovery after kill -9.

Every round has a new broker, alone on the machine: standing clusters of other workloads are stopped
first.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.harness.broker import Broker, BrokerFailure, Candidate
from bench.harness.cluster import Cluster, cluster, prepared
from bench.harness.generator import Sample
from bench.harness.lab import PARTITIONS, TOPIC, Lab, Measure, Metric, Opener, Workload
from bench.harness.page_cache import drop_from_cache
from bench.harness.process import cpu_s, forget_peak_rss, peak_rss_mb, rss_mb, settled_rss_mb
from bench.harness.throughput import fill
from bench.harness.wire import Connection, one_record

CONNECTIONS = 1000
LOAD_S = 5.0
MANY = "many"
MANY_PARTITIONS = 1000
RECOVERY_TIMEOUT_S = 600.0
GB = 1_000_000_000
# The time after the connections are open until their first polls are over.
CALM_S = 1.0


# ---- start ------------------------------------------------------------------------------------


def _start(lab: Lab, candidate: Candidate) -> Sample:
    """Query as a client does whose broker is down: again, a moment later."""
    batch = one_record()

    def is_created(ask: Connection) -> bool:
        ask.create_topic(TOPIC, 1)
        return True

    def is_acknowledged(ask: Connection) -> bool:
        ask.produce(TOPIC, 0, batch)
        return True

    with prepared(candidate, lab.directory) as made:
        broker = made.brokers[1]
        broker.start()
        broker.wait_until(is_created)
        broker.wait_until(is_acknowledged)
        return {
            "first_ack_s": time.perf_counter() - broker.began_at,
            "first_answer_s": broker.start_s,
            "start_cpu_s": cpu_s(broker.pids),
        }


# ---- memory -----------------------------------------------------------------------------------


@contextmanager
def _idle_connections(lab: Lab, made: Cluster, max_wait_ms: int) -> Iterator[None]:
    """A thousand consumers that wait for data, while the block runs."""
    how = ["raw", "idle", "--topic", TOPIC, "--partitions", str(PARTITIONS), "--seconds", "60"]
    how += ["--connections", str(CONNECTIONS), "--max-wait-ms", str(max_wait_ms)]
    command = lab.generators.command(how, made)
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "held":
            raise BrokerFailure(f"did not take {CONNECTIONS} connections")
        yield
        if holder.poll() is not None:
            raise BrokerFailure("dropped idle connections")
    finally:
        holder.kill()
        holder.wait()


def _poll_percent(lab: Lab, made: Cluster) -> float:
    """Return the cost of idle connections that poll twice a second, in percent of a core."""
    pids = made.pids
    with _idle_connections(lab, made, max_wait_ms=500):
        time.sleep(CALM_S)
        used_s, began = cpu_s(pids), time.perf_counter()
        time.sleep(max(1.0, lab.seconds))
        return 100 * (cpu_s(pids) - used_s) / (time.perf_counter() - began)


def _loaded_mb(lab: Lab, made: Cluster) -> float:
    """Return the peak while one client produces as fast as it can and another consumes."""
    words = ["--topic", TOPIC, "--partitions", str(PARTITIONS), "--seconds", str(LOAD_S)]
    forget_peak_rss(made.pids)
    with ThreadPoolExecutor(2) as pool:
        run = lab.generators.run
        jobs = [
            pool.submit(run, made, ["rdkafka", what, *words]) for what in ("produce", "consume")
        ]
        for job in jobs:
            job.result()
    return peak_rss_mb(made.pids)


def _memory(lab: Lab, candidate: Candidate) -> Sample:
    with cluster(candidate, lab.directory) as made:
        made.create_topic(TOPIC, PARTITIONS)
        idle_mb = settled_rss_mb(made.pids)
        with _idle_connections(lab, made, max_wait_ms=30_000):
            held_mb = settled_rss_mb(made.pids)
        return {
            "idle_mb": idle_mb,
            "connections_mb": held_mb - idle_mb,
            "poll_percent": _poll_percent(lab, made),
            # Measured last: a heap that has grown hides the cost of connections.
            "loaded_mb": _loaded_mb(lab, made),
        }


# ---- many partitions --------------------------------------------------------------------------


def _restart(broker: Broker, topic: str, partitions: int, records: int) -> float:
    """Start on existing data; return the seconds until all of it is served."""

    def is_served(ask: Connection) -> bool:
        if ask.led_partitions(topic) < partitions:
            return False
        kept = sum(ask.end_offsets(topic, partitions))
        if kept < records:
            raise BrokerFailure(f"lost {records - kept} of {records} acknowledged records")
        return True

    broker.start(RECOVERY_TIMEOUT_S)
    broker.wait_until(is_served, RECOVERY_TIMEOUT_S)
    return time.perf_counter() - broker.began_at


def _write_to_all(lab: Lab, made: Cluster) -> None:
    """Write a record to each of many partitions."""
    how = ["raw", "produce", "--topic", MANY, "--partitions", str(MANY_PARTITIONS)]
    how += ["--in-flight", "16", "--requests", str(MANY_PARTITIONS)]
    lab.generators.run(made, how)


def _partitions(lab: Lab, candidate: Candidate) -> Sample:
    with cluster(candidate, lab.directory) as made:
        broker = made.brokers[1]
        began = time.perf_counter()
        made.create_topic(MANY, MANY_PARTITIONS)
        created_s = time.perf_counter() - began
        _write_to_all(lab, made)
        full_mb = settled_rss_mb(broker.pids)
        broker.stop()
        restarted_s = _restart(broker, MANY, MANY_PARTITIONS, MANY_PARTITIONS)
        restarted_mb = settled_rss_mb(broker.pids)
    with prepared(candidate, lab.directory) as made:
        empty = made.brokers[1]
        empty.start()
        empty_mb = settled_rss_mb(empty.pids)
    return {
        "created_s": created_s,
        "written_cost_mb": full_mb - empty_mb,
        "ready_s": restarted_s,
        "start_cost_s": restarted_s - empty.start_s,
        "start_cost_mb": restarted_mb - empty_mb,
    }


# ---- recovery ---------------------------------------------------------------------------------


def _forget_cached(directory: Path) -> None:
    """Write the data to disk and drop it from the page cache, as if the machine had rebooted."""
    for path in directory.rglob("*"):
        if path.is_file():
            drop_from_cache(path)


def _recovery(lab: Lab, candidate: Candidate) -> Sample:
    with cluster(candidate, lab.directory) as made:
        broker = made.brokers[1]
        made.create_topic(TOPIC, PARTITIONS)
        fill(lab, made, int(lab.recovery_gb * GB), 1024, PARTITIONS)
        records = sum(made.end_offsets(TOPIC).values())
        broker.kill()
        if lab.recovery_cold:
            _forget_cached(broker.data)
        ready_s = _restart(broker, TOPIC, PARTITIONS, records)
        return {
            "recovery_s": ready_s,
            "first_answer_s": broker.start_s,
            "recovery_cpu_s": cpu_s(broker.pids),
            "recovery_mb": rss_mb(broker.pids),
        }


# ---- the list ---------------------------------------------------------------------------------


def _alone(measure: Callable[[Lab, Candidate], Sample], *, is_rehearsed: bool = False) -> Opener:
    """Return the opener of a workload whose brokers are alone on the machine.

    A rehearsal is a round that does not count: it reads files from disk and fills Python's cache
    of byte code.
    """

    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        lab.standing.close()
        if is_rehearsed:
            measure(lab, candidate)
        yield lambda: measure(lab, candidate)

    return open_


FRESH = (
    Workload(
        "start",
        "process start on an empty directory to the first acknowledged record",
        (
            Metric("first_ack_s", "first acknowledged record, s", 3, ratio_goal=0.2, ratio_aim=0.1),
            Metric("first_answer_s", "first answered ApiVersions, s", 3, goal=0.4),
            Metric("start_cpu_s", "CPU until the record, s", 3),
        ),
        _alone(_start, is_rehearsed=True),
    ),
    Workload(
        "memory",
        "RSS at rest, with 1,000 connections in a long poll, and under load for 5 s",
        (
            Metric("idle_mb", "idle RSS, MB", 1, goal=60, ratio_goal=0.2, ratio_aim=0.1),
            Metric("loaded_mb", "peak RSS of produce and consume at once, MB", 0),
            Metric("connections_mb", "1,000 connections add, MB", 1, goal=10),
            Metric("poll_percent", "CPU of 500 ms long polls, % of a core", 1),
        ),
        _alone(_memory),
        most_rounds=3,
    ),
    Workload(
        "partitions",
        "1,000 partitions with one record each, beside an empty broker",
        (
            Metric("written_cost_mb", "added to the RSS after creation and writes, MB", 1),
            Metric("start_cost_mb", "added to the RSS after a restart, MB", 1, goal=30),
            Metric("ready_s", "start until all are served, s", 2),
            Metric("start_cost_s", "added to the start, s", 2, goal=2),
            Metric("created_s", "creation of the topic, s", 2),
        ),
        _alone(_partitions),
        most_rounds=3,
    ),
    Workload(
        "recovery",
        "start after kill -9 until all acknowledged records are served",
        (
            Metric("recovery_s", "recovery, s", 2, goal=5),
            Metric("first_answer_s", "first answered ApiVersions, s", 2),
            Metric("recovery_cpu_s", "CPU, s", 2),
            Metric("recovery_mb", "RSS after it, MB", 0),
        ),
        _alone(_recovery),
        most_rounds=1,
        is_extra=True,
    ),
)
