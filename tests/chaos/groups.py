"""Groups in a storm while their coordinators are killed: `make chaos-groups`.

Three brokers, one partition of `__consumer_offsets`, and three groups at once: the classic protocol
with eager and with cooperative rebalances, and the consumer protocol (KIP-848).  Members join,
leave, are killed and are paused.  Now and then the broker that coordinates all groups is killed,
paused, or loses the leadership.  At the end, the members' observations and the coordinator's log
must agree: everything was read, nothing was skipped, no partition had two owners in a generation,
and no committed offset went back.

The seed chooses the faults, but not the timing of real processes.
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
from contextlib import ExitStack
from pathlib import Path

from hightide.core.metadata.topic_names import CONSUMER_OFFSETS
from tests.conformance.conftest import GROUP_SETTINGS
from tests.conformance.members import MEMBERS, ConfluentMember, KafkaPythonMember
from tests.conformance.replicated import SETTINGS, Replicated
from tests.conformance.storm import Storm
from tests.support.eventually import eventually

BROKER_HARM = 0.25
"""The share of steps that hit brokers and not members."""
PATIENCE_S = 60.0


class Weather:
    """The storms of three groups, and the faults of their brokers."""

    def __init__(self, cluster: Replicated, dice: random.Random, stack: ExitStack) -> None:
        self.cluster = cluster
        self.dice = dice
        self.counts: Counter[str] = Counter()
        # Sessions are longer than a failover, so only faults of members make them lose partitions.
        eager = {"assignor": "range", "session_ms": 6000}
        both = (ConfluentMember.client, KafkaPythonMember.client)
        cooperative = {"clients": both, "assignor": "cooperative-sticky", "session_ms": 6000}
        newer = {"clients": both[:1], "group.protocol": "consumer"}
        self.storms = [
            stack.enter_context(Storm(cluster, name, random.Random(dice.random()), **options))
            for name, options in (
                ("eager", {"clients": tuple(MEMBERS), **eager}),
                ("cooperative", cooperative),
                ("newer", newer),
            )
        ]

    def step(self) -> str:
        if self.dice.random() < BROKER_HARM:
            happens = self.dice.choice([self.kill, self.pause, self.move])
            happens()
            said = f"the coordinator: {happens.__name__}"
        else:
            storm = self.dice.choice(self.storms)
            said = f"{storm.group}: {storm.step()}"
        self.counts[said] += 1
        return said

    def settle(self) -> None:
        """Wait until every group with members has committed something more."""
        for storm in self.storms:
            if storm.members:
                before = sum(storm.history.committed().values())
                eventually(
                    lambda storm=storm, before=before: (
                        sum(storm.history.committed().values()) > before
                    ),
                    PATIENCE_S,
                )

    def kill(self) -> None:
        leader = self.cluster.leader_now(CONSUMER_OFFSETS)
        self.cluster.kill(leader)
        self.settle()
        self.cluster.heal(limit_s=PATIENCE_S)

    def pause(self) -> None:
        leader = self.cluster.leader_now(CONSUMER_OFFSETS)
        self.cluster.pause(leader)
        time.sleep(self.dice.uniform(0.5, 4))
        self.cluster.heal(limit_s=PATIENCE_S)

    def move(self) -> None:
        follower = self.dice.choice(self.cluster.followers(CONSUMER_OFFSETS))
        self.cluster.lead_with(CONSUMER_OFFSETS, follower)

    def end(self) -> None:
        self.cluster.heal(limit_s=PATIENCE_S)
        for storm in self.storms:
            storm.end()
        self.cluster.heal(limit_s=PATIENCE_S)
        self.cluster.check_equal_logs(CONSUMER_OFFSETS)
        for storm in self.storms:
            for broker_id in self.cluster.brokers:
                storm.check_log(broker_id, classic="group.protocol" not in storm.options)
        self.cluster.check_brokers_failed_at_nothing()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Groups in a storm on real processes.")
    parser.add_argument("--duration", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="keep logs and data")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    logging.disable(logging.CRITICAL)  # clients log every broken connection
    warnings.simplefilter("ignore")
    seed = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    folder = Path(tempfile.mkdtemp(prefix="hightide-storm-"))
    print(f"seed {seed}, {arguments.duration:.0f} s", flush=True)
    settings = {
        **GROUP_SETTINGS,
        **SETTINGS,
        "zookeeper.session.timeout.ms": 2000,
        "auto.leader.rebalance.enable": False,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 3,
        # Compaction must not remove commits before they are checked.
        "log.cleaner.enable": False,
    }
    cluster = Replicated(3, settings=settings, data=folder, ends_sessions=False)
    try:
        cluster.start()
        run(cluster, random.Random(seed), arguments.duration)
    except Exception as failure:
        traceback.print_exc()
        print(f"FAILED: {failure}\nEverything is kept in {folder}.", file=sys.stderr)
        print(f"Again: make chaos-groups SEED={seed}", file=sys.stderr)
        return 1
    finally:
        cluster.stop()
    if not arguments.keep:
        shutil.rmtree(folder)
    return 0


def run(cluster: Replicated, dice: random.Random, duration_s: float) -> None:
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:7.1f} s  {text}", flush=True)

    with ExitStack() as stack:
        weather = Weather(cluster, dice, stack)
        for storm in weather.storms:
            storm.come()
            storm.come()
        while time.monotonic() < began_s + duration_s:
            say(weather.step())
            weather.settle()
        say("ending")
        weather.end()
    for storm in weather.storms:
        events = Counter(event.kind for event in storm.history.events)
        say(f"{storm.group}: {dict(events)}, {sum(storm.written.ends().values())} records")
    for said, count in weather.counts.most_common():
        say(f"  {count:3} × {said}")
    say("everything was read, nothing was skipped, no offset went back")


if __name__ == "__main__":
    sys.exit(main())
