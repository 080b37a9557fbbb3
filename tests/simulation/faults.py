"""The faults of a simulated cluster, each as one call that leaves a line in the history.

`anything` injects faults at random; the scenarios of `scenarios.py` combine them.  At most as many
replicas lose data at a time as `min.insync.replicas` provides for, so no committed record may be
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hightide.core.controller.controller import ElectionKind
from hightide.core.partition.state import NO_BROKER, PartitionState
from tests.simulation.broker import SimBroker
from tests.simulation.messages import Partition
from tests.simulation.zookeeper import ZooKeeperServer

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

Blow = Callable[[SimBroker, int], None]

BLOWS = (
    *("message loss", "delay", "cut", "one-way cut", "island", "crash", "power cut", "torn write"),
    *("lost disk", "clean restart", "pause", "slow disk", "session expiry", "clock skew"),
    *("clock jump", "zookeeper restart", "reassignment", "deletion", "asked election"),
    "other settings",
)
"""The kinds of faults; in enough seeds, all of them happen."""

_ANYTHING = (
    *("kill", "kill", "bounce", "lose_power", "lose_power", "lose_disk", "leave", "pause", "slow"),
    *("cut", "cut", "cut_one_way", "island", "mend", "mend", "move", "move"),
    *("slow_disk", "jump_clock", "expire", "zookeeper", "elect", "configure"),
)


class Faults:
    """Injects faults, and knows enough of the cluster to aim them."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world, self.shape = simulation.world, simulation.shape
        self.random, self.network = self.world.random, self.world.network
        self.brokers, self.checker = simulation.brokers, simulation.checker
        self.happened: dict[str, None] = {}
        """Those of BLOWS that happened."""
        self._note("message loss", self.shape.loss > 0)
        self._note("deletion", self.shape.deletes)
        self._note("clock skew", self.shape.are_clocks_wrong)

    def _note(self, kind: str, is_so: bool = True) -> None:
        if is_so:
            self.happened[kind] = None

    def _tell(self, kind: str, text: str) -> None:
        self._note(kind)
        self.world.tell(text)

    # -- roles -----------------------------------------------------------------------------

    def any_broker(self) -> SimBroker:
        return self.random.choice(list(self.brokers.values()))

    def partition(self) -> Partition:
        return self.random.choice(list(self.simulation.partitions))

    def state(self, partition: Partition) -> PartitionState | None:
        return self.checker.truth(partition).state

    def leader(self, partition: Partition) -> SimBroker | None:
        state = self.state(partition)
        return None if state is None else self.brokers.get(state.leader)

    def followers(self, partition: Partition) -> list[SimBroker]:
        """Return the followers in the ISR, in random order."""
        state = self.state(partition)
        if state is None or state.leader == NO_BROKER:
            return []
        others = [self.brokers[replica] for replica in state.isr if replica != state.leader]
        self.random.shuffle(others)
        return [other for other in others if other.is_up]

    def controller(self) -> SimBroker | None:
        return next(
            (
                broker
                for broker in self.brokers.values()
                if broker.is_up and broker.control is not None
            ),
            None,
        )

    def is_whole(self) -> bool:
        """Return whether every replica of every partition is in sync."""
        return all(
            truth.state is not None
            and all(
                self.brokers[replica].is_up
                and truth.state.broker_epochs.get(replica) == self.brokers[replica].epoch
                for replica in truth.state.replicas
            )
            for truth in self.checker.truths.values()
        )

    def may_lose(self, broker: SimBroker) -> bool:
        """Return whether this broker may lose records: fewer than min.insync.replicas then have."""
        lost = self.checker.lost
        if lost and self.is_whole():
            lost.clear()
        return len({*lost, broker.id}) < self.shape.min_isr

    # -- faults ----------------------------------------------------------------------------

    def kill(self, broker: SimBroker, down_ms: int) -> None:
        if broker.is_up:
            self._note("crash")
            broker.crash()
            self.world.at(down_ms, self.start, broker)

    def lose_power(self, broker: SimBroker, down_ms: int) -> None:
        """Cut the power of a broker; only crash it if too many replicas have lost data."""
        if broker.is_up and self.may_lose(broker):
            self.checker.lost[broker.id] = None
            self._tell("power cut", f"{broker.name} loses power")
            self._note("torn write", broker.lose_power())
            self.world.at(down_ms, self.start, broker)
        else:
            self.kill(broker, down_ms)

    def lose_disk(self, broker: SimBroker, down_ms: int) -> None:
        if broker.is_up and self.may_lose(broker):
            self.checker.lost[broker.id] = None
            self._tell("lost disk", f"{broker.name} loses its disk")
            broker.lose_disk()
            self.world.at(down_ms, self.start, broker)
        else:
            self.kill(broker, down_ms)

    def bounce(self, broker: SimBroker, how: Blow | None = None) -> None:
        """Expire the session of a broker and crash it, so that it can register again at once."""
        self.expire(broker)
        (how or self.kill)(broker, self.random.choice((5, 10, 30)))

    def leave(self, broker: SimBroker, down_ms: int) -> None:
        if broker.is_up and not broker.is_paused and broker.epoch >= 0:
            self._tell("clean restart", f"{broker.name} leaves")
            broker.leave()
            self.world.at(down_ms, self._come_back, broker)

    def _come_back(self, broker: SimBroker) -> None:
        if broker.is_up and broker.is_leaving:
            self.world.at(200, self._come_back, broker)
        else:
            self.start(broker)

    def start(self, process: SimBroker | ZooKeeperServer) -> None:
        if not process.is_up:
            process.start()

    def pause(self, broker: SimBroker, for_ms: int) -> None:
        if broker.is_up and not broker.is_paused:
            self._note("pause")
            broker.pause()
            self.world.at(for_ms, self.resume, broker)

    def resume(self, broker: SimBroker) -> None:
        if broker.is_up and broker.is_paused:
            broker.resume()

    def cut_one_way(self, sender: str, receiver: str) -> None:
        self._tell("one-way cut", f"nothing gets from {sender} to {receiver}")
        self.network.cut(sender, receiver)

    def cut(self, one: str, other: str) -> None:
        self._tell("cut", f"nothing gets from {one} to {other}, nor back")
        self.network.cut(one, other)
        self.network.cut(other, one)

    def island(self, broker: SimBroker) -> None:
        self._tell("island", f"{broker.name} is an island")
        for name in self.world.processes:
            self.network.cut(broker.name, name)
            self.network.cut(name, broker.name)

    def slow(self, sender: str, receiver: str, delay_ms: int) -> None:
        self._tell("delay", f"from {sender} to {receiver} it takes {delay_ms} ms longer")
        self.network.slow_down(sender, receiver, delay_ms)

    def slow_to_all(self, broker: SimBroker, delay_ms: int) -> None:
        for other in self.brokers.values():
            if other is not broker:
                self.slow(broker.name, other.name, delay_ms)

    def mend(self) -> None:
        self.world.tell("the network is mended")
        self.network.heal()
        self.network.loss = self.shape.loss

    def slow_disk(self, broker: SimBroker, delay_ms: int, for_ms: int) -> None:
        self._tell("slow disk", f"the disk of {broker.name} takes {delay_ms} ms")
        broker.disk_ms = delay_ms
        self.world.at(for_ms, self.mend_disk, broker)

    def mend_disk(self, broker: SimBroker) -> None:
        broker.disk_ms = 0

    def jump_clock(self, broker: SimBroker, by_ms: int) -> None:
        self._tell("clock jump", f"the clock of {broker.name} jumps by {by_ms} ms")
        broker.clock_offset_ms += by_ms

    def expire(self, broker: SimBroker) -> None:
        if self.simulation.zookeeper.is_up:
            self._note("session expiry")
            self.simulation.zookeeper.expire(broker.name)

    def restart_zookeeper(self, down_ms: int) -> None:
        zookeeper = self.simulation.zookeeper
        if zookeeper.is_up:
            self._note("zookeeper restart")
            zookeeper.crash()
            self.world.at(down_ms, self.start, zookeeper)

    def move(self, partition: Partition, target: tuple[int, ...] | None) -> None:
        """Start a reassignment, or cancel it (None)."""
        controller = self.controller()
        if controller is not None and controller.control is not None:
            self._tell("reassignment", f"move {partition} to {target}")
            controller.control.moves(partition, target)

    def elect(self, partition: Partition, kind: ElectionKind) -> None:
        controller = self.controller()
        if controller is not None and controller.control is not None:
            self._tell("asked election", f"{kind.name} election of {partition} is asked for")
            controller.control.elects(partition, kind)

    def configure(self, min_isr: int) -> None:
        """Change a setting; brokers get it one after the other."""
        self._tell("other settings", f"min.insync.replicas is {min_isr} from now on")
        for broker in self.brokers.values():
            self.world.at(self.random.choice((1, 50, 500)), broker.configure, min_isr)

    # -- at random -------------------------------------------------------------------------

    def anything(self) -> Iterator[int]:
        """Inject fault after fault, and yield how long to wait after each."""
        while True:
            self._strike()
            yield self.random.choice((20, 100, 300, 800, 2000))

    def _strike(self) -> None:
        random, broker = self.random, self.any_broker()
        other = random.choice([*self.brokers.values(), self.simulation.zookeeper]).name
        down_ms = random.choice((10, 300, 1500, 4000))
        match random.choice(_ANYTHING):
            case "kill":
                self.kill(broker, down_ms)
            case "bounce":
                how = (self.kill, self.lose_power, self.lose_disk)
                self.bounce(broker, random.choice(how) if self.shape.power_cuts else None)
            case "lose_power" if self.shape.power_cuts:
                self.lose_power(broker, down_ms)
            case "lose_disk" if self.shape.power_cuts:
                self.lose_disk(broker, down_ms)
            case "leave":
                self.leave(broker, random.randint(1500, 4000))
            case "pause":
                self.pause(broker, random.choice((200, 1000, 3000, 6000)))
            case "cut":
                self.cut(broker.name, other)
            case "cut_one_way":
                self.cut_one_way(*random.sample((broker.name, other), 2))
            case "island":
                self.island(broker)
            case "slow":
                self.slow_to_all(broker, random.choice((20, 200, 800)))
            case "slow_disk":
                self.slow_disk(broker, random.choice((5, 50, 300)), random.choice((500, 3000)))
            case "jump_clock":
                self.jump_clock(broker, random.randint(-3000, 3000))
            case "expire":
                self.expire(broker)
            case "zookeeper":
                self.restart_zookeeper(random.choice((50, 500, 2500)))
            case "move" if self.shape.moves:
                target = tuple(random.sample(list(self.brokers), self.shape.replicas))
                self.move(self.partition(), random.choice((target, target, None)))
            case "elect":
                kinds = list(ElectionKind) if self.shape.unclean else [ElectionKind.PREFERRED]
                self.elect(self.partition(), random.choice(kinds))
            case "configure" if self.shape.is_reconfigured:
                self.configure(random.randint(1, self.shape.replicas))
            case "mend":
                self.mend()
