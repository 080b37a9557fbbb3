"""The faults of the machine room, each with a name and a family.

A fault is a generator: up to its `yield` it does harm, and after it, it heals.  It yields a line
for the report.  It chooses its victim when it happens, because the leader and the controller are
not known before.  The seed alone chooses everything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

from hightide.client.broker_connection import ConnectionFailed
from hightide.process import ServiceFailed
from hightide.wire.errors import KafkaError
from tests.chaos.findings import Anomaly
from tests.chaos.machine import EIO, Machine
from tests.chaos.network import Network
from tests.chaos.replicas import compare_replicas
from tests.chaos.room import DISK, MEDDLER, NETWORK, Room
from tests.chaos.workload import Workload

Happening = Iterator[str]
SHORT, SESSION, LONG = (0.3, 1.5), (2.0, 4.0), (4.0, 7.0)
"""How long faults last, in seconds: shorter than a session, about as long, longer."""

# Errors of a cluster that is already harmed; the fault is then left out.
NOT_NOW = (
    ConnectionFailed,
    KafkaError,
    AssertionError,
    OSError,
    KeyError,
    IndexError,
    ServiceFailed,
)


class Broken(Exception):
    """A broken promise, which no fault excuses."""


class Chaos:
    """The room under load, the random generator, and what faults have made."""

    def __init__(self, room: Room, dice: Random, workload: Workload) -> None:
        self.room = room
        self.dice = dice
        self.workload = workload
        self.topic = workload.topic
        self.partitions = workload.partitions
        self.side_topics: list[str] = []
        self.deleted_topics: list[str] = []
        self.damages = 0
        self._made = 0

    @property
    def network(self) -> Network:
        assert self.room.network is not None
        return self.room.network

    def running(self) -> list[int]:
        found = [broker_id for broker_id in self.room.brokers if self.room.is_running(broker_id)]
        assert found, "no broker is running"
        return found

    def leader(self) -> int:
        """Return the leader of some partition, or any running broker."""
        try:
            index = self.dice.randrange(self.partitions)
            found = self.room.partition(self.topic, index).leader_id
        except NOT_NOW:
            found = -1
        running = self.running()
        return found if found in running else self.dice.choice(running)

    def follower(self) -> int:
        leader = self.leader()
        others = [broker_id for broker_id in self.running() if broker_id != leader]
        return self.dice.choice(others or [leader])

    def controller(self) -> int:
        try:
            found = int(self.room.metadata(self.room.able()[0]).controller_id)
        except NOT_NOW:
            found = -1
        running = self.running()
        return found if found in running else self.dice.choice(running)

    def victim(self) -> tuple[int, str]:
        """Return a running broker to hit, and its role: most often a leader."""
        role = self.dice.choice(["leader", "leader", "follower", "controller"])
        chosen = {"leader": self.leader, "follower": self.follower, "controller": self.controller}
        return chosen[role](), role

    def shuffled(self) -> list[int]:
        return self.dice.sample(self.running(), len(self.running()))

    def machine(self, broker_id: int) -> Machine:
        return self.room.machines[broker_id]

    def names(self, broker_ids: Iterable[int]) -> list[str]:
        return [self.machine(broker_id).name for broker_id in broker_ids]

    def others(self, broker_id: int) -> list[str]:
        """Return the names of all other machines, those of ZooKeeper too."""
        brokers = [other for other in self.room.brokers if other != broker_id]
        return self.names(brokers) + [machine.name for machine in self.room.zookeepers.machines]

    def lead_of_all(self, broker_id: int, limit_s: float = 8.0) -> bool:
        """Wait until this broker leads all partitions of the topic, and is alone in their ISRs."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            try:
                found = self.room.partitions(broker_id, self.topic).values()
                if all(each.isr_nodes == [broker_id] == [each.leader_id] for each in found):
                    return True
            except NOT_NOW:
                pass
            time.sleep(0.05)
        return False

    def wait_until_healthy(self, limit_s: float) -> None:
        """Wait, without any command, until all replicas are in sync and all brokers agree."""
        deadline_s = time.monotonic() + limit_s
        while problem := self.room.unsettled():
            assert time.monotonic() < deadline_s, problem
            time.sleep(0.05)

    def wait_until_repaired(self, limit_s: float) -> None:
        """Wait until no replica of the topic has damage any more, and its replicas are equal."""
        deadline_s = time.monotonic() + limit_s
        while problems := [
            found
            for found in self.differences()
            if found.partition.rpartition("-")[0] == self.topic
        ]:
            assert time.monotonic() < deadline_s, f"not repaired: {problems[0]}"
            time.sleep(0.5)

    def differences(self) -> list[Anomaly]:
        folders = {broker_id: self.room.data(broker_id) for broker_id in self.room.brokers}
        return compare_replicas(folders, compacted=[self.workload.keyed])

    def new_name(self) -> str:
        self._made += 1
        return f"side-{self._made}"


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    happen: Callable[[Chaos], Happening]
    family: str
    needs: frozenset[str]
    hold_s: tuple[float, float]
    loses: bool
    """It takes records of one replica away, so no second one may do so before it has healed."""


