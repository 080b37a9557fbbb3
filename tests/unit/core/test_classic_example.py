"""The example of Kafka's classic description: leader 10, followers 5 and 3, so LEO 10 and HW 3."""

from __future__ import annotations

from hightide.core.partition.leader import Leader
from hightide.core.partition.state import PartitionState

BROKER_EPOCHS = {1: 11, 2: 12, 3: 13}


def test_the_high_watermark_is_the_smallest_log_end_of_the_isr() -> None:
    state = PartitionState((1, 2, 3), leader=1, leader_epoch=0, isr=(1, 2, 3))
    leader = Leader(
        1,
        BROKER_EPOCHS[1],
        state,
        end_offset=0,
        high_watermark=0,
        min_isr=1,
        lag_ms=30_000,
        live=BROKER_EPOCHS,
        shutting_down=set(),
        now_ms=0,
    )
    leader.appended(10)
    leader.fetched(2, 5, BROKER_EPOCHS[2], 1)
    leader.fetched(3, 3, BROKER_EPOCHS[3], 1)
    assert (leader.end_offset, leader.high_watermark) == (10, 3)
