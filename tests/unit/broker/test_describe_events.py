"""DescribeEvents: which events a broker returns, and where the next request continues."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hightide import event_log
from hightide.broker.handlers import describe_events as handler
from hightide.core.events import EventRing
from hightide.core.metadata.image import MetadataImage
from hightide.core.partition.isr import IsrGrown, IsrShrunk
from hightide.core.partition.state import Role, RoleChanged
from hightide.log.repair import RecordsDamaged
from hightide.wire.codec import decode, encode
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.events import DescribeEventsRequest, DescribeEventsResponse
from hightide.wire.messages.replicas import TopicPartitions
from tests.support.event_examples import EXAMPLES
from tests.support.steps import all_steps

SHRUNK = IsrShrunk("orders", 0, (3,), (1, 2), 1, "late")
GROWN = IsrGrown("orders", 1, (3,), (1, 2, 3), 1, "caught up")
ROLE = RoleChanged("bills", 0, Role.LEADS, 1, 4)
DAMAGED = RecordsDamaged("/data", "orders-0", 3, 4, "aside", "at byte 7")


@pytest.fixture(autouse=True)
def ring(monkeypatch) -> EventRing:
    ring = EventRing(1000)
    monkeypatch.setattr(event_log, "ring", ring)
    for number, event in enumerate((SHRUNK, GROWN, ROLE, DAMAGED, GROWN)):
        ring.add(event, 1_000 + number, number)
    return ring


def ask(**request: Any) -> DescribeEventsResponse:
    broker: Any = SimpleNamespace(
        monotonic_ms=lambda: 0, now_ms=lambda: 0, metadata_image=MetadataImage(1, "PLAINTEXT")
    )
    context: Any = SimpleNamespace(connection=SimpleNamespace(listener="PLAINTEXT"))
    asked = DescribeEventsRequest(**request)
    response = all_steps(handler.describe_events(broker, asked, context))
    # The response must also survive the codec.
    assert decode(DescribeEventsResponse, encode(response, 0), 0) == response
    return response


def since(after: int, **request: Any) -> DescribeEventsResponse:
    return ask(start_id=event_log.START_ID, after=after, **request)


def numbers(response: DescribeEventsResponse) -> list[int]:
    assert response.error_code == ErrorCode.NONE
    return [event.sequence for event in response.events]


def test_an_event_has_its_facts_and_its_sentence() -> None:
    (found,) = ask(kinds=["isr_shrunk"]).events
    assert (found.sequence, found.time_ms, found.monotonic_ms) == (1, 1_000, 0)
    assert (found.kind, found.severity, found.text) == ("isr_shrunk", 2, str(SHRUNK))
    assert json.loads(found.data) == {
        "topic": "orders",
        "partition": 0,
        "removed": [3],
        "isr": [1, 2],
        "leader": 1,
        "why": "late",
    }


def test_the_newest_come_in_the_order_of_their_numbers() -> None:
    found = ask(limit=2)
    assert numbers(found) == [4, 5]
    assert (found.position, found.start_id) == (5, event_log.START_ID)
    assert numbers(ask(limit=0)) == []
    assert ask(limit=0).position == 5


def test_a_reader_continues_where_it_was() -> None:
    first = since(1, limit=2)
    assert (numbers(first), first.position, first.has_more) == ([2, 3], 3, True)
    second = since(first.position, limit=2)
    assert (numbers(second), second.position, second.has_more) == ([4, 5], 5, False)
    assert numbers(since(5)) == []


def test_a_position_is_behind_events_that_are_not_wanted() -> None:
    found = since(1, kinds=["role_changed"])
    assert (numbers(found), found.position) == ([3], 5)
    cut = since(0, limit=1, topics=[TopicPartitions(topic="orders", partitions=[1])])
    assert (numbers(cut), cut.position, cut.has_more) == ([2], 2, True)


def test_a_position_of_another_start_means_the_first_event() -> None:
    found = ask(start_id="another", after=4)
    assert (numbers(found), found.start_id) == ([1, 2, 3, 4, 5], event_log.START_ID)


def test_events_are_chosen_by_severity_and_place() -> None:
    orders = TopicPartitions(topic="orders", partitions=[])
    first = TopicPartitions(topic="orders", partitions=[0])
    bills = TopicPartitions(topic="bills", partitions=[])
    assert numbers(ask(severity=1)) == [1, 2, 4, 5]
    assert numbers(ask(severity=3)) == [4]
    assert numbers(ask(topics=[orders])) == [1, 2, 4, 5]
    assert numbers(ask(topics=[first])) == [1, 4]
    assert numbers(ask(topics=[first, bills])) == [1, 3, 4]
    assert numbers(ask(topics=[first, orders], kinds=["isr_grown"])) == [2, 5]


def test_a_reader_learns_what_is_not_kept_any_more(monkeypatch) -> None:
    small = EventRing(1)
    monkeypatch.setattr(event_log, "ring", small)
    for event in (GROWN, GROWN, SHRUNK):
        small.add(event, 0, 0)
    found = since(0)
    assert (numbers(found), found.dropped) == ([2, 3], 1)
    assert since(0, kinds=["isr_shrunk"]).dropped == 0


def test_a_response_is_bounded_by_count_and_size(ring, monkeypatch) -> None:
    monkeypatch.setattr(handler, "MOST_EVENTS", 3)
    assert (numbers(since(0, limit=2**31 - 1)), since(0, limit=9).has_more) == ([1, 2, 3], True)
    monkeypatch.setattr(handler, "MOST_CHARACTERS", 1)
    assert numbers(since(3, limit=9)) == [4]
    assert numbers(ask(limit=9)) == [5]


def test_a_reader_gets_every_event_whatever_the_bounds_are(ring, monkeypatch) -> None:
    for event in EXAMPLES:
        ring.add(event, 0, 0)
    monkeypatch.setattr(handler, "MOST_CHARACTERS", 700)
    found: list[int] = []
    position, more = 0, True
    while more:
        response = since(position, limit=9)
        found += numbers(response)
        assert response.position >= position
        position, more = response.position, response.has_more
    assert found == [*range(1, ring.last_sequence + 1)]


def test_a_name_that_is_no_text_is_escaped(ring) -> None:
    damaged = RecordsDamaged("/data\udcff", "orders-0", 3, 4, "aside", "at byte 7")
    ring.add(damaged, 0, 0)
    (found,) = ask(limit=1).events
    assert "/data\\udcff" in found.text
    assert json.loads(found.data)["log_dir"] == "/data\udcff"


def test_an_unknown_kind_or_severity_is_refused() -> None:
    unknown = ask(kinds=["isr_shrunk", "isr_shrank"])
    assert unknown.error_code == ErrorCode.INVALID_REQUEST
    assert unknown.error_message is not None
    assert unknown.error_message.startswith("there is no kind of event 'isr_shrank'; known are ")
    assert " isr_shrunk," in unknown.error_message
    assert ask(severity=4).error_code == ErrorCode.INVALID_REQUEST
    assert ask(severity=-1).error_code == ErrorCode.INVALID_REQUEST


def test_other_requests_have_their_turn_in_between(ring) -> None:
    for _ in range(500):
        ring.add(GROWN, 0, 0)
    broker: Any = SimpleNamespace(
        monotonic_ms=lambda: 0, now_ms=lambda: 0, metadata_image=MetadataImage(1, "PLAINTEXT")
    )
    context: Any = SimpleNamespace(connection=SimpleNamespace(listener="PLAINTEXT"))
    steps = handler.describe_events(broker, DescribeEventsRequest(kinds=["first_write"]), context)
    assert all_steps(steps).events == []
    request = DescribeEventsRequest(topics=[TopicPartitions(topic="none", partitions=[])])
    steps = handler.describe_events(broker, request, context)
    assert sum(1 for _ in steps) == 11
