"""The picture of `hightide partition show --watch`: states become lines, at 80 and 120 columns."""
# ruff: noqa: E501 - a picture at 120 columns is wider than the code

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from hightide.cli import render
from hightide.cli.partition.live import (
    KEPT_MS,
    History,
    failover_sentence,
    health_of,
    replica_spans,
)
from hightide.cli.partition.live_view import (
    HEALTH,
    STATES,
    Span,
    View,
    Watched,
    draw,
    hold_level,
    ribbon,
    zoom,
)
from hightide.cli.render import line_text
from hightide.client.model.events import BrokerEvent
from hightide.client.model.replicas import PartitionReplicas, ReplicaReport, Role
from hightide.client.xray.frames import frame_of
from hightide.core.events import Severity
from hightide.core.partition.follower_progress import Progress, Standing
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.types import NO_UUID

NOW_MS = 1_795_077_012_000
STATE = PartitionState((1, 2, 3), leader=1, leader_epoch=4, isr=(1, 2), partition_epoch=9)
ALL = frozenset({1, 2, 3})


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def report(broker, role=Role.FOLLOWER, mark=9_900, end=10_000, **values):
    values.setdefault("leader_epoch", 4)
    return ReplicaReport(
        broker=broker,
        topic="orders",
        topic_id=NO_UUID,
        partition=0,
        role=role,
        log_start_offset=0,
        high_watermark=mark,
        end_offset=end,
        size_bytes=5000,
        state=None,
        **values,
    )


LEADER = report(
    1,
    Role.LEADER,
    last_stable_offset=9_850,
    maximal_isr=(1, 2),
    progress={
        1: Progress(1, Standing.LEADER, 10_000, 0, 0),
        2: Progress(2, Standing.IN_SYNC, 9_900, 100, 8_012),
        3: Progress(3, Standing.BEHIND, 9_800, 200, 31_250),
    },
)
FOLLOWERS = report(2, mark=9_900, end=9_900), report(3, mark=9_800, end=9_800)


def partition(*reports, state=STATE, live=ALL, silent=frozenset(), index=0):
    found = {one.broker: one for one in reports}
    return PartitionReplicas("orders", index, state, live, found, silent)


def watched(found, sentence="A sentence.", step="", ribbons=None, health=(), level=None):
    frame = frame_of(found, 2)
    level = level or hold_level(frame, bool(found.missing))
    return Watched(found, frame, level, sentence, step, ribbons or {}, health)


def event(text, severity=Severity.INFO, at_ms=0):
    return BrokerEvent(NOW_MS + at_ms, 0, 1, "a", 1, "leader_elected", severity, text, {})


def spans(*states, every_ms=10_000):
    """States that ended now, each as long as the others."""
    first_ms = NOW_MS - len(states) * every_ms
    return [
        Span(first_ms + at * every_ms, first_ms + (at + 1) * every_ms, state)
        for at, state in enumerate(states)
    ]


WHOLE = watched(
    partition(LEADER, *FOLLOWERS),
    "The high watermark, 9900, stands still, because replica 2 of the ISR is 100 records and 8012"
    " ms behind.",
    "next: hightide cluster health",
    {
        1: [*spans("in_sync", "leads")[:1], Span(NOW_MS - 10_000, NOW_MS, "leads", True)],
        2: spans("leads", "silent"),
        3: spans("eligible", "out"),
    },
)
EVENTS = (
    event("orders/0: broker 1 leads after 2 in leader epoch 4, in sync: brokers 1 and 2"),
    event("orders/0: broker 3 leaves the ISR", Severity.WARNING, 250),
)


def texts(view, width=80, height=None):
    return [line_text(line).rstrip() for line in draw(view, width, height)]


# -- one partition -----------------------------------------------------------------------------


AT_80 = """\
orders/0                                                                08:30:12
▲ The high watermark, 9900, stands still, because replica 2 of the ISR is 100
  records and 8012 ms behind.
  next: hightide cluster health
  leader 1 · epoch 4 · ISR 1,2 · min ISR 2 · acks=all accepted · HW 9,900
  LSO 9,850

              9,488                       10,000 START    HW    LEO   LAG   TIME
★ 1 leads     ███████████████████████┆███┃▒▒▒▒▒▒     0 9,900 10,000     0   0 ms
  2 in sync   ███████████████████████████┃           0 9,900  9,900   100  8.0 s
  3 out       ████████████████████┃                  0 9,800  9,800   200 31.2 s
    is behind
  █ committed  ┃ high watermark  ▒ not known to be committed  ┆ last stable

    -60 s                                                                    now
  1                                                   ▄▄▄▄▄▄▄▄▄▄▄▄▄★████████████
  2                                                   █████████████╌╌╌╌╌╌╌╌╌╌╌╌╌
  3                                                   ░░░░░░░░░░░░░·············
  █ leads  ★ begins to lead  ▄ in sync  ░ eligible  · out  ╌ silent

  08:30:12.000 broker 1 leads after 2 in leader epoch 4, in sync: brokers 1
               and 2
▲ 08:30:12.250 broker 3 leaves the ISR
"""

