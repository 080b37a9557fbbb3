"""Compaction keeps the latest record of each key and changes nothing else, whenever it stops."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hightide.log.disk import Disk, MemoryDisk
from hightide.log.flush import flush
from hightide.log.housekeeping import WriteCheckpoint
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.wire.batch import Record, build, read_header, records
from hightide.wire.compression import Codec
from tests.support.crash_disk import CrashDisk, PowerCut
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    end_transaction,
    newest,
    open_log_manager,
    run_jobs,
    stored,
    stored_batches,
    topic,
)

MINUTE_MS = 60_000
RETENTION_MS = 60 * MINUTE_MS


class World:
    """A log manager with one compacted topic, and a clock."""

    def __init__(self, disk: Disk, broker: dict[str, Any] | None = None, **config: Any) -> None:
        self.disk = disk
        self.broker = broker or {}
        self.config = topic(
            **{
                "cleanup_policy": "compact",
                "segment_bytes": 600,
                "index_interval_bytes": 100,
                "delete_retention_ms": RETENTION_MS,
                "min_cleanable_dirty_ratio": 0,
                "file_delete_delay_ms": 0,
                **config,
            }
        )
        self.now_ms = NOW
        self.log_manager: LogManager
        self.reopen()
        if ("t", 0) not in self.log_manager.logs:
            self.log = self.log_manager.create("t", 0, UUID(int=1))
            self.log_manager.sync_names()
        self.sent: dict[int, Record] = {}

    def reopen(self) -> None:
        self.log_manager = open_log_manager(self.disk, self.config, self.now_ms, **self.broker)
        log = self.log_manager.logs.get(("t", 0))
        if log is not None:
            self.log = log

    def put(self, *pairs: tuple[bytes, bytes | None], **fields: Any) -> int:
        keys = [key for key, _ in pairs]
        data = batch([value for _, value in pairs], keys=keys, timestamp=self.now_ms, **fields)
        for record in records(data):
            offset = self.log.end_offset + record.offset
            self.sent[offset] = record._replace(offset=offset)
        return append(self.log, data, now_ms=self.now_ms)[0]

    def compact(self) -> None:
        """Roll the log, and let enough time pass for all housekeeping."""
        self.log.roll(self.now_ms)
        self.run_housekeeping()

    def run_housekeeping(self) -> None:
        # Flush, then checkpoint the recovery point, then compact what is before it.
        for _ in range(4):
            self.now_ms += 2 * MINUTE_MS
            run_jobs(self.log_manager, self.now_ms)


def table(log: Log) -> dict[bytes, bytes | None]:
    """Return the topic as a table: the last value of each key, None for a deletion."""
    return {record.key or b"": record.value for record in stored(log)}


def live(rows: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in rows.items() if value is not None}


@pytest.mark.parametrize("keys", [1, 2, 3, 7])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("torn", [0, 40])
def test_leader_epochs_outlive_the_batches_that_began_them(
    disk: Disk, keys: int, is_clean: bool, torn: int
) -> None:
    """Compaction removes the first batches of an epoch; the next start must not take the first
    that is left for its beginning, and must not lose the epochs before a torn end."""
    world = World(disk)
    for i in range(60):
        data = batch([b"x" * 20], keys=[b"k%d" % (i % keys)], timestamp=world.now_ms)
        append(world.log, data, leader_epoch=i // 7, now_ms=world.now_ms)
        if i % 20 == 19:
            world.run_housekeeping()
    entries, kept = world.log.epochs.entries, stored(world.log)
    assert len(kept) < 60
    if is_clean:
        world.log_manager.close(world.now_ms)
    elif torn:
        world.log.active_segment.opened().append(bytes(torn))
    world.reopen()
    assert world.log.epochs.entries == entries
    assert stored(world.log) == kept
    assert not world.log.damage


def test_older_records_of_a_key_go_and_offsets_stay(disk: Disk) -> None:
    world = World(disk)
    for i in range(20):
        world.put((b"a", b"%d" % i), (b"b%d" % i, b"x"))
    assert len(world.log.segments) == 3
    world.compact()
    kept = stored(world.log)
    assert [record.offset for record in kept if record.key == b"a"] == [38]
    assert len(kept) == 21
    assert all(record == world.sent[record.offset] for record in kept)
    assert world.log.cleaned_offset == world.log.active_segment.base_offset
    for offset in range(world.log.end_offset):
        part = world.log.read(offset, 1, world.log.end_offset)
        assert part is not None
        assert read_header(part.file.read(part.position, 61)).last_offset >= offset


def test_segments_that_have_become_small_become_one(disk: Disk) -> None:
    world = World(disk)
    for i in range(60):
        world.put((b"a", b"%d" % i * 20))
    assert len(world.log.segments) > 10
    for i in range(2):
        world.put((b"b", b"%d" % i))
        world.compact()
    assert len(world.log.segments) <= 3
    assert [record.key for record in stored(world.log)] == [b"a", b"b"]
    bases = {int(name[:20]) for name in disk.list("t-0") if name[:20].isdecimal()}
    assert bases == set(world.log.segments.bases), "no file of the others is left"


def test_the_active_segment_is_left_alone(disk: Disk) -> None:
    world = World(disk, segment_bytes=100_000)
    for i in range(20):
        world.put((b"a", b"%d" % i))
    world.run_housekeeping()
    assert len(stored(world.log)) == 20
    world.compact()
    assert len(stored(world.log)) == 1


def test_tombstones_go_after_their_time(disk: Disk) -> None:
    world = World(disk)
    for i in range(6):
        world.put((b"k%d" % i, b"v"))
    world.put((b"k1", None), (b"k2", None), (b"k3", b"new"))
    world.compact()
    rows = table(world.log)
    assert rows == {b"k0": b"v", b"k1": None, b"k2": None, b"k3": b"new", b"k4": b"v", b"k5": b"v"}
    horizons = [header.delete_horizon_ms for header, _ in stored_batches(world.log)]
    (horizon,) = [h for h in horizons if h is not None]
    assert NOW + RETENTION_MS < horizon <= world.now_ms + RETENTION_MS
    times = {record.offset: record.timestamp for record in stored(world.log)}
    assert all(times[offset] == world.sent[offset].timestamp for offset in times)
    world.now_ms = horizon - 20 * MINUTE_MS
    world.run_housekeeping()
    assert table(world.log) == rows, "not before its time"
    world.now_ms = horizon
    world.run_housekeeping()
    assert table(world.log) == live(rows)


def test_the_last_batch_of_a_producer_stays_without_its_records(disk: Disk) -> None:
    world = World(disk)
    fields = {"producer_id": 7, "producer_epoch": 2}
    for i in range(4):
        world.put((b"a", b"x"), (b"b", b"x"), base_sequence=2 * i, **fields)
    for i in range(10):
        world.put((b"a", b"%d" % i), (b"b", b"y"))
    world.compact()
    (kept,) = [h for h, _ in stored_batches(world.log) if h.producer_id == 7]
    assert (kept.base_offset, kept.last_offset, kept.record_count) == (6, 7, 0)
    assert (kept.base_sequence, kept.producer_epoch) == (6, 2)
    known = newest(world.log.producers)
    for name in list(disk.list("t-0")):
        if name.endswith(".snapshot"):
            disk.remove(f"t-0/{name}")
    world.reopen()
    assert newest(world.log.producers) == known
    world.put((b"a", b"z"), base_sequence=8, **fields)


def test_compressed_batches_and_append_time_survive(disk: Disk) -> None:
    world = World(disk, message_timestamp_type="LogAppendTime")
    for i in range(12):
        world.now_ms += 1000
        world.put((b"a", b"%d" % i * 20), (b"only %d" % i, b"x" * 30), codec=Codec(i % 5))
    before = {record.offset: record for record in stored(world.log)}
    world.compact()
    kept = stored(world.log)
    assert len(kept) == 13
    assert all(record == before[record.offset] for record in kept)
    assert {header.codec for header, _ in stored_batches(world.log)} == set(Codec)


def test_young_records_wait(disk: Disk) -> None:
    world = World(disk, min_compaction_lag_ms=RETENTION_MS)
    world.put((b"a", b"1"))
    world.put((b"a", b"2"))
    world.compact()
    assert len(stored(world.log)) == 2
    world.now_ms += RETENTION_MS
    world.run_housekeeping()
    assert len(stored(world.log)) == 1


def test_a_clean_log_waits_until_it_is_dirty_enough_or_late(disk: Disk) -> None:
    world = World(disk, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=24 * RETENTION_MS)
    for i in range(9):
        world.put((b"k%d" % i, b"x" * 30))
    world.compact()
    world.put((b"k0", b"again"))
    world.compact()
    assert len(stored(world.log)) == 10
    world.now_ms += 25 * RETENTION_MS
    world.run_housekeeping()
    assert len(stored(world.log)) == 9


def test_more_keys_than_fit_take_several_rounds(disk: Disk) -> None:
    world = World(disk, {"log_cleaner_dedupe_buffer_size": 1024 * 1024}, segment_bytes=20_000)
    # Keys longer than their digests, and more of them than a map of one megabyte can hold.
    keys = [b"a key of some length %06d" % i for i in range(7000)]
    for round_number in range(2):
        for i in range(0, len(keys), 100):
            world.put(*((key, b"%d" % round_number) for key in keys[i : i + 100]))
    first = world.log.active_segment.base_offset
    world.compact()
    world.run_housekeeping()
    kept = [record for record in stored(world.log) if record.offset < first]
    assert len(stored(world.log)) == len(keys)
    assert all(record.value == b"1" for record in kept)
    assert world.log.cleaned_offset == world.log.active_segment.base_offset


def test_compact_and_delete_does_both(disk: Disk) -> None:
    world = World(disk, cleanup_policy="compact,delete", retention_ms=10 * RETENTION_MS)
    for i in range(20):
        world.put((b"a", b"%d" % i), (b"k%d" % i, b"x"))
    world.compact()
    assert len(stored(world.log)) == 21
    world.now_ms += 11 * RETENTION_MS
    world.run_housekeeping()
    assert stored(world.log) == []
    assert world.put((b"a", b"after")) == 40


def test_a_damaged_batch_stops_compaction_and_is_set_aside(disk: Disk) -> None:
    world = World(disk)
    for i in range(12):
        world.put((b"a", b"%d" % i * 10))
    world.log.roll(world.now_ms)
    path = world.log.segments[1].path(".log")
    data = bytearray(disk.read_file(path))
    data[70] ^= 1
    world.log.segments.files.forget(world.log.segments[1])
    disk.create(path).append(data)
    bases = list(world.log.segments.bases)
    world.run_housekeeping()
    assert world.log.is_uncleanable
    assert set(bases) <= set(world.log.segments.bases), "the intact batches stay"
    (aside,) = [name for name in disk.list("") if name.endswith("-damaged")]
    assert disk.read_file(f"{aside}/{path[4:]}") == data
    assert not [n for n in disk.list("t-0") if n.endswith((".cleaned", ".swap"))]


def test_compaction_waits_until_the_disk_knows_what_is_safe(disk: Disk) -> None:
    """Recovery takes a gap after the recovery point on disk for lost records."""
    world = World(disk)
    for i in range(20):
        world.put((b"a", b"%d" % i), (b"b%d" % i, b"x"))
    for _ in range(4):
        world.now_ms += 2 * MINUTE_MS
        for job in world.log_manager.jobs(world.now_ms):
            if not isinstance(job, WriteCheckpoint):
                job.run()
                job.finish()
    assert world.log.recovery_point > 0
    assert len(stored(world.log)) == 40
    world.reopen()
    assert (len(stored(world.log)), world.log.failure) == (40, None)


def test_aborted_records_go_and_markers_follow(disk: Disk) -> None:
    world = World(disk, segment_bytes=10_000)
    world.put((b"a", b"committed before"), (b"b", b"1"))
    fields = {"producer_epoch": 0, "transactional": True}
    world.put((b"a", b"aborted"), producer_id=1, base_sequence=0, **fields)
    world.put((b"b", b"2"), producer_id=2, base_sequence=0, **fields)
    end_transaction(world.log, 1, commits=False, now_ms=world.now_ms)
    end_transaction(world.log, 2, commits=True, now_ms=world.now_ms)
    world.put((b"c", b"open"), producer_id=3, base_sequence=0, **fields)
    world.compact()
    assert len(stored(world.log)) == 7, "nothing moves while a transaction is open below"
    end_transaction(world.log, 3, commits=True, now_ms=world.now_ms)
    world.compact()
    data = [r for h, d in stored_batches(world.log) if not h.is_control for r in records(d)]
    assert {r.key: r.value for r in data} == {b"a": b"committed before", b"b": b"2", b"c": b"open"}
    assert len(data) == 3

    def markers() -> list[int]:
        return [
            h.producer_id
            for h, _ in stored_batches(world.log)
            if h.is_control and h.record_count > 0
        ]

    assert markers() == [1, 2, 3]
    for _ in range(3):
        world.now_ms += 2 * RETENTION_MS
        world.put((b"d", b"x"))
        world.compact()
    assert markers() == [1, 2, 3], "the empty batch of a producer needs its marker"
    world.put((b"e", b"x"), producer_id=1, base_sequence=1, producer_epoch=0)
    for _ in range(2):
        # The first round drops the batch, the second sets the delete horizon of the marker.
        world.put((b"d", b"x"))
        world.compact()
    assert markers() == [1, 2, 3]
    world.now_ms += 2 * RETENTION_MS
    world.compact()
    assert markers() == [2, 3], "a marker outlives the last of its batches by the retention"


Pair = tuple[int, bool]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rounds=st.lists(
        st.tuples(
            st.lists(
                st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=4),
                min_size=1,
                max_size=12,
            ),
            st.booleans(),
            st.integers(0, 90),
        ),
        max_size=5,
    ),
    segment_bytes=st.sampled_from([200, 600, 5000]),
    reopen=st.booleans(),
)
def test_the_table_never_changes(
    rounds: list[tuple[list[list[Pair]], bool, int]], segment_bytes: int, reopen: bool
) -> None:
    world = World(MemoryDisk(), segment_bytes=segment_bytes)
    rows: dict[bytes, bytes | None] = {}
    sequence = 0
    for batches, roll, minutes in rounds:
        for pairs in batches:
            written = [
                (b"key %d" % k, None if gone else b"%d" % (world.log.end_offset + i))
                for i, (k, gone) in enumerate(pairs)
            ]
            world.put(*written, producer_id=4, producer_epoch=0, base_sequence=sequence)
            sequence += len(written)
            rows.update(written)
        world.now_ms += minutes * MINUTE_MS
        if roll:
            world.compact()
        else:
            world.run_housekeeping()
        if reopen:
            world.log_manager.close(world.now_ms)
            world.reopen()
        now = table(world.log)
        assert live(now) == live(rows)
        assert now.keys() <= rows.keys()
        kept = stored(world.log)
        assert all(record == world.sent[record.offset] for record in kept)
        assert newest(world.log.producers)[4][1] == sequence - 1
        dirty = [o for o in world.sent if o >= world.log.active_segment.base_offset]
        assert dirty == [r.offset for r in kept if r.offset >= world.log.active_segment.base_offset]
    for _ in range(2):
        # After a restart the due time of tombstones is unknown; the next round finds it.
        world.now_ms += 3 * RETENTION_MS
        world.put((b"last", b"x"))
        world.compact()
    assert len(stored(world.log)) == len(live(rows)) + 1


class CompactingWorkload:
    """Two generations of a table with deletions, compacted in two rounds."""

    def __init__(self, disk: CrashDisk) -> None:
        self.disk = disk
        self.rows: dict[bytes, bytes | None] = {}
        self.ever: dict[bytes, set[bytes | None]] = {}
        self.written_at = 0
        self.world: World | None = None

    def run(self) -> None:
        self.world = world = World(self.disk, segment_bytes=300)
        for i in range(16):
            self.put(world, (b"k%d" % (i % 5), b"%d" % i), (b"only %d" % i, b"x"))
        self.put(world, (b"k1", None), (b"only 3", None))
        world.log.roll(world.now_ms)
        flush(world.log)
        self.written_at = self.disk.steps
        world.run_housekeeping()
        world.now_ms += 2 * RETENTION_MS
        world.run_housekeeping()

    def put(self, world: World, *pairs: tuple[bytes, bytes | None]) -> None:
        for key, value in pairs:
            self.rows[key] = value
            self.ever.setdefault(key, set()).add(value)
        world.put(*pairs)


def test_power_may_fail_at_every_step_of_a_compaction() -> None:
    disk = CrashDisk()
    workload = CompactingWorkload(disk)
    workload.run()
    assert workload.world is not None
    assert len(stored(workload.world.log)) == len(live(workload.rows))
    assert disk.steps - workload.written_at > 50, "the compaction is what is cut"
    for step in range(workload.written_at + 1, disk.steps + 1):
        for seed in range(2):
            crashed = CrashDisk(seed * 10_000 + step)
            crashed.cut_at(step)
            workload = CompactingWorkload(crashed)
            with pytest.raises(PowerCut):
                workload.run()
            found = crashed.after_crash()
            if seed:
                # The power may fail again while the next process cleans up.
                found.cut_at(found.random.randint(1, 15))
                with suppress(PowerCut):
                    World(found, segment_bytes=300)
                found = found.after_crash()
            survivor = World(found, segment_bytes=300)
            assert survivor.log.failure is None
            assert live(table(survivor.log)) == live(workload.rows)
            assert all(r.value in workload.ever[r.key or b""] for r in stored(survivor.log))
            for _ in range(2):
                survivor.now_ms += 10 * RETENTION_MS
                survivor.put((b"k0", workload.rows[b"k0"]))
                survivor.compact()
            assert live(table(survivor.log)) == live(workload.rows)
            assert len(stored(survivor.log)) == len(live(workload.rows))


def test_kafka_can_read_what_is_left() -> None:
    """A batch that lost its records has the header Kafka gives it: no codec, no records."""
    world = World(MemoryDisk())
    world.put((b"a", b"1"), codec=Codec.ZSTD, producer_id=1, producer_epoch=0, base_sequence=0)
    world.put((b"a", b"2"))
    world.compact()
    header, data = next(iter(stored_batches(world.log)))
    assert len(data) == 61
    assert header.record_count == 0
    assert header == read_header(
        build(
            [],
            base_offset=0,
            last_offset=0,
            leader_epoch=0,
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            max_timestamp=NOW,
        )
    )
