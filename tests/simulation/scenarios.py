"""Scenarios: faults in an order and with timings that expose old bugs.

A seed chooses one scenario, or none.  Each is a generator that injects faults and yields how long
to wait.  It runs again and again, on any partition, with other faults in between.  `shape` says
what cluster it needs.  Correct state machines survive all scenarios, so these are part of the
normal seeds; a random search alone would meet most of these orders once in thousands of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.broker import SimBroker
from tests.simulation.faults import Faults

Story = Callable[[Faults], Iterator[int]]


def _is_controller(faults: Faults, broker: SimBroker) -> bool:
    """Return whether the broker is the controller; if so, end that: the story is about two."""
    if faults.controller() is not broker:
        return False
    faults.expire(broker)
    return True


def failovers(faults: Faults) -> Iterator[int]:
    """One leader after the other fails, each before it has replicated its last records."""
    random, partition = faults.random, faults.partition()
    for _ in range(random.randint(2, 4)):
        leader = faults.leader(partition)
        if leader is not None:
            match random.choice(("kill", "kill", "expire", "pause", "leave", "lose_power")):
                case "kill":
                    faults.kill(leader, random.choice((10, 200, 1500)))
                case "lose_power":
                    faults.lose_power(leader, random.choice((10, 200, 1500)))
                case "expire":
                    faults.expire(leader)
                case "pause":
                    faults.pause(leader, random.choice((2300, 3000)))
                case "leave":
                    faults.leave(leader, 1500)
        yield random.choice((50, 300, 1000, 2600))


def zombies(faults: Faults) -> Iterator[int]:
    """A leader and some followers do not learn that the leader was replaced."""
    random, partition = faults.random, faults.partition()
    leader = faults.leader(partition)
    if leader is not None:
        faults.cut(leader.name, "zookeeper")
        controller = faults.controller()
        if controller is not None and controller is not leader:
            faults.cut_one_way(controller.name, leader.name)
            for follower in faults.followers(partition)[:1]:
                if random.random() < 0.5 and follower is not controller:
                    faults.cut_one_way(controller.name, follower.name)
    yield random.choice((2200, 2600, 3500))
    faults.mend()
    yield random.choice((20, 300, 1500))


def stale_watermark(faults: Faults) -> Iterator[int]:
    """A leader fails whose followers learn its high watermark late; one of them is out of sync by
    then, and has nearly caught up."""
    random, partition = faults.random, faults.partition()
    leader, others = faults.leader(partition), faults.followers(partition)
    if leader is None or len(others) < 2 or _is_controller(faults, leader):
        yield 300
        return
    late = next(other for other in others if other is not faults.controller())
    for other in others:
        faults.slow(leader.name, other.name, random.choice((100, 150)))
    yield random.randint(200, 600)
    faults.bounce(late)
    faults.cut(late.name, leader.name)
    # The leader commits without that follower at once, or after it has waited for a while.
    yield random.choice((0, 0, faults.shape.lag_ms)) + random.randint(40, 250)
    # No message in flight arrives any more.
    faults.island(leader)
    faults.kill(leader, 2600)
    yield random.randint(2200, 2600)
    faults.mend()
    yield random.randint(500, 1000)


def late_answers(faults: Faults) -> Iterator[int]:
    """A leader learns its proposals' results late, and the proposed replica falls behind."""
    random, partition = faults.random, faults.partition()
    leader, controller = faults.leader(partition), faults.controller()
    others = [follower for follower in faults.followers(partition) if follower is not controller]
    if leader is None or controller is None or not others or _is_controller(faults, leader):
        yield 300
        return
    member = others[0]
    faults.slow(controller.name, leader.name, random.choice((200, 400, 600)))
    faults.bounce(member)
    for _ in range(40):
        state = faults.state(partition)
        if (
            member.is_up
            and state is not None
            and state.broker_epochs.get(member.id) == member.epoch
        ):
            break
        yield 10
    match random.choice(("pause", "cut")):
        case "pause":
            faults.pause(member, random.randint(300, 900))
        case "cut":
            faults.cut(member.name, leader.name)
    yield random.randint(300, 900)
    faults.mend()
    yield random.randint(100, 1000)


def late_proposals(faults: Faults) -> Iterator[int]:
    """A proposal is on its way while the replica that it adds loses its disk and comes back."""
    random, partition = faults.random, faults.partition()
    leader, controller = faults.leader(partition), faults.controller()
    others = [follower for follower in faults.followers(partition) if follower is not controller]
    if leader is None or controller is None or not others or _is_controller(faults, leader):
        yield 300
        return
    member = others[0]
    faults.slow(leader.name, controller.name, random.choice((150, 300, 600)))
    for _ in range(random.randint(2, 5)):
        faults.bounce(member, random.choice((faults.lose_disk, faults.lose_power)))
        yield random.randint(60, 700)
    faults.mend()
    yield random.randint(300, 2000)


def late_orders(faults: Faults) -> Iterator[int]:
    """A request of the controller arrives after the broker has restarted without its data."""
    random = faults.random
    controller, leader = faults.controller(), faults.leader(faults.partition())
    if controller is None or leader is None or _is_controller(faults, leader):
        yield 300
        return
    faults.slow_to_all(controller, random.choice((100, 200, 350)))
    for _ in range(random.randint(1, 3)):
        broker = random.choice((leader, faults.any_broker()))
        if broker is not controller:
            how = random.choice((faults.lose_disk, faults.lose_power, faults.kill))
            faults.bounce(broker, how)
        yield random.randint(100, 600)
    faults.mend()
    yield random.randint(300, 1500)