AT_120 = """\
orders/0                                                                                                        08:30:12
▲ The high watermark, 9900, stands still, because replica 2 of the ISR is 100 records and 8012 ms behind.
  next: hightide cluster health
  leader 1 · epoch 4 · ISR 1,2 · min ISR 2 · acks=all accepted · HW 9,900 · LSO 9,850

              9,488                                                               10,000 START    HW    LEO   LAG   TIME
★ 1 leads     ████████████████████████████████████████████████████┆██████┃▒▒▒▒▒▒▒▒▒▒▒▒▒▒     0 9,900 10,000     0   0 ms
  2 in sync   ███████████████████████████████████████████████████████████┃                   0 9,900  9,900   100  8.0 s
  3 out       ████████████████████████████████████████████┃                                  0 9,800  9,800   200 31.2 s
    is behind
  █ committed  ┃ high watermark  ▒ not known to be committed  ┆ last stable

    -60 s                                                                                                            now
  1                                                                              ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄★███████████████████
  2                                                                              ███████████████████╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌
  3                                                                              ░░░░░░░░░░░░░░░░░░░····················
  █ leads  ★ begins to lead  ▄ in sync  ░ eligible  · out  ╌ silent

  08:30:12.000 broker 1 leads after 2 in leader epoch 4, in sync: brokers 1 and 2
▲ 08:30:12.250 broker 3 leaves the ISR
"""

SEVERAL_AT_80 = """\
orders                                                                  08:30:12
▲ 1 of 2 partitions: orders/0: It stands still.

  PARTITION  LEADER  EPOCH    ISR      HW     LEO  LAG  -60 s                now
▲ orders/0        1      4    1,2   9,900  10,000  200                  ████▄▄▄▄
✓ orders/1        1      4  1,2,3  10,000  10,000    0                      ████
  █ all in sync  ▄ under-replicated  ★ new leader

  08:30:12.000 orders/0: broker 1 leads after 2 in leader epoch 4, in sync:
               brokers 1 and 2
▲ 08:30:12.250 orders/0: broker 3 leaves the ISR
"""

SEVERAL_AT_120 = """\
orders                                                                                                          08:30:12
▲ 1 of 2 partitions: orders/0: It stands still.

  PARTITION  LEADER  EPOCH    ISR      HW     LEO  LAG  -60 s                                                        now
▲ orders/0        1      4    1,2   9,900  10,000  200                                            ███████████▄▄▄▄▄▄▄▄▄▄▄
✓ orders/1        1      4  1,2,3  10,000  10,000    0                                                       ███████████
  █ all in sync  ▄ under-replicated  ★ new leader

  08:30:12.000 orders/0: broker 1 leads after 2 in leader epoch 4, in sync: brokers 1 and 2
▲ 08:30:12.250 orders/0: broker 3 leaves the ISR
"""


@pytest.mark.parametrize(("width", "expected"), [(80, AT_80), (120, AT_120)])
def test_the_picture_of_one_partition(width, expected):
    assert texts(View("orders/0", NOW_MS, [WHOLE], EVENTS), width) == expected.splitlines()


def test_a_replica_that_does_not_answer_is_paused_and_its_end_is_what_the_leader_knows():
    found = partition(LEADER, FOLLOWERS[1], silent=frozenset({2}))
    lines = texts(View("orders/0", NOW_MS, [watched(found)]))
    (line,) = [line for line in lines if line.startswith("  2 ⏸ in sync ▒▒")]
    assert line.split()[-6:] == ["?", "?", "9,900", "100", "8.0", "s"]
    assert "    its broker does not answer" in lines


def test_without_a_leader_the_bars_that_are_known_are_drawn():
    state = replace(STATE, leader=NO_BROKER, isr=(1,), elr=(2,))
    found = partition(FOLLOWERS[1], state=state, live=frozenset({3}))
    lines = texts(View("orders/0", NOW_MS, [watched(found)]))
    assert lines[1].startswith("✕ ")
    assert any("leader none" in line and "acks=all refused" in line for line in lines)
    assert any(line.startswith("  1 gone ") for line in lines)
    assert any(line.startswith("  2 gone, eligible ?") for line in lines)
    assert any(line.startswith("  3 out ") and "█" in line for line in lines)


