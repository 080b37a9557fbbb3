"""A log appends one batch at a time, refuses invalid batches, and returns them to readers."""

from __future__ import annotations

from struct import Struct
from typing import Any, cast
from uuid import UUID

import pytest

from hightide.log.disk import Disk, DiskFailed, MemoryDisk
from hightide.log.flush import flush
from hightide.log.housekeeping import roll_if_old
from hightide.log.log import Log
from hightide.log.segment import OpenFiles
from hightide.wire.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER,
    Record,
    build,
    read_header,
    records,
)
from hightide.wire.compression import Codec
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    open_log_manager,
    stored,
    stored_batches,
    topic,
)


def new_log(disk: Disk, **settings: Any) -> Log:
    disk.make_directory("t-0")
    return Log.create(disk, "t", 0, topic(**settings), OpenFiles(64), NOW)


def changed(data: bytearray, **fields: int) -> bytearray:
    """Return a batch with other header fields and a matching CRC."""
    header = read_header(data)._replace(**fields)
    copy = bytearray(data)
    HEADER.pack_into(copy, 0, *header)
    if "crc" not in fields:
        Struct(">I").pack_into(copy, CRC_AT, crc32c(memoryview(copy)[ATTRIBUTES_AT:]))
    return copy


def refused(log: Log, data: bytes | bytearray, now_ms: int = NOW) -> ErrorCode:
    before = (log.end_offset, log.size_bytes, log.epochs.entries)
    with pytest.raises(KafkaError) as caught:
        append(log, data, now_ms=now_ms)
    assert (log.end_offset, log.size_bytes, log.epochs.entries) == before
    return caught.value.code


