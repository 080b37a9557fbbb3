"""Record batches: round trips, agreement with other clients, and named damage."""

import struct
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import pytest
from aiokafka.record.control_record import ControlRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.wire import varint
from hightide.wire.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    Record,
    batches,
    build,
    check,
    read_header,
    records,
)
from hightide.wire.compression import Codec
from hightide.wire.control import ControlType, Marker, build_marker, control_type, parse_marker
from hightide.wire.crc import _load_package, crc32c
from hightide.wire.errors import Corrupt

# Ignore the warnings that the import of kafka-python causes.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka.codec
    import kafka.record.default_records as kafka_records

NOW_MS = 1_700_000_000_000

optional_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=8), optional_bytes), max_size=4).map(tuple)
timestamps = st.integers(NOW_MS, NOW_MS + 200) | st.integers(-(2**61), 2**61)
contents = st.lists(
    st.tuples(timestamps, optional_bytes, optional_bytes, headers), min_size=1, max_size=30
)


def numbered(parts: list[Any], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + at, *part) for at, part in enumerate(parts)]


def sample(count: int = 20) -> list[Record]:
    return [
        Record(at, NOW_MS + at, b"key-%d" % at, b"value-%d" % at * at, (("h", b"x"), ("n", None)))
        for at in range(count)
    ]


def resealed(batch: bytearray) -> bytearray:
    """Return the batch with a new, matching CRC."""
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return batch


def with_payload(payload: bytes, count: int, **fields: int) -> bytearray:
    """Return a batch with any bytes as its records."""
    header = read_header(build([Record(0, NOW_MS, None, None)]))
    header = header._replace(
        batch_length=HEADER_BYTES - 12 + len(payload),
        record_count=count,
        last_offset_delta=max(0, count - 1),
    )._replace(**fields)
    return resealed(bytearray(HEADER.pack(*header) + payload))


class TestBuilding:
    @pytest.mark.parametrize("codec", Codec)
    @given(parts=contents, base_offset=st.integers(0, 2**62))
    @settings(max_examples=30, deadline=None)
    def test_what_is_built_comes_back(
        self, codec: Codec, parts: list[Any], base_offset: int
    ) -> None:
        expected = numbered(parts, base_offset)
        batch = build(expected, base_offset=base_offset, codec=codec)
        header = check(memoryview(batch), 0, len(batch))
        assert header.size == len(batch)
        assert header.codec is codec
        assert header.base_offset == base_offset
        assert header.last_offset == expected[-1].offset
        assert header.max_timestamp == max(-1, *(record.timestamp for record in expected))
        assert list(records(batch)) == expected

    def test_offsets_may_have_gaps_and_the_last_ones_may_be_gone(self) -> None:
        kept = [record for record in sample(20) if record.offset in (3, 4, 11)]
        batch = build(kept, base_offset=0, last_offset=19)
        with pytest.raises(Corrupt, match="header says 3 records for 20 offsets"):
            check(memoryview(batch), 0, len(batch))
        header = check(memoryview(batch), 0, len(batch), stored=True)
        assert (header.base_offset, header.last_offset, header.record_count) == (0, 19, 3)
        assert list(records(batch)) == kept

    def test_a_batch_may_have_lost_all_its_records(self) -> None:
        batch = build(
            [], base_offset=40, last_offset=49, codec=Codec.ZSTD, producer_id=7, producer_epoch=1
        )
        with pytest.raises(Corrupt, match="header says 0 records for 10 offsets"):
            check(batch, 0, len(batch))
        header = check(batch, 0, len(batch), stored=True)
        assert (header.last_offset, header.record_count, header.producer_id) == (49, 0, 7)
        assert list(records(batch)) == []

    def test_every_field_lands_where_kafka_has_it(self) -> None:
        batch = build(
            [Record(5, 100, b"k", b"v"), Record(6, 90, None, None)],
            base_offset=5,
            leader_epoch=3,
            producer_id=2**40,
            producer_epoch=12,
            base_sequence=77,
            transactional=True,
            control=True,
        )
        assert batch.hex() == (
            "0000000000000005" "00000041" "00000003" "02" + batch[17:21].hex() + "0030"
            "00000001" "0000000000000064" "0000000000000064"
            "0000010000000000" "000c" "0000004d" "00000002"
            "10" "00" "00" "00" "026b" "0276" "00"
            "0c" "00" "13" "02" "01" "01" "00"
        )  # fmt: skip
        header = check(batch, 0, len(batch))
        assert header.is_transactional
        assert header.is_control
        assert not header.is_log_append_time

    def test_append_time_is_every_records_time(self) -> None:
        batch = build(sample(3), log_append_time=True, max_timestamp=NOW_MS + 5000)
        assert read_header(batch).is_log_append_time
        assert [record.timestamp for record in records(batch)] == [NOW_MS + 5000] * 3

    def test_a_delete_horizon_takes_the_base_timestamps_place(self) -> None:
        batch = build(sample(3), delete_horizon_ms=NOW_MS + 86_400_000)
        header = check(batch, 0, len(batch))
        assert header.delete_horizon_ms == header.base_timestamp == NOW_MS + 86_400_000
        assert header.max_timestamp == NOW_MS + 2
        assert list(records(batch)) == sample(3)
        assert read_header(build(sample(3))).delete_horizon_ms is None

    def test_header_keys_that_are_not_utf8_survive(self) -> None:
        payload = bytes.fromhex("16 00 00 00 01 01 02 02 ff 02 61".replace(" ", ""))
        payload = bytes((2 * (len(payload) - 1),)) + payload[1:]
        batch = with_payload(payload, 1)
        (record,) = records(batch)
        assert record.headers[0][0].encode("utf-8", "surrogateescape") == b"\xff"
        assert bytes(build([record])[HEADER_BYTES:]) == payload

    @pytest.mark.parametrize(
        ("offsets", "options"),
        [
            ([], {}),
            ([3], {"base_offset": 4}),
            ([3, 3], {}),
            ([3, 2], {}),
            ([2**31], {}),
            ([3], {"last_offset": 2}),
            ([3], {"last_offset": 2**31}),
        ],
    )
    def test_records_that_cannot_be_one_batch_are_refused(
        self, offsets: list[int], options: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match=r"offset"):
            build([Record(offset, 0, None, None) for offset in offsets], **options)


