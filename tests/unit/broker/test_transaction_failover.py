"""A transaction ends exactly once, whichever brokers fail at any of its steps."""

from __future__ import annotations

import pytest

from hightide.core.transactions.transaction import State
from tests.unit.broker.transaction_drill import TOPIC, Drill, Machine

COMPLETE = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)

STEPS = {
    "the partitions are being added": lambda drill: drill.writes(State.ONGOING),
    "the partitions are added": lambda drill: drill.is_in(State.ONGOING),
    "one partition has its records": lambda drill: len(drill.open_in()) == 1,
    "all partitions have their records": lambda drill: len(drill.open_in()) == 2,
    "the end is being decided": lambda drill: drill.writes(*PREPARED),
    "the end is decided": lambda drill: drill.is_in(*PREPARED),
    "one marker is written": lambda drill: drill.is_in(*PREPARED) and len(drill.open_in()) == 1,
    "all markers are written": lambda drill: drill.is_in(*PREPARED) and not drill.open_in(),
    "the completion is being written": lambda drill: drill.writes(*COMPLETE),
    "it is complete": lambda drill: drill.is_in(*COMPLETE),
}

VICTIMS = {
    "coordinator": lambda drill: [drill.coordinating],
    "leader": lambda drill: [drill.leader(TOPIC, 1)],
    "coordinator and leader": lambda drill: [drill.coordinating, drill.leader(TOPIC, 0)],
    "all": lambda drill: [*drill.machines.values()],
}


def add_fault(drill: Drill, number: int, name: str, victims: str, manner: str) -> None:
    def happens() -> None:
        getattr(drill, manner)(*VICTIMS[victims](drill))

    drill.after(number, name, lambda: STEPS[name](drill), happens)


@pytest.mark.parametrize(
    ("victims", "manner"),
    [
        ("coordinator", "kill"),
        ("leader", "kill"),
        ("coordinator and leader", "kill"),
        ("all", "kill"),
        ("coordinator", "stop"),
        ("leader", "stop"),
    ],
)
def test_a_transaction_ends_once_whatever_fails_at_any_step(victims: str, manner: str):
    # One transaction for each step; all but every third are committed.
    drill = Drill(
        sum(map(ord, victims + manner)), [number % 3 != 2 for number in range(len(STEPS))]
    )
    for number, name in enumerate(STEPS):
        add_fault(drill, number, name, victims, manner)
    drill.run()
    assert drill.met == [*STEPS]


def test_a_transaction_is_not_completed_while_a_copy_of_a_marker_may_arrive():
    """A leader does not respond, and another takes over.

    The partition has the marker, but the first leader could still write its copy if it led again.
    """
    drill, index = Drill(1, [True, True]), 1
    seen = []

    def cut() -> None:
        coordinating, world = drill.coordinating, drill.world
        leader = drill.leader(TOPIC, index)
        assert coordinating is not None
        assert leader is not None
        assert leader.broker is not None
        assert leader is not coordinating, "this seed does not fit the test"
        assert not leader.broker.election.is_controller, "this seed does not fit the test"
        (third,) = {*drill.machines.values()} - {coordinating, leader}
        order = tuple(machine.broker_id for machine in (third, leader, coordinating))
        world.network.cut(leader.name, coordinating.name)
        drill.admin.tell(lambda: drill.admin.move((TOPIC, index), order))
        world.at(10.0, look, third, leader)

    def look(third: Machine, leader: Machine) -> None:
        assert drill.leader(TOPIC, index) is third
        assert not drill.open_in()
        machine = drill.coordinating
        assert machine is not None
        assert machine.broker is not None
        marker_fencing = machine.broker.transactions._marker_delivery._senders
        seen.append(
            (drill.is_in(State.PREPARE_COMMIT), len(marker_fencing[leader.broker_id].in_doubt))
        )
        drill.world.network.heal()

    drill.after(1, "the end is decided", lambda: drill.is_in(State.PREPARE_COMMIT), cut)
    drill.run(rest_s=15.0)
    assert seen == [(True, 1)]
