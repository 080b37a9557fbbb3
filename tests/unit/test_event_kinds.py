"""Every kind of event becomes data and JSON without a loss, and a sentence."""

from __future__ import annotations

import json
import logging
import re
import threading
import typing
from dataclasses import fields
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide import event_log
from hightide.core.controller.controller_events import BrokersChanged
from hightide.core.events import Event, EventRing, Severity
from hightide.log.repair import RecordsDamaged
from hightide.process_log import JsonLines, Origin, TextLines
from tests.support.event_examples import EXAMPLES, every_kind

KINDS = every_kind()


def test_there_is_one_example_of_each_kind() -> None:
    assert sorted(example.kind for example in EXAMPLES) == sorted(KINDS)


def instances(kind: type[Event]) -> st.SearchStrategy[Any]:
    if kind is BrokersChanged:
        # Each broker that is up has its epoch.
        many = st.lists(st.tuples(st.integers(), st.integers()))
        ids = st.lists(st.integers()).map(tuple)
        return st.builds(
            lambda gone, up, live: BrokersChanged(
                gone, tuple(one for one, _ in up), tuple(epoch for _, epoch in up), live
            ),
            *(ids, many, ids),
        )
    return st.from_type(kind)


def rebuilt(kind: type[Event], data: dict[str, Any]) -> Event:
    """The event that has these data, by the types of its fields."""
    types = typing.get_type_hints(kind)
    values = {}
    for name, value in data.items():
        expected = types[name]
        if isinstance(expected, type) and issubclass(expected, Enum):
            value = expected[value.upper()]
        elif typing.get_origin(expected) is tuple:
            value = tuple(value)
        values[name] = value
    return kind(**values)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_field_is_lost_in_json(kind: type[Event]) -> None:
    @given(instances(kind))
    def check(event: Event) -> None:
        data = json.loads(json.dumps(event.data()))
        assert list(data) == [field.name for field in fields(kind)]
        assert rebuilt(kind, data) == event
        assert str(event)
        assert event.level in Severity

    check()


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.kind)
def test_a_sentence_is_for_people(event: Event) -> None:
    text = str(event)
    assert re.search(r"[a-z]{2,} [a-z]{2,}", text)
    assert not re.search(r"[A-Z][a-z]+\(|<\w+|None|\bTrue\b|\bFalse\b|\w\.[A-Z]{3,}", text), text
    assert not text.endswith(".")
    topic, partition = event.place
    if topic is not None:
        assert topic in text
    if partition is not None and not isinstance(event, RecordsDamaged):
        assert f"{topic}/{partition}" in text


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.kind)
def test_the_log_has_the_sentence_and_json_has_the_data(event: Event) -> None:
    recorded = EventRing(1).add(event, 0, 0)
    record = logging.LogRecord("hightide.x", logging.INFO, "x.py", 1, "%s", (event,), None)
    record.event = recorded
    assert TextLines(Origin("broker", 1)).format(record).endswith(f"x: {event}")
    line = json.loads(JsonLines(Origin("broker", 1)).format(record))
    assert (line["message"], line["event"]) == (str(event), event.kind)
    assert (line["sequence"], line["data"]) == (1, json.loads(json.dumps(event.data())))


def test_damaged_records_have_their_place() -> None:
    damaged = RecordsDamaged("/data", "orders-eu-12", 0, 1, "x", "y")
    assert damaged.place == ("orders-eu", 12)


def test_events_are_recorded_from_many_threads(monkeypatch) -> None:
    monkeypatch.setattr(event_log, "ring", EventRing(10_000))
    log = logging.getLogger("test.events")
    count, threads = 500, 8
    started = threading.Barrier(threads)

    def run(number: int) -> None:
        started.wait()
        for _ in range(count):
            event_log.record(log, EXAMPLES[number], is_logged=False)
            event_log.newest()

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    kept = event_log.after(0)
    found = [*kept.events]
    assert [recorded.sequence for recorded in found] == [*range(1, count * threads + 1)]
    assert kept.last_sequence == count * threads
    for example in EXAMPLES[:threads]:
        assert event_log.ring.counts[example.kind] == count
        assert sum(recorded.event is example for recorded in found) == count
    times = [recorded.monotonic_ms for recorded in found]
    assert times == sorted(times)


def test_an_event_that_is_not_logged_is_in_the_ring(monkeypatch, caplog) -> None:
    monkeypatch.setattr(event_log, "ring", EventRing(5))
    log = logging.getLogger("test.events")
    caplog.set_level(logging.INFO)
    shown, hidden, minor = (
        next(example for example in EXAMPLES if example.kind == kind)
        for kind in ("isr_shrunk", "isr_grown", "role_changed")
    )
    event_log.record(log, shown)
    event_log.record(log, hidden, is_logged=False)
    event_log.record(log, minor)
    assert [record.getMessage() for record in caplog.records] == [str(shown)]
    assert caplog.records[0].levelno == logging.WARNING
    assert [recorded.event for recorded in event_log.after(0).events] == [shown, hidden, minor]
