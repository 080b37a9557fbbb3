"""Workloads about being there: start, memory at rest, many partitions, recovery after kill -9."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.broker import Broker, BrokerFailure, Candidate, running
from harness.generator import Sample
from harness.lab import PARTITIONS, TOPIC, Lab, Measure, Metric, Workload, afresh
from harness.process import cpu_s, rss_mb, settled_rss_mb
from harness.throughput import fill
from harness.wire import Connection

CONNECTIONS = 1000
MANY = "many"
MANY_PARTITIONS = 1000
RECOVERY_TIMEOUT_S = 600.0
GB = 1_000_000_000


@contextmanager
def _start(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
    def measure() -> Sample:
        with running(candidate, lab.directory) as broker:
            return {"first_answer_s": broker.start_s, "start_cpu_s": cpu_s(broker.pids)}

    # The first start reads files from disk and fills the byte-code cache; it does not count.
    measure()
    yield measure


# ---- memory at rest ---------------------------------------------------------------------------


@contextmanager
def _idle_connections(lab: Lab, broker: Broker, max_wait_ms: int, seconds: float) -> Iterator[None]:
    """A thousand consumers that wait for data that does not come, while the block runs."""
    command = lab.generators.command(
        [
            "raw",
            "idle",
            "--topic",
            TOPIC,
            "--partitions",
            str(PARTITIONS),
            "--connections",
            str(CONNECTIONS),
            "--max-wait-ms",
            str(max_wait_ms),
            "--seconds",
            str(seconds),
        ],
        broker,
    )
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


def _memory(lab: Lab, candidate: Candidate) -> Sample:
    with running(candidate, lab.directory) as broker:
        broker.ensure_topic(TOPIC, PARTITIONS)
        pids = broker.pids
        idle_mb = settled_rss_mb(pids)
        with _idle_connections(lab, broker, max_wait_ms=30_000, seconds=30):
            held_mb = settled_rss_mb(pids)
        with _idle_connections(lab, broker, max_wait_ms=500, seconds=30):
            time.sleep(1.0)
            used_s, began = cpu_s(pids), time.perf_counter()
            time.sleep(max(1.0, lab.seconds))
            share = (cpu_s(pids) - used_s) / (time.perf_counter() - began)
        return {
            "idle_mb": idle_mb,
            "connections_mb": held_mb - idle_mb,
            "poll_percent": 100 * share,
        }


# ---- many partitions --------------------------------------------------------------------------


def _restart(broker: Broker, topic: str, partitions: int, records: int) -> float:
    """Start on the data that is there; seconds until all of it is served again."""

    def is_served(ask: Connection) -> bool:
        if ask.led_partitions(topic) < partitions:
            return False
        kept = sum(ask.end_offsets(topic, partitions))
        if kept < records:
            raise BrokerFailure(f"lost {records - kept} of {records} acknowledged records")
        return True

    began = time.perf_counter()
    broker.start(RECOVERY_TIMEOUT_S)
    broker.wait_until(is_served, RECOVERY_TIMEOUT_S)
    return time.perf_counter() - began


def _partitions(lab: Lab, candidate: Candidate) -> Sample:
    with running(candidate, lab.directory) as broker:
        began = time.perf_counter()
        broker.ensure_topic(MANY, MANY_PARTITIONS, must_create=True)
        created_s = time.perf_counter() - began
        lab.generators.run(
            broker,
            [
                "raw",
                "produce",
                "--topic",
                MANY,
                "--partitions",
                str(MANY_PARTITIONS),
                "--in-flight",
                "16",
                "--requests",
                str(MANY_PARTITIONS),
            ],
        )
        full_mb = settled_rss_mb(broker.pids)
        broker.stop()
        restarted_s = _restart(broker, MANY, MANY_PARTITIONS, MANY_PARTITIONS)
        restarted_mb = settled_rss_mb(broker.pids)
    with running(candidate, lab.directory) as empty:
        empty_s, empty_mb = empty.start_s, settled_rss_mb(empty.pids)
    return {
        "created_s": created_s,
        "written_cost_mb": full_mb - empty_mb,
        "ready_s": restarted_s,
        "start_cost_s": restarted_s - empty_s,
        "start_cost_mb": restarted_mb - empty_mb,
    }


# ---- recovery ---------------------------------------------------------------------------------


def _forget_cached(directory: Path) -> None:
    """Write the data to disk and drop it from the page cache, as if the machine had rebooted."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _recovery(lab: Lab, candidate: Candidate) -> Sample:
    with running(candidate, lab.directory) as broker:
        broker.ensure_topic(TOPIC, PARTITIONS)
        records = fill(lab, broker, int(lab.recovery_gb * GB), record_bytes=1024)
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


WORKLOADS = (
    Workload(
        "start",
        "process start on an empty directory to the first answered ApiVersions",
        (
            Metric("first_answer_s", "first answer, s", 3, goal=0.4),
            Metric("start_cpu_s", "CPU until then, s", 3),
        ),
        _start,
    ),
    Workload(
        "memory",
        "RSS at rest, and with 1,000 connections in a long poll",
        (
            Metric("idle_mb", "idle RSS, MB", 1, goal=60),
            Metric("connections_mb", "1,000 connections add, MB", 1, goal=10),
            Metric("poll_percent", "CPU of 500 ms long polls, % of a core", 1),
        ),
        afresh(_memory),
        most_rounds=3,
    ),
    Workload(
        "partitions",
        "1,000 partitions with one record each, beside an empty broker",
        (
            Metric("start_cost_s", "added to the start, s", 2, goal=2),
            Metric("ready_s", "start until all are served, s", 2),
            Metric("start_cost_mb", "added to the RSS after the start, MB", 1, goal=30),
            Metric("written_cost_mb", "added to the RSS after creation and writes, MB", 1),
            Metric("created_s", "creation of the topic, s", 2),
        ),
        afresh(_partitions),
        most_rounds=3,
    ),
    Workload(
        "recovery",
        "start after kill -9 until all acknowledged records are served",
        (
            Metric("recovery_s", "recovery, s", 2, goal=5),
            Metric("first_answer_s", "first answer, s", 2),
            Metric("recovery_cpu_s", "CPU, s", 2),
            Metric("recovery_mb", "RSS after it, MB", 0),
        ),
        afresh(_recovery),
        most_rounds=1,
    ),
)