def sleeping_controllers(faults: Faults) -> Iterator[int]:
    """A controller is paused in the middle of its work, is replaced, resumes and continues."""
    random = faults.random
    controller = faults.controller()
    if controller is None:
        yield 300
        return
    others = [broker for broker in faults.brokers.values() if broker is not controller]
    if others and random.random() < 0.7:
        faults.kill(random.choice(others), random.choice((10, 300, 1500)))
        yield random.choice((5, 20, 50, 2100))
    match random.choice(("pause", "pause", "cut", "expire")):
        case "pause":
            faults.pause(controller, random.choice((2300, 2600, 4000)))
        case "cut":
            faults.cut(controller.name, "zookeeper")
        case "expire":
            faults.expire(controller)
    for _ in range(random.randint(1, 3)):
        if others:
            faults.kill(random.choice(others), random.choice((10, 300, 1500)))
        yield random.choice((300, 900, 1500))
    faults.mend()
    yield random.choice((300, 2000))


def there_and_back(faults: Faults) -> Iterator[int]:
    """A replica is removed and added back before its leader learns of either."""
    random, partition = faults.random, faults.partition()
    leader, state, others = faults.leader(partition), faults.state(partition), []
    if state is not None and not state.is_reassigning:
        others = faults.followers(partition)
    if leader is None or state is None or len(state.replicas) <= faults.shape.min_isr or not others:
        yield 300
        return
    away, controller = others[0], faults.controller()
    faults.slow(away.name, leader.name, random.choice((50, 150, 250)))
    if controller is not None and controller is not leader:
        faults.slow(controller.name, leader.name, random.choice((0, 20, 100)))
    yield random.choice((50, 300))
    faults.move(partition, tuple(replica for replica in state.replicas if replica != away.id))
    yield random.choice((2, 10, 30, 80))
    faults.move(partition, state.replicas)
    yield random.randint(300, 900)
    faults.mend()
    yield random.randint(200, 1500)


def moving_starts(faults: Faults) -> Iterator[int]:
    """Log starts are deleted while followers are behind and responses are slow."""
    random, partition = faults.random, faults.partition()
    leader, others = faults.leader(partition), faults.followers(partition)
    if leader is None or not others:
        yield 300
        return
    faults.slow_disk(leader, random.choice((30, 100, 250)), random.choice((1000, 3000)))
    match random.choice(("pause", "kill", "cut", "nothing")):
        case "pause":
            faults.pause(others[0], random.choice((500, 1500)))
        case "kill":
            faults.kill(others[0], random.choice((10, 1500)))
        case "cut":
            faults.cut(others[0].name, leader.name)
    yield random.choice((300, 1000, 2000))
    faults.mend()
    yield random.choice((100, 1000))


def deleted_history(faults: Faults) -> Iterator[int]:
    """A leader that alone has some records is replaced, and comes back after its successor has
    deleted the offset where their logs diverge."""
    random, partition = faults.random, faults.partition()
    leader, others = faults.leader(partition), faults.followers(partition)
    if leader is None or not others:
        yield 300
        return
    for other in others:
        faults.slow(leader.name, other.name, random.choice((150, 250, 350)))
    yield random.randint(200, 500)
    match random.choice(("expire", "bounce", "pause")):
        case "expire":
            faults.expire(leader)
        case "bounce":
            faults.bounce(leader)
        case "pause":
            faults.pause(leader, 2400)
    faults.cut(leader.name, others[0].name)
    yield random.choice((200, 400, 800, 2500))
    faults.mend()
    faults.slow(others[0].name, leader.name, random.choice((0, 50, 100)))
    yield random.choice((300, 600))
    faults.mend()
    yield random.choice((200, 600))


def last_one_standing(faults: Faults) -> Iterator[int]:
    """All replicas but one are down; then that one loses its unsynced records, and comes back
    alone."""
    random, partition = faults.random, faults.partition()
    leader, others = faults.leader(partition), faults.followers(partition)
    if leader is None or not others:
        yield 300
        return
    for other in others:
        match random.choice(("kill", "cut", "pause", "leave")):
            case "kill":
                faults.kill(other, random.choice((2500, 4000)))
            case "cut":
                faults.cut(other.name, leader.name)
            case "pause":
                faults.pause(other, random.choice((2500, 4000)))
            case "leave":
                faults.leave(other, random.choice((2500, 4000)))
        yield random.choice((10, 200, 1000))
    yield random.choice((300, 1000, 2200))
    faults.lose_power(leader, random.choice((5, 100, 1000)))
    yield random.choice((500, 2000))
    faults.mend()
    yield random.choice((500, 2000))


_TWO: dict[str, Any] = {"brokers": 3, "replicas": 2, "min_isr": 1, "partitions": 1}
_THREE: dict[str, Any] = {"brokers": 3, "replicas": 3, "min_isr": 2}

SCENARIOS: dict[str, tuple[Story, dict[str, Any]]] = {
    "failovers": (failovers, {}),
    "zombies": (zombies, {}),
    "stale_watermark": (stale_watermark, {**_THREE, "loss": 0.0, "lag_ms": 600}),
    "late_answers": (late_answers, {**_THREE, "loss": 0.0}),
    "late_proposals": (late_proposals, {**_THREE, "power_cuts": True, "loss": 0.0}),
    "late_orders": (late_orders, {**_THREE, "power_cuts": True}),
    "sleeping_controllers": (sleeping_controllers, {}),
    "there_and_back": (there_and_back, {"brokers": 3, "replicas": 3, "moves": True, "loss": 0.0}),
    "moving_starts": (moving_starts, {"deletes": True}),
    "deleted_history": (deleted_history, {**_TWO, "deletes": True, "pace_ms": 1200, "loss": 0.0}),
    "last_one_standing": (last_one_standing, {**_THREE, "power_cuts": True}),
}
"""By name: the scenario, and the shape of the cluster that it needs."""
