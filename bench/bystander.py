"""Measure how long a bystander waits while another client abuses a broker with legal requests.

    python -m bench.bystander                             five seconds for each abuse
    python -m bench.bystander --only 'fetch-*' --rounds 3
    python -m bench.bystander --no-kafka                  without Apache Kafka

The bystander is a separate process. It sends a Produce request of one record and a Metadata request
every 5 ms, each on its own connection, and takes the time from sending a request until its response
is there. Requests that are due during a wait count as sent then. Another process sleeps 1 ms at a
time: its worst oversleep is what the machine itself adds. One broker runs at a time. The abuses are
in bench/abuses.py.
"""

import argparse
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from math import ceil
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from bench import abuses
from bench.abuses import ABUSES, BASELINE, Abuse
from bench.document import columns
from bench.harness.broker import BrokerFailure, Candidate
from bench.harness.candidates import ApacheKafka, Hightide
from bench.harness.cluster import Cluster, cluster
from bench.harness.families import ABUSED
from bench.harness.generator import Sample
from bench.harness.lab import Metric
from bench.harness.machine import facts
from bench.harness.maven import NoMaven
from bench.harness.process import cpu_s, forget_peak_rss, peak_rss_mb, rss_mb
from bench.harness.report import Outcome, as_data, environment_text
from bench.harness.results import Measured
from bench.harness.wire import Connection, WireFailure, one_record
from bench.run import RESULTS, raise_file_limit, write

