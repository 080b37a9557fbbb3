"""The faults that a seed injects into a cluster.

A fault is a generator: up to its `yield` it does harm, then it waits to be healed.  It yields a
line for the report.  It chooses its victim when it happens, because the leader and the controller
are not known before.  The seed alone chooses everything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random

from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.errors import KafkaError
from tests.chaos.world import World

Fault = Callable[["Chaos"], Iterator[str]]

# Errors of a cluster that is already harmed; the fault is then left out.
NOT_NOW = (ConnectionFailed, KafkaError, AssertionError, OSError, KeyError, IndexError)
SLOW_S = 5.0
"""A start that takes longer is reported."""


class Broken(Exception):
    """A broken promise, which no fault excuses."""


class Chaos:
    """The cluster under load, the random generator, and the topics that faults created."""

    def __init__(self, world: World, random: Random, topic: str, partitions: int) -> None:
        self.world = world
        self.cluster = world.cluster
        self.random = random
        self.topic = topic
        self.partitions = partitions
        self.side_topics: list[str] = []
        self.deleted_topics: list[str] = []
        self.notes: list[str] = []
        self._made = 0

    def victim(self) -> tuple[int, str]:
        """Return a running broker to hit, and its role."""
        role = self.random.choice(["leader", "controller", "any"])
        index = self.random.randrange(self.partitions)
        any_broker = self.random.choice(self.cluster.brokers)
        running = [broker for broker in self.cluster.brokers if self.cluster.is_running(broker)]
        assert running, "no broker is running"
        found = -1
        try:
            if role == "leader":
                found = self.cluster.partition(self.topic, index).leader_id
                role = f"leader of partition {index}"
            elif role == "controller":
                found = self.cluster.metadata(self.cluster.able()[0]).controller_id
        except NOT_NOW:
            pass
        if found not in running:
            found, role = (any_broker if any_broker in running else running[0]), "any"
        return found, role

    def several(self, count: int) -> list[int]:
        running = [broker for broker in self.cluster.brokers if self.cluster.is_running(broker)]
        return self.random.sample(running, min(count, len(running)))

    def start(self, broker_id: int) -> None:
        if not self.cluster.is_running(broker_id):
            began_s = time.monotonic()
            self.cluster.restart(broker_id)
            took_s = time.monotonic() - began_s
            if took_s > SLOW_S:
                self.notes.append(f"broker {broker_id} took {took_s:.1f} s to start")

    def new_name(self) -> str:
        self._made += 1
        return f"side-{self._made}"


# -- brokers -----------------------------------------------------------------------------------


def kill_a_broker(chaos: Chaos) -> Iterator[str]:
    broker_id, why = chaos.victim()
    chaos.cluster.kill(broker_id)
    yield f"killed broker {broker_id} ({why})"
    chaos.start(broker_id)


def kill_two_brokers(chaos: Chaos) -> Iterator[str]:
    chosen = chaos.several(2)
    for broker_id in chosen:
        chaos.cluster.kill(broker_id)
    yield f"killed brokers {chosen}"
    for broker_id in chosen:
        chaos.start(broker_id)


def kill_all_brokers(chaos: Chaos) -> Iterator[str]:
    chosen = chaos.several(len(chaos.cluster.brokers))
    for broker_id in chosen:
        chaos.cluster.kill(broker_id)
    yield f"killed all brokers {chosen}"
    for broker_id in chosen:
        chaos.start(broker_id)


def kill_a_broker_while_it_starts(chaos: Chaos) -> Iterator[str]:
    broker_id, why = chaos.victim()
    chaos.cluster.kill(broker_id)
    wait_s = chaos.random.uniform(0.1, 1.5)
    process = chaos.cluster._brokers[broker_id].process
    process.launch()
    time.sleep(wait_s)
    chaos.cluster.kill(broker_id)
    yield f"killed broker {broker_id} ({why}), and again {wait_s:.1f} s into its start"
    chaos.start(broker_id)


def pause_a_broker(chaos: Chaos) -> Iterator[str]:
    broker_id, why = chaos.victim()
    chaos.cluster.pause(broker_id)
    yield f"paused broker {broker_id} ({why})"
    chaos.cluster.resume(broker_id)


def pause_two_brokers(chaos: Chaos) -> Iterator[str]:
    chosen = chaos.several(2)
    for broker_id in chosen:
        chaos.cluster.pause(broker_id)
    yield f"paused brokers {chosen}"
    for broker_id in chosen:
        chaos.cluster.resume(broker_id)


def restart_a_broker(chaos: Chaos) -> Iterator[str]:
    broker_id, why = chaos.victim()
    code = chaos.cluster.terminate(broker_id)
    if code != 0:
        raise Broken(f"broker {broker_id} stopped with {code}")
    yield f"stopped broker {broker_id} ({why}) in order"
    chaos.start(broker_id)


# -- controller and ZooKeeper -----------------------------------------------------------------


def kill_zookeeper(chaos: Chaos) -> Iterator[str]:
    chaos.world.zookeeper.kill()
    yield "killed ZooKeeper"
    chaos.world.zookeeper.start()


def pause_zookeeper(chaos: Chaos) -> Iterator[str]:
    chaos.world.zookeeper.pause()
    yield "paused ZooKeeper"
    chaos.world.zookeeper.resume()


def resign_the_controller(chaos: Chaos) -> Iterator[str]:
    before, after = chaos.cluster.resign()
    yield f"controller {before} resigned, now it is {after}"


# -- administrators ----------------------------------------------------------------------------


def create_a_topic(chaos: Chaos) -> Iterator[str]:
    name = chaos.new_name()
    partitions = chaos.random.randint(1, 6)
    factor = chaos.random.randint(1, min(3, len(chaos.cluster.brokers)))
    # Noted before the request: whether the topic was created is known at the end.
    chaos.side_topics.append(name)
    chaos.cluster.spread_topic(name, partitions, factor)
    yield f"created {name} with {partitions} partitions of {factor} replicas"
    if name in chaos.side_topics:
        chaos.cluster.write(name, b"x", acks=1)


def delete_a_topic(chaos: Chaos) -> Iterator[str]:
    if not chaos.side_topics:
        return
    name = chaos.random.choice(chaos.side_topics)
    chaos.cluster.delete_topic(name)
    chaos.side_topics.remove(name)
    chaos.deleted_topics.append(name)
    yield f"deleted {name}"


def reassign_a_partition(chaos: Chaos) -> Iterator[str]:
    index = chaos.random.randrange(chaos.partitions)
    brokers = chaos.cluster.brokers
    replicas = chaos.random.sample(brokers, chaos.random.randint(2, min(3, len(brokers))))
    code = chaos.cluster.reassign(chaos.topic, replicas, index)
    yield f"asked for replicas {replicas} of partition {index}: {code.name}"


def elect_preferred_leaders(chaos: Chaos) -> Iterator[str]:
    codes = [chaos.cluster.elect(chaos.topic, index).name for index in range(chaos.partitions)]
    yield f"elected preferred leaders: {codes}"


FAULTS: dict[Fault, int] = {
    kill_a_broker: 5,
    kill_two_brokers: 2,
    kill_all_brokers: 1,
    kill_a_broker_while_it_starts: 2,
    pause_a_broker: 5,
    pause_two_brokers: 2,
    restart_a_broker: 4,
    kill_zookeeper: 2,
    pause_zookeeper: 2,
    resign_the_controller: 3,
    create_a_topic: 2,
    delete_a_topic: 2,
    reassign_a_partition: 4,
    elect_preferred_leaders: 2,
}
"""Each fault, with its weight in the choice."""


# Brokers that keep everything in memory lose records if more than one of them is killed before the
# others have copied its records, or if ZooKeeper is killed.
_LOSING = {kill_a_broker, kill_a_broker_while_it_starts, restart_a_broker}
_LOSING_TOO_MUCH = {kill_two_brokers, kill_all_brokers, kill_zookeeper}


def chosen(random: Random, *, is_forgetful: bool) -> tuple[list[Fault], float]:
    """Choose one to three faults that happen together, and for how long."""
    count = random.choices([1, 2, 3], [6, 3, 1])[0]
    faults: list[Fault] = []
    while len(faults) < count:
        (fault,) = random.choices(list(FAULTS), list(FAULTS.values()))
        if fault in faults:
            continue
        if is_forgetful and (
            fault in _LOSING_TOO_MUCH or (fault in _LOSING and _LOSING.intersection(faults))
        ):
            continue
        faults.append(fault)
    # Shorter than a session timeout, about as long, or much longer.
    hold_s = random.choice([random.uniform(0, 1), random.uniform(1, 4), random.uniform(4, 8)])
    return faults, hold_s
