"""The routes of the X-ray over a real broker in a thread, and the streams of browsers."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from hightide.client.admin import Admin
from hightide.console.app import create_app
from hightide.console.context import Console, Options
from hightide.console.observer import Observer
from hightide.console.routes.live import stream
from hightide.console.subscribers import MOST_EVENTS, Message, Subscribers
from tests.support.broker_thread import BrokerThread
from tests.unit.console.broker_world import ORIGIN, SMALL, World

LIMIT_S = 30


@pytest.fixture(scope="module")
def world():
    broker = BrokerThread(**SMALL)
    bootstrap = f"{broker.address[0]}:{broker.address[1]}"
    try:
        console = Console(Admin(bootstrap), Observer(bootstrap), Options(bootstrap))
        with TestClient(create_app(console), base_url=ORIGIN) as client:
            made = World(broker, client, bootstrap)
            made.create("orders", partitions=2)
            until(lambda: made.get("overview")["totals"]["offline"] == 0)
            until(lambda: len(made.get("overview")["partitions"]) == 2)
            yield made
    finally:
        broker.stop()


def until(holds):
    deadline = time.monotonic() + LIMIT_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s"
        time.sleep(0.05)
    return found


def test_the_overview_is_the_newest_summary(world):
    found = world.get("overview")
    assert found["sentence"]["level"] == "ok"
    assert [row["partition"] for row in found["partitions"]] == [0, 1]
    assert found["brokers"][0]["leads"] == 2


def test_the_history_of_a_partition_has_frames_and_ribbons(world):
    found = world.get("xray/orders/1")
    assert found["frames"][-1]["leader"] == world.get("overview")["controller"]
    assert found["frames"][-1]["replicas"][0]["end_offset"] == 0
    assert [span["state"] for span in found["ribbons"][0]["spans"]][-1] == "leads"
    assert found["failovers"] == found["truncations"] == []


def test_a_partition_that_does_not_exist_has_no_history(world):
    assert "no partition orders/7" in world.get("xray/orders/7", 404)["error"]
    world.get("export.html", 404, topic="none")
    assert "from_ms" in world.get("xray/orders/0", 400, from_ms="soon")["error"]


def test_a_probe_is_written_only_if_it_is_confirmed(world):
    refused = world.post("xray/orders/0/probe", {}, 400)
    assert "confirm" in refused["error"]
    found = world.post("xray/orders/0/probe", {"confirm": True})
    names = [step["name"] for step in found["steps"]]
    assert names == ["appended", "high watermark passes", "acknowledged"]
    assert found["offset"] == 0
    assert found["acknowledged_ms"] == found["steps"][-1]["after_ms"]
    assert found["command"].startswith("hightide produce orders/0 '' --header hightide-probe=1")
    until(lambda: world.get("xray/orders/0")["frames"][-1]["high_watermark"] == 1)


def test_an_export_is_one_file(world):
    answer = world.http.get("/api/v1/export.html", params={"topic": "orders", "partition": "0"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert 'filename="xray-orders-0.html"' in answer.headers["content-disposition"]
    assert "<h1>orders/0</h1>" in answer.text


# -- streams -----------------------------------------------------------------------------------


def console_of(messages):
    closing = asyncio.Event()
    made: Any = SimpleNamespace(observer=SimpleNamespace(messages=messages), closing=closing)
    return made


def test_a_stream_sends_messages_and_comments_and_ends_when_the_server_stops():
    async def test():
        go = asyncio.Event()

        async def messages(topic):
            yield Message({"type": "overview", "topic": topic})
            await go.wait()
            yield Message({"type": "events", "events": []})

        console = console_of(messages)
        found = stream(console, "orders", heartbeat_s=0.01)
        first = await anext(found)
        assert json.loads(first.removeprefix("data: ")) == {"type": "overview", "topic": "orders"}
        assert await anext(found) == ": still here\n\n"
        go.set()
        while (text := await anext(found)).startswith(":"):
            pass
        assert text == 'data: {"type":"events","events":[]}\n\n'
        console.closing.set()
        assert [one async for one in found] == []

    asyncio.run(test())


def test_a_stream_that_is_left_ends_its_subscription():
    async def test():
        ended = []

        async def messages(topic):
            try:
                yield Message({"type": "overview"})
                await asyncio.Event().wait()
            finally:
                ended.append(topic)

        found: Any = stream(console_of(messages), None, heartbeat_s=0.01)
        await anext(found)
        await anext(found)
        await found.aclose()
        assert ended == [None]

    asyncio.run(test())


def test_a_slow_browser_gets_what_is_newest_and_nothing_grows():
    async def test():
        subscribers = Subscribers()
        with subscribers.added("orders") as slow, subscribers.added(None) as other:
            for nth in range(MOST_EVENTS * 2):
                subscribers.publish({"type": "overview", "nth": nth})
                subscribers.publish({"type": "topic", "nth": nth}, "orders")
                subscribers.publish_events([{"nth": nth}])
            overview, topic, events = [one.data for one in await slow.take()]
            last = MOST_EVENTS * 2 - 1
            assert (overview["nth"], topic["nth"]) == (last, last)
            assert len(events["events"]) == MOST_EVENTS
            assert events["events"][-1] == {"nth": last}
            assert [one.data["type"] for one in await other.take()] == ["overview", "events"]
        assert len(subscribers) == 0

    asyncio.run(test())


def test_a_message_is_encoded_once_for_all():
    message = Message({"type": "overview", "level": "ok"})
    assert message.text is message.text
    assert json.loads(message.text) == message.data
