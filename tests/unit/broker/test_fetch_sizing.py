"""A consumer that is soon back gets few partitions in one response, and all of them in turn."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hightide.broker.handlers import fetch
from hightide.broker.network import fetch_sizing
from hightide.client.broker_connection import Connection
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.unit.broker.transactional_world import World, part, produce_request, world

SESSIONLESS, FIRST = -1, 0


def run(
    test: Callable[[World, Connection], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    enough: int = 100,
) -> None:
    """Run a test with two partitions of three batches each, of 200 bytes or more."""
    monkeypatch.setattr(fetch_sizing, "LEAST_BYTES", enough)
    monkeypatch.setattr(fetch_sizing, "_ROUND_TRIP_S", 60.0)
    monkeypatch.setattr(fetch, "PARTITION_BYTES", 1)

    async def all_of_it() -> None:
        async with world() as it:
            client = await it.client()
            for partition in (0, 1):
                for _ in range(3):
                    batch = part(
                        0, b"x" * 200, producer=None, partition=partition, transactional=False
                    )
                    await client.send(produce_request(batch, name=None, acks=1))
            await test(it, client)
            client.close()

    asyncio.run(asyncio.wait_for(all_of_it(), 30))


def test_a_consumer_that_does_not_wait_gets_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(_it: World, client: Connection) -> None:
        assert await Reader(client).ask(max_wait_ms=0) == [0, 1]

    run(test, monkeypatch)


class Reader:
    """Reads both partitions from the beginning, always in the same order."""

    def __init__(self, client: Connection, *, epoch: int = SESSIONLESS) -> None:
        self.client = client
        self.offsets = {0: 0, 1: 0}
        self.session_id, self.epoch = 0, epoch

    async def ask(self, **more: int) -> list[int]:
        """Send a Fetch; return the partitions that had records."""
        wanted = [
            FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=300)
            for index, at in self.offsets.items()
        ]
        request = FetchRequest(
            max_wait_ms=more.get("max_wait_ms", 1),
            min_bytes=more.get("min_bytes", 1),
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic="t", partitions=wanted)],
        )
        response = await self.client.send(request, version=12)
        assert response.error_code == 0
        assert len(response.responses) <= 1, "a topic is in the response once"
        self.session_id = response.session_id
        self.epoch += self.epoch != SESSIONLESS
        gave = []
        for partition in (found for topic in response.responses for found in topic.partitions):
            assert partition.error_code == 0
            if partition.records:
                gave.append(partition.partition_index)
                self.offsets[partition.partition_index] += 1
        return gave


@pytest.mark.parametrize("epoch", [SESSIONLESS, FIRST])
def test_partitions_take_turns_though_they_are_always_requested_in_one_order(
    monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    async def test(_it: World, client: Connection) -> None:
        reader = Reader(client, epoch=epoch)
        assert [await reader.ask() for _ in range(7)] == [[0], [1]] * 3 + [[]]

    run(test, monkeypatch)


def test_a_late_consumer_gets_all_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(_it: World, client: Connection) -> None:
        reader = Reader(client)
        assert [await reader.ask() for _ in range(4)] == [[0, 1]] * 3 + [[]]

    run(test, monkeypatch, fetch_sizing.UNLIMITED)


def test_a_consumer_that_got_all_and_is_soon_back_gets_less_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(_it: World, client: Connection) -> None:
        reader = Reader(client)
        assert await reader.ask() == [0, 1]
        monkeypatch.setattr(fetch_sizing, "LEAST_BYTES", 100)
        assert [await reader.ask() for _ in range(4)] == [[0], [1], [0], [1]]

    monkeypatch.setattr(fetch, "LEAST_BYTES", 100)
    run(test, monkeypatch, 400)


def test_a_consumer_gets_the_bytes_that_it_waits_for_in_one_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(_it: World, client: Connection) -> None:
        assert await Reader(client).ask(min_bytes=400) == [0, 1]

    run(test, monkeypatch)


def test_a_late_consumer_gets_more_each_time_and_an_early_one_less() -> None:
    one = fetch_sizing.FetchSizing()
    now_s = 0.0
    for times in (1, 2, 4, 8):
        assert one.enough_bytes == times * fetch_sizing.LEAST_BYTES
        one.gave(one.enough_bytes, now_s)
        now_s += 0.06
        one.asked(now_s)
    for times in (16, 8, 4, 2, 1, 1):
        assert one.enough_bytes == times * fetch_sizing.LEAST_BYTES
        one.gave(one.enough_bytes, now_s)
        now_s += 0.0005
        one.asked(now_s)


def test_only_the_time_after_a_full_response_counts() -> None:
    one = fetch_sizing.FetchSizing()
    one.asked(0)
    one.gave(fetch_sizing.LEAST_BYTES, 0)
    one.asked(0.001)
    one.asked(10)
    assert one.enough_bytes == fetch_sizing.LEAST_BYTES


def test_the_size_has_an_upper_limit() -> None:
    one = fetch_sizing.FetchSizing()
    for now_s in range(0, 10_000, 100):
        one.asked(now_s)
        one.gave(1, now_s)
    assert one.enough_bytes == fetch_sizing.UNLIMITED
