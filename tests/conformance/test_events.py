"""Events of real brokers: failovers, rebalances, and a reader that outlives a broker."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from hightide.process import environment
from hightide.testing import Cluster
from tests.conformance.commands import runner
from tests.conformance.replicated import Replicated
from tests.support.event_examples import every_kind
from tests.support.eventually import eventually

FAST = {"offsets.topic.num.partitions": 3, "replica.lag.time.max.ms": 1500}


@pytest.fixture
def cluster() -> Iterator[Replicated]:
    with Replicated(brokers=3, settings=FAST) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def quiet() -> Iterator[Cluster]:
    """Two brokers that no test stops."""
    with Cluster(brokers=2, settings=FAST) as cluster:
        yield cluster


@pytest.fixture
def command(capfd, monkeypatch):
    def run(cluster, *arguments):
        return runner(cluster.bootstrap, capfd, monkeypatch)(*arguments)

    return run


def seen(done, kind: str) -> list[dict[str, Any]]:
    """The data of the events of a kind, with the broker that recorded them."""
    events = [json.loads(line) for line in done.lines]
    return [event["data"] | {"on": event["broker_id"]} for event in events if event["kind"] == kind]


def write(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(30) == 0


# -- failovers ---------------------------------------------------------------------------------


def test_survivors_tell_the_failover_of_a_leader(cluster, command):
    controller = cluster.controller()
    leader, other = (broker for broker in cluster.brokers if broker != controller)
    topic = cluster.place_topic({0: [leader, other, controller]})
    write(cluster, topic)
    cluster.kill(leader)
    eventually(lambda: cluster.leader(topic) not in {-1, leader})
    write(cluster, topic)
    done = command(cluster, "events", "-o", "json", "--limit", 1000)
    why = f"broker {leader} is gone"
    detected = [one for one in seen(done, "brokers_changed") if leader in one["gone"]]
    assert [one["on"] for one in detected] == [controller]
    (elected,) = [one for one in seen(done, "leader_elected") if one["leader_epoch"] > 0]
    assert (elected["topic"], elected["previous_leader"]) == (topic, leader)
    assert elected["leader"] == cluster.leader(topic)
    assert elected["why"] == why
    (shrunk,) = seen(done, "isr_shrunk")
    assert (shrunk["removed"], shrunk["why"]) == ([leader], why)
    assert leader not in shrunk["isr"]
    (published,) = [one for one in seen(done, "state_published") if one["why"] == why]
    assert published["is_complete"]
    (first,) = seen(done, "first_write")
    assert (first["on"], first["leader_epoch"]) == (elected["leader"], elected["leader_epoch"])
    assert f"Broker {leader} did not report its events. It is gone since " in done.err


def test_survivors_tell_the_failover_of_the_controller(cluster, command):
    topic = cluster.create_topic(partitions=6)
    controller = cluster.controller()
    led = [index for index in range(6) if cluster.leader(topic, index) == controller]
    assert led, "each broker leads some of six partitions"
    cluster.kill(controller)
    eventually(lambda: cluster.controller() not in {-1, controller})
    eventually(lambda: cluster.leader(topic, led[0]) not in {-1, controller})
    new = cluster.controller()

    def is_published():
        done = command(cluster, "events", "-o", "json", "--limit", 1000)
        why = f"broker {controller} is gone"
        return [one for one in seen(done, "state_published") if one["why"] == why] and done

    done = eventually(is_published)
    elected = [one for one in seen(done, "controller_elected") if one["epoch"] == 2]
    assert {(one["on"], one["is_here"]) for one in elected} == {
        (broker, broker == new) for broker in cluster.responsive()
    }
    assert {(one["controller"], one["previous_controller"]) for one in elected} == {
        (new, controller)
    }
    assert [one["gone"] for one in seen(done, "brokers_changed") if one["gone"]] == [[controller]]
    moved = [one for one in seen(done, "leader_elected") if one["leader_epoch"] > 0]
    assert sorted(one["partition"] for one in moved) == led
    assert {one["why"] for one in moved} == {f"broker {controller} is gone"}
    order = [json.loads(line)["kind"] for line in done.lines]
    phases = ["controller_elected", "brokers_changed", "leaders_elected", "state_published"]
    last = [max(at for at, kind in enumerate(order) if kind == phase) for phase in phases[1:]]
    assert last == sorted(last)


def test_a_paused_follower_leaves_the_isr_and_the_reason_is_known(cluster, command):
    topic = cluster.create_topic()
    write(cluster, topic)
    leader, controller = cluster.leader(topic), cluster.controller()
    late = next(broker for broker in cluster.brokers if broker not in {leader, controller})
    cluster.pause(late)

    def shrunk():
        done = command(cluster, "events", "-o", "json", "--kind", "isr_shrunk", "--timeout", 1)
        return seen(done, "isr_shrunk") and done

    try:
        done = eventually(shrunk)
    finally:
        cluster.resume(late)
    found = seen(done, "isr_shrunk")
    assert {tuple(one["removed"]) for one in found} == {(late,)}
    assert all(one["why"] for one in found)
    eventually(
        lambda: seen(command(cluster, "events", "-o", "json", "--kind", "isr_grown"), "isr_grown")
    )


@pytest.mark.extended
def test_a_high_watermark_that_stands_still_names_its_holder_and_moves_again(command):
    settings = {"replica.lag.time.max.ms": 60_000, "zookeeper.session.timeout.ms": 30_000}
    with Replicated(brokers=3, settings=settings) as cluster:
        topic = cluster.place_topic({0: [1, 2, 3]})
        cluster.write(topic, b"one")
        late = 3 if cluster.controller() != 3 else 2
        cluster.pause(late)
        try:
            cluster.write(topic, b"two", acks=1)

            def stalled():
                kind = "high_watermark_stalled"
                done = command(cluster, "events", "-o", "json", "--kind", kind, "--broker", 1)
                return seen(done, kind)

            (found,) = eventually(stalled)
        finally:
            cluster.resume(late)
        assert (found["topic"], found["partition"], found["held_by"]) == (topic, 0, [late])
        assert (found["high_watermark"], found["end_offset"]) == (1, 2)
        assert found["why"].startswith(f"replica {late} is 1 record behind")

        def moves():
            done = command(cluster, "events", "-o", "json", "--topic", topic)
            return seen(done, "high_watermark_moves")

        (moved,) = eventually(moves)
        assert (moved["high_watermark"], moved["on"]) == (2, 1)
        assert moved["stalled_ms"] >= 5000


def test_a_log_that_is_recovered_after_a_crash_says_from_where_to_where(command):
    with Cluster() as cluster:
        topic = cluster.create_topic()
        write(cluster, topic)
        cluster.kill()
        cluster.restart()
        done = command(cluster, "events", "--kind", "log_recovered", "-o", "json", "-t", topic)
        (found,) = seen(done, "log_recovered")
        assert (found["recovery_point"], found["end_offset"], found["cut_bytes"]) == (0, 1, 0)


# -- transactions ------------------------------------------------------------------------------


def test_an_aborted_transaction_says_whether_its_client_asked(command):
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    with Cluster(settings=settings) as cluster:
        topic = cluster.create_topic()
        producers = {}
        for name, timeout_ms in (("asked", 60_000), ("late", 1_000)):
            producers[name] = Producer(
                {
                    "bootstrap.servers": cluster.bootstrap,
                    "transactional.id": name,
                    "transaction.timeout.ms": timeout_ms,
                }
            )
            producers[name].init_transactions(30)
            producers[name].begin_transaction()
            producers[name].produce(topic, name.encode())
            producers[name].flush(30)
        producers["asked"].abort_transaction(30)

        def aborted():
            done = command(cluster, "events", "--kind", "transaction_aborted", "-o", "json")
            found = {one["transactional_id"]: one for one in seen(done, "transaction_aborted")}
            return len(found) == 2 and found

        found = eventually(aborted)
        assert (found["asked"]["why"], found["asked"]["is_asked"]) == ("its client asked", True)
        assert found["late"]["why"] == "it has not ended within 1000 ms"
        assert not found["late"]["is_asked"]


# -- groups ------------------------------------------------------------------------------------


def test_a_rebalance_says_why(quiet, command):
    topic = quiet.create_topic(partitions=4)
    settings = {
        "bootstrap.servers": quiet.bootstrap,
        "group.id": topic,
        "client.id": "leaver",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
    }
    one, two = Consumer(settings), Consumer(settings | {"client.id": "stayer"})
    for consumer in (one, two):
        consumer.subscribe([topic])

    def both_assigned() -> bool:
        one.poll(0.05)
        two.poll(0.05)
        return bool(one.assignment()) and bool(two.assignment())

    eventually(both_assigned)
    one.close()

    def whole() -> bool:
        two.poll(0.05)
        return len(two.assignment()) == 4

    eventually(whole)
    two.close()
    done = command(quiet, "events", "-o", "json", "--limit", 1000)
    began = [event for event in seen(done, "group_rebalancing") if event["group"] == topic]
    ended = [event for event in seen(done, "group_rebalanced") if event["group"] == topic]
    assert any("joined" in event["why"] for event in began)
    left = [event for event in began if "left" in event["why"]]
    assert left, began
    assert "leaver" in left[0]["why"]
    assert [event["generation"] for event in ended] == [*range(1, len(ended) + 1)]
    text = command(quiet, "events", "--kind", "group_rebalancing").out
    assert f"group_rebalancing: group {topic} rebalances, with " in text


# -- the command -------------------------------------------------------------------------------


def test_a_line_has_time_level_broker_kind_and_sentence(quiet, command):
    topic = quiet.create_topic()
    done = command(quiet, "events", "--topic", topic, "--kind", "topic_created")
    (line,) = done.lines
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d INFO    \[broker [12]\]"
        rf" topic_created: created topic {topic} with 1 partition",
        line,
    )
    assert done.err == ""
    (found,) = [
        json.loads(line)
        for line in command(
            quiet, "events", "-t", topic, "--kind", "topic_created", "-o", "json"
        ).lines
    ]
    assert list(found) == [
        *("time", "time_ms", "monotonic_ms", "broker_id", "start_id", "sequence"),
        *("kind", "level", "message", "data"),
    ]
    assert found["data"]["partitions"] == 1


def test_events_are_chosen_by_broker_level_topic_and_count(quiet, command):
    one, two = quiet.create_topic(partitions=2), quiet.create_topic()
    every = command(quiet, "events", "-o", "json", "--limit", 10_000).lines
    assert len(every) > 10
    assert command(quiet, "events", "-o", "json", "--limit", 3).lines == every[-3:]
    assert command(quiet, "events", "--limit", 0).lines == []
    mine = command(quiet, "events", "-o", "json", "--broker", 2).lines
    assert {json.loads(line)["broker_id"] for line in mine} == {2}
    roles = seen(command(quiet, "events", "-o", "json", "-t", f"{one}/1"), "role_changed")
    assert {(role["topic"], role["partition"]) for role in roles} == {(one, 1)}
    assert two not in command(quiet, "events", "--level", "debug", "-t", one).out
    assert "DEBUG" in command(quiet, "events", "--level", "debug").out
    assert "DEBUG" not in command(quiet, "events").out
    for line in command(quiet, "events", "--level", "warning", "-o", "json").lines:
        assert json.loads(line)["level"] in {"WARNING", "ERROR"}


def test_a_running_broker_knows_every_kind_and_refuses_others(quiet, command):
    done = command(quiet, "events", "--kind", "isr_shrank")
    assert done.code == 1
    known = done.err.partition("known are ")[2].partition(" (INVALID")[0].split(", ")
    assert known == sorted(every_kind())
    missing = command(quiet, "events", "--broker", 7)
    assert missing.code == 1
    assert "Broker 7 did not report its events. It is not in the cluster." in missing.err
    assert command(quiet, "events", "--level", "loud").code == 2


class Following:
    """`hightide events --follow` as a process, and the events that it has printed."""

    def __init__(self, cluster: Cluster, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hightide", "events", "--follow", "-o", "json", *options],
            env=environment() | {"HIGHTIDE_BOOTSTRAP": cluster.bootstrap},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self.said = ""
        self._lines: queue.Queue[str] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def has(self, kind: str, broker: int, since: int = 0, **data: Any) -> bool:
        """Whether such an event was printed, after the first `since` events."""
        while not self._lines.empty():
            self.events.append(json.loads(self._lines.get()))
        return any(
            (event["kind"], event["broker_id"]) == (kind, broker)
            and event["data"].items() >= data.items()
            for event in self.events[since:]
        )

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(30)
        for thread in self._threads:
            thread.join(30)
        return code


@contextmanager
def following(cluster: Cluster, *options: str) -> Iterator[Following]:
    follower = Following(cluster, *options)
    try:
        yield follower
    finally:
        follower.process.kill()
        follower.process.wait(30)
        for stream in (follower.process.stdout, follower.process.stderr):
            assert stream is not None
            stream.close()


def test_a_follower_sees_all_brokers_and_outlives_a_restart(cluster):
    with following(cluster) as follower:
        for broker in cluster.brokers:
            eventually(lambda at=broker: follower.has("session_changed", at))
        topic = cluster.create_topic(partitions=3)
        for broker in cluster.brokers:
            eventually(lambda at=broker: follower.has("role_changed", at, topic=topic))
        controller = cluster.controller()
        # The first of the bootstrap addresses too: the follower needs none of them any more.
        for victim in (1, controller):
            before = len(follower.events)
            cluster.kill(victim)
            others = [broker for broker in cluster.brokers if broker != victim]
            eventually(
                lambda gone=victim, others=others: any(
                    follower.has("brokers_changed", broker, gone=[gone]) for broker in others
                )
            )
            cluster.restart(victim)
            eventually(lambda at=victim, since=before: follower.has("session_changed", at, since))
            eventually(lambda at=victim: f"Broker {at} has restarted.\n" in follower.said)
        last = cluster.create_topic(partitions=3)
        for broker in cluster.brokers:
            eventually(lambda at=broker: follower.has("role_changed", at, topic=last))
        assert follower.end() == 0
    numbers = [(event["start_id"], event["sequence"]) for event in follower.events]
    assert len(numbers) == len(set(numbers)), "no event is printed twice"
    assert "Traceback" not in follower.said
    for victim in {1, controller}:
        assert f"Broker {victim} did not report its events. " in follower.said
        assert f"Broker {victim} answers again.\n" in follower.said


def test_a_reader_that_goes_away_ends_the_command(quiet):
    """The pipe is closed as `head` closes it, after the first line."""
    read, end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "hightide", "events", "--follow", "--limit", "1"],
        env=environment() | {"HIGHTIDE_BOOTSTRAP": quiet.bootstrap},
        stdout=end,
        stderr=subprocess.PIPE,
    )
    os.close(end)
    with process, open(read, encoding="utf-8") as lines:
        assert lines.readline()
        lines.close()
        quiet.create_topic()
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


# -- tests of users ----------------------------------------------------------------------------


def test_the_report_of_a_failed_test_has_the_events(tmp_path):
    settings = {"log.format": "json"}
    with Cluster(brokers=3, broker_settings={2: settings}) as cluster:
        topic = cluster.create_topic()
        assert cluster.events(kind="topic_created")[-1].data["topic"] == topic
        assert {event.broker for event in cluster.events()} == {1, 2, 3}
        assert {event.broker for event in cluster.events(3)} == {3}
        cluster.kill(1)
        eventually(lambda: cluster.controller() in {2, 3})
        cluster.kill(2)
        text = eventually(
            lambda: "broker 2 is gone" in cluster.event_ends() and cluster.event_ends()
        )
        lines = text.splitlines()
        assert lines[-2:] == [
            "-- broker 1 has ended; its last events are the last lines of its log",
            "-- broker 2 has ended; these are from its log",
        ]
        assert any("[broker 2] session_changed: " in line for line in lines)
        assert any("[broker 3] " in line for line in lines)
        assert lines[:-2] == sorted(lines[:-2])
        cluster.pause(3)
        assert "-- broker 3 is paused" in cluster.event_ends()
        cluster.resume(3)
        cluster.kill(3)
        assert "-- broker 3 has ended" in cluster.event_ends()
