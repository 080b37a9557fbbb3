"""The guided scenes on the brokers of a real `hightide up`: what a caption says is what is there.

Each scene is played through the API of the console.  Where it waits for its reader, other clients
look at the cluster.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Browser, expect

from hightide.client.admin import Admin
from hightide.client.admin.throttle import RATES
from hightide.client.model.cluster import ConfigSource, ResourceType
from hightide.client.model.events import BrokerEvent, EventFilter
from tests.console.browsing import console
from tests.console.browsing import tab as opened

WAIT_S = 60
LAG_MS = 8_000
OVER = {"done", "failed", "cancelled"}


class Up:
    """A running `hightide up --brokers 3`, and the API of its console."""

    def __init__(self, folder: Path) -> None:
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", "hightide", "up", "--brokers", "3", "--port", "0"),
                *("--console-port", "0", "--data", str(folder)),
                *("--override", f"replica.lag.time.max.ms={LAG_MS}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdout is not None
        self.bootstrap = self._child.stdout.readline().removeprefix("bootstrap:").strip()
        self.said: list[str] = []
        self._url = threading.Event()
        self.url = ""
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        assert self._url.wait(WAIT_S), self.said
        self._token = self.get("session")["token"]

    def _listen(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self.said.append(line)
            if found := re.match(r"console: (http://\S+)", line):
                self.url = found[1].rstrip("/")
                self._url.set()

    def through(self, url: str) -> Up:
        """The same brokers, by the API of another console."""
        other = copy(self)
        other.url = url
        other._token = other.get("session")["token"]
        return other

    def stop(self) -> None:
        self._child.terminate()
        self._child.wait(WAIT_S)
        self._listening.join(WAIT_S)
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._child.stdout.close()
        self._child.stderr.close()

    # -- API -------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"}
        if method != "GET":
            headers |= {"X-Hightide-Token": self._token, "Origin": self.url}
        request = urllib.request.Request(
            f"{self.url}/api/v1/{path}",
            method=method,
            headers=headers,
            data=None if body is None else json.dumps(body).encode(),
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S * 2) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def get(self, path: str) -> Any:
        status, data = self.request("GET", path)
        assert status == 200, data
        return data

    def start(self, scene: str, *, guided: bool = True) -> dict[str, Any]:
        # The partition of the last scene, or an internal topic, may still be catching up.
        deadline = time.monotonic() + WAIT_S
        while True:
            status, data = self.request("POST", "learn", {"scene": scene, "guided": guided})
            if status == 200 or time.monotonic() > deadline:
                assert status == 200, data
                return data["run"]
            time.sleep(0.2)

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_S
        while True:
            run = self.get("learn")["run"]
            if holds(run) or run["state"] in OVER or time.monotonic() > deadline:
                return run
            time.sleep(0.05)

    def pages(self, scene: str) -> Iterator[dict[str, Any]]:
        """Play a guided scene: the run, each time that it waits; and once more at its end."""
        self.start(scene)
        while True:
            run = self.until(lambda run: run["state"] == "waiting")
            yield run
            if run["state"] != "waiting":
                return
            status, data = self.request("POST", "learn/next", {})
            assert status == 200, data
            at = run["step"]
            self._until_after(at)

    def _until_after(self, at: int) -> None:
        self.until(lambda run: run["step"] != at or run["state"] != "waiting")

    # -- other clients ---------------------------------------------------------------------

    def ask(self, question: Callable[[Admin], Any]) -> Any:
        async def run() -> Any:
            async with Admin(self.bootstrap, timeout_ms=10_000) as admin:
                return await question(admin)

        # Playwright has a loop in this thread.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(run())).result(WAIT_S)

    def watermark(self, topic: str) -> int:
        """Where consumers stop, as librdkafka is told."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none"})
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
        finally:
            consumer.close()

    def read(self, topic: str, end: int) -> list[str]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            found: list[str] = []
            deadline = time.monotonic() + WAIT_S
            while len(found) < end and time.monotonic() < deadline:
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    found.append(message.value().decode())
            return found
        finally:
            consumer.close()

    def partition(self, topic: str) -> Any:
        client = AdminClient({"bootstrap.servers": self.bootstrap})
        return client.list_topics(topic, timeout=20).topics[topic].partitions[0]

    def eligible(self, topic: str) -> Any:
        return self.ask(lambda admin: admin.replicas.eligible([topic]))

    def events(self, kind: str, topic: str) -> list[BrokerEvent]:
        wanted = EventFilter(kinds=(kind,), topics=((topic, None),))
        return self.ask(lambda admin: admin.events.newest(20, wanted)).events

    def limits(self) -> dict[str, str]:
        """The throttles that brokers were given while they ran."""

        async def ask(admin: Admin) -> dict[str, str]:
            found = {}
            for node in (await admin.cluster.describe()).nodes:
                for entry in await admin.configs.describe(ResourceType.BROKER, str(node.id), RATES):
                    if entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG:
                        found[f"{node.id} {entry.name}"] = entry.value or ""
            return found

        return self.ask(ask)

    def assert_as_before(self, run: dict[str, Any]) -> None:
        """All brokers run and answer, and the topic is gone."""

        async def ask(admin: Admin) -> Any:
            found = await admin.replicas.describe()
            return found.live, found.silent, {one.topic for one in found.partitions}

        live, silent, topics = self.ask(ask)
        assert live == {1, 2, 3}
        assert not silent
        assert run["topic"] not in topics
        assert not [topic for topic in topics if topic.startswith("learn-")]
        assert not [sentence for sentence in run["restored"] if sentence.startswith("✕")]
        assert self.limits() == {}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    started = Up(tmp_path_factory.mktemp("up") / "data")
    yield started
    started.stop()


