"""Chaos: real clients and real brokers under faults that a seed chooses, for a given time.

    make chaos DURATION=120 SEED=7 ARGS="--zookeeper apache"

All clients write and read, with and without transactions, while faults come and go.  Then every
fault is healed, and the outcome is checked: the log must explain every response that clients got
(`history.py` and `transaction_history.py` in `tests/conformance`), all replicas must be in sync and
equal byte for byte, deleted topics must be gone, and no broker may have stopped or logged an error.
A seed chooses the faults, but not the timing of real processes: a seed that failed once need not
fail again.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.faults import NOT_NOW, Chaos, chosen
from tests.chaos.world import ZOOKEEPERS, World
from tests.conformance.transaction_load import TransactionLoad
from tests.conformance.workload import CarelessWriting, Load, installed
from tests.support.eventually import eventually

TOPIC = "chaos"
TRANSACTIONS = "chaos-transactions"
PARTITIONS = 3
CALM_S = 60.0
"""After a fault, every partition must accept writes within this time."""


class Report:
    """Prints what happens, with the time."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.counts: Counter[str] = Counter()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {text}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Chaos for a cluster of real processes.")
    parser.add_argument("--duration", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--zookeeper", choices=ZOOKEEPERS, default="embedded")
    parser.add_argument("--session-timeout-ms", type=int, default=2000)
    parser.add_argument(
        "--memory", action="store_true", help="brokers lose everything when they are killed"
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and data")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    logging.disable(logging.CRITICAL)  # clients log every broken connection
    warnings.simplefilter("ignore")
    seed = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="hightide-chaos-"))
    report = Report()
    report.say(f"seed {seed}, {arguments.duration:.0f} s, ZooKeeper: {arguments.zookeeper}")
    world = World(
        folder,
        arguments.brokers,
        arguments.zookeeper,
        arguments.session_timeout_ms,
        memory=arguments.memory,
    )
    try:
        world.start()
        run(world, random.Random(seed), arguments.duration, report)
    except Exception as failure:
        traceback.print_exc()
        report.say(f"FAILED: {failure}")
        print(f"\nEverything is kept in {folder}. Again: make chaos SEED={seed}", file=sys.stderr)
        return 1
    finally:
        world.stop()
    if arguments.keep:
        report.say(f"everything is kept in {folder}")
    else:
        shutil.rmtree(folder)
    return 0


def run(world: World, dice: random.Random, duration_s: float, report: Report) -> None:
    cluster = world.cluster
    cluster.create_topic(TOPIC, partitions=PARTITIONS)
    cluster.create_topic(TRANSACTIONS, partitions=PARTITIONS)
    clients = [*installed(), CarelessWriting.client]
    may_fail = [CarelessWriting.client]
    with (
        Load(cluster.bootstrap, TOPIC, PARTITIONS, clients=clients, may_fail=may_fail) as load,
        TransactionLoad(cluster, TRANSACTIONS, PARTITIONS) as transactions,
    ):
        chaos = Chaos(world, dice, TOPIC, PARTITIONS)
        patience_s, cluster.patience_s = cluster.patience_s, 3.0
        deadline_s = time.monotonic() + duration_s
        while time.monotonic() < deadline_s:
            harm(chaos, report)
            healed_s = time.monotonic()
            load.wait_for_acks(CALM_S)
            report.say(f"    all partitions take writes, {time.monotonic() - healed_s:.1f} s later")
            transactions.wait_for_commits(1, CALM_S)
            report.say(f"    transactions are committed, {time.monotonic() - healed_s:.1f} s later")
            if world.is_forgetful:
                cluster.heal(limit_s=120)
        report.say("healing")
        cluster.patience_s = patience_s
        cluster.heal(limit_s=120)
        eventually(lambda: not cluster.reassignments(), 60)
        cluster.heal()
        load.wait_for_acks(CALM_S)
    report.say("comparing")
    compare(chaos)
    tell(load, transactions, report)


def harm(chaos: Chaos, report: Report) -> None:
    """Inject some faults together, wait, and heal them."""
    faults, hold_s = chosen(chaos.random, is_forgetful=chaos.world.is_forgetful)
    open_faults: list[tuple[str, Iterator[str]]] = []
    for fault in faults:
        happening = fault(chaos)
        try:
            said = next(happening, None)
        except NOT_NOW as reason:
            report.say(f"could not {fault.__name__.replace('_', ' ')}: {reason}"[:150])
            continue
        if said is None:
            continue  # the fault does not apply now
        report.say(said)
        report.counts[fault.__name__.replace("_", " ")] += 1
        open_faults.append((fault.__name__, happening))
    time.sleep(hold_s)
    for _, happening in sorted(open_faults, key=lambda fault: heals_when(fault[0])):
        try:
            next(happening, None)
        except NOT_NOW as reason:
            report.say(f"could not heal: {reason}"[:500])
    for broker in chaos.cluster.brokers:
        chaos.start(broker)
    while chaos.notes:
        report.say(chaos.notes.pop(0))


def heals_when(name: str) -> int:
    """Return the rank of a fault in healing.

    ZooKeeper comes back before the brokers that need it to start, and administrators come last.
    """
    return 0 if "zookeeper" in name else 1 if "broker" in name else 2


def compare(chaos: Chaos) -> None:
    """Check that all replicas are equal and assigned, and that no broker logged a bug."""
    cluster = chaos.cluster
    known = {topic.name: topic for topic in cluster.metadata(cluster.brokers[0]).topics}
    assert TOPIC in known
    for name, topic in known.items():
        for partition in topic.partitions:
            if chaos.world.is_forgetful:
                cluster.check_equal_answers(name, partition.partition_index)
            else:
                cluster.check_equal_logs(name, partition.partition_index)
            strangers = [
                broker_id
                for broker_id in cluster.brokers
                if broker_id not in partition.replica_nodes
                and cluster.folder(broker_id, name, partition.partition_index).exists()
            ]
            assert not strangers, f"{name}/{partition.partition_index} is on {strangers} too"
    for name in chaos.deleted_topics:
        assert name not in known, f"{name} was deleted and is back"
        for broker_id in cluster.brokers:
            left = list(cluster.data(broker_id).glob(f"{name}-*"))
            left = [name for name in left if not name.name.endswith("-delete")]
            assert not left, f"{name} was deleted, and {left} is left"
    cluster.check_brokers_failed_at_nothing()


def tell(load: Load, transactions: TransactionLoad, report: Report) -> None:
    history = load.history
    acked = len(history.acked_sends())
    read = sum(len(record) for reading in history.readings for record in reading.records.values())
    report.say(f"{acked} acknowledged, {len(history.unacked_sends())} uncertain, {read} read")
    stalls = {index: round(found, 1) for (_, index), found in history.stalls_s().items()}
    report.say(f"longest stall per partition, in seconds: {stalls}")
    begun, committed = len(transactions.history.transactions), transactions.history.committed()
    starts = {writer.client: writer.starts for writer in transactions.writers}
    report.say(f"{len(committed)} of {begun} transactions committed; producers started: {starts}")
    for name, count in report.counts.most_common():
        report.say(f"  {count:3} × {name}")
    report.say("nothing was lost, nothing was there twice, all replicas are equal")


if __name__ == "__main__":
    sys.exit(main())