@dataclass(slots=True)
class Family:
    """Faults of one kind; the run reports figures for each family."""

    name: str
    faults: list[Fault] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {}


def fault(
    family: str,
    *needs: str,
    hold_s: tuple[float, float] = SESSION,
    loses: bool = False,
    **settings: object,
) -> Callable[[Callable[[Chaos], Happening]], Callable[[Chaos], Happening]]:
    """Add a function to the faults of a family; the settings are those of the family's brokers."""

    def add(function: Callable[[Chaos], Happening]) -> Callable[[Chaos], Happening]:
        name = function.__name__.replace("_", " ")
        found = FAMILIES.setdefault(family, Family(family))
        found.faults.append(Fault(name, function, family, frozenset(needs), hold_s, loses))
        found.settings.update({key.replace("_", "."): value for key, value in settings.items()})
        return function

    return add


# -- processes ---------------------------------------------------------------------------------


@fault("kill")
def kill_the_leader(chaos: Chaos) -> Happening:
    leader = chaos.leader()
    chaos.room.kill(leader)
    yield f"killed broker {leader}"
    chaos.room.start_missing()


@fault("kill")
def kill_the_leader_for_a_moment(chaos: Chaos) -> Happening:
    leader = chaos.leader()
    chaos.room.kill(leader)
    chaos.room.start_missing()
    yield f"killed broker {leader} and started it at once"


@fault("kill")
def kill_the_controller(chaos: Chaos) -> Happening:
    controller = chaos.controller()
    chaos.room.kill(controller)
    yield f"killed broker {controller}"
    chaos.room.start_missing()


@fault("kill")
def kill_leaders_one_after_the_other(chaos: Chaos) -> Happening:
    first = chaos.leader()
    chaos.room.kill(first)
    time.sleep(chaos.dice.uniform(*SESSION))
    second = chaos.leader()
    chaos.room.kill(second)
    yield f"killed broker {first}, then broker {second}"
    chaos.room.start_missing()


@fault("kill")
def kill_a_broker_while_it_starts(chaos: Chaos) -> Happening:
    leader = chaos.leader()
    chaos.room.kill(leader)
    wait_s = chaos.dice.uniform(0.1, 1.5)
    chaos.room.launch(leader)
    time.sleep(wait_s)
    chaos.room.kill(leader)
    yield f"killed broker {leader}, and again {wait_s:.1f} s into its start"
    chaos.room.start_missing()


@fault("kill-all", hold_s=(0.0, 3.0))
def kill_all_brokers(chaos: Chaos) -> Happening:
    chosen = chaos.shuffled()
    for broker_id in chosen:
        chaos.room.kill(broker_id)
    yield f"killed brokers {chosen}"
    chaos.room.start_missing()


@fault("pause", hold_s=(0.3, 6.0))
def pause_the_leader(chaos: Chaos) -> Happening:
    leader = chaos.leader()
    chaos.room.pause(leader)
    yield f"paused broker {leader}"
    chaos.room.resume(leader)


