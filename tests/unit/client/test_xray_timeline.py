"""Ribbons, failovers and truncations, from frames and events as a real cluster had them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from hightide.client.xray.frames import Hold, TimedFrame
from hightide.client.xray.page import page
from hightide.client.xray.replay import replayed
from hightide.client.xray.timeline import Timeline
from tests.unit.client.xray_frames import frame, replica


def event(time_ms, kind, broker=2, message="", **data):
    return {
        "time_ms": time_ms,
        "broker_id": broker,
        "kind": kind,
        "level": "INFO",
        "message": message or kind,
        "data": data,
    }


def about(time_ms, kind, broker=2, **data):
    return event(time_ms, kind, broker, topic="orders", partition=0, **data)


DEAD = replica(1, None, alive=False, in_sync=False, role="none")
FRAMES = [
    TimedFrame(1_000, frame()),
    TimedFrame(
        5_050, frame(replica(1, silent=True, role="none"), replica(2), replica(3), held=Hold.SILENT)
    ),
    TimedFrame(5_150, frame(DEAD, replica(2, role="leader"), replica(3), leader=2, epoch=1)),
    TimedFrame(
        9_000, frame(replica(1, in_sync=False), replica(2, role="leader"), leader=2, epoch=1)
    ),
    TimedFrame(9_400, frame(replica(1), replica(2, role="leader"), leader=2, epoch=1)),
]
EVENTS = [
    about(900, "leader_elected", leader=1, previous_leader=-1, leader_epoch=0, isr=[1, 2, 3]),
    event(5_090, "brokers_changed", gone=[1], up=[], live=[2, 3]),
    about(
        5_100, "leader_elected", leader=2, previous_leader=1, leader_epoch=1, isr=[2, 3], why="gone"
    ),
    about(5_101, "role_changed", role="leads", leader=2, leader_epoch=1),
    event(5_103, "state_published", why="gone", took_ms=3, is_complete=True),
    about(5_180, "first_write", leader_epoch=1, after_ms=79),
    event(8_990, "brokers_changed", gone=[], up=[1], live=[1, 2, 3]),
    about(
        9_100,
        "log_truncated",
        broker=1,
        before=20,
        end_offset=13,
        last_epoch=0,
        high_watermark=10,
        leader=2,
        leader_epoch=1,
        is_restart=False,
        may_be_committed=False,
    ),
    about(9_390, "isr_grown", added=[1], isr=[1, 2, 3], leader=2),
]


def timeline(frames=FRAMES, events=EVENTS, **more):
    return Timeline("orders", 0, frames, events, **more)


def test_a_ribbon_has_a_span_for_each_state():
    found = {one["broker"]: one["spans"] for one in timeline().ribbons(2_000, 10_000)}
    assert [(span["state"], span["from_ms"], span["to_ms"]) for span in found[1]] == [
        ("leads", 2_000, 5_050),
        ("silent", 5_050, 5_150),
        ("gone", 5_150, 9_000),
        ("out", 9_000, 9_400),
        ("in_sync", 9_400, 10_000),
    ]
    assert [span["state"] for span in found[2]] == ["in_sync", "leads"]
    # Broker 3 does not hold the partition any more.
    assert found[3][-1]["to_ms"] == 9_000


def test_a_ribbon_is_silent_while_the_cluster_was_not_seen():
    found = timeline(away=[(1_500, 1_800), (9_300, 9_600)]).ribbons(1_000, 10_000)
    assert [(span["state"], span["from_ms"], span["to_ms"]) for span in found[1]["spans"]] == [
        ("in_sync", 1_000, 1_500),
        ("silent", 1_500, 1_800),
        ("in_sync", 1_800, 5_150),
        ("leads", 5_150, 9_300),
        ("silent", 9_300, 9_600),
        ("leads", 9_600, 10_000),
    ]


def test_a_dead_replica_that_may_lead_is_eligible():
    dead = replace(DEAD, eligible=True)
    frames = [TimedFrame(1_000, frame(dead, replica(2), leader=2))]
    (found, _) = timeline(frames, []).ribbons(0, 2_000)
    assert found["spans"] == [{"from_ms": 1_000, "to_ms": 2_000, "state": "eligible"}]


def test_a_failover_has_its_phases_in_order():
    (found,) = timeline().failovers()
    assert (found["from"], found["to"], found["epoch_from"], found["epoch_to"]) == (1, 2, 0, 1)
    assert [(phase["name"], phase["time_ms"]) for phase in found["phases"]] == [
        ("detected", 5_090),
        ("elected", 5_100),
        ("published", 5_103),
        ("first_write", 5_180),
        ("back", 8_990),
        ("in_sync", 9_390),
    ]


def test_no_writes_last_from_when_a_look_saw_the_leader_lost_to_the_first_write():
    (found,) = timeline().failovers()
    assert (found["lost_ms"], found["leaderless_ms"], found["no_writes_ms"]) == (5_050, 51, 130)


def test_without_frames_the_loss_is_when_the_controller_saw_it():
    (found,) = timeline([]).failovers()
    assert (found["lost_ms"], found["no_writes_ms"]) == (5_090, 90)


def test_a_failover_without_writes_does_not_say_for_how_long_there_were_none():
    events = [one for one in EVENTS if one["kind"] != "first_write"]
    (found,) = timeline(events=events).failovers()
    assert found["no_writes_ms"] is None


def test_events_of_other_partitions_do_not_count():
    events = [{**one, "data": {**one["data"], "partition": 1}} for one in EVENTS]
    found = Timeline("orders", 0, [], events)
    assert found.failovers() == []
    assert found.truncations() == []


def test_a_partition_that_was_offline_continues_from_its_last_leader():
    events = [
        event(5_000, "brokers_changed", gone=[1], up=[], live=[2]),
        about(5_010, "partition_offline", last_leader=1, elr=[1], why="broker 1 is gone"),
        event(7_000, "brokers_changed", gone=[], up=[3], live=[2, 3]),
        about(7_010, "leader_elected", leader=3, previous_leader=-1, leader_epoch=2, isr=[3]),
    ]
    (found,) = timeline([], events).failovers()
    assert (found["from"], found["to"]) == (1, 3)
    assert [phase["name"] for phase in found["phases"]] == ["detected", "elected"]
    assert found["leaderless_ms"] == 2_010


def test_a_planned_election_has_no_loss_to_detect():
    events = [
        about(7_010, "leader_elected", leader=2, previous_leader=1, leader_epoch=1, isr=[1, 2]),
        about(7_012, "role_changed", role="leads", leader=2, leader_epoch=1),
    ]
    (found,) = timeline(FRAMES[:1], events).failovers()
    assert [phase["name"] for phase in found["phases"]] == ["elected", "published"]
    assert found["leaderless_ms"] == 2


def test_without_events_a_failover_is_what_the_looks_saw():
    without = frame(DEAD, replica(2), leader=-1)
    frames = [FRAMES[0], TimedFrame(2_000, without), FRAMES[2]]
    (found,) = timeline(frames, []).failovers()
    assert (found["from"], found["to"], found["leaderless_ms"]) == (1, 2, 3_150)
    assert [phase["name"] for phase in found["phases"]] == ["detected", "elected"]


def test_a_truncation_says_what_was_cut_and_that_it_was_never_committed():
    (found,) = timeline().truncations()
    assert (found["broker"], found["from"], found["to"], found["count"]) == (1, 20, 13, 7)
    assert (found["epoch"], found["committed_lost"]) == (0, 0)
    assert found["why"].startswith("Never committed")


def test_a_truncation_of_committed_records_says_how_many_are_lost():
    lost = about(
        9_099,
        "records_lost",
        broker=1,
        message="2 committed records are lost",
        count=2,
        first_offset=13,
        last_offset=14,
        leader=2,
        leader_epoch=1,
        why="unclean",
    )
    (found,) = timeline(events=[*EVENTS, lost]).truncations()
    assert found["committed_lost"] == 2
    assert "committed records are lost" in found["why"]


def test_a_range_has_only_what_happened_in_it():
    found = timeline().to_json(9_200, 10_000)
    assert found["truncations"] == []
    assert len(found["failovers"]) == 1
    assert timeline().to_json(0, 800)["failovers"] == []
    json.dumps(found, allow_nan=False)


def test_events_alone_tell_who_led_and_who_was_in_sync():
    found = replayed(EVENTS, frame())
    assert [one.time_ms for one in found] == [900, 5_090, 5_100, 8_990, 9_390]
    ribbons = {one["broker"]: one["spans"] for one in timeline(found).ribbons(0, 10_000)}
    assert [(span["state"], span["to_ms"]) for span in ribbons[1]] == [
        ("leads", 5_090),
        ("gone", 8_990),
        ("out", 9_390),
        ("in_sync", 10_000),
    ]
    assert [span["state"] for span in ribbons[2]] == ["in_sync", "leads"]
    offline = about(9_500, "partition_offline", last_leader=2, elr=[2], why="gone")
    last = replayed([*EVENTS, offline], frame())[-1].frame
    assert (last.leader, last.isr, last.held_why) == (-1, (), "There is no leader.")


def test_the_page_has_everything_in_one_file_and_escapes_what_the_cluster_says():
    evil = event(6_000, "brokers_changed", message="</script><b>&", gone=[], up=[], live=[])
    odd = replace(FRAMES[0].frame, replicas=(replica(1, why="</script><i>"),))
    found = Timeline("a<b", 0, [TimedFrame(1_000, odd), *FRAMES[1:]], [*EVENTS, evil])
    sentence = {"level": "warn", "text": "<u>"}
    text = page(found, 0, 10_000, {"title": "<t>", "sentence": sentence})
    assert "<b>&" not in text
    assert "<i>" not in text.split("<body>")[1].split("<script>")[0]
    assert "a&lt;b/0" in text
    assert not re.search(r"(src|href)\s*=|https?:|@import|url\((?!#)", text)
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert len(json.loads(data[1])["frames"]) == 5


def test_a_range_before_the_first_frame_has_no_ribbons():
    assert Timeline("orders", 0, [], [], []).to_json(1_000, 2_000)["ribbons"] == []