@pytest.mark.parametrize("width", [80, 120, 41, 200])
@pytest.mark.parametrize("offset", [0, 10**6, 10**15])
def test_no_line_is_wider_than_the_terminal(width, offset):
    def moved(one):
        return replace(
            one,
            log_start_offset=offset,
            high_watermark=one.high_watermark + offset,
            end_offset=one.end_offset + offset,
        )

    found = partition(moved(LEADER), *map(moved, FOLLOWERS))
    long = event("orders/0: " + "a long sentence " * 30)
    for count in (1, 3):
        many = [watched(replace(found, partition=at), "word " * 60) for at in range(count)]
        view = View("orders", NOW_MS, many, [long], "phases " * 30, "away " * 30, ["note " * 30])
        assert max(map(len, texts(view, width))) <= width


@pytest.mark.parametrize("height", [10, 24, 50])
def test_the_picture_has_at_most_the_height_of_the_terminal(height):
    many = [watched(partition(LEADER, *FOLLOWERS, index=at)) for at in range(100)]
    for partitions in ([WHOLE], many):
        view = View("orders", NOW_MS, partitions, EVENTS * 50)
        assert len(texts(view, 80, height)) <= height
    assert len(texts(View("orders/0", NOW_MS, [WHOLE], EVENTS * 50), 80, 50)) == 50


def test_control_characters_of_a_broker_do_not_reach_the_terminal():
    hostile = event("orders/0: \x1b[2J\nx")
    failed = replace(LEADER, failure="\x1b[31mdisk")
    view = View("o\x1b[1m", NOW_MS, [watched(partition(failed), "\x1b]0;x")], [hostile])
    text = "".join(texts(view, 120))
    assert "\x1b" not in text
    assert r"\x1b[2J\nx" in text


def test_a_cluster_that_is_away_is_said_above_the_last_state():
    lines = texts(View("orders/0", NOW_MS, [WHOLE], trouble="No broker answers."))
    assert lines[1:3] == [
        "✕ No broker answers.",
        "▲ The high watermark, 9900, stands still, because replica 2 of the ISR is 100",
    ]
    assert texts(View("orders/0", NOW_MS, [], trouble="No broker answers."))[1:] == [
        "✕ No broker answers."
    ]


def test_the_bars_show_the_end_of_a_long_log_in_few_scales():
    def scale(mark, end):
        return zoom(partition(report(1, Role.LEADER, mark, end)).statuses()[:1])

    assert scale(10_000, 10_000) == scale(9_990, 10_000) == (9_872, 10_000)
    assert scale(9_900, 10_000) == (9_744, 10_000)
    assert scale(0, 100) == (0, 100)
    assert scale(0, 0) == (0, 0)


def test_without_unicode_the_signs_are_ascii():
    for line in draw(View("orders/0", NOW_MS, [WHOLE], EVENTS), 80):
        text = line_text(line)
        assert render.in_ascii(text).isascii()
        assert len(render.in_ascii(text)) == len(text)
        assert "?" not in render.in_ascii(text).replace(" ?", "")


# -- several partitions ------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "expected"), [(80, SEVERAL_AT_80), (120, SEVERAL_AT_120)])
def test_several_partitions_have_a_line_each(width, expected):
    leader = replace(LEADER, high_watermark=10_000, progress={})
    well = partition(leader, state=replace(STATE, isr=(1, 2, 3)), index=1)
    ill = watched(partition(LEADER, *FOLLOWERS), "It stands still.", health=spans("all", "fewer"))
    view = View("orders", NOW_MS, [ill, watched(well, health=spans("all"))], EVENTS)
    assert texts(view, width) == expected.splitlines()


def test_of_too_many_partitions_those_that_need_attention_are_shown():
    well = replace(STATE, isr=(1, 2, 3))
    many = [
        watched(
            partition(LEADER, *FOLLOWERS, state=STATE if at == 70 else well, index=at), level=level
        )
        for at in range(90)
        for level in ["warn" if at == 70 else "ok"]
    ]
    lines = texts(View("orders", NOW_MS, many), 80, 24)
    assert sum(line[2:].startswith("orders/") for line in lines) > 5
    assert any(line.startswith("▲ orders/70 ") for line in lines)
    assert any(line.startswith("  … and ") for line in lines)


# -- ribbons -----------------------------------------------------------------------------------


def drawn(found):
    return "".join(STATES.get(state, " ") if not begins else "★" for state, begins in found)


def test_a_column_shows_the_worst_state_in_its_time():
    short = [
        Span(NOW_MS - 60_000, NOW_MS - 30_000, "leads"),
        Span(NOW_MS - 30_000, NOW_MS - 29_950, "gone"),
        Span(NOW_MS - 29_950, NOW_MS, "in_sync"),
    ]
    assert drawn(ribbon(short, NOW_MS, 10, list(STATES))) == "█████✕▄▄▄▄"


