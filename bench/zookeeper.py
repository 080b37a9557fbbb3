"""Measure the embedded ZooKeeper beside Apache ZooKeeper, single and as an ensemble, in turns.

    python -m bench.zookeeper                        everything
    python -m bench.zookeeper --only latency --rounds 10

Latencies are those of a kazoo client; about a third of a millisecond of each is kazoo. The
controller's workloads use the broker's client. Every server writes to disk before it acknowledges.
Apache ZooKeeper is left out if it is not installed.
"""

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import quantiles
from typing import Any

from kazoo.client import KazooClient

from bench.harness.generator import Sample
from bench.harness.lab import Measure, Metric
from bench.harness.machine import facts
from bench.harness.process import settled_rss_mb
from bench.harness.report import Outcome, as_text, environment_text
from hightide.zookeeper import znodes
from hightide.zookeeper.client import ZooKeeperClient
from hightide.zookeeper.operation import Create
from tests.zookeeper import jute, servers

TOPICS = 5000
PIPELINED = 1000
BATCH = 100
PATIENCE_S = 60.0
# A usual production setting; the flags of the tests are for servers that run for seconds.
JVM = ("-Xmx512m",)


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    make: Callable[[Path], Any]


CANDIDATES = (
    Candidate("hightide", servers.Embedded),
    Candidate("zookeeper", lambda folder: servers.ZooKeeper(folder, jvm=JVM)),
    Candidate("ensemble", lambda folder: servers.Ensemble(folder, jvm=JVM)),
)


@dataclass(frozen=True, slots=True)
class Bench:
    """The number of operations, and the directory of the servers."""

    folder: Path
    operations: int


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    metrics: tuple[Metric, ...]
    open: Callable[[Bench, Candidate], Any]
    most_rounds: int | None = None


