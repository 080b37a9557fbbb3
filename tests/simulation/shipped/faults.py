"""The faults of a simulated cluster: which, when, and how they heal."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.shipped.machine import Machine
from tests.simulation.shipped.witness import Partition

if TYPE_CHECKING:
    from tests.simulation.shipped.simulation import Simulation

_OF_MACHINES = (
    *("kill", "power", "power_in_between", "leave", "pause", "disk", "skew"),
    *("full", "write", "sync", "read"),
)
_OF_LINKS = ("cut", "cut_one_way", "island", "slow", "reset", "heal")
_OF_ALL = ("kill_all", "power_all")
_FAULTS = (
    *("kill", "kill", "kill_all", "power", "power", "power_all", "power_in_between"),
    *("leave", "leave", "pause", "disk", "skew"),
    *("full", "full", "write", "sync", "read"),
    *("cut", "cut", "cut_one_way", "island", "slow", "reset", "heal", "heal"),
    *("zookeeper", "zookeeper_pause", "move", "elect", "resign", "topic", "delete_records"),
)


class Faults:
    """Injects one fault after the other until it is time to heal."""

    def __init__(self, cluster: Simulation, until: float) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._random = cluster.world.random
        self._network = cluster.network
        self._machines = cluster.machines
        self._zookeeper = cluster.zookeeper
        self._until = until
        for machine in self._machines.values():
            machine.on_exit = partial(self._later, machine)
            machine.on_power_cut = partial(self._lost_power, machine)

    def begin(self) -> None:
        self._network.loss = self._cluster.shape.loss
        self._next()

    def _next(self) -> None:
        if self._world.now >= self._until:
            return
        fault = self._random.choice(_FAULTS)
        machine = self._victim()
        if fault in _OF_ALL:
            for peer in self._machines.values():
                if self._random.random() < 0.9:
                    self._break(fault.removesuffix("_all"), peer)
        elif fault in _OF_MACHINES:
            self._break(fault, machine)
        elif fault in _OF_LINKS:
            self._disconnect(fault, machine)
        else:
            self._disturb(fault)
        self._world.at(self._random.choice((0.02, 0.1, 0.3, 0.8, 2.0)), self._next)

    def _victim(self) -> Machine:
        """Return a random machine; leaders are more likely."""
        leaders = [
            truth.state.leader
            for truth in self._cluster.checker.truths.values()
            if truth.state is not None and truth.state.leader in self._machines
        ]
        if leaders and self._random.random() < 0.4:
            return self._machines[self._random.choice(leaders)]
        return self._random.choice(list(self._machines.values()))

    # -- machines --------------------------------------------------------------------------

    def _break(self, fault: str, machine: Machine) -> None:
        random, world, shape = self._random, self._world, self._cluster.shape
        match fault:
            case "kill" if machine.is_up:
                machine.crash()
                self._later(machine)
            case "power" if machine.is_up and shape.power_cuts:
                machine.crash(power=True)
                self._lost_power(machine)
            case "power_in_between" if machine.is_up and shape.power_cuts:
                machine.disk.fail_in(random.randint(1, 40))
            case "leave" if machine.is_serving and not machine.is_paused:
                machine.terminate()
            case "pause" if machine.is_up and not machine.is_paused:
                machine.pause()
                world.at(
                    random.choice((0.2, 1.0, 3.0, 6.0)), self._resume, machine, machine.incarnation
                )
            case "disk":
                machine.slow_s = random.choice((0.02, 0.2, 1.0))
                world.at(random.uniform(0.5, 3.0), self._speed_up, machine)
            case "full" if not machine.disk.is_full:
                world.tell(f"the disk of {machine.name} is full")
                machine.disk.is_full = True
                world.at(random.choice((0.1, 1.0, 3.0, 6.0)), self._empty, machine)
            case "write" | "sync" | "read" if not machine.disk.fault:
                world.tell(f"the disk of {machine.name} cannot {fault}")
                machine.disk.fault = fault
                world.at(random.choice((0.02, 0.1, 1.0, 4.0)), self._repair, machine)
            case "skew":
                machine.skew_ms = random.choice((0, -5000, 300, 60_000))

    def _lost_power(self, machine: Machine) -> None:
        # Records that are synced before their acknowledgement survive.
        if not self._cluster.shape.flushes:
            self._cluster.checker.lost[machine.broker_id] = None
        self._later(machine)

    def _later(self, machine: Machine) -> None:
        is_over = self._world.now >= self._until
        delay_s = 0.3 if is_over else self._random.choice((0.01, 0.3, 1.5, 4.0))
        self._world.at(delay_s, self._start, machine)

    def _start(self, machine: Machine) -> None:
        if not machine.is_up:
            machine.begin()

    def _resume(self, machine: Machine, incarnation: int) -> None:
        if machine.is_up and machine.is_paused and machine.incarnation == incarnation:
            machine.resume()

    def _empty(self, machine: Machine) -> None:
        machine.disk.is_full = False

    def _repair(self, machine: Machine) -> None:
        machine.disk.fault = ""

    def _speed_up(self, machine: Machine) -> None:
        machine.slow_s = 0.0

    # -- links -----------------------------------------------------------------------------

    def _disconnect(self, fault: str, machine: Machine) -> None:
        random, network, tell = self._random, self._network, self._world.tell
        peers = [*(peer.name for peer in self._machines.values()), self._zookeeper.name]
        peers.remove(machine.name)
        other = random.choice(peers)
        match fault:
            case "cut":
                tell(f"{machine.name} and {other} are cut off")
                network.cut(machine.name, other)
                network.cut(other, machine.name)
            case "cut_one_way":
                one, another = random.sample((machine.name, other), 2)
                tell(f"nothing goes from {one} to {another}")
                network.cut(one, another)
            case "island":
                tell(f"{machine.name} is an island")
                for name in self._world.processes:
                    network.cut(machine.name, name)
                    network.cut(name, machine.name)
            case "slow":
                delay_s = random.choice((0.02, 0.2, 0.8))
                tell(f"{machine.name} is slow by {delay_s}")
                for name in peers:
                    network.slow_down(machine.name, name, delay_s)
            case "reset":
                tell(f"{machine.name} and {other} are reset")
                network.reset(machine.name, other)
            case "heal":
                tell("the network heals")
                network.heal()
                network.loss = self._cluster.shape.loss

    # -- ZooKeeper and administrators ------------------------------------------------------

    def _disturb(self, fault: str) -> None:
        random, zookeeper, admin = self._random, self._zookeeper, self._cluster.admin
        partitions = list(self._cluster.partitions)
        match fault:
            case "zookeeper" if zookeeper.is_up:
                zookeeper.crash()
                self._world.at(random.choice((0.05, 0.5, 2.5)), self._start_zookeeper)
            case "zookeeper_pause" if zookeeper.is_up and not zookeeper.is_paused:
                zookeeper.pause()
                self._world.at(random.choice((0.2, 1.0, 3.0)), self._resume_zookeeper)
            case "move" if self._cluster.shape.moves:
                partition = random.choice(partitions)
                brokers = random.sample(list(self._machines), self._cluster.shape.replicas)
                target = random.choice((tuple(brokers), tuple(brokers), None))
                admin.tell(lambda: admin.move(partition, target))
            case "elect":
                admin.tell(lambda: admin.elect(random.choice(partitions)))
            case "resign":
                admin.tell(admin.resign)
            case "delete_records" if self._cluster.shape.deletes:
                self._delete_records(random.choice(partitions))
            case "topic":
                admin.tell(lambda: admin.toggle(random.choice(("a", "b"))))

    def _delete_records(self, partition: Partition) -> None:
        truth, admin = self._cluster.checker.truth(partition), self._cluster.admin
        offset = self._random.randint(0, len(truth.committed))
        if truth.state is not None and offset > truth.deleted_offset:
            truth.deleted_offset = offset
            admin.tell(lambda: admin.delete_records(partition, offset))

    def _start_zookeeper(self) -> None:
        if not self._zookeeper.is_up:
            self._zookeeper.start(self._zookeeper.main)

    def _resume_zookeeper(self) -> None:
        if self._zookeeper.is_up and self._zookeeper.is_paused:
            self._zookeeper.resume()

    def heal(self) -> None:
        """Heal every fault."""
        self._world.tell("everything heals")
        self._network.heal()
        self._start_zookeeper()
        self._resume_zookeeper()
        for machine in self._machines.values():
            machine.disk.cut_at(-1)
            machine.disk.is_full, machine.disk.fault = False, ""
            machine.slow_s = 0.0
            self._resume(machine, machine.incarnation)
            self._start(machine)
