"""High watermarks that stand still: who holds them, since when, and when they move again."""

from __future__ import annotations

from dataclasses import replace

from hightide.core.partition.leader import Leader
from hightide.core.partition.stall import (
    STALLED_MS,
    HighWatermarkMoves,
    HighWatermarkStalled,
    StallWatch,
)
from hightide.core.partition.state import PartitionState

WHERE = ("orders", 0)
STATE = PartitionState((1, 2, 3), leader=1, leader_epoch=4, isr=(1, 2, 3))
EPOCHS = {1: 10, 2: 20, 3: 30}


def leader(state=STATE, *, min_isr=2) -> Leader:
    made = Leader(
        1,
        EPOCHS[1],
        state,
        end_offset=10,
        high_watermark=10,
        min_isr=min_isr,
        lag_ms=60_000,
        live=EPOCHS,
        shutting_down=frozenset(),
        now_ms=0,
    )
    for follower in (2, 3):
        made.fetched(follower, 10, EPOCHS[follower], 0)
    return made


def look(watch, leader, now_ms):
    return watch.look([(WHERE, leader)], now_ms)


def test_a_replica_that_is_late_holds_the_high_watermark() -> None:
    watch, led = StallWatch(), leader()
    assert look(watch, led, 0) == []
    led.appended(25)
    led.fetched(2, 25, EPOCHS[2], 100)
    assert look(watch, led, 1_000) == []
    assert look(watch, led, 999 + STALLED_MS) == []
    (stalled,) = look(watch, led, 1_000 + STALLED_MS)
    assert isinstance(stalled, HighWatermarkStalled)
    assert (stalled.topic, stalled.partition) == WHERE
    assert (stalled.high_watermark, stalled.end_offset, stalled.held_by) == (10, 25, (3,))
    assert stalled.why.startswith("replica 3 ")
    assert "the high watermark stands at 10, and 15 newer records wait: replica 3 " in str(stalled)
    assert look(watch, led, 9_000 + STALLED_MS) == [], "it is reported once"
    led.fetched(3, 25, EPOCHS[3], 10_000 + STALLED_MS)
    moves = HighWatermarkMoves(*WHERE, 25, 10_000 + STALLED_MS)
    assert look(watch, led, 11_000 + STALLED_MS) == [moves]
    assert look(watch, led, 12_000 + STALLED_MS) == []


def test_too_small_an_isr_holds_the_high_watermark() -> None:
    watch, led = StallWatch(), leader(replace(STATE, isr=(1,)), min_isr=2)
    led.appended(11)
    look(watch, led, 0)
    (stalled,) = look(watch, led, STALLED_MS)
    assert isinstance(stalled, HighWatermarkStalled)
    assert stalled.held_by == (2, 3)
    assert stalled.why == "the ISR has 1 of the 2 replicas that min.insync.replicas needs"


def test_a_high_watermark_that_moves_slowly_is_not_stalled() -> None:
    watch, led = StallWatch(), leader()
    led.appended(30)
    led.fetched(2, 30, EPOCHS[2], 0)
    for second in range(20):
        led.fetched(3, 10 + second, EPOCHS[3], second * 1_000)
        assert look(watch, led, second * 1_000) == []


def test_another_leader_epoch_starts_again_and_a_lost_role_ends_it() -> None:
    watch, led = StallWatch(), leader()
    led.appended(11)
    look(watch, led, 0)
    later = leader(replace(STATE, leader_epoch=6))
    later.appended(11)
    assert look(watch, later, STALLED_MS) == []
    assert watch.look([], 2 * STALLED_MS) == []
    assert look(watch, later, 3 * STALLED_MS) == []
