"""A follower's log is a copy of its leader's log, in whatever pieces it arrives."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hightide.log.disk import Disk, MemoryDisk
from hightide.log.flush import flush
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.wire.batch import Record, build
from hightide.wire.compression import Codec
from hightide.wire.control import ControlType, Marker, build_marker
from hightide.wire.errors import Corrupt, KafkaError
from tests.support.crash_disk import CrashDisk, PowerCut
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    newest,
    open_log_manager,
    replayed,
    run_jobs,
    stored_batches,
    topic,
)

CONFIG = topic(segment_bytes=900, index_interval_bytes=150, file_delete_delay_ms=0)


def new_log(disk: Disk | None = None, **changes: object) -> tuple[LogManager, Log]:
    log_manager = open_log_manager(disk or MemoryDisk(), topic(**changes) if changes else CONFIG)
    return log_manager, log_manager.create("t", 0, UUID(int=5))


def sent(log: Log, offset: int, max_bytes: int) -> memoryview:
    part = log.read(offset, max_bytes, log.end_offset)
    assert part is not None
    return memoryview(part.file.read(part.position, part.length))


def copy(leader: Log, follower: Log, max_bytes: int = 700) -> None:
    while follower.end_offset < leader.end_offset:
        before = follower.end_offset
        assert follower.append_fetched(sent(leader, before, max_bytes), NOW) > before


def contents(log: Log) -> list[bytes]:
    return [bytes(data) for _, data in stored_batches(log)]


WRITES = st.lists(
    st.tuples(
        st.lists(st.binary(max_size=60), min_size=1, max_size=4),
        st.integers(-1, 2),  # producer
        st.integers(0, 1),  # by how much the epoch grows
        st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP]),
    ),
    min_size=1,
    max_size=25,
)


def fill(leader: Log, writes: list, epoch: int = 0) -> int:
    sequences: dict[int, int] = {}
    for values, producer, step, codec in writes:
        epoch += step
        fields: dict[str, Any] = {}
        if producer >= 0:
            state = leader.producers.get(producer)
            sequence = 0 if state is None else state.next_sequence
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            sequences[producer] = sequence
        append(leader, batch(values, codec=codec, **fields), epoch)
    return epoch


@settings(max_examples=150, deadline=None)
@given(writes=WRITES, max_bytes=st.integers(1, 3000))
def test_a_copy_has_the_same_bytes_epochs_and_producers(writes, max_bytes):
    _, leader = new_log()
    _, follower = new_log()
    fill(leader, writes)
    copy(leader, follower, max_bytes)
    assert contents(follower) == contents(leader)
    assert follower.epochs.entries == leader.epochs.entries
    assert follower.producers == leader.producers == replayed(follower)[0]
    assert [s.base_offset for s in follower.segments] == [s.base_offset for s in leader.segments]


@settings(max_examples=100, deadline=None)
@given(writes=WRITES, cut=st.integers(0, 2000), flip=st.integers(0, 10_000))
def test_what_is_cut_off_is_left_and_what_is_damaged_is_refused(writes, cut, flip):
    _, leader = new_log(segment_bytes=100_000)
    _, follower = new_log(segment_bytes=100_000)
    fill(leader, writes)
    data = bytearray(sent(leader, 0, 1 << 20))
    whole = contents(leader)
    end = min(cut, len(data))
    follower.append_fetched(memoryview(data)[:end], NOW)
    taken = contents(follower)
    assert taken == whole[: len(taken)]
    rest = bytearray(data[sum(map(len, taken)) :])
    if rest:
        at = flip % len(rest)
        rest[at] ^= 0x40
        with contextlib.suppress(Corrupt):
            follower.append_fetched(memoryview(rest), NOW)
        got = contents(follower)
        # The CRC does not cover base offset and leader epoch; a jump of either goes unnoticed here.
        assert [data[16:] for data in got] == [data[16:] for data in whole[: len(got)]]
        assert follower.producers == replayed(follower)[0]


def test_a_batch_that_does_not_follow_is_refused_and_nothing_is_written():
    _, leader = new_log()
    _, follower = new_log()
    fill(leader, [([b"a"], -1, 0, Codec.NONE)] * 3)
    copy(leader, follower)
    for data in (sent(leader, 0, 1), sent(leader, 2, 1)):
        with pytest.raises(Corrupt, match="does not follow 2"):
            follower.append_fetched(data, NOW)
    assert contents(follower) == contents(leader)


def test_a_log_can_begin_within_a_batch_whose_first_records_were_deleted():
    """The leader's log starts inside the first batch, and so does the empty follower."""
    disk = MemoryDisk()
    _, leader = new_log()
    log_manager, follower = new_log(disk)
    append(leader, batch([b"a", b"b"]), 0)
    append(leader, batch([b"c", b"d", b"e"]), 2)
    leader.start_at(3)
    follower.restart_at(3)
    copy(leader, follower)
    follower.start_at(3)
    assert (follower.start_offset, follower.end_offset) == (3, 5)
    assert contents(follower) == contents(leader)
    assert follower.epochs.entries == leader.epochs.entries
    with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
        follower.read(2, 100, 5)
    log_manager.close(NOW)
    (reopened,) = open_log_manager(disk, CONFIG).logs.values()
    assert (reopened.start_offset, reopened.end_offset) == (3, 5)