@fault("pause", hold_s=(0.3, 6.0))
def pause_the_controller(chaos: Chaos) -> Happening:
    controller = chaos.controller()
    chaos.room.pause(controller)
    yield f"paused broker {controller}"
    chaos.room.resume(controller)


@fault("pause", hold_s=(0.3, 4.0))
def pause_two_brokers(chaos: Chaos) -> Happening:
    chosen = chaos.shuffled()[:2]
    for broker_id in chosen:
        chaos.room.pause(broker_id)
    yield f"paused brokers {chosen}"
    for broker_id in chosen:
        chaos.room.resume(broker_id)


@fault("restart", hold_s=(0.0, 0.5))
def restart_every_broker(chaos: Chaos) -> Happening:
    for broker_id in chaos.shuffled():
        code = chaos.room.terminate(broker_id)
        if code != 0:
            raise Broken(f"broker {broker_id} stopped with {code}")
        chaos.room.start_missing()
        chaos.room.heal()
    yield "stopped and started all brokers, each when all replicas were in sync"


@fault("restart", hold_s=SHORT)
def stop_the_leader(chaos: Chaos) -> Happening:
    leader = chaos.leader()
    code = chaos.room.terminate(leader)
    if code != 0:
        raise Broken(f"broker {leader} stopped with {code}")
    yield f"stopped broker {leader} in order"
    chaos.room.start_missing()


# -- power -------------------------------------------------------------------------------------


@fault("power", NETWORK, DISK, loses=True)
def cut_the_power_of_the_leader(chaos: Chaos) -> Happening:
    leader = chaos.leader()
    chaos.room.cut_power(leader)
    yield f"cut the power of broker {leader}"
    chaos.room.start_missing()


