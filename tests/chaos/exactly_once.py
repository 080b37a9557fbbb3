"""Exactly once, at length: a topic is copied in transactions while everything is killed.

    make exactly-once MESSAGES=100000 SEED=7 ARGS="--client confluent-kafka"

Copiers of each client consume, transform and produce, with the offsets in the transaction
(`tests/conformance/copier.py`).  A seed chooses the faults: brokers and copiers are killed and
paused, a paused copier is replaced and resumes, ZooKeeper is killed, the controller resigns.
Faults continue until everything is copied.  Then each copy must equal the source, in its order, for
a reader of committed records.  All replicas must be equal, no transaction may be open, and no
broker may have logged an unexpected error.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.chaos.faults import NOT_NOW
from tests.chaos.room import Room
from tests.chaos.run import Report
from tests.chaos.zookeepers import KINDS
from tests.conformance.copying import CLIENTS, SIZE, Copying, fill
from tests.conformance.raw_transactions import GROUP, find_coordinator, list_transactions
from tests.support.eventually import eventually

SOURCE = "source"
PARTITIONS = 3
SETTLE_S = 10.0
STALL_S = 120.0
"""A copy that makes no progress for longer is stuck."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 2000,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 300,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Copy a topic exactly once under faults.")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=SIZE, help="messages in a transaction")
    parser.add_argument(
        "--pause-ms", type=int, default=300, help="how long each transaction is held open"
    )
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--client", choices=CLIENTS, action="append", help="default: all of them")
    parser.add_argument(
        "--protocol",
        choices=("classic", "consumer"),
        default="classic",
        help="of the groups of confluent-kafka",
    )
    parser.add_argument("--zookeeper", choices=list(KINDS), default="embedded")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--keep", action="store_true", help="keep logs and data")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    logging.disable(logging.CRITICAL)  # clients log every broken connection
    warnings.simplefilter("ignore")
    seed = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    report = Report()
    report.say(f"seed {seed}, {arguments.messages} messages, in transactions of {arguments.size}")
    room = Room(zookeeper=arguments.zookeeper, settings=SETTINGS, is_whole=False)
    keep = True
    try:
        room.start()
        run(room, room.place, random.Random(seed), arguments, report)
        keep = arguments.keep
    except Exception as failure:
        traceback.print_exc()
        report.say(f"FAILED: {failure}")
        print(f"\nEverything is kept in {room.place}. Again: SEED={seed}", file=sys.stderr)
        return 1
    finally:
        room.stop()
        room.remove(keep=keep)
    if keep:
        report.say(f"everything is kept in {room.place}")
    return 0


def run(
    cluster: Room,
    folder: Path,
    dice: random.Random,
    arguments: argparse.Namespace,
    report: Report,
) -> None:
    cluster.create_topic(SOURCE, partitions=PARTITIONS)
    values = fill(cluster.bootstrap, SOURCE, PARTITIONS, arguments.messages)
    copyings = [
        Copying(
            cluster,
            client,
            SOURCE,
            PARTITIONS,
            folder,
            size=arguments.size,
            pause_s=arguments.pause_ms / 1000,
            protocol=arguments.protocol,
        )
        for client in arguments.client or CLIENTS
    ]
    for copying in copyings:
        cluster.create_topic(copying.target, partitions=PARTITIONS)
    cluster.patience_s = 3.0
    began_s = time.monotonic()
    report.say("copying")
    try:
        for copying in copyings:
            copying.start()
        harm = Harm(cluster, dice, copyings, report)
        watch = Watch(copyings, arguments.messages)
        while not watch.is_done():
            if not arguments.calm:
                harm.happen()
            watch.wait(dice.uniform(0.2, 3.0))
        took_s = time.monotonic() - began_s
        report.say(f"everything is copied, in {took_s:.0f} s; healing")
        harm.heal()
    finally:
        for copying in copyings:
            copying.stop()
    cluster.patience_s = 30.0
    cluster.heal(limit_s=120)
    compare(cluster, copyings)
    for copying in copyings:
        copying.check(values)
        starts = sum(copier.starts for copier in copying.copiers)
        report.say(
            f"the copy by {copying.client} is exact; its copiers were started {starts} times"
        )
    for name, count in report.counts.most_common():
        report.say(f"  {count:3} × {name}")


def compare(cluster, copyings: Sequence[Copying]) -> None:
    """Check that no transaction hangs, all replicas are equal, and no broker logged a bug."""

    def is_settled() -> bool:
        states = {
            transaction_state.transaction_state
            for broker_id in cluster.brokers
            for transaction_state in list_transactions(cluster, broker_id).transaction_states
        }
        return states <= {"Empty", "CompleteCommit", "CompleteAbort"}

    eventually(is_settled, 60)
    # Not the topics of the coordinators: each replica compacts its log separately.
    for topic in (SOURCE, *(copying.target for copying in copyings)):
        for index in range(PARTITIONS):
            cluster.check_equal_logs(topic, index)
    cluster.check_brokers_failed_at_nothing()