def test_an_empty_log_takes_no_batch_from_before_it():
    _, leader = new_log()
    _, follower = new_log()
    append(leader, batch([b"a", b"b"]), 0)
    follower.restart_at(3)
    with pytest.raises(Corrupt, match="does not follow 2"):
        follower.append_fetched(sent(leader, 0, 100), NOW)
    assert (follower.start_offset, follower.end_offset) == (3, 3)


def test_an_epoch_that_goes_back_is_refused():
    _, old = new_log()
    _, new = new_log()
    fill(old, [([b"a"], -1, 0, Codec.NONE)] * 2)
    append(new, batch([b"b"]), 5)
    with pytest.raises(Corrupt, match="has epoch 0, but the batch before it has epoch 5"):
        new.append_fetched(sent(old, 1, 1000), NOW)


def test_an_epoch_in_which_this_broker_led_and_wrote_nothing_is_no_hindrance():
    _, leader = new_log()
    _, follower = new_log()
    append(leader, batch([b"a"]), 1)
    append(leader, batch([b"b"]), 1)
    append(leader, batch([b"c"]), 3)
    follower.append_fetched(sent(leader, 0, 1), NOW)
    follower.epochs.assign(2, follower.end_offset)
    follower.truncate_to(follower.end_offset)
    assert follower.epochs.entries == [(1, 0)]
    copy(leader, follower)
    assert follower.epochs.entries == leader.epochs.entries == [(1, 0), (3, 2)]


def test_the_holes_that_compaction_leaves_are_copied():
    config: dict[str, Any] = {
        "cleanup_policy": "compact",
        "segment_bytes": 300,
        "min_cleanable_dirty_ratio": 0,
    }
    log_manager, leader = new_log(**config)
    for number in range(40):
        append(leader, batch([b"%d" % number], keys=[b"k%d" % (number % 3)]))
    for _ in range(3):
        run_jobs(log_manager, NOW + 10 * 60_000)
    assert len(contents(leader)) < 40
    _, follower = new_log(**config)
    copy(leader, follower)
    assert contents(follower) == contents(leader)
    assert follower.end_offset == 40