class TestOtherClients:
    """Both directions, with batches of kafka-python and aiokafka (C and Python implementation)."""

    CODECS = st.sampled_from(
        [codec for codec in Codec if codec is not Codec.SNAPPY or kafka.codec.has_snappy()]
    )

    @given(parts=contents, codec=CODECS)
    @settings(max_examples=40, deadline=None)
    def test_kafka_python_reads_ours(self, parts: list[Any], codec: Codec) -> None:
        self.reads_ours(kafka_records.DefaultRecordBatch, parts, codec)

    @given(parts=contents, codec=st.sampled_from(Codec))
    @settings(max_examples=40, deadline=None)
    def test_aiokafka_reads_ours(self, parts: list[Any], codec: Codec) -> None:
        self.reads_ours(aiokafka_records.DefaultRecordBatch, parts, codec)
        self.reads_ours(aiokafka_records._DefaultRecordBatchPy, parts, codec)

    def reads_ours(self, reader: Any, parts: list[Any], codec: Codec) -> None:
        expected = numbered(parts, 1000)
        ours = build(
            expected,
            base_offset=1000,
            codec=codec,
            producer_id=9,
            producer_epoch=2,
            base_sequence=4,
        )
        theirs = reader(bytes(ours))
        assert theirs.validate_crc()
        assert (theirs.base_offset, theirs.next_offset) == (1000, 1000 + len(parts))
        assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (9, 2, 4)
        assert theirs.compression_type == codec
        assert [
            Record(r.offset, r.timestamp, r.key, r.value, tuple(map(tuple, r.headers)))
            for r in theirs
        ] == expected

    @given(parts=contents, codec=CODECS)
    @settings(max_examples=40, deadline=None)
    def test_we_read_kafka_pythons(self, parts: list[Any], codec: Codec) -> None:
        self.read_theirs(kafka_records.DefaultRecordBatchBuilder, parts, codec)

    @given(parts=contents, codec=st.sampled_from(Codec))
    @settings(max_examples=40, deadline=None)
    def test_we_read_aiokafkas(self, parts: list[Any], codec: Codec) -> None:
        self.read_theirs(aiokafka_records.DefaultRecordBatchBuilder, parts, codec)
        self.read_theirs(aiokafka_records._DefaultRecordBatchBuilderPy, parts, codec)

    def read_theirs(self, builder: Any, parts: list[Any], codec: Codec) -> None:
        expected = numbered(parts)
        theirs = builder(
            magic=2,
            compression_type=codec,
            is_transactional=1,
            producer_id=9,
            producer_epoch=2,
            base_sequence=4,
            batch_size=2**24,
        )
        for record in expected:
            key, value = record.key, record.value
            theirs.append(record.offset, record.timestamp, key, value, list(record.headers))
        batch = bytes(theirs.build())
        header = check(memoryview(batch), 0, len(batch))
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 4)
        # A batch that does not get smaller is sent uncompressed.
        assert header.codec in (codec, Codec.NONE)
        assert list(records(batch)) == expected
        if codec is Codec.NONE and header.max_timestamp >= 0 and header.base_timestamp:
            epoch = header.leader_epoch
            ours = build(
                expected,
                leader_epoch=epoch,
                producer_id=9,
                producer_epoch=2,
                base_sequence=4,
                transactional=True,
            )
            assert ours == batch