class Watch:
    """Say how far the copies are."""

    def __init__(self, copyings: Sequence[Copying], messages: int) -> None:
        self._copyings = copyings
        self._messages = messages
        self._done = dict.fromkeys([copying.client for copying in copyings], 0)
        self._moved_s = time.monotonic()

    def wait(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s and not self.is_done():
            for copying in self._copyings:
                copying.tend()
                done = copying.done()
                if done > self._done[copying.client]:
                    self._done[copying.client] = done
                    self._moved_s = time.monotonic()
            if time.monotonic() - self._moved_s > STALL_S:
                said = "\n".join(copying.said()[-3000:] for copying in self._copyings)
                raise AssertionError(f"nothing moves any more: {self._done}\n{said}")
            time.sleep(0.1)

    def is_done(self) -> bool:
        return all(done >= self._messages for done in self._done.values())


class Harm:
    """Injects one fault after the other; a broker goes down only while the others are up."""

    def __init__(
        self, cluster: Room, dice: random.Random, copyings: Sequence[Copying], report: Report
    ) -> None:
        self._cluster = cluster
        self._dice = dice
        self._copyings = copyings
        self._report = report
        self._heal: list[Callable[[], None]] = []
        self._faults: Counter[Callable[[], str]] = Counter(
            {
                self._kill_a_broker: 5,
                self._pause_a_broker: 3,
                self._kill_two_brokers: 1,
                self._stop_a_broker: 2,
                self._kill_copiers: 4,
                self._replace_a_sleeping_copier: 3,
                self._kill_zookeeper: 1,
                self._resign_the_controller: 1,
            }
        )

    def happen(self) -> None:
        """Now and then, heal earlier faults first."""
        if self._heal and self._dice.random() < 0.8:
            self.heal()
        faults, weights = zip(*self._faults.items(), strict=True)
        (fault,) = self._dice.choices(faults, weights)
        if self._heal and fault not in (self._kill_copiers, self._replace_a_sleeping_copier):
            self.heal()
        try:
            said = fault()
        except NOT_NOW as reason:
            said = f"could not {fault.__name__.strip('_').replace('_', ' ')}: {reason}"[:150]
        else:
            self._report.counts[fault.__name__.strip("_").replace("_", " ")] += 1
        done = {copying.client: copying.done() for copying in self._copyings}
        self._report.say(f"{said}; copied: {done}")

    def heal(self) -> None:
        """Heal every fault, and give the cluster a short time to settle."""
        while self._heal:
            self._heal.pop()()
        deadline_s = time.monotonic() + SETTLE_S
        while self._cluster.unsettled() and time.monotonic() < deadline_s:
            for copying in self._copyings:
                copying.tend()
            time.sleep(0.1)

    def _any_broker(self) -> tuple[int, str]:
        """Return a broker with an important role, and the role."""
        copying = self._dice.choice(self._copyings)
        role = self._dice.choice(["leader", "transactions", "group", "controller", "any"])
        name = copying.copiers[0].job["transactional_id"]
        index = self._dice.randrange(PARTITIONS)
        any_broker = self._dice.choice(self._cluster.brokers)
        match role:
            case "leader":
                found = self._cluster.partition(copying.target, index).leader_id
            case "transactions":
                found = find_coordinator(self._cluster, name)
            case "group":
                found = find_coordinator(self._cluster, copying.group, GROUP)
            case "controller":
                found = self._cluster.metadata(self._cluster.able()[0]).controller_id
            case _:
                found = any_broker
        return (found, role) if found in self._cluster.brokers else (any_broker, "any")

    def _kill_a_broker(self) -> str:
        broker_id, role = self._any_broker()
        self._cluster.kill(broker_id)
        self._heal.append(lambda: self._cluster.restart(broker_id))
        return f"killed broker {broker_id} ({role})"

    def _kill_two_brokers(self) -> str:
        chosen = self._dice.sample(self._cluster.brokers, 2)
        for broker_id in chosen:
            self._cluster.kill(broker_id)
            self._heal.append(partial(self._cluster.restart, broker_id))
        return f"killed brokers {chosen}"

    def _pause_a_broker(self) -> str:
        broker_id, role = self._any_broker()
        self._cluster.pause(broker_id)
        self._heal.append(lambda: self._cluster.resume(broker_id))
        return f"paused broker {broker_id} ({role})"

    def _stop_a_broker(self) -> str:
        broker_id, role = self._any_broker()
        code = self._cluster.terminate(broker_id)
        assert code == 0, f"broker {broker_id} stopped with {code}"
        self._heal.append(lambda: self._cluster.restart(broker_id))
        return f"stopped broker {broker_id} ({role}) in order"

    def _kill_copiers(self) -> str:
        chosen = [self._dice.choice(copying.copiers) for copying in self._copyings]
        for broker_id in chosen:
            broker_id.kill()
        return f"killed a copier of {[broker_id.job['client'] for broker_id in chosen]}"

    def _replace_a_sleeping_copier(self) -> str:
        chosen = self._dice.choice(self._dice.choice(self._copyings).copiers)
        chosen.leave_for_dead()
        self._heal.append(chosen.wake_the_dead)
        return f"replaced {chosen.job['transactional_id']}, which sleeps"

    def _kill_zookeeper(self) -> str:
        self._cluster.zookeepers.stop()
        self._heal.append(self._cluster.zookeepers.start)
        return "killed ZooKeeper"

    def _resign_the_controller(self) -> str:
        before, after = self._cluster.resign()
        return f"controller {before} resigned, now it is {after}"


if __name__ == "__main__":
    sys.exit(main())