@contextmanager
def running(bench: Bench, candidate: Candidate) -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix=f"{candidate.name}-", dir=bench.folder) as folder:
        server = candidate.make(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def kazoo(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts, timeout=30)
    client.start(PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


# Latency: one request after the other.


@contextmanager
def open_latency(bench: Bench, candidate: Candidate) -> Iterator[Measure]:
    with (
        running(bench, candidate) as server,
        kazoo(server.hosts) as client,
        kazoo(server.hosts) as other,
    ):
        client.create("/node", b"x" * 100)
        client.create("/fence", b"1")
        for name in ("created", "gone"):
            client.create(f"/{name}")
        other.sync("/")
        yield lambda: latency_round(bench.operations, client, other)


def latency_round(count: int, client: KazooClient, other: KazooClient) -> Sample:
    def multi() -> None:
        request = client.transaction()
        request.check("/fence", 0)
        request.set_data("/node", b"y" * 100)
        request.commit()

    fired = threading.Event()

    def watch() -> None:
        fired.clear()
        other.get("/node", lambda _: fired.set())

    def set_and_wait() -> None:
        client.set_async("/node", b"z" * 100)
        assert fired.wait(PATIENCE_S)

    sample: Sample = {}
    sample |= spread("get", count, lambda: client.get("/node"))
    sample |= spread("set", count, lambda: client.set("/node", b"y" * 100))
    sample |= spread("create", count, lambda: client.create("/created/n-", b"x", sequence=True))
    sample |= spread(
        "ephemeral", count, lambda: client.create("/gone/n-", b"x", ephemeral=True, sequence=True)
    )
    sample |= spread("multi", count, multi)
    sample |= spread("watch", count, set_and_wait, before=watch)
    began = time.perf_counter()
    for reply in [client.set_async("/node", b"y" * 100) for _ in range(PIPELINED)]:
        reply.get(timeout=PATIENCE_S)
    sample["pipelined"] = (time.perf_counter() - began) * 1000
    return sample


def spread(
    name: str, count: int, act: Callable[[], Any], before: Callable[[], Any] | None = None
) -> Sample:
    """Return the 50th and 99th percentile of the calls, in milliseconds."""
    durations = []
    for _ in range(count):
        if before is not None:
            before()
        began = time.perf_counter()
        act()
        durations.append((time.perf_counter() - began) * 1000)
    cuts = quantiles(durations, n=100)
    return {f"{name}_p50": cuts[49], f"{name}_p99": cuts[98]}


# Workloads of a controller, through the broker's client.


@contextmanager
def open_topics(bench: Bench, candidate: Candidate) -> Iterator[Measure]:
    with running(bench, candidate) as server:
        idle_mb = settled_rss_mb(server.pids())
        created_s = asyncio.run(create_topics(server.hosts))
        full_mb = settled_rss_mb(server.pids())

        def measure() -> Sample:
            figures = asyncio.run(load_topics(server.hosts))
            began = time.perf_counter()
            server.restart()
            greet(server.hosts)
            figures["restart"] = time.perf_counter() - began
            return figures | {"idle_mb": idle_mb, "full_mb": full_mb, "created": created_s}

        yield measure


async def create_topics(hosts: str) -> float:
    """Create topics of one partition, four znodes each, in Kafka's layout."""
    client = await ZooKeeperClient.connect(hosts)
    try:
        for path in ("/brokers", "/brokers/topics"):
            await client.create(path)
        state = znodes.PartitionState(1, 0, (1, 2, 3), 1).encode()
        assignment = znodes.TopicAssignment(None, {0: (1, 2, 3)}).encode()
        began = time.perf_counter()
        batches = []
        for first in range(0, TOPICS, BATCH):
            operations = []
            for number in range(first, first + BATCH):
                name = f"topic-{number}"
                operations += [
                    Create(znodes.topic_path(name), assignment),
                    Create(znodes.partitions_path(name), b""),
                    Create(znodes.partition_path(name, 0), b""),
                    Create(znodes.partition_state_path(name, 0), state),
                ]
            batches.append(client.multi(operations))
        await asyncio.gather(*batches)
        return time.perf_counter() - began
    finally:
        await client.close()


async def load_topics(hosts: str) -> Sample:
    """Do what a new controller does: list the topics, and read every partition's state."""
    client = await ZooKeeperClient.connect(hosts)
    try:
        began = time.perf_counter()
        names = await client.children("/brokers/topics")
        paths = [znodes.partition_state_path(name, 0) for name in names]
        found = await asyncio.gather(*(client.get(path) for path in paths))
        for path, (data, _) in zip(paths, found, strict=True):
            znodes.PartitionState.decode(data, path)
        loaded_s = time.perf_counter() - began
        assert len(names) == TOPICS
        began = time.perf_counter()
        data, _ = found[0]
        await asyncio.gather(*(client.set(path, data) for path in paths[:PIPELINED]))
        return {"load": loaded_s, "sets": (time.perf_counter() - began) * 1000}
    finally:
        await client.close()


# Start.


def greet(hosts: str) -> None:
    """Open a session with the first server, which proves that it serves."""
    jute.Wire(hosts.partition(",")[0]).close()


@contextmanager
def open_start(bench: Bench, candidate: Candidate) -> Iterator[Measure]:
    def measure() -> Sample:
        with tempfile.TemporaryDirectory(prefix=f"{candidate.name}-", dir=bench.folder) as folder:
            server = candidate.make(Path(folder))
            began = time.perf_counter()
            try:
                server.start()
                greet(server.hosts)
                return {"start": time.perf_counter() - began}
            finally:
                server.kill()

    yield measure


OPERATIONS = {
    "get": "get",
    "set": "set",
    "create": "create, sequential",
    "ephemeral": "create, ephemeral",
    "multi": "multi of check and set",
    "watch": "set to the watch event of another client",
}

WORKLOADS = (
    Workload(
        "start",
        "from the start of the process to the first session, with an empty directory",
        (Metric("start", "s", 2, goal=0.5),),
        open_start,
    ),
    Workload(
        "latency",
        "one request after the other through kazoo",
        (
            *(
                Metric(f"{key}_{cut}", f"{title}, {cut}, ms", 2)
                for key, title in OPERATIONS.items()
                for cut in ("p50", "p99")
            ),
            Metric("pipelined", f"{PIPELINED:,} pipelined sets, ms"),
        ),
        open_latency,
    ),
    Workload(
        "topics",
        f"{TOPICS:,} topics, {4 * TOPICS:,} znodes, through the broker's client",
        (
            Metric("load", "load all partition states, s", 2, goal=2.0),
            Metric("sets", f"{PIPELINED:,} pipelined sets, ms"),
            Metric("created", f"create them, {BATCH} topics in a multi, s", 2),
            Metric("restart", "stop, and start to the first session, s", 2),
            Metric("idle_mb", "RSS without znodes, MB", 1, goal=40.0),
            Metric("full_mb", "RSS with all znodes, MB", 1),
        ),
        open_topics,
        most_rounds=5,
    ),
)


def measure(bench: Bench, workload: Workload, candidates: list[Candidate], rounds: int) -> Outcome:
    """Run all rounds of one workload, in alternating order."""
    outcome = Outcome(workload, {one.name: [] for one in candidates})
    with ExitStack() as stack:
        measures = {one.name: stack.enter_context(workload.open(bench, one)) for one in candidates}
        for number in range(min(rounds, workload.most_rounds or rounds)):
            for name in list(measures) if number % 2 == 0 else reversed(measures):
                outcome.rounds[name].append(measures[name]())
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="PATTERN", help="workloads by name")
    add("--rounds", type=int, default=7)
    add("--operations", type=int, default=200, help="of each kind in a round")
    add("--data", type=Path, default=Path(tempfile.gettempdir()), help="where the servers write")
    options = parser.parse_args()
    candidates = list(CANDIDATES)
    notes = []
    if reason := servers.missing():
        candidates, notes = candidates[:1], [reason]
    print(environment_text(facts(options.data), notes), flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.data) as folder:
        bench = Bench(Path(folder), options.operations)
        for workload in WORKLOADS:
            if options.only and not any(fnmatch(workload.name, one) for one in options.only):
                continue
            outcome = measure(bench, workload, candidates, options.rounds)
            print("\n" + as_text(outcome, "hightide"), flush=True)


if __name__ == "__main__":
    main()