def facts(run: dict[str, Any], at: int) -> dict[str, Any]:
    step = run["steps"][at]
    assert step["state"] == "done", (step, run["error"])
    assert step["seen"]
    assert step["commands"] or at, "the first step creates a topic"
    assert all("hightide " in command for command in step["commands"])
    return step["facts"]


def assert_done(up: Up, run: dict[str, Any]) -> None:
    assert run["state"] == "done", run
    assert {step["state"] for step in run["steps"]} == {"done"}
    up.assert_as_before(run)


# -- the scenes ------------------------------------------------------------------------------


def test_with_acks_all_the_high_watermark_passes_the_records(up: Up) -> None:
    for run in up.pages("watermark"):
        topic = run["topic"]
        match run["state"], run["step"]:
            case "waiting", 0:
                assert sorted(up.partition(topic).isrs) == [1, 2, 3]
            case "waiting", 1:
                told = facts(run, 1)
                assert told["high_watermark"] == up.watermark(topic) == 100
                assert set(told["end_offsets"].values()) == {100}
            case "waiting", 2:
                told = facts(run, 2)
                assert told["acks_1_ms"] > 0
                assert told["acks_all_ms"] > 0
            case "waiting", 3:
                assert facts(run, 3)["latest"] == up.watermark(topic) == 140
    assert_done(up, run)


@pytest.mark.extended
def test_a_paused_follower_holds_the_high_watermark_until_the_isr_shrinks(up: Up) -> None:
    for run in up.pages("paused-follower"):
        topic = run["topic"]
        match run["state"], run["step"]:
            case "waiting", 2:
                told, follower = facts(run, 2), facts(run, 1)["follower"]
                assert told["high_watermark"] == up.watermark(topic) == 100
                assert told["end_offset"] == 150
                assert follower in told["isr"]
                assert follower in up.partition(topic).isrs
                assert told["acknowledged"] is False
            case "waiting", 3:
                told = facts(run, 3)
                assert follower not in told["isr"]
                assert sorted(up.partition(topic).isrs) == sorted(told["isr"])
                assert told["high_watermark"] == up.watermark(topic) == 150
                assert told["acknowledged"] is True
                # It may not leave before it was silent for so long.
                assert told["waited_ms"] >= LAG_MS * 0.9
                (event,) = up.events("isr_shrunk", topic)
                assert follower in event.data["removed"]
            case "waiting", 4:
                assert sorted(facts(run, 4)["isr"]) == [1, 2, 3]
                assert set(facts(run, 4)["end_offsets"].values()) == {150}
                assert sorted(up.partition(topic).isrs) == [1, 2, 3]
    assert_done(up, run)


