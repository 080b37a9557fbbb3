"""Turns of the event loop, the work pool, and the names of a request."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from hightide.broker.network.request_names import check_names
from hightide.broker.network.turn import (
    STALL_S,
    TURN_S,
    Steps,
    Turn,
    TurnQueue,
    Usage,
    gather_in_turns,
    watched,
)
from hightide.broker.work_pool import WorkPool
from hightide.wire.encoder import TooLarge
from hightide.wire.errors import WireError
from hightide.wire.frame import encode_response
from hightide.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from hightide.wire.messages.groups import DescribeGroupsRequest
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from hightide.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from hightide.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.support.eventually import eventually_async


class Clock:
    """A clock that goes on by a millisecond with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def clocked() -> TurnQueue:
    return TurnQueue(Clock(), Clock())


def counting(steps: int, taken: list[int]) -> Steps[str]:
    for step in range(steps):
        taken.append(step)
        yield
    return "done"


def test_a_short_handler_ends_in_its_first_turn():
    assert Turn(clocked()).run(counting(3, [])) == "done"


def test_a_long_handler_gives_others_a_turn():
    async def test() -> None:
        taken: list[int] = []
        seen: list[int] = []
        turn, steps = Turn(clocked()), counting(100, taken)
        assert turn.run(steps) is None
        assert len(taken) <= TURN_S / 0.001 + 1

        async def bystander() -> None:
            while len(taken) < 100:
                seen.append(len(taken))
                await asyncio.sleep(0)

        other = asyncio.create_task(bystander())
        assert await turn.finish(steps) == "done"
        await other
        assert len(seen) > 5

    asyncio.run(test())


def test_many_coroutines_run_a_few_at_a_time():
    running, most = 0, 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    async def test() -> None:
        found = await gather_in_turns(Turn(clocked()), (work(number) for number in range(500)))
        assert found == list(range(500))
        assert most < 50

    asyncio.run(test())


def test_a_stall_is_reported_and_errors_pass_through():
    now, stalls = 0.0, []

    async def work() -> str:
        nonlocal now
        now += STALL_S / 2
        await asyncio.sleep(0)
        now += STALL_S * 2
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError:
            return "late"
        return "never"

    async def test() -> None:
        turn = Turn(TurnQueue(lambda: now, lambda: now))
        assert await watched(work(), turn, stalls.append) == "late"
        assert stalls == [STALL_S * 2]

        async def fails() -> None:
            await asyncio.sleep(0)
            raise ValueError("wrong")

        with pytest.raises(ValueError, match="wrong"):
            await watched(fails(), turn, stalls.append)

    asyncio.run(test())


def test_an_error_leaves_no_reference_cycle():
    """What a failed request holds is free at once, not after a garbage collection."""

    class Held:
        pass

    def failure() -> tuple[ValueError, weakref.ref[Held]]:
        held = Held()  # a local variable of a frame in the traceback
        try:
            raise ValueError("wrong")
        except ValueError as error:
            return error, weakref.ref(held)

    async def work(futures: list[asyncio.Future[None]]) -> str:
        try:
            await futures.pop()
        except ValueError:
            return "failed"
        return "never"

    async def test() -> weakref.ref[Held]:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future()]
        error, reference = failure()
        loop.call_later(0.01, futures[0].set_exception, error)
        del error
        work_ = watched(work(futures), Turn(), lambda _: None)
        assert await asyncio.create_task(work_) == "failed"
        return reference

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(test())() is None
    finally:
        gc.enable()


# -- who is next -------------------------------------------------------------------------------


def test_a_request_that_arrives_waits_for_one_turn_of_all_that_have_work():
    """With a turn for each in every iteration of the loop, it would wait for a hundred."""

    async def test() -> None:
        queue = TurnQueue()
        ran: list[int] = []
        for number in range(100):
            queue.later(Usage(), partial(ran.append, number))
        before = len(ran)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(ran) - before <= 2
        await eventually_async(lambda: len(ran) == 100)
        assert ran == sorted(ran), "of equals the first comes first"

    asyncio.run(test())


def test_small_requests_come_first_and_large_ones_end_one_after_the_other():
    async def test() -> None:
        queue = TurnQueue(lambda: 100.0)
        ended: list[str] = []
        used: dict[str, Usage] = {}
        for name, seconds in (("first", 1.0), ("second", 0.5), ("small", 0.001), ("old", 1.0)):
            used[name] = Usage()
            used[name].add(seconds)
            used[name].asked()
            since_s = 50.0 if name == "old" else 100.0
            queue.later(used[name], partial(ended.append, name), since_s)
        await eventually_async(lambda: len(ended) == 4)
        # What has waited for a minute is not passed any more.
        assert ended == ["old", "small", "first", "second"]

    asyncio.run(test())


def test_what_arrives_in_a_full_iteration_of_the_loop_waits():
    async def test() -> None:
        now = 0.0
        queue = TurnQueue(lambda: now)
        assert not queue.is_full
        now += TURN_S / 2
        assert not queue.is_full
        now += TURN_S
        assert queue.is_full
        await asyncio.sleep(0)
        assert not queue.is_full

    asyncio.run(test())


def test_first_turns_are_short_while_many_wait():
    async def test() -> None:
        queue = TurnQueue(lambda: 0.0)
        assert queue.first_turn_s == TURN_S
        for _ in range(1_000):
            queue.later(Usage(), lambda: None)
        assert queue.first_turn_s < TURN_S / 10
        await eventually_async(lambda: queue.first_turn_s == TURN_S)

    asyncio.run(test())