TOPIC = "bystander"
READY = "ready"
INTERVAL_S, NAP_S = 0.005, 0.001
PATIENCE_S = 120.0
# A broker that uses less than a tenth of a core has finished the work of the abuse before.
IDLE_CORES, IDLE_WITHIN_S = 0.1, 60.0
FIND_COORDINATOR = 10
METRICS = (
    Metric("produce_worst_ms", "Produce, worst, ms", 1),
    Metric("produce_p99_ms", "Produce, p99, ms", 1),
    Metric("metadata_worst_ms", "Metadata, worst, ms", 1),
    Metric("metadata_p99_ms", "Metadata, p99, ms", 1),
    Metric("oversleep_ms", "worst oversleep, ms", 1),
    Metric("rss_growth_mb", "peak RSS growth, MB", 0),
    Metric("answered", "requests answered", 0),
    Metric("refused", "connections closed by the broker", 0),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """An abuse as a report shows it."""

    name: str
    title: str
    metrics: tuple[Metric, ...] = METRICS


# ---- the processes beside the broker ------------------------------------------------------------


def ask_regularly(question: Callable[[], object], is_over: threading.Event) -> list[float]:
    """Return how long each response took, in seconds, with one request in flight at a time."""
    waits = []
    due = time.perf_counter()
    while not is_over.is_set():
        time.sleep(max(0.0, due - time.perf_counter()))
        began = time.perf_counter()
        question()
        done = time.perf_counter()
        missed = missed_waits(due + INTERVAL_S, done)
        waits += [done - began, *missed]
        due += INTERVAL_S * (1 + len(missed))
    return waits


def missed_waits(due: float, done: float) -> list[float]:
    """Return the waits of the requests that were due before the one in flight was done.

    They are not sent. Without them, a long stall would count as one wait among many short ones.
    Sending them late would add up to a queue of the bystander, longer than any wait of a request.
    """
    return [done - due - at * INTERVAL_S for at in range(ceil((done - due) / INTERVAL_S))]


def stand_by(port: int, pipe: Pipe) -> None:
    """Run as the bystander: begin at once, end at a message, and send all waits."""
    is_over = threading.Event()
    record = one_record()
    with (
        Connection(port, PATIENCE_S) as first,
        Connection(port, PATIENCE_S) as second,
        ThreadPoolExecutor(2) as pool,
    ):
        produce = pool.submit(ask_regularly, lambda: first.produce(TOPIC, 0, record), is_over)
        metadata = pool.submit(ask_regularly, lambda: second.leaders(TOPIC), is_over)
        pipe.send(READY)
        pipe.recv()
        is_over.set()
        try:
            pipe.send({"produce": produce.result(), "metadata": metadata.result()})
        except (WireFailure, OSError) as reason:
            pipe.send(f"the bystander: {reason or type(reason).__name__}")


def nap(port: int, pipe: Pipe) -> None:
    """Run as the sleeper: send by how much each sleep was too long."""
    over = []
    pipe.send(READY)
    while not pipe.poll():
        began = time.perf_counter()
        time.sleep(NAP_S)
        over.append(time.perf_counter() - began - NAP_S)
    pipe.send({"oversleep": over})


def received(pipe: Pipe) -> Any:
    """Return the next message of a process; raise BrokerFailure if there is none, or a reason."""
    if not pipe.poll(PATIENCE_S):
        raise BrokerFailure(f"the bystander had no response for {PATIENCE_S:.0f} s")
    try:
        message = pipe.recv()
    except EOFError:
        raise BrokerFailure("the bystander ended early") from None
    if isinstance(message, str) and message != READY:
        raise BrokerFailure(message)
    return message


@contextmanager
def watching(port: int) -> Iterator[list[Pipe]]:
    """Start both processes. They are new ones, so that they share no GIL with the abuser."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    with ExitStack() as stack:
        for role in (stand_by, nap):
            pipe, other = context.Pipe()
            process = context.Process(target=role, args=(port, other), daemon=True)
            process.start()
            other.close()
            stack.callback(process.join)
            stack.callback(process.kill)
            pipes.append(pipe)
        for pipe in pipes:
            received(pipe)
        yield pipes


def end(pipes: Sequence[Pipe]) -> dict[str, list[float]]:
    """End both processes; return all waits and oversleeps in seconds."""
    for pipe in pipes:
        pipe.send("end")
    return {name: values for pipe in pipes for name, values in received(pipe).items()}


# ---- one measurement ----------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def summary(found: dict[str, list[float]]) -> Sample:
    """Return the worst wait and the 99th percentile, in milliseconds."""
    sample = {"oversleep_ms": 1000 * max(found["oversleep"])}
    for kind in ("produce", "metadata"):
        sample[f"{kind}_worst_ms"] = 1000 * max(found[kind])
        sample[f"{kind}_p99_ms"] = 1000 * percentile(found[kind], 0.99)
        sample[f"{kind}_count"] = len(found[kind])
    return sample


def wait_until_idle(pids: Sequence[int]) -> None:
    give_up_at = time.monotonic() + IDLE_WITHIN_S
    while time.monotonic() < give_up_at:
        used, began = cpu_s(pids), time.monotonic()
        time.sleep(0.3)
        if (cpu_s(pids) - used) / (time.monotonic() - began) < IDLE_CORES:
            return


def measure(target: Cluster, abuse: Abuse, data: bytes, seconds: float) -> Sample:
    pids = target.pids
    wait_until_idle(pids)
    forget_peak_rss(pids)
    before = rss_mb(pids)
    with watching(target.port) as pipes:
        counts = abuse.send(target.port, data, seconds)
        sample = summary(end(pipes)) | counts
    return sample | {"rss_growth_mb": max(0.0, peak_rss_mb(pids) - before)}


# ---- the broker under test ----------------------------------------------------------------------


def set_up(target: Cluster, tiny: bytes) -> None:
    """Create the topics, write the large batches, and wait until coordinators respond."""
    target.create_topic(TOPIC, 1)
    target.create_topic(abuses.TINY, abuses.TINY_PARTITIONS)
    target.create_topic(abuses.KNOWN, abuses.KNOWN_PARTITIONS)
    target.create_topic(abuses.COMPACTED, 1, settings={"cleanup.policy": "compact"})
    gzip = {"compression.type": "gzip"}
    target.create_topic(abuses.GZIPPED_TOO_LARGE, 1, settings=gzip)
    target.create_topic(abuses.GZIPPED, 1, settings=gzip | {"max.message.bytes": "10000000"})
    abuses.store(target.port, abuses.TINY, tiny, range(abuses.TINY_PARTITIONS))
    abuses.store(target.port, abuses.KNOWN, one_record(), range(abuses.KNOWN_PARTITIONS))
    for kind in (b"\0", b"\1"):
        # FindCoordinator creates the inner topics of groups and of transactions.
        target.brokers[1].wait_until(partial(has_coordinator, kind=kind))


def has_coordinator(ask: Connection, kind: bytes) -> bool:
    answer = ask.ask(FIND_COORDINATOR, 1, b"\0\1g" + kind)
    answer.i32()
    return answer.i16() == 0


@dataclass(slots=True)
class Turn:
    """One broker's turn in a round: all abuses, one after the other, on one broker.

    A broker that failed in an abuse is replaced by a new one for the next abuse.
    """

    candidate: Candidate
    folder: Path
    tiny: bytes
    options: argparse.Namespace
    _stack: ExitStack = field(default_factory=ExitStack)
    _target: Cluster | None = None

    def target(self) -> Cluster:
        if self._target is None:
            made = self._stack.enter_context(cluster(self.candidate, self.folder))
            set_up(made, self.tiny)
            measure(made, BASELINE, b"", self.options.warm_up)
            self._target = made
        return self._target

    def measure(self, abuse: Abuse, data: bytes) -> Sample:
        try:
            return measure(self.target(), abuse, data, self.options.seconds)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        self._target = None
        self._stack.close()


def run(
    options: argparse.Namespace, candidates: Sequence[Candidate], folder: Path
) -> list[Outcome]:
    chosen = [BASELINE, *(one for one in ABUSES if fnmatch(one.name, options.only))]
    outcomes = {
        one.name: Outcome(
            Workload(f"bystander-{one.name}", one.title), {each.name: [] for each in candidates}
        )
        for one in chosen
    }
    data, tiny = {one.name: one.build() for one in chosen}, abuses.tiny_records()
    for number in range(options.rounds):
        for candidate in candidates if number % 2 == 0 else reversed(candidates):
            turn = Turn(candidate, folder, tiny, options)
            try:
                for abuse in chosen:
                    outcome = outcomes[abuse.name]
                    with outcome.attempt(candidate.name):
                        sample = turn.measure(abuse, data[abuse.name])
                        outcome.rounds[candidate.name].append(sample)
                        print(f"{candidate.name} {abuse.name}: {in_words(sample)}", flush=True)
            finally:
                turn.end()
    return list(outcomes.values())


# ---- the command --------------------------------------------------------------------------------


def in_words(sample: Sample) -> str:
    return ", ".join(f"{key} {value:,.1f}" for key, value in sample.items())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure how long a bystander waits while a client abuses the broker.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=1, help="turns of each broker")
    add("--seconds", type=float, default=5.0, help="length of each abuse")
    add("--warm-up", type=float, default=10.0, help="seconds of the bystander alone, not counted")
    add("--only", metavar="PATTERN", default="*", help="abuses by name, with wildcards")
    add("--against-kafka", dest="kafka", action="store_true", default=True, help="beside Kafka")
    add("--no-kafka", dest="kafka", action="store_false", help="do not measure Apache Kafka")
    add(
        "--json",
        type=Path,
        default=RESULTS / time.strftime("%Y-%m-%d-%H%M%S-bystander.json"),
        help="write everything, every round, to this file",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    candidates: list[Candidate] = [Hightide()]
    notes = []
    if options.kafka:
        try:
            candidates.append(ApacheKafka.from_maven())
        except NoMaven as reason:
            notes.append(f"{reason} The bystander is measured with Hightide alone.")
    raise_file_limit()
    # Brokers and their data are removed also when a run is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        about = facts(Path(folder)) | {one.name: one.about for one in candidates}
        print(environment_text(about, notes), flush=True)
        outcomes = run(options, candidates, Path(folder))
    result: dict[str, Any] = {
        "environment": about | {"notes": notes},
        "arguments": {"rounds": options.rounds, "seconds": options.seconds},
        "subject": "hightide",
        "workloads": [as_data(one, "hightide") for one in outcomes],
    }
    write(options.json, result)
    shown = [Measured.of(one) for one in result["workloads"]]
    print("", *columns(ABUSED, shown, [one.name for one in candidates]), "", sep="\n")
    for one in outcomes:
        for name, why in one.failures.items():
            print(f"{name} failed in {one.workload.title!r}: {why}")
    print(f"all rounds: {options.json}")


if __name__ == "__main__":
    main()