def test_the_leader_dies_and_no_acknowledged_record_is_lost(up: Up) -> None:
    for run in up.pages("leader-dies"):
        topic = run["topic"]
        match run["state"], run["step"]:
            case "waiting", 0:
                old = facts(run, 0)["leader"]
                assert up.partition(topic).leader == old
            case "waiting", 1:
                told = facts(run, 1)
                assert told["leader"] != old
                assert up.partition(topic).leader == told["leader"]
                assert told["epoch"] == facts(run, 0)["epoch"] + 1
                assert old not in told["isr"]
                assert told["silence_ms"] > 0
            case "waiting", 2:
                told = facts(run, 2)
                assert told["sent"] == told["acknowledged"] == told["high_watermark"]
                expected = [f"record {number}" for number in range(told["sent"])]
                assert up.read(topic, told["sent"]) == expected
                assert up.watermark(topic) == told["sent"]
            case "waiting", 3:
                assert sorted(up.partition(topic).isrs) == [1, 2, 3]
    assert_done(up, run)


def test_the_old_leader_truncates_what_was_never_committed(up: Up) -> None:
    for run in up.pages("truncation"):
        topic = run["topic"]
        match run["state"], run["step"]:
            case "waiting", 3:
                old = facts(run, 0)["leader"]
                alone = facts(run, 2)
                assert (alone["high_watermark"], alone["end_offset"]) == (100, 120)
                assert alone["acknowledged"] is False
                told = facts(run, 3)
                assert told["acknowledged"] is False
                assert told["end_offset"] == 100
                assert up.partition(topic).leader == told["leader"] != old
                assert up.watermark(topic) == 100
            case "waiting", 4:
                assert facts(run, 4)["first_offset"] == 100
                assert facts(run, 4)["high_watermark"] == up.watermark(topic) == 130
            case "waiting", 5:
                told = facts(run, 5)
                assert (told["truncated_from"], told["truncated_to"]) == (120, 100)
                assert set(told["end_offsets"].values()) == {130}
                (event,) = [one for one in up.events("log_truncated", topic) if one.broker == old]
                assert (event.data["before"], event.data["end_offset"]) == (120, 100)
                committed = [f"record {n}" for n in (*range(100), *range(30))]
                assert up.read(topic, 130) == committed
    assert_done(up, run)


def test_with_two_of_three_lost_min_isr_refuses_and_the_elr_is_known(up: Up) -> None:
    for run in up.pages("min-isr"):
        topic = run["topic"]
        match run["state"], run["step"]:
            case "waiting", 1:
                assert facts(run, 1)["high_watermark"] == up.watermark(topic) == 110
                assert facts(run, 1)["elr"] == []
            case "waiting", 2:
                told = facts(run, 2)
                assert up.partition(topic).isrs == told["isr"] == [facts(run, 0)["leader"]]
                eligible = up.eligible(topic)
                assert list(eligible[topic, 0]) == told["elr"]
                assert len(told["elr"]) == 1
                assert refusal(up, topic) == KafkaError.NOT_ENOUGH_REPLICAS
            case "waiting", 3:
                told = facts(run, 3)
                assert told["error"] == "NOT_ENOUGH_REPLICAS"
                assert (told["high_watermark"], told["end_offset"]) == (110, 115)
                assert up.watermark(topic) == 110
            case "waiting", 4:
                assert facts(run, 4)["latest"] == len(up.read(topic, 110)) == 110
            case "waiting", 5:
                assert sorted(up.partition(topic).isrs) == [1, 2, 3]
                assert facts(run, 5)["elr"] == []
                assert facts(run, 5)["high_watermark"] == up.watermark(topic) == 125
    assert_done(up, run)


