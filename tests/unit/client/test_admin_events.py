"""Events of several brokers: merged by time, each read once, and the silent brokers named."""

from __future__ import annotations

import asyncio

import pytest

from hightide.client.admin import events as module
from hightide.client.model.events import EventFilter
from hightide.core.events import SEVERITIES, Severity
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.events import DescribedEvent, DescribeEventsResponse
from hightide.wire.messages.replicas import DepartedBroker
from tests.unit.client.fake_broker import FakeBroker, cluster

EVENTS = 30008


def event(sequence, time_ms=None):
    return DescribedEvent(
        sequence=sequence,
        time_ms=sequence if time_ms is None else time_ms,
        monotonic_ms=sequence,
        kind="isr_shrunk",
        severity=2,
        text=f"sentence {sequence}",
        data='{"isr":[1,2]}',
    )


class Ring:
    """The events of a fake broker, returned as a real one does."""

    def __init__(self, start_id, *times):
        self.start_id = start_id
        self.events = [event(number, time_ms) for number, time_ms in enumerate(times, 1)]
        self.most = 1000
        self.dropped = 0
        self.departed = []

    def add(self, time_ms):
        self.events.append(event(len(self.events) + 1, time_ms))

    def __call__(self, request):
        limit = min(request.limit, self.most)
        last = len(self.events)
        if not request.start_id:
            found = self.events[max(0, last - limit) :]
            return self.answer(found, last)
        after = request.after if request.start_id == self.start_id else 0
        newer = self.events[after:]
        found = newer[:limit]
        return self.answer(found, after + len(found), has_more=len(newer) > len(found))

    def answer(self, events, position, *, has_more=False):
        return DescribeEventsResponse(
            start_id=self.start_id,
            position=position,
            has_more=has_more,
            dropped=self.dropped,
            events=events,
            departed=self.departed,
        )


def broker(broker_id, ring):
    made = FakeBroker(broker_id)
    if ring is not None:
        made.answers[EVENTS] = ring
    return made


def run(test, *rings):
    """Run a test with a cluster whose brokers have these rings; None is a foreign broker."""

    async def main():
        brokers = [broker(number, ring) for number, ring in enumerate(rings, 1)]
        async with cluster(*brokers) as admin:
            await test(admin, *brokers)

    asyncio.run(main())


def where(found):
    return [(one.broker, one.sequence) for one in found.events]


def test_events_of_all_brokers_are_in_the_order_of_time():
    async def test(admin, *_):
        found = await admin.events.newest(3)
        assert where(found) == [(2, 1), (1, 2), (2, 2)]
        assert found.answered == {1, 2}
        first = found.events[0]
        assert (first.time_ms, first.start_id, first.severity) == (15, "b", Severity.WARNING)
        assert (first.kind, first.text, first.data) == (
            "isr_shrunk",
            "sentence 1",
            {"isr": [1, 2]},
        )

    run(test, Ring("a", 10, 20), Ring("b", 15, 25))


def test_a_reader_gets_each_event_once():
    one, two = Ring("a", 10), Ring("b", 11)

    async def test(admin, *_):
        reader = admin.events.reader()
        assert where(await reader.newest(10)) == [(1, 1), (2, 1)]
        assert where(await reader.newer()) == []
        two.add(30)
        one.add(40)
        assert where(await reader.newer()) == [(2, 2), (1, 2)]
        assert where(await reader.newer()) == []

    run(test, one, two)


def test_many_events_take_several_requests():
    ring = Ring("a", *range(10))
    ring.most = 4

    async def test(admin, asked):
        reader = admin.events.reader()
        found = await reader.newest(0)
        assert where(found) == []
        for _ in range(10):
            ring.add(20)
        assert [number for _, number in where(await reader.newer())] == [*range(11, 21)]
        whole = await admin.events.newest(module.MOST_EVENTS + 1)
        assert [number for _, number in where(whole)] == [*range(1, 21)]

    run(test, ring)


def test_a_restarted_broker_is_read_from_its_first_event():
    ring = Ring("a", 10, 11, 12)

    async def test(admin, asked):
        reader = admin.events.reader()
        await reader.newest(1)
        asked.answers[EVENTS] = Ring("b", 20, 21)
        found = await reader.newer()
        assert (where(found), found.restarted) == ([(1, 1), (1, 2)], {1})
        assert (await reader.newer()).restarted == set()

    run(test, ring)


def test_events_that_were_dropped_unread_are_known():
    ring = Ring("a", 10, 11)

    async def test(admin, asked):
        reader = admin.events.reader()
        ring.dropped = 2
        assert (await reader.newest(1)).missed == set()
        assert (await reader.newer()).missed == set()
        ring.add(12)
        ring.dropped = 3
        assert (await reader.newer()).missed == {1}

    run(test, ring)


def test_a_silent_broker_is_named_and_asked_again():
    ring = Ring("b", 10)

    async def test(admin, one, two):
        reader = admin.events.reader(answer_s=0.5)
        assert where(await reader.newest(10)) == [(1, 1), (2, 1)]
        two.answers[EVENTS] = lambda _: None
        ring.add(11)
        found = await reader.newer()
        assert (where(found), found.answered) == ([], {1})
        assert found.silent == {2: "It did not answer within 0.5 s."}
        two.answers[EVENTS] = ring
        found = await reader.newer()
        assert (where(found), found.silent) == ([(2, 2)], {})

    run(test, Ring("a", 9), ring)


def test_a_broker_that_is_gone_is_named():
    ring = Ring("a", 10)
    ring.departed = [DepartedBroker(broker_id=3, host="h", port=9092, last_seen_ms=1_000)]

    async def test(admin, *_):
        found = await admin.events.newest(1)
        assert list(found.silent) == [3]
        assert found.silent[3].startswith("It is gone since 19")
        assert found.silent[3].endswith(" (h:9092).")
        other = await admin.events.newest(1, EventFilter(brokers=[1]))
        assert other.silent == {}

    run(test, ring)


def test_a_broker_of_another_make_keeps_no_events():
    async def test(admin, *_):
        found = await admin.events.newest(5)
        assert (where(found), found.foreign, found.answered) == ([(1, 1)], {2}, {1})

    run(test, Ring("a", 10), None)


def test_the_filter_goes_to_the_brokers():
    async def test(admin, one, two):
        wanted = EventFilter(
            brokers=[2, 7],
            kinds=["isr_shrunk"],
            topics=[("orders", None), ("bills", 3)],
            severity=Severity.WARNING,
        )
        found = await admin.events.newest(5, wanted)
        assert (where(found), found.silent) == ([(2, 1)], {7: "It is not in the cluster."})
        asked = [request for request in two.asked if type(request).__name__.startswith("DescribeE")]
        assert [request.kinds for request in asked] == [["isr_shrunk"]]
        assert asked[0].severity == SEVERITIES.index(Severity.WARNING)
        assert [(topic.topic, topic.partitions) for topic in asked[0].topics] == [
            ("orders", []),
            ("bills", [3]),
        ]

    run(test, Ring("a", 10), Ring("b", 10))


def test_a_refusal_is_an_error():
    refusal = DescribeEventsResponse(
        error_code=ErrorCode.INVALID_REQUEST, error_message="there is no kind", events=[]
    )

    async def test(admin, *_):
        with pytest.raises(KafkaError, match="there is no kind"):
            await admin.events.newest(5)

    run(test, lambda _: refusal)
