"""The phases of a failover at the controller: detected, elected, published; and its own end."""

from __future__ import annotations

import pytest

from hightide import event_log
from hightide.core.controller.controller_events import (
    BrokersChanged,
    ControllerElected,
    ControllerResigned,
    LeaderElected,
    LeadersElected,
    StatePublished,
)
from hightide.core.events import Event, EventRing
from hightide.core.partition.isr import IsrShrunk
from hightide.core.partition.state import NO_BROKER
from tests.support.eventually import eventually_async
from tests.unit.broker.controller_world import in_a_world


@pytest.fixture(autouse=True)
def ring(monkeypatch) -> EventRing:
    ring = EventRing(100)
    monkeypatch.setattr(event_log, "ring", ring)
    return ring


def recorded(*kinds: type[Event]) -> list[Event]:
    names = [kind.kind for kind in kinds]
    return [found.event for found in event_log.ring.after(0, names)]


def caused_by(why: str) -> list[Event]:
    phases = recorded(BrokersChanged, LeaderElected, IsrShrunk, LeadersElected, StatePublished)
    return [event for event in phases if getattr(event, "why", why) == why]


@in_a_world
async def test_a_dead_broker_is_detected_replaced_and_published(world):
    await world.up(1, 2, 3)
    await world.candidate()
    await world.create("t", [1, 2])
    await world.down(1)
    why = "broker 1 is gone"

    def is_published() -> bool:
        return any(event.why == why for event in recorded(StatePublished))  # type: ignore[attr-defined]

    await eventually_async(is_published)
    phases = caused_by(why)
    detected = BrokersChanged((1,), (), (), (2, 3))
    assert phases[phases.index(detected) :][:4] == [
        detected,
        LeaderElected("t", 0, 2, 1, 1, (2,), why),
        IsrShrunk("t", 0, (1,), (2,), 2, why),
        phases[-2],
    ]
    elected, published = phases[-2:]
    assert isinstance(elected, LeadersElected)
    assert (elected.new_leaders, elected.shrunk_isrs, elected.without_leader) == (1, 1, 0)
    assert isinstance(published, StatePublished)
    assert published.is_complete
    assert published.took_ms >= elected.took_ms >= 0


@in_a_world
async def test_a_broker_that_is_back_is_recorded_with_its_epoch(world):
    await world.up(1, 2)
    controller = await world.candidate()
    await controller.state_machine()
    await world.down(2)
    await eventually_async(lambda: BrokersChanged((2,), (), (), (1,)) in recorded(BrokersChanged))
    await world.up(2)
    back = BrokersChanged((), (2,), (world.peers[2].epoch,), (1, 2))
    await eventually_async(lambda: back in recorded(BrokersChanged))


@in_a_world
async def test_a_controller_that_died_leaves_its_failover_to_the_next(world):
    """The dead broker led a partition: the new controller says that it is gone."""
    await world.up(1, 2)
    await world.candidate()
    await world.create("t", [1, 2])
    await world.candidate(101)
    await world.controllers[100].stop()
    await world.elections[100].watch_loop.stop()
    await world.down(1)
    await world.sessions[100].close()
    await eventually_async(lambda: world.elections[101].is_controller)
    await eventually_async(lambda: world.leaders("t", 1) == [2])
    assert ControllerElected(101, 2, True, 100) in recorded(ControllerElected)
    why = "broker 1 is gone"
    assert BrokersChanged((1,), (), (), (2,)) in recorded(BrokersChanged)
    assert LeaderElected("t", 0, 2, 1, 1, (2,), why) in recorded(LeaderElected)


@in_a_world
async def test_a_controller_that_stands_down_says_why(world):
    await world.up(1)
    await world.candidate()
    assert recorded(ControllerElected) == [ControllerElected(100, 1, True, NO_BROKER)]
    world.elections[100].stand_down("the test says so")
    assert recorded(ControllerResigned) == [ControllerResigned(1, "the test says so")]