class TestMarkers:
    @pytest.mark.parametrize("kind", ControlType)
    def test_a_marker_comes_back_and_other_clients_know_it(self, kind: ControlType) -> None:
        marker = Marker(kind, coordinator_epoch=17)
        batch = build_marker(
            marker, offset=9, timestamp=NOW_MS, producer_id=5, producer_epoch=1, leader_epoch=2
        )
        header = check(batch, 0, len(batch))
        assert header.is_control
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, -1)
        (record,) = records(batch)
        assert parse_marker(record) == marker
        assert ControlRecord.parse(record.key or b"") == ControlRecord(0, kind)
        (theirs,) = kafka_records.DefaultRecordBatch(bytes(batch))
        assert (theirs.abort, theirs.commit) == (
            kind is ControlType.ABORT,
            kind is ControlType.COMMIT,
        )

    def test_other_control_records_are_no_markers(self) -> None:
        leader_change = Record(0, 0, struct.pack(">hh", 0, 2), b"")
        assert control_type(leader_change) == 2
        assert parse_marker(leader_change) is None

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (None, b""),
            (b"\0\0\0", b""),
            (struct.pack(">hh", -1, 1), struct.pack(">hi", 0, 0)),
            (struct.pack(">hh", 0, 1), None),
            (struct.pack(">hh", 0, 1), b"\0\0\0"),
            (struct.pack(">hh", 0, 1), struct.pack(">hi", -1, 0)),
        ],
    )
    def test_markers_without_their_bytes_are_corrupt(
        self, key: bytes | None, value: bytes | None
    ) -> None:
        with pytest.raises(Corrupt):
            parse_marker(Record(0, 0, key, value))


def every_bit(size: int) -> Iterator[tuple[int, int]]:
    return ((at, 1 << bit) for at in range(size) for bit in range(8))