def test_time_without_looks_is_empty():
    gap = [Span(NOW_MS - 90_000, NOW_MS - 54_000, "leads"), Span(NOW_MS - 6_000, NOW_MS, "out")]
    assert drawn(ribbon(gap, NOW_MS, 10, list(STATES))) == "█        ·"
    assert drawn(ribbon([], NOW_MS, 10, list(STATES))) == " " * 10


BEFORE = frame_of(partition(LEADER, *FOLLOWERS), 2)
AFTER = frame_of(
    partition(
        report(2, Role.LEADER, leader_epoch=5),
        state=replace(STATE, leader=2, leader_epoch=5, isr=(2,)),
    ),
    1,
)


def test_the_history_marks_where_a_replica_begins_to_lead():
    history = History()
    for at_ms, frame in ((0, BEFORE), (200, BEFORE), (400, AFTER), (600, AFTER)):
        history.add(NOW_MS + at_ms, frame)
    ribbons = replica_spans(history.timeline("orders", 0, ()), NOW_MS + 700)
    assert ribbons[2] == [
        Span(NOW_MS, NOW_MS + 400, "in_sync"),
        Span(NOW_MS + 400, NOW_MS + 700, "leads", True),
    ]
    assert [(span.state, span.begins) for span in ribbons[1]] == [("leads", False), ("out", False)]
    assert [span.begins for span in history.health(NOW_MS + 700)] == [False, True]


def test_time_in_which_the_cluster_was_away_is_unknown():
    history = History()
    history.add(NOW_MS, BEFORE)
    history.was_away(NOW_MS + 1_000)
    history.was_away(NOW_MS + 2_000)
    history.add(NOW_MS + 3_000, BEFORE)
    ribbons = replica_spans(history.timeline("orders", 0, ()), NOW_MS + 4_000)
    assert ribbons[1] == [
        Span(NOW_MS, NOW_MS + 2_000, "silent"),
        Span(NOW_MS + 2_000, NOW_MS + 4_000, "leads", True),
    ]
    cells = ribbon(history.health(NOW_MS + 60_000), NOW_MS + 60_000, 30, list(HEALTH))
    assert [state for state, _ in cells] == ["unknown"] + ["fewer"] * 29


def test_the_history_forgets():
    history = History()
    for at_ms in range(0, 2 * KEPT_MS, 1_000):
        history.add(NOW_MS + at_ms, (BEFORE, AFTER)[at_ms // 1_000 % 2])
        history.was_away(NOW_MS + at_ms + 500)
    timeline = history.timeline("orders", 0, ())
    assert len(timeline.frames) <= KEPT_MS // 1_000 + 2
    assert len(timeline.away) <= KEPT_MS // 1_000 + 2


def test_a_failover_is_a_sentence_with_its_phases():
    history = History()
    history.add(NOW_MS, BEFORE)
    history.add(NOW_MS + 60, AFTER)
    facts = {"topic": "orders", "partition": 0, "leader_epoch": 5}
    happened: list[tuple[int, str, dict[str, Any]]] = [
        (10, "brokers_changed", {"gone": [1], "up": []}),
        (12, "leader_elected", {**facts, "leader": 2, "previous_leader": 1}),
        (1_250, "first_write", facts),
        (9_000, "brokers_changed", {"gone": [], "up": [1]}),
    ]
    events = [
        BrokerEvent(NOW_MS + at_ms, 0, 2, "a", at_ms, kind, Severity.INFO, kind, data)
        for at_ms, kind, data in happened
    ]
    timeline = history.timeline("orders", 0, events)
    assert failover_sentence(timeline, NOW_MS + 10_000) == (
        "Failover at 08:30:12.010, leader 1 → 2, epoch 4 → 5: detected +0 ms, elected +2 ms,"
        " first write +1.2 s, old leader back +9.0 s"
    )
    assert not failover_sentence(timeline, NOW_MS + 2 * KEPT_MS)
    assert not failover_sentence(History().timeline("orders", 0, ()), NOW_MS)


@pytest.mark.parametrize(
    ("min_isr", "live", "silent", "isr", "expected"),
    [
        (2, ALL, (), (1, 2, 3), "all"),
        (2, ALL, (), (1, 2), "fewer"),
        (3, ALL, (), (1, 2), "too_few"),
        (2, ALL, {1}, (1, 2), "unknown"),
        (2, {2, 3}, (), (1, 2), "offline"),
    ],
)
def test_a_partition_has_one_state(min_isr, live, silent, isr, expected):
    found = partition(
        LEADER, state=replace(STATE, isr=isr), live=frozenset(live), silent=frozenset(silent)
    )
    assert health_of(frame_of(found, min_isr)) == expected
    assert expected in HEALTH