def test_markers_of_transactions_are_followed():
    _, leader = new_log()
    _, follower = new_log()
    buf = batch([b"a"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    append(leader, buf)
    marker = build_marker(
        Marker(ControlType.COMMIT, 4),
        offset=1,
        timestamp=NOW,
        producer_id=1,
        producer_epoch=0,
        leader_epoch=0,
    )
    copy(leader, follower)
    assert follower.producers.get(1).transaction_first_offset == 0
    follower.append_fetched(memoryview(marker), NOW)
    assert follower.producers.get(1).transaction_first_offset == -1
    assert follower.producers.get(1).coordinator_epoch == 4


def test_a_marker_that_cannot_be_read_is_not_written():
    _, follower = new_log()
    fields: dict[str, Any] = {
        "producer_id": 1,
        "producer_epoch": 0,
        "transactional": True,
        "leader_epoch": 0,
    }
    good = batch([b"a"], base_sequence=0, **fields)
    bad = build([Record(1, NOW, b"\0", b"")], base_offset=1, control=True, **fields)
    with pytest.raises(Corrupt):
        follower.append_fetched(memoryview(good + bad), NOW)
    assert (follower.end_offset, follower.size_bytes) == (1, len(good))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    writes=WRITES,
    more=WRITES,
    back=st.integers(0, 20),
    max_bytes=st.integers(1, 3000),
    seed=st.integers(0, 1 << 30),
    cut=st.integers(1, 200),
)
def test_a_follower_that_loses_power_comes_back_with_a_beginning_of_its_leader(
    writes, more, back, max_bytes, seed, cut
):
    """Copy, truncate, copy the records of another leader; the power fails at some step."""
    _, leader = new_log()
    epoch = fill(leader, writes)
    other = new_log()[1]
    disk = CrashDisk(seed)
    _, follower = new_log(disk)
    copy(leader, follower, max_bytes)
    flush(follower)
    end_offset = max(0, follower.end_offset - back)
    kept = [
        bytes(data) for header, data in stored_batches(leader) if header.last_offset < end_offset
    ]
    other.append_fetched(memoryview(b"".join(kept)), NOW)
    fill(other, more, epoch + 1)
    disk.cut_at(disk.steps + cut)
    with contextlib.suppress(PowerCut):
        assert follower.truncate_to(end_offset) == sum(
            header.last_offset_delta + 1
            for header, _ in stored_batches(other)
            if header.leader_epoch <= epoch
        )
        copy(other, follower, max_bytes)
    found = open_log_manager(disk.after_crash(), CONFIG).logs["t", 0]
    now = contents(found)
    assert now in (contents(leader)[: len(now)], contents(other)[: len(now)])
    assert len(now) >= len(kept)
    assert newest(found.producers) == newest(replayed(found)[0])


def test_committed_records_that_the_leader_lost_are_set_aside():
    disk = MemoryDisk()
    _, log = new_log(disk)
    for number in range(20):
        append(log, batch([b"%d" % number * 60]))
    before = dict(enumerate(contents(log)))
    log.high_watermark = 15
    log.truncate_to(12, NOW)
    kept = b"".join(
        disk.read_file(f"t-0.{NOW}-damaged/{name}")
        for name in sorted(disk.list(f"t-0.{NOW}-damaged"))
    )
    assert kept == b"".join(before[number] for number in range(12, 20))


def test_records_that_were_not_committed_are_not_set_aside():
    disk = MemoryDisk()
    _, log = new_log(disk)
    for number in range(20):
        append(log, batch([b"%d" % number * 60]))
    log.high_watermark = 12
    log.truncate_to(12, NOW)
    assert not [name for name in disk.list("") if name.endswith("-damaged")]


def test_a_log_that_is_emptied_below_its_high_watermark_is_set_aside_whole():
    disk = MemoryDisk()
    _, log = new_log(disk)
    for number in range(20):
        append(log, batch([b"%d" % number * 60]))
    before = b"".join(contents(log))
    log.high_watermark = 20
    log.restart_at(0, NOW)
    names = sorted(disk.list(f"t-0.{NOW}-damaged"))
    assert b"".join(disk.read_file(f"t-0.{NOW}-damaged/{name}") for name in names) == before
