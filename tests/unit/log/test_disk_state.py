"""Whether a disk is full or has failed is decided for the whole disk, with patience."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hightide.log.disk_state import RELAPSE_MS, DiskState, DiskStatus

HANDOVER_MS = 3000


def status(state: DiskState) -> DiskStatus:
    return state.status


def full(at_ms: int = 0) -> DiskState:
    state = DiskState()
    state.refused("no space", at_ms)
    assert status(state) is DiskStatus.FULL
    return state


def test_leaders_of_a_full_disk_hand_over_after_a_while() -> None:
    state = full(1000)
    assert not state.leaders_hand_over(HANDOVER_MS, 3999)
    assert state.leaders_hand_over(HANDOVER_MS, 4000)
    state.probed(True, 5000)
    assert status(state) is DiskStatus.WORKS
    assert not state.leaders_hand_over(HANDOVER_MS, 9000)


def test_a_full_disk_works_again_when_a_probe_is_written_and_enough_is_free() -> None:
    state = full()
    assert not state.is_probe_due(499)
    assert state.is_probe_due(500)
    state.probed(False, 500)
    assert status(state) is DiskStatus.FULL
    state.probe_failed("no space", True, 1000)
    assert status(state) is DiskStatus.FULL
    state.probed(True, 1500)
    assert status(state) is DiskStatus.WORKS
    assert not state.is_probe_due(100_000)


def test_a_disk_that_works_for_moments_counts_as_full_all_the_time() -> None:
    state = full(0)
    for at_ms in range(1000, 3000, 500):
        state.probed(True, at_ms)
        state.refused("no space", at_ms + 100)
    assert state.leaders_hand_over(HANDOVER_MS, 3000)
    state.probed(True, 4000)
    state.refused("no space", 4000 + RELAPSE_MS)
    assert not state.leaders_hand_over(HANDOVER_MS, 4000 + RELAPSE_MS)


def test_a_failure_of_one_file_is_not_a_failure_of_the_disk() -> None:
    state = DiskState()
    state.suspected(0)
    assert state.is_probe_due(0)
    state.probed(True, 10)
    assert status(state) is DiskStatus.WORKS
    state.suspected(20)
    state.probe_failed("input/output error", False, 30)
    assert status(state) is DiskStatus.FAILED


def test_a_failed_disk_is_probed_more_and_more_rarely_until_it_works() -> None:
    state, now_ms, probes = DiskState(), 0, 0
    state.suspected(0)
    while now_ms < 60_000:
        if state.is_probe_due(now_ms):
            probes += 1
            state.probe_failed("input/output error", False, now_ms)
        now_ms += 100
    assert 8 <= probes <= 14
    state.probed(True, now_ms)
    assert status(state) is DiskStatus.WORKS


EVENTS = st.sampled_from(["refuse", "suspect", "work", "fill", "fail"])


@given(st.lists(st.tuples(EVENTS, st.integers())))
def test_a_disk_that_does_not_work_is_always_probed_again(events: list[tuple[str, int]]) -> None:
    state, now_ms = DiskState(), 0
    for event, pause in events:
        now_ms += abs(pause) % 20_000
        match event:
            case "refuse":
                state.refused("no space", now_ms)
            case "suspect":
                state.suspected(now_ms)
            case _ if not state.is_probe_due(now_ms):
                pass
            case "work":
                state.probed(True, now_ms)
            case "fill":
                state.probe_failed("no space", True, now_ms)
            case "fail":
                state.probe_failed("input/output error", False, now_ms)
    if status(state) is not DiskStatus.WORKS:
        assert state.is_probe_due(now_ms + 8_000)
        state.probed(True, now_ms + 8_000)
        assert status(state) is DiskStatus.WORKS
