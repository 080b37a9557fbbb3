"""The ring of events: the newest of each kind, in the order in which they were recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from hightide.core.events import Event, EventRing, Severity, brokers


@dataclass(frozen=True, slots=True)
class TestLampOn(Event):
    __test__ = False
    topic: str = "hall"
    partition: int = 0

    def __str__(self) -> str:
        return "on"


@dataclass(frozen=True, slots=True)
class TestLampOff(Event):
    __test__ = False
    severity: ClassVar[Severity] = Severity.WARNING

    def __str__(self) -> str:
        return "off"


ON, OFF = TestLampOn(), TestLampOff()


def sequences(found) -> list[int]:
    return [recorded.sequence for recorded in found]


def test_a_kind_has_the_name_of_its_class() -> None:
    assert (TestLampOn.kind, TestLampOff.kind) == ("test_lamp_on", "test_lamp_off")


def test_an_event_has_two_times_and_the_next_number() -> None:
    ring = EventRing(3)
    first, second = ring.add(ON, 1_000, 5), ring.add(OFF, 900, 6)
    assert (first.sequence, first.time_ms, first.monotonic_ms, first.event) == (1, 1_000, 5, ON)
    assert (second.sequence, ring.last_sequence) == (2, 2)


def test_each_kind_keeps_its_newest() -> None:
    ring = EventRing(2)
    ring.add(OFF, 0, 0)
    for _ in range(5):
        ring.add(ON, 0, 0)
    assert sequences(ring.after(0)) == [1, 5, 6]
    assert ring.counts == {"test_lamp_off": 1, "test_lamp_on": 5}
    assert ring.dropped_sequence() == ring.dropped_sequence(["test_lamp_on"]) == 4
    assert ring.dropped_sequence(["test_lamp_off"]) == 0


def test_events_are_read_by_number_and_kind() -> None:
    ring = EventRing(9)
    for event in (ON, OFF, ON, OFF, ON):
        ring.add(event, 0, 0)
    assert sequences(ring.after(2)) == [3, 4, 5]
    assert sequences(ring.after(2, ["test_lamp_off"])) == [4]
    assert sequences(ring.after(9)) == []
    assert sequences(ring.newest()) == [5, 4, 3, 2, 1]
    assert sequences(ring.newest(["test_lamp_on", "unknown"])) == [5, 3, 1]


def test_the_ring_may_change_while_it_is_read() -> None:
    ring = EventRing(2)
    ring.add(ON, 0, 0)
    ring.add(OFF, 0, 0)
    oldest, newest = ring.after(0), ring.newest()
    for _ in range(3):
        ring.add(ON, 0, 0)
    assert (sequences(oldest), sequences(newest)) == ([1, 2], [2, 1])


@given(st.lists(st.sampled_from([ON, OFF])), st.integers(1, 4), st.integers(0, 20))
def test_the_ring_is_a_list_without_the_older_ones(recorded, kept, after) -> None:
    ring = EventRing(kept)
    for event in recorded:
        ring.add(event, 0, 0)
    numbered = [*enumerate(recorded, 1)]
    whole = [
        number
        for number, event in numbered
        if sum(later > number and other == event for later, other in numbered) < kept
    ]
    assert sequences(ring.after(after)) == [number for number in whole if number > after]
    assert sequences(ring.newest()) == whole[::-1]
    dropped = {number for number, _ in numbered} - {*whole}
    assert ring.dropped_sequence() == max(dropped, default=0)


def test_an_event_knows_its_place() -> None:
    assert ON.place == ("hall", 0)
    assert OFF.place == (None, None)


def test_brokers_are_named_in_a_sentence() -> None:
    assert [brokers(()), brokers((1,)), brokers((1, 2)), brokers((1, 2, 3))] == [
        "no broker",
        "broker 1",
        "brokers 1 and 2",
        "brokers 1, 2 and 3",
    ]