def refusal(up: Up, topic: str) -> int | None:
    """The error of a write with acks=all that is not tried again."""
    answers: list[Any] = []
    producer = Producer({"bootstrap.servers": up.bootstrap, "acks": "all", "retries": 0})
    producer.produce(
        topic, b"refused", partition=0, callback=lambda error, _: answers.append(error)
    )
    producer.flush(20)
    return answers[0].code() if answers and answers[0] else None


def test_an_unclean_election_loses_acknowledged_records_and_says_so(up: Up) -> None:
    for run in up.pages("unclean"):
        topic = run["topic"]
        match run["state"], run["step"]:
            case "waiting", 1:
                assert facts(run, 1)["high_watermark"] == up.watermark(topic) == 150
            case "waiting", 2:
                told, old = facts(run, 2), facts(run, 0)["leader"]
                assert told["end_offset"] == 100
                assert told["elr"] == [old]
                assert up.partition(topic).leader == -1
            case "waiting", 3:
                told = facts(run, 3)
                assert (told["end_offset"], told["lost"]) == (100, 50)
                assert up.partition(topic).leader == told["leader"] == facts(run, 0)["follower"]
                assert len(up.read(topic, 100)) == up.watermark(topic) == 100
                (event,) = up.events("unclean_leader_elected", topic)
                assert event.text == told["event"]
                assert event.data["last_known_leader"] == old
            case "waiting", 4:
                told = facts(run, 4)
                assert (told["truncated_from"], told["truncated_to"]) == (150, 100)
                assert set(told["end_offsets"].values()) == {100}
    assert_done(up, run)


def test_a_reassignment_keeps_to_its_throttle_and_leaves_none_behind(up: Up) -> None:
    for run in up.pages("reassignment"):
        topic = run["topic"]
        match run["state"], run["step"]:
            case "waiting", 0:
                before = facts(run, 0)["replicas"]
                assert sorted(up.partition(topic).replicas) == sorted(before)
                assert up.limits() == {}
            case "waiting", 3:
                moving, copied = facts(run, 1), facts(run, 2)
                assert set(moving["adding"]).isdisjoint(before)
                assert set(moving["removing"]) < set(before)
                assert copied["is_moving"]
                assert 0 < copied["bytes_s"] < copied["limit_bytes_s"] * 1.6
                assert copied["end_offset"] < 4000
                told = facts(run, 3)
                assert sorted(up.partition(topic).replicas) == sorted(told["replicas"])
                assert set(told["replicas"]) == {*before, *moving["adding"]} - {*moving["removing"]}
                assert set(up.limits().values()) == {"200000000"}
            case "waiting", 4:
                assert facts(run, 4)["limits"] == up.limits() == {}
                assert up.watermark(topic) == 4000
    assert_done(up, run)


# -- however it ends -------------------------------------------------------------------------


def test_a_scene_that_is_cancelled_leaves_the_cluster_as_it_was(up: Up) -> None:
    up.start("min-isr")
    run = up.until(lambda run: run["state"] == "waiting")
    up.request("POST", "learn/next", {})
    up.until(lambda run: run["state"] == "waiting" and run["step"] == 1)
    assert len(up.partition(run["topic"]).isrs) == 2
    status, data = up.request("DELETE", "learn")
    assert status == 200
    assert data["run"]["state"] == "cancelled"
    assert data["command"].startswith("hightide topic delete learn-min-isr-")
    up.assert_as_before(data["run"])


def test_a_paused_broker_runs_again_when_a_scene_is_cancelled(up: Up) -> None:
    up.start("paused-follower")
    up.until(lambda run: run["state"] == "waiting")
    up.request("POST", "learn/next", {})
    run = up.until(lambda run: run["steps"][1]["state"] == "done")
    status, data = up.request("DELETE", "learn")
    assert status == 200
    assert data["run"]["state"] == "cancelled"
    follower = run["steps"][1]["facts"]["follower"]
    assert f"Broker {follower} runs again." in data["run"]["restored"]
    up.assert_as_before(data["run"])