# -- the pool ----------------------------------------------------------------------------------


def test_the_pool_starts_no_work_beyond_its_bytes():
    async def test() -> None:
        pool, gate, begun = WorkPool(max_bytes=100), threading.Event(), []

        def work(name: str) -> str:
            begun.append(name)
            gate.wait(10)
            return name

        jobs = [asyncio.create_task(pool.run(Usage(), 60, work, name)) for name in ("a", "b")]
        await eventually_async(lambda: begun == ["a"])
        jobs[1].cancel()
        jobs.append(asyncio.create_task(pool.run(Usage(), 500, work, "large")))
        await asyncio.sleep(0)
        assert begun == ["a"]
        gate.set()
        assert await jobs[0] == "a"
        assert await jobs[2] == "large", "work beyond the whole budget runs alone"
        assert pool._left == 100
        pool.stop()

    asyncio.run(test())


def test_the_pool_prefers_a_connection_with_small_requests():
    async def test() -> None:
        pool, gate, begun = WorkPool(max_bytes=100), threading.Event(), []
        busy, bystander = Usage(), Usage()
        busy.add(10.0)
        bystander.asked()

        def work(name: str) -> None:
            gate.wait(10)
            begun.append(name)

        jobs = [asyncio.create_task(pool.run(busy, 1, work, f"busy-{at}")) for at in range(20)]
        await asyncio.sleep(0)
        jobs.append(asyncio.create_task(pool.run(bystander, 1, work, "bystander")))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*jobs)
        assert begun.index("bystander") < 6, "it waits for what has begun"
        pool.stop()

    asyncio.run(test())


def test_a_producer_of_ordinary_batches_does_not_wait_for_unknown_ones():
    async def test() -> None:
        pool, gate, begun = WorkPool(max_bytes=100), threading.Event(), []
        known = Usage(1.0)
        for _ in range(10):
            known.asked()

        def work(name: str) -> None:
            gate.wait(10)
            begun.append(name)

        jobs = [asyncio.create_task(pool.run(Usage(1.0), 1, work, f"{at}")) for at in range(20)]
        await asyncio.sleep(0)
        jobs.append(asyncio.create_task(pool.run(known, 1, work, "known")))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*jobs)
        assert begun.index("known") < 6
        pool.stop()

    asyncio.run(test())


def test_work_that_fails_returns_its_bytes():
    async def test() -> None:
        pool = WorkPool(max_bytes=100)
        with pytest.raises(ZeroDivisionError):
            await pool.run(Usage(), 60, lambda: 1 // 0)
        assert pool._left == 100
        pool.stop()

    asyncio.run(test())


# -- names -------------------------------------------------------------------------------------


def test_a_name_is_described_once_however_often_it_is_named():
    resources = [
        DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=["a", "a"])
        for _ in range(6_000)
    ]
    resources.append(
        DescribeConfigsResource(resource_type=2, resource_name="1", configuration_keys=None)
    )
    request = DescribeConfigsRequest(resources=resources)
    check_names(request, 32, 10)
    assert [(found.resource_type, found.configuration_keys) for found in request.resources] == [
        (4, ["a"]),
        (2, None),
    ]


def test_a_topic_with_an_id_is_described_once_whatever_its_names_are():
    topic_id = uuid.uuid4()
    topics = [MetadataRequestTopic(name=f"t{at}", topic_id=topic_id) for at in range(9_000)]
    topics += [MetadataRequestTopic(name="a"), MetadataRequestTopic(name="b")]
    request = MetadataRequest(topics=topics)
    check_names(request, 3, 10)
    assert [topic.name for topic in request.topics or ()] == ["t0", "a", "b"]


def test_null_names_everything_when_names_are_merged():
    groups = [
        OffsetFetchRequestGroup(group_id="g", member_id="x", topics=topics)
        for topics in (
            [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])],
            [OffsetFetchRequestTopics(name="t", partition_indexes=[1, 2])],
        )
    ]
    request = OffsetFetchRequest(groups=groups)
    check_names(request, 9, 10)
    (group,) = request.groups
    assert group.topics is not None
    assert [(topic.name, topic.partition_indexes) for topic in group.topics] == [("t", [0, 1, 2])]
    everything = OffsetFetchRequestGroup(group_id="g", member_id="y", topics=None)
    request = OffsetFetchRequest(groups=[group, everything])
    check_names(request, 9, 10)
    assert [found.topics for found in request.groups] == [None]


def test_too_many_different_names_are_refused():
    names = [f"g{number}" for number in range(11)]
    with pytest.raises(WireError, match=r"request\.max\.names is 10"):
        check_names(DescribeGroupsRequest(groups=names), 15, 10)
    check_names(DescribeGroupsRequest(groups=names[:10] * 5), 15, 10)


def test_requests_that_set_something_keep_their_repeats():
    topics = [
        CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for _ in range(2)
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=1)
    check_names(request, 19, 10)
    assert len(request.topics) == 2, "CreateTopics refuses a topic that is named twice"


def test_a_response_beyond_its_limit_is_not_built():
    from hightide.wire.messages.groups import ListedGroup, ListGroupsResponse

    built: list[int] = []

    class Endless(list[ListedGroup]):
        def __iter__(self) -> Iterator[ListedGroup]:
            for number in range(1_000_000):
                built.append(number)
                yield ListedGroup(group_id="g" * 100, protocol_type="consumer")

    with pytest.raises(TooLarge):
        encode_response(ListGroupsResponse(groups=Endless()), 2, 1, limit=10_000)
    assert len(built) < 200