class TestDamage:
    @pytest.mark.parametrize("codec", Codec)
    def test_a_batch_cut_at_any_byte_is_corrupt(self, codec: Codec) -> None:
        batch = build(sample(), codec=codec)
        for end in range(len(batch)):
            with pytest.raises(Corrupt):
                check(memoryview(batch), 0, end)
            with pytest.raises(Corrupt):
                list(records(batch[:end]))
            with pytest.raises(Corrupt):
                # The bytes are there, but the header says that the batch is shorter.
                list(records(struct.pack(">qi", 0, end - 12) + batch[12:end]))

    def test_any_flipped_bit_that_the_crc_covers_is_seen(self) -> None:
        batch = build(sample(3))
        for at, bit in every_bit(len(batch)):
            harmless = at < 8 or 12 <= at < 16  # Base offset and leader epoch.
            batch[at] ^= bit
            if harmless:
                check(batch, 0, len(batch))
            else:
                with pytest.raises(Corrupt):
                    check(batch, 0, len(batch))
            batch[at] ^= bit

    @pytest.mark.parametrize("codec", Codec)
    def test_flipped_bits_are_corrupt_or_other_records_but_never_another_error(
        self, codec: Codec
    ) -> None:
        batch = build(sample(4), codec=codec)
        for at, bit in every_bit(len(batch)):
            batch[at] ^= bit
            with suppress(Corrupt):
                for record in records(batch):
                    assert -(2**63) <= record.offset < 2**63
                    assert -(2**63) <= record.timestamp < 2**63
            batch[at] ^= bit

    @given(payload=st.binary(max_size=60), count=st.integers(-3, 5))
    @settings(max_examples=300, deadline=None)
    def test_any_payload_is_corrupt_or_records(self, payload: bytes, count: int) -> None:
        with suppress(Corrupt):
            assert len(list(records(with_payload(payload, count)))) == count

    @given(noise=st.binary(max_size=200))
    @settings(max_examples=200, deadline=None)
    def test_noise_is_corrupt(self, noise: bytes) -> None:
        with pytest.raises(Corrupt):
            check(memoryview(noise), 0, len(noise))
        with suppress(Corrupt):
            list(records(noise))
        with suppress(Corrupt):
            list(batches(noise))

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"magic": 1}, "magic 1"),
            ({"magic": 3}, "magic 3"),
            ({"batch_length": -1}, "has 11 bytes by its header"),
            ({"batch_length": -(2**31)}, "has -2147483636 bytes by its header"),
            ({"batch_length": 2**31 - 1}, "has 2147483659 bytes by its header"),
            ({"batch_length": 48}, "has 60 bytes by its header"),
            ({"attributes": 5}, "unknown codec 5"),
            ({"attributes": 7}, "unknown codec 7"),
            ({"record_count": 2}, "header says 2 records for 1 offsets"),
            ({"record_count": -1}, "header says -1 records"),
            ({"record_count": 0}, "header says 0 records"),
            ({"last_offset_delta": 1}, "header says 1 records for 2 offsets"),
            ({"last_offset_delta": -1, "record_count": 0}, "0 records for 0 offsets"),
        ],
    )
    def test_what_is_wrong_with_a_header_is_said(self, fields: dict[str, int], reason: str) -> None:
        header = read_header(build([Record(0, NOW_MS, None, None)]))._replace(**fields)
        batch = resealed(bytearray(HEADER.pack(*header)) + bytes.fromhex("0c000000010100"))
        with pytest.raises(Corrupt, match=reason):
            check(memoryview(batch), 0, len(batch))

    @pytest.mark.parametrize(
        ("payload", "reason"),
        [
            ("", "too early"),
            ("0c0000000101", "too early"),
            ("0c00000001010000", "1 bytes follow"),
            ("0e000000010100", "where its length says"),
            ("0a000000010100", "where its length says"),
            ("0b000000010100", "a record has the length -6"),
            ("0c000000030100", "a key has the length -2"),
            ("0c000000010300", "a value has the length -2"),
            ("0c0000007e0100", "too early"),
            ("0c000000017e00", "too early"),
            ("0c000001010100", "offset delta -1"),
            ("0c000002010100", "offset delta 1"),
            ("0c000000010101", "has -1 headers by its count"),
            ("0c00000001017e", "has 63 headers by its count"),
            ("100000000101020101", "header key has the length -1"),
            ("100000000101020003", "header value has the length -2"),
            ("10000000010102007e", "a header ends at byte 72, after the end of its record at 9"),
            ("ffffffffff01", "32 bits"),
            ("ffffffff7f", "32 bits"),
            ("2000ffffffffffffffffffff01", "64 bits"),
            ("2000ffffffffffffffffff7f", "64 bits"),
        ],
    )
    def test_what_is_wrong_with_a_record_is_said(self, payload: str, reason: str) -> None:
        with pytest.raises(Corrupt, match=reason):
            list(records(with_payload(bytes.fromhex(payload), 1)))

    def test_two_records_of_one_offset_are_corrupt(self) -> None:
        payload = bytes.fromhex("0c0000000101000c000000010100")
        with pytest.raises(Corrupt, match="offset delta 0 follows 0"):
            list(records(with_payload(payload, 2)))

    def test_timestamps_and_offsets_past_the_largest_number_are_corrupt(self) -> None:
        payload = bytes.fromhex("0c000200010100")
        with pytest.raises(Corrupt, match="timestamp"):
            list(records(with_payload(payload, 1, base_timestamp=2**63 - 1)))
        with pytest.raises(Corrupt, match="exceeds 64 bits"):
            records(with_payload(b"", 2, base_offset=2**63 - 1))

    def test_a_huge_count_costs_nothing(self) -> None:
        with pytest.raises(Corrupt, match="too early"):
            list(records(with_payload(bytes.fromhex("0c000000010100"), 2**31 - 1)))