class TestAppending:
    def test_gives_each_batch_the_next_offsets_and_stores_its_bytes(self, disk: Disk) -> None:
        log = new_log(disk)
        first, second = batch([b"a", b"b"]), batch([b"c"])
        assert append(log, first, leader_epoch=3) == (0, 2, -1)
        assert append(log, second, leader_epoch=3) == (2, 3, -1)
        stamped = [data for _, data in stored_batches(log)]
        assert [read_header(data)[:3] for data in stamped] == [
            (0, len(first) - 12, 3),
            (2, len(second) - 12, 3),
        ]
        assert [data[16:] for data in stamped] == [first[16:], second[16:]]
        assert log.epochs.entries == [(3, 0)]

    def test_works_in_the_middle_of_a_larger_buffer(self, disk: Disk) -> None:
        log = new_log(disk)
        data = batch([b"value"])
        buf = bytearray(b"before") + data + bytearray(b"after")
        assert log.append(buf, memoryview(buf), 6, 6 + len(data), 0, NOW) == (0, 1, -1)
        assert buf[:6] == b"before"
        assert buf[-5:] == b"after"
        assert stored(log) == [Record(0, NOW, None, b"value", ())]

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"magic": 1}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
            ({"magic": 0}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
            ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
            ({"crc": 1}, ErrorCode.CORRUPT_MESSAGE),
            ({"record_count": 3}, ErrorCode.INVALID_RECORD),
            ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
            ({"record_count": -1, "last_offset_delta": -2}, ErrorCode.INVALID_RECORD),
            (
                {"record_count": 1 << 30, "last_offset_delta": (1 << 30) - 1},
                ErrorCode.INVALID_RECORD,
            ),
            ({"base_offset": 7}, ErrorCode.INVALID_RECORD),
            ({"batch_length": 10_000}, ErrorCode.INVALID_RECORD),
            ({"batch_length": 49}, ErrorCode.INVALID_RECORD),
            ({"batch_length": -1}, ErrorCode.INVALID_RECORD),
            ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
            ({"attributes": 0x40}, ErrorCode.INVALID_RECORD),
            ({"attributes": -32768}, ErrorCode.INVALID_RECORD),
            ({"attributes": 0x08}, ErrorCode.INVALID_TIMESTAMP),
            ({"attributes": 0x10}, ErrorCode.INVALID_RECORD),
            ({"max_timestamp": NOW + 3_600_001}, ErrorCode.INVALID_TIMESTAMP),
            ({"producer_id": 5, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ],
    )
    def test_refuses_a_header_that_cannot_be(
        self, disk: Disk, fields: dict[str, int], code: ErrorCode
    ) -> None:
        log = new_log(disk)
        append(log, batch([b"good"]))
        assert refused(log, changed(batch([b"a", b"b"]), **fields)) == code
        assert append(log, batch([b"good again"])) == (1, 2, -1)

    def test_refuses_bytes_that_are_no_batch(self, disk: Disk) -> None:
        log = new_log(disk)
        data = batch([b"value"])
        assert refused(log, b"") == ErrorCode.INVALID_RECORD
        assert refused(log, data[:60]) == ErrorCode.CORRUPT_MESSAGE
        assert refused(log, data[:-1]) == ErrorCode.INVALID_RECORD
        assert refused(log, data + data) == ErrorCode.INVALID_RECORD
        assert refused(log, bytes(16) + b"\1" + bytes(20)) == (
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        )

    def test_refuses_batches_that_are_too_large(self, disk: Disk) -> None:
        log = new_log(disk, max_message_bytes=200)
        size = len(batch([b""]))
        append(log, batch([b"x" * 100]))
        assert refused(log, batch([b"x" * (201 - size)])) == ErrorCode.MESSAGE_TOO_LARGE
        log.reconfigure(topic(segment_bytes=1024))
        assert refused(log, batch([b"x" * 2000])) == ErrorCode.RECORD_LIST_TOO_LARGE

    def test_every_flipped_bit_behind_the_stamp_is_noticed(self) -> None:
        log = new_log(MemoryDisk())
        data = batch([b"value"])
        for bit in range(16 * 8, len(data) * 8):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            refused(log, damaged)

    def test_compacted_topics_need_keys(self, disk: Disk) -> None:
        log = new_log(disk, cleanup_policy="compact")
        data = batch([b"a", b"b"], keys=[b"k", None])
        assert refused(log, data) == ErrorCode.INVALID_RECORD
        zipped = batch([b"a", b"b"], keys=[b"k", None], codec=Codec.LZ4)
        assert refused(log, zipped) == ErrorCode.INVALID_RECORD
        assert append(log, batch([b"a", b"b"], keys=[b"k", b""], codec=Codec.ZSTD))[0] == 0
        damaged = changed(batch([b"value"], keys=[b"k"]), record_count=2, last_offset_delta=1)
        assert refused(log, damaged) == ErrorCode.INVALID_RECORD

    def test_append_time_is_stamped_under_a_new_crc(self, disk: Disk) -> None:
        log = new_log(disk, message_timestamp_type="LogAppendTime")
        data = batch([b"a", b"b"], timestamp=NOW + 10**12, codec=Codec.GZIP)
        assert append(log, data, now_ms=NOW + 5) == (0, 2, NOW + 5)
        ((header, _),) = stored_batches(log)
        assert header.is_log_append_time
        assert header.max_timestamp == NOW + 5
        assert [record.timestamp for record in stored(log)] == [NOW + 5, NOW + 5]

    @pytest.mark.parametrize("sent", list(Codec))
    @pytest.mark.parametrize("kept", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
    def test_a_topic_can_choose_the_codec(self, sent: Codec, kept: str) -> None:
        log = new_log(MemoryDisk(), compression_type=kept)
        values = [b"value %d" % i * 20 for i in range(10)]
        data = batch(values, codec=sent, producer_id=9, producer_epoch=1, base_sequence=0)
        assert append(log, data) == (0, 10, -1)
        ((header, _),) = stored_batches(log)
        wanted = Codec.NONE if kept == "uncompressed" else Codec[kept.upper()]
        assert header.codec is wanted
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 0)
        assert [record.value for record in stored(log)] == values
        assert append(log, data) == (0, 10, -1), "a repetition is recognised"

    def test_a_batch_must_not_grow_too_large_in_the_topics_codec(self) -> None:
        log = new_log(MemoryDisk(), compression_type="uncompressed", max_message_bytes=1000)
        data = batch([b"x" * 2000], codec=Codec.GZIP)
        assert refused(log, data) == ErrorCode.MESSAGE_TOO_LARGE

    def test_timestamps_may_be_held_near_the_clock(self, disk: Disk) -> None:
        log = new_log(
            disk, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500
        )
        assert refused(log, batch([b"x"], timestamp=NOW - 1001)) == ErrorCode.INVALID_TIMESTAMP
        assert refused(log, batch([b"x"], timestamp=NOW + 501)) == ErrorCode.INVALID_TIMESTAMP
        for timestamp in (NOW - 1000, NOW + 500, -1):
            append(log, batch([b"x"], timestamp=timestamp))

    def test_idempotent_repetitions_write_nothing(self, disk: Disk) -> None:
        log = new_log(disk)
        sent = [
            batch([b"x"] * 3, producer_id=1, producer_epoch=0, base_sequence=3 * i)
            for i in range(6)
        ]
        offsets = [append(log, data) for data in sent]
        size = log.size_bytes
        assert [append(log, data) for data in sent[1:]] == offsets[1:]
        assert log.size_bytes == size
        assert refused(log, sent[0]) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        later = batch([b"x"], producer_id=1, producer_epoch=0, base_sequence=19)
        assert refused(log, later) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class TestReading:
    def test_nothing_is_there_yet_at_the_end(self, disk: Disk) -> None:
        log = new_log(disk)
        assert log.read(0, 100, 0) is None
        append(log, batch([b"x"]))
        assert log.read(1, 100, 1) is None
        assert log.read(0, 100, 0) is None, "nothing below the high watermark"
        for offset in (-1, 2):
            with pytest.raises(KafkaError) as caught:
                log.read(offset, 100, 1)
            assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    def test_every_offset_and_limit_gives_whole_batches(self, disk: Disk) -> None:
        log = new_log(disk, segment_bytes=2000, index_interval_bytes=300)
        sizes = []
        for i in range(60):
            data = batch([b"x" * (i * 7 % 50)] * (1 + i % 4))
            append(log, data)
            sizes.append(len(data))
        everything = stored(log)
        assert len(log.segments) > 3
        for max_bytes in (1, 100, 150, 333, 999, 1 << 20):
            assert stored(log, max_bytes) == everything
            for offset in range(log.end_offset):
                part = log.read(offset, max_bytes, log.end_offset)
                assert part is not None
                found = part.file.read(part.position, part.length)
                first = read_header(found)
                assert first.base_offset <= offset <= first.last_offset
                assert part.length <= max(max_bytes, first.size)

    def test_nothing_at_or_behind_the_given_end_is_served(self, disk: Disk) -> None:
        log = new_log(disk, segment_bytes=1000, index_interval_bytes=100)
        ends = [append(log, batch([b"x" * 50] * 2))[1] for _ in range(30)]
        for end in ends:
            seen = [header.last_offset for header, _ in stored_batches(log, end_offset=end)]
            assert seen == list(range(1, end, 2))
        # An end inside a batch hides the batch.
        assert log.read(2, 1 << 20, 3) is None

    def test_a_slice_outlives_its_segment(self, disk: Disk) -> None:
        log = new_log(disk, segment_bytes=500)
        for _ in range(10):
            append(log, batch([b"x" * 100]))
        part = log.read(0, 1 << 20, log.end_offset)
        assert part is not None
        for segment in log.drop_segments(2):
            segment.remove_files()
        data = part.file.read(part.position, part.length)
        assert [record.value for record in records(data)] == [b"x" * 100]

    def test_few_files_are_open_however_many_are_read(self, disk: Disk) -> None:
        disk.make_directory("t-0")
        files = OpenFiles(4)
        log = Log.create(disk, "t", 0, topic(segment_bytes=300), files, NOW)
        for i in range(40):
            append(log, batch([b"%03d" % i * 50]))
        assert len(log.segments) == 40
        assert len(stored(log)) == 40
        assert len(files) <= 4
        assert sum(segment.file is not None for segment in log.segments) <= 4
        assert append(log, batch([b"more"]))[0] == 40

    def test_an_index_that_lies_is_noticed_and_made_again(self, disk: Disk) -> None:
        log = new_log(disk, segment_bytes=20_000, index_interval_bytes=500)
        for i in range(100):
            append(log, batch([b"x" * 100, b"%d" % i]))
        log.roll(NOW)
        segment = log.segments[0]
        wanted = stored(log)
        for step in (-3, 5, 61):
            log.hints.clear()
            segment.offsets.positions = type(segment.offsets.positions)(
                "I", [position + step for position in segment.offsets.positions]
            )
            assert [log.read(o, 1, log.end_offset) is not None for o in range(199)]
            assert stored(log) == wanted

    def test_damage_is_told_to_who_meets_it_and_the_rest_is_served(self, disk: Disk) -> None:
        log = new_log(disk, segment_bytes=1000)
        for i in range(20):
            append(log, batch([b"%d" % i * 50]))
        segment = log.segments[1]
        data = bytearray(disk.read_file(segment.path(".log")))
        second = 12 + read_header(data).batch_length
        data[second + 8 : second + 12] = b"\xff\xff\xff\x00"
        log.segments.files.forget(segment)
        disk.create(segment.path(".log")).append(data)
        log.hints.clear()
        bad = segment.base_offset + 1
        for use in (
            lambda: log.read(bad + 1, 1, log.end_offset),
            lambda: log.read(bad, 10, log.end_offset),
            lambda: log.read(bad - 1, 300, log.end_offset),
        ):
            with pytest.raises(KafkaError) as caught:
                use()
            assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
        assert log.failure is None
        assert log.read(0, 1 << 20, log.end_offset) is not None
        assert append(log, batch([b"x"]))[0] == 20


class TestRolling:
    def test_by_size(self, disk: Disk) -> None:
        log = new_log(disk, segment_bytes=1000)
        for _ in range(10):
            append(log, batch([b"x" * 300]))
        assert all(segment.size <= 1000 for segment in log.segments)
        assert len(log.segments) == 5

    def test_by_the_time_in_the_records(self, disk: Disk) -> None:
        log = new_log(disk, segment_ms=1000)
        for at in (0, 500, 1000, 1001, 1500, 2001, 2002):
            append(log, batch([b"x"], timestamp=NOW + at))
        assert log.segments.bases == [0, 3, 6]

    def test_by_age_if_the_records_have_no_time(self, disk: Disk) -> None:
        log = new_log(disk, segment_ms=1000)
        append(log, batch([b"x"], timestamp=-1))
        roll_if_old(log, NOW + 1000)
        assert log.segments.bases == [0]
        roll_if_old(log, NOW + 1001)
        assert log.segments.bases == [0, 1]

    def test_jitter_spreads_partitions_and_is_the_same_each_time(self) -> None:
        rolled = set()
        for partition in range(8):
            disk = MemoryDisk()
            disk.make_directory(f"t-{partition}")
            config = topic(segment_ms=1000, segment_jitter_ms=500)
            log = Log.create(disk, "t", partition, config, OpenFiles(8), NOW)
            append(log, batch([b"x"]))
            after = next(
                ms
                for ms in range(490, 1010, 10)
                if append(log, batch([b"x"], timestamp=NOW + ms)) and len(log.segments) > 1
            )
            rolled.add(after)
        assert len(rolled) > 3

    def test_when_an_index_is_full(self, disk: Disk) -> None:
        log = new_log(disk, segment_index_bytes=64, index_interval_bytes=0)
        for _ in range(40):
            append(log, batch([b"x"]))
        assert len(log.segments) > 3
        assert all(len(segment.offsets.offsets) <= 8 for segment in log.segments)
        assert len(stored(log)) == 40

    def test_when_offsets_no_longer_fit_the_index(self, disk: Disk) -> None:
        log = new_log(disk)
        append(log, batch([b"x"]))
        log.end_offset = (1 << 31) - 2
        append(log, batch([b"y", b"z"]))
        assert log.segments.bases == [0]
        append(log, batch([b"w"]))
        assert log.segments.bases == [0, 1 << 31]

    def test_a_change_of_settings_counts_at_once(self, disk: Disk) -> None:
        log = new_log(disk)
        append(log, batch([b"x" * 600]))
        log.reconfigure(topic(segment_bytes=1024))
        append(log, batch([b"x" * 600]))
        assert log.segments.bases == [0, 1]


class TestFindingByTime:
    def test_the_first_record_that_is_late_enough(self, disk: Disk) -> None:
        log = new_log(disk, segment_bytes=800, index_interval_bytes=100)
        times = [5, 9, 3, 12, 12, 7, 30, 8, 31, 2, 40, 39] * 4
        for i, at in enumerate(times):
            record = Record(0, NOW + at + i, None, b"v" * 40, ())
            append(log, build([record], codec=Codec(i % 5)), leader_epoch=i // 10)
        known = [(r.timestamp, r.offset) for r in stored(log)]
        assert len(log.segments) > 3
        for start in (0, 1, 17, 47):
            log.start_at(start)
            for at in range(NOW, NOW + 100):
                wanted = next((x for x in known if x[0] >= at and x[1] >= start), None)
                found = log.offset_for_timestamp(at)
                assert (found[:2] if found else None) == wanted
                assert found is None or found.leader_epoch == found.offset // 10
            latest = max((x for x in known if x[1] >= start), key=lambda x: (x[0], -x[1]))
            found = log.offset_for_timestamp(None)
            assert found is not None
            assert found[:2] == latest

    def test_in_the_middle_of_a_batch(self, disk: Disk) -> None:
        log = new_log(disk)
        append(log, batch([b"x"] * 10, timestamp=NOW, codec=Codec.GZIP))
        found = log.offset_for_timestamp(NOW + 7)
        assert found == (NOW + 7, 7, 0)
        assert log.offset_for_timestamp(None) == (NOW + 9, 9, 0)

    def test_an_empty_log_has_no_times(self, disk: Disk) -> None:
        log = new_log(disk)
        assert log.offset_for_timestamp(0) is None
        assert log.offset_for_timestamp(None) is None


class TestDropping:
    def test_delete_records_moves_the_start(self, disk: Disk) -> None:
        log = new_log(disk)
        for _ in range(10):
            append(log, batch([b"x"]))
        assert log.delete_records(4) == 4
        assert log.delete_records(2) == 4
        assert [record.offset for record in stored(log)] == list(range(4, 10))
        for offset in (11, -2):
            with pytest.raises(KafkaError) as caught:
                log.delete_records(offset)
            assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        log.high_watermark = 8
        with pytest.raises(KafkaError):
            log.delete_records(9)
        assert log.delete_records(-1) == 8
        with pytest.raises(KafkaError):
            log.read(7, 1, 10)

    def test_compacted_topics_refuse_it(self, disk: Disk) -> None:
        log = new_log(disk, cleanup_policy="compact")
        with pytest.raises(KafkaError) as caught:
            log.delete_records(0)
        assert caught.value.code == ErrorCode.POLICY_VIOLATION

    def test_truncation_takes_whole_batches_and_what_hangs_on_them(self, disk: Disk) -> None:
        log = new_log(disk, segment_bytes=1000, index_interval_bytes=100)
        for i in range(30):
            data = batch([b"x" * 50] * 2, producer_id=7, producer_epoch=0, base_sequence=2 * i)
            append(log, data, leader_epoch=i // 10)
        assert log.truncate_to(60) == 60
        assert log.truncate_to(31) == 30, "the batch of offset 31 begins at 30"
        assert [record.offset for record in stored(log)] == list(range(30))
        assert log.epochs.entries == [(0, 0), (1, 20)]
        state = log.producers.get(7)
        assert state is not None
        assert state.next_sequence == 30
        again = batch([b"y"] * 2, producer_id=7, producer_epoch=0, base_sequence=30)
        assert append(log, again, leader_epoch=5) == (30, 32, -1)
        assert log.epochs.entries[-1] == (5, 30)
        assert log.truncate_to(0) == 0
        assert stored(log) == []
        assert append(log, batch([b"z"]))[0] == 0

    def test_a_log_can_begin_again_elsewhere(self, disk: Disk) -> None:
        log = new_log(disk, segment_bytes=500)
        for _ in range(10):
            append(log, batch([b"x" * 100]))
        assert log.restart_at(1000) == 1000
        assert append(log, batch([b"x"])) == (1000, 1001, -1)
        assert [record.offset for record in stored(log)] == [1000]


class TestFailing:
    def test_a_full_disk_refuses_and_then_goes_on(self) -> None:
        disk = MemoryDisk()
        log = new_log(disk)
        append(log, batch([b"x"]))
        file = log.active_segment.opened()
        full = DiskFailed("t-0/0.log", "writing to", "no space left", harmless=True)
        broken = _FileThatFails(file, full)
        log.active_segment.file = cast(Any, broken)
        assert refused(log, batch([b"y"])) == ErrorCode.KAFKA_STORAGE_ERROR
        log.active_segment.file = file
        assert append(log, batch([b"z"])) == (1, 2, -1)

    @pytest.mark.parametrize("doing", ["writing to", "syncing"])
    def test_any_other_failure_takes_the_log_offline(self, doing: str) -> None:
        disk = MemoryDisk()
        log = new_log(disk)
        append(log, batch([b"x"]))
        failure = DiskFailed("t-0/0.log", doing, "input/output error")
        broken = _FileThatFails(log.active_segment.opened(), failure)
        log.active_segment.file = cast(Any, broken)
        disk.files["t-0/00000000000000000000.log"] = broken  # type: ignore[assignment]
        with pytest.raises(DiskFailed):  # noqa: PT012
            append(log, batch([b"y"]))
            flush(log)
        assert log.failure is failure
        log.active_segment.file = broken.inner
        assert refused(log, batch([b"z"])) == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError, match="input/output error"):
            log.read(0, 1, 1)
        assert log.recovery_point == 0

    def test_a_failed_log_leaves_no_clean_marker(self) -> None:
        disk = MemoryDisk()
        log_manager = open_log_manager(disk, topic())
        log = log_manager.create("t", 0, UUID(int=1))
        append(log, batch([b"x"]))
        log.fail(DiskFailed("t-0", "syncing", "input/output error"))
        log_manager.close(NOW)
        assert not disk.exists(".kafka_cleanshutdown")


class _FileThatFails:
    """A file with one operation that fails."""

    def __init__(self, inner: Any, failure: DiskFailed) -> None:
        self.inner = inner
        self.failure = failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append(self, data: memoryview) -> None:
        if "writing" in self.failure.detail:
            raise self.failure
        self.inner.append(data)

    def sync(self) -> None:
        raise self.failure