@fault("power", NETWORK, DISK, loses=True, hold_s=(0.0, 0.1))
def cut_the_power_of_a_broker_for_a_moment(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    chaos.room.cut_power(broker_id)
    chaos.room.start_missing()
    yield f"cut the power of broker {broker_id} ({role}) for a moment"


@fault("power-last", NETWORK, DISK, loses=True, hold_s=(0.0, 0.5))
def cut_the_power_of_the_last_leader(chaos: Chaos) -> Happening:
    """Two brokers are killed and have every record; the last leader loses what was not synced."""
    first, second, last = chaos.shuffled()
    chaos.room.kill(first)
    time.sleep(chaos.dice.uniform(2.2, 3.0))
    chaos.room.kill(second)
    was_alone = chaos.lead_of_all(last)
    chaos.room.cut_power(last)
    alone = "the leader of all" if was_alone else "not yet the leader of all"
    yield f"killed brokers {first} and {second}, cut the power of {last}, {alone}"
    chaos.room.start_missing()


@fault("power-last", NETWORK, DISK, loses=True, hold_s=(0.0, 0.5))
def cut_one_off_and_the_power_of_another_and_kill_the_third(chaos: Chaos) -> Happening:
    first, second, third = chaos.shuffled()
    chaos.network.cut([chaos.machine(first).name], chaos.others(first))
    time.sleep(chaos.dice.uniform(2.2, 3.0))
    chaos.room.cut_power(second)
    time.sleep(chaos.dice.uniform(0.0, 3.0))
    chaos.room.kill(third)
    yield f"cut broker {first} off, cut the power of {second}, killed {third}"
    chaos.network.heal()
    chaos.room.start_missing()


@fault("power-all", NETWORK, DISK, hold_s=(0.0, 1.0), log_flush_interval_messages=1)
def cut_the_power_of_all_brokers(chaos: Chaos) -> Happening:
    """Every record is flushed before its acknowledgement, so all replicas still have it."""
    chosen = chaos.shuffled()
    for broker_id in chosen:
        chaos.room.pause(broker_id)
    for broker_id in chosen:
        chaos.room.cut_power(broker_id)
    yield "cut the power of all brokers at once"
    chaos.room.start_missing()


# -- network -----------------------------------------------------------------------------------


def _isolate(chaos: Chaos, broker_id: int, role: str) -> Happening:
    name = chaos.machine(broker_id).name
    chaos.network.cut([name], chaos.others(broker_id))
    and_clients = chaos.dice.random() < 0.5
    if and_clients:
        chaos.network.cut_clients(name)
    yield f"cut broker {broker_id} ({role}) off{', from clients too' if and_clients else ''}"
    chaos.network.heal()


@fault("cut", NETWORK)
def isolate_the_leader(chaos: Chaos) -> Happening:
    yield from _isolate(chaos, chaos.leader(), "leader")


@fault("cut", NETWORK)
def isolate_a_follower(chaos: Chaos) -> Happening:
    yield from _isolate(chaos, chaos.follower(), "follower")


@fault("cut", NETWORK)
def isolate_the_controller(chaos: Chaos) -> Happening:
    yield from _isolate(chaos, chaos.controller(), "controller")


@fault("cut", NETWORK)
def cut_a_broker_from_zookeeper(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    servers = [machine.name for machine in chaos.room.zookeepers.machines]
    chaos.network.cut([chaos.machine(broker_id).name], servers)
    yield f"cut broker {broker_id} ({role}) from ZooKeeper"
    chaos.network.heal()


@fault("cut", NETWORK, hold_s=LONG)
def cut_the_leader_from_its_followers(chaos: Chaos) -> Happening:
    leader = chaos.leader()
    others = chaos.names(other for other in chaos.room.brokers if other != leader)
    chaos.network.cut([chaos.machine(leader).name], others)
    yield f"cut broker {leader} from the other brokers, not from ZooKeeper"
    chaos.network.heal()


@fault("cut", NETWORK)
def cut_in_halves(chaos: Chaos) -> Happening:
    """Split brokers and ZooKeeper into two sets of about the same size."""
    everyone = chaos.names(chaos.room.brokers)
    everyone += [machine.name for machine in chaos.room.zookeepers.machines]
    chaos.dice.shuffle(everyone)
    middle = len(everyone) // 2
    chaos.network.cut(everyone[:middle], everyone[middle:])
    yield f"cut {sorted(everyone[:middle])} from {sorted(everyone[middle:])}"
    chaos.network.heal()


@fault("cut", NETWORK, hold_s=LONG)
def cut_to_a_bridge(chaos: Chaos) -> Happening:
    """Two brokers do not reach each other; the third one reaches both."""
    first, second, *_ = chaos.shuffled()
    chaos.network.cut(chaos.names([first]), chaos.names([second]))
    yield f"cut broker {first} from broker {second} only"
    chaos.network.heal()


@fault("cut", NETWORK, hold_s=LONG)
def cut_one_way(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    is_deaf = chaos.dice.random() < 0.5
    name = chaos.machine(broker_id).name
    for other in chaos.others(broker_id):
        chaos.network.drop(*((other, name) if is_deaf else (name, other)))
    yield f"broker {broker_id} ({role}) {'hears' if is_deaf else 'reaches'} no other machine"
    chaos.network.heal()


@fault("cut", NETWORK, hold_s=(0.0, 0.1))
def cut_again_and_again(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    name, others = chaos.machine(broker_id).name, chaos.others(broker_id)
    times = chaos.dice.randint(3, 6)
    for _ in range(times):
        chaos.network.cut([name], others)
        time.sleep(chaos.dice.uniform(0.2, 1.5))
        chaos.network.heal()
        time.sleep(chaos.dice.uniform(0.1, 0.8))
    yield f"cut broker {broker_id} ({role}) off {times} times"


@fault("loss", NETWORK, hold_s=LONG)
def lose_packets(chaos: Chaos) -> Happening:
    share = chaos.dice.uniform(0.03, 0.25)
    names = chaos.names(chaos.room.brokers)
    for one in names:
        for other in names:
            if one != other:
                chaos.network.drop(one, other, share)
    yield f"{share:.0%} of the packets between brokers are lost"
    chaos.network.heal()


@fault("delay", NETWORK, hold_s=LONG)
def delay_packets(chaos: Chaos) -> Happening:
    low_ms = chaos.dice.uniform(5, 40)
    high_ms = low_ms + chaos.dice.uniform(0, 100)
    chosen = chaos.shuffled()[: chaos.dice.randint(1, 3)]
    for name in chaos.names(chosen):
        chaos.network.delay(name, low_ms, high_ms)
    yield f"packets to brokers {chosen} take {low_ms:.0f} to {high_ms:.0f} ms"
    chaos.network.heal()


# -- disks -------------------------------------------------------------------------------------


@fault("full-disk", DISK, hold_s=LONG)
def fill_the_disk_of_the_leader(chaos: Chaos) -> Happening:
    leader = chaos.leader()
    disk = chaos.machine(leader).disk
    assert disk is not None
    disk.fill()
    yield f"filled the disk of broker {leader}"
    disk.empty()


@fault("full-disk", DISK, hold_s=LONG)
def fill_the_disk_of_a_follower(chaos: Chaos) -> Happening:
    follower = chaos.follower()
    disk = chaos.machine(follower).disk
    assert disk is not None
    disk.fill(leave_bytes=chaos.dice.choice([0, 64 * 1024]))
    yield f"filled the disk of broker {follower}"
    disk.empty()


@fault("full-disk", DISK, hold_s=LONG)
def restart_a_broker_with_a_full_disk(chaos: Chaos) -> Happening:
    leader = chaos.leader()
    disk = chaos.machine(leader).disk
    assert disk is not None
    disk.fill()
    time.sleep(1)
    chaos.room.kill(leader)
    chaos.room.launch(leader)
    yield f"filled the disk of broker {leader} and started it again"
    disk.empty()
    chaos.room.start_missing()


@fault("dead-disk", NETWORK, DISK, loses=True, hold_s=LONG)
def lose_the_disk_of_the_leader(chaos: Chaos) -> Happening:
    """Every use of the disk fails until the machine is started again."""
    leader = chaos.leader()
    disk = chaos.machine(leader).disk
    assert disk is not None
    disk.die()
    yield f"the disk of broker {leader} is dead"
    chaos.room.cut_power(leader)
    chaos.room.start_missing()


def _failing(chaos: Chaos, what: str, **errors: int) -> Happening:
    broker_id, role = chaos.victim()
    meddler = chaos.machine(broker_id).meddler
    assert meddler is not None
    meddler.harm(**errors)
    yield f"{what} fail at broker {broker_id} ({role})"
    meddler.heal()


@fault("dead-disk", MEDDLER, hold_s=SESSION)
def fail_writes(chaos: Chaos) -> Happening:
    yield from _failing(chaos, "writes", write_error=EIO)


@fault("dead-disk", MEDDLER, hold_s=SESSION)
def fail_syncs(chaos: Chaos) -> Happening:
    yield from _failing(chaos, "syncs", sync_error=EIO)


@fault("dead-disk", MEDDLER, hold_s=SESSION)
def fail_reads(chaos: Chaos) -> Happening:
    yield from _failing(chaos, "reads", read_error=EIO)


@fault("slow-disk", MEDDLER, hold_s=LONG)
def slow_the_disk(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    meddler = chaos.machine(broker_id).meddler
    assert meddler is not None
    delay_ms = chaos.dice.choice([5, 50, 300])
    meddler.harm(delay_ms=delay_ms)
    yield f"each use of the disk of broker {broker_id} ({role}) takes {delay_ms} ms more"
    meddler.heal()


# -- clocks ------------------------------------------------------------------------------------


@fault("clock", MEDDLER, hold_s=LONG)
def set_a_clock_wrong(chaos: Chaos) -> Happening:
    broker_id, role = chaos.victim()
    meddler = chaos.machine(broker_id).meddler
    assert meddler is not None
    # A broker whose clock is an hour behind refuses the clients' timestamps, as in Kafka.
    wrong_s = chaos.dice.choice([-1800, -60, -5, -0.2, 0.2, 5, 60, 3600, 30 * 86400])
    meddler.harm(clock_s=wrong_s)
    yield f"the clock of broker {broker_id} ({role}) is wrong by {wrong_s:+g} s"
    meddler.heal()