class TestWalking:
    def test_batches_are_found_by_their_lengths_and_a_cut_off_one_ends_the_walk(self) -> None:
        parts = [build(sample(count), codec=codec) for count, codec in enumerate(Codec, start=1)]
        whole = b"".join(parts)
        starts = [sum(map(len, parts[:at])) for at in range(len(parts))]
        assert [at for at, _ in batches(whole)] == starts
        for end in range(len(whole)):
            complete = sum(
                start + len(part) <= end for start, part in zip(starts, parts, strict=True)
            )
            assert len(list(batches(memoryview(whole)[:end]))) == complete

    def test_batches_in_a_buffer_are_read_where_they_lie(self) -> None:
        whole = build(sample(2)) + build(sample(5), codec=Codec.LZ4)
        assert [list(records(whole, at)) for at, _ in batches(whole)] == [sample(2), sample(5)]

    @pytest.mark.parametrize("fields", [{"magic": 1}, {"batch_length": 48}, {"batch_length": -1}])
    def test_a_header_that_cannot_be_one_ends_the_walk_with_an_error(
        self, fields: dict[str, int]
    ) -> None:
        first = build(sample(1))
        second = HEADER.pack(*read_header(first)._replace(**fields))
        walk = batches(bytes(first) + second)
        assert next(walk) == (0, read_header(first))
        with pytest.raises(Corrupt, match=f"at byte {len(first)}"):
            next(walk)

    def test_too_few_bytes_are_no_header(self) -> None:
        with pytest.raises(Corrupt):
            read_header(bytes(HEADER_BYTES - 1))
        with pytest.raises(Corrupt):
            read_header(bytes(HEADER_BYTES), 1)
        assert isinstance(read_header(bytes(HEADER_BYTES)), BatchHeader)


class TestNumbers:
    @given(st.integers(-(2**63), 2**63 - 1))
    def test_signed_numbers_come_back(self, number: int) -> None:
        encoded = varint.encode_signed(number)
        assert varint.decode_signed(b"?" + encoded + b"?", 1, 64) == (number, 1 + len(encoded))
        if -(2**31) <= number < 2**31:
            assert varint.decode_signed(encoded, 0, 32) == (number, len(encoded))
        else:
            with pytest.raises(Corrupt):
                varint.decode_signed(encoded, 0, 32)

    @pytest.mark.parametrize("number", [-(2**63) - 1, 2**63])
    def test_numbers_beyond_64_bits_are_refused(self, number: int) -> None:
        with pytest.raises(ValueError, match="64 bits"):
            varint.encode_signed(number)

    @given(st.binary(max_size=12), st.sampled_from([32, 64]))
    def test_any_bytes_are_a_number_of_the_type_or_corrupt(self, data: bytes, bits: int) -> None:
        with suppress(Corrupt):
            number, at = varint.decode_unsigned(data, 0, bits)
            assert 0 <= number < 2**bits
            assert 0 < at <= {32: 5, 64: 10}[bits]

    def test_the_checksum_is_crc_32c_however_it_was_loaded(self) -> None:
        for checksum in (crc32c, _load_package()):
            assert checksum(memoryview(bytearray(b"123456789"))) == 0xE3069283