def test_a_scene_that_fails_says_why_and_leaves_the_cluster_as_it_was(up: Up) -> None:
    """The topic of the scene is deleted by another client."""
    run = up.start("watermark")
    run = up.until(lambda run: run["state"] == "waiting")
    up.ask(lambda admin: admin.topics.delete(run["topic"]))
    up.request("POST", "learn/next", {})
    run = up.until(lambda run: run["state"] in OVER)
    assert run["state"] == "failed"
    assert "topic" in run["error"]
    up.assert_as_before(run)


@pytest.mark.extended
def test_a_console_that_ends_brings_the_brokers_back(up: Up, tmp_path: Path) -> None:
    with console(up.bootstrap, tmp_path) as url:
        other = up.through(url)
        other.start("min-isr")
        other.until(lambda run: run["state"] == "waiting")
        other.request("POST", "learn/next", {})
        run = other.until(lambda run: run["state"] == "waiting" and run["step"] == 1)
        assert len(up.partition(run["topic"]).isrs) == 2
    up.assert_as_before(run)


def test_one_scene_at_a_time(up: Up) -> None:
    up.start("watermark")
    status, data = up.request("POST", "learn", {"scene": "unclean"})
    assert status == 409
    assert "is being played" in data["error"]
    status, data = up.request("DELETE", "learn")
    assert data["run"]["state"] == "cancelled"
    assert up.request("POST", "learn/next", {})[0] == 409
    assert up.request("POST", "learn", {"scene": "no-such"})[0] == 404


def test_partitions_are_led_as_before(up: Up) -> None:
    """A broker that was killed leads again what it led."""
    up.ask(lambda admin: admin.topics.create("kept", partitions=6, replication_factor=3))
    try:
        before = up.ask(lambda admin: admin.topics.describe(["kept"]))[0].partitions
        up.start("leader-dies", guided=False)
        run = up.until(lambda run: run["state"] in OVER)
        assert run["state"] == "done", run
        after = up.ask(lambda admin: admin.topics.describe(["kept"]))[0].partitions
        assert {one.partition: one.leader for one in after} == {
            one.partition: one.leader for one in before
        }
        assert "led as before" in " ".join(run["restored"])
    finally:
        up.ask(lambda admin: admin.topics.delete("kept"))


# -- in the browser --------------------------------------------------------------------------


def test_a_reader_plays_a_scene(up: Up, browser: Browser) -> None:
    with opened(browser, up.url) as tab:
        page = tab.open("/learn")
        expect(page.locator(".le-list > li")).to_have_count(7)
        page.get_by_role("link", name="acks=all and the high watermark").click()
        page.get_by_role("button", name="Play the scene").click()
        for at in range(1, 5):
            step = page.locator(".le-step").nth(at - 1)
            expect(step.locator(".le-seen")).to_be_visible()
            if at == 2:
                expect(step.locator(".le-seen")).to_contain_text("the high watermark")
                expect(page.locator(".xb-row")).to_have_count(3)
                for number in page.locator(".xb-numbers b").all():
                    expect(number).to_have_text("100")
                step.get_by_text("The same in a terminal").click()
                expect(step.locator(".command").first).to_contain_text("hightide produce learn-")
            page.get_by_role("button", name="Finish" if at == 4 else "Next step").click()
        expect(page.locator("main")).to_contain_text("The cluster is as it was before.")
        expect(page.get_by_role("button", name="Play it again")).to_be_visible()
    up.assert_as_before(up.get("learn")["run"])


def test_only_the_console_of_up_offers_the_scenes(console_url: str) -> None:
    with urllib.request.urlopen(f"{console_url}/api/v1/learn", timeout=WAIT_S) as reply:
        found = json.load(reply)
    assert found["available"] is False
    assert "hightide up" in found["why"]
    assert len(found["scenes"]) == 7
