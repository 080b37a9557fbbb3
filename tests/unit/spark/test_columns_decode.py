"""Record batches become Arrow batches: every codec, every kind of record, every kind of damage."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.spark.columns import kernels, record_schema, without_numba
from hightide.spark.columns.arrow_buffers import CompiledBuffers
from hightide.spark.columns.decode import Decoder
from hightide.wire.batch import ATTRIBUTES_AT, CRC_AT, HEADER_BYTES, Headers, build, records
from hightide.wire.compression import Codec
from hightide.wire.control import ControlType, Marker, build_marker
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt

with warnings.catch_warnings():
    # Reading its own schemas, kafka-python calls functions that are to be removed.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

FOREVER = 2**62

Plain = tuple[int, int, bytes | None, bytes | None, Headers]


@pytest.fixture(params=[CompiledBuffers, without_numba.PythonBuffers], ids=["native", "plain"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both decoders, with and without numba."""
    monkeypatch.setattr(kernels, "is_compiled", request.param is CompiledBuffers)


def decoded(
    data: bytes,
    start: int = 0,
    end: int = FOREVER,
    aborted: Sequence[tuple[int, int]] | None = None,
    **how: object,
) -> list[pa.RecordBatch]:
    decoder = Decoder("t", 3, **how)  # type: ignore[arg-type]
    batches = [*decoder.feed(memoryview(data), start, end, aborted), *decoder.flush()]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(decoder.schema)
    return batches


def rows(data: bytes, *more: object, **how: object) -> list[dict[str, object]]:
    return [row for batch in decoded(data, *more, **how) for row in batch.to_pylist()]  # type: ignore[arg-type]


def offsets(data: bytes, *more: object, **how: object) -> list[object]:
    return [row["offset"] for row in rows(data, *more, **how)]


def batch(first: int, count: int = 3, **how: object) -> bytes:
    made = [(first + i, 1000 + i, b"k", b"v%d" % i, ()) for i in range(count)]
    return bytes(build(made, base_offset=first, **how))  # type: ignore[arg-type]


def marker(offset: int, producer: int, kind: ControlType) -> bytes:
    what = Marker(kind, 0)
    made = build_marker(what, offset=offset, timestamp=5, producer_id=producer, producer_epoch=0)
    return bytes(made)


def resealed(data: bytearray) -> bytes:
    data[CRC_AT:ATTRIBUTES_AT] = crc32c(memoryview(data)[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(data)


maybe_bytes = st.none() | st.binary(max_size=200)
a_header = st.tuples(st.text(max_size=5), maybe_bytes)


@st.composite
def many_records(draw: st.DrawFn) -> list[Plain]:
    offset = draw(st.integers(0, 2**40))
    made = []
    for _ in range(draw(st.integers(1, 12))):
        headers = tuple(draw(st.lists(a_header, max_size=3)))
        timestamp = draw(st.integers(-1, 2**42) | st.just(-1))
        made.append((offset, timestamp, draw(maybe_bytes), draw(maybe_bytes), headers))
        offset += draw(st.integers(1, 300) | st.just(1))
    return made


def as_rows(made: Sequence[Plain], kind: int = 0) -> list[dict[str, object]]:
    """Return the rows that Spark should see."""
    return [
        {
            "key": key,
            "value": value,
            "topic": "t",
            "partition": 3,
            "offset": offset,
            "timestamp": timestamp * 1000,
            "timestampType": kind,
            "headers": [{"key": name, "value": content} for name, content in headers] or None,
        }
        for offset, timestamp, key, value, headers in made
    ]


def whole_rows(data: bytes, **how: object) -> list[dict[str, object]]:
    """Return rows with times as numbers, because datetime has no year 10,000."""
    found = []
    for batch in decoded(data, headers=True, **how):  # type: ignore[arg-type]
        place = batch.schema.get_field_index("timestamp")
        times = batch.column(place).cast(pa.int64())
        found += batch.set_column(place, "timestamp", times).to_pylist()
    return found


@given(many_records(), st.sampled_from(Codec))
@settings(deadline=None)
def test_what_is_built_is_decoded(made: list[Plain], codec: Codec) -> None:
    data = bytes(build(made, base_offset=made[0][0], codec=codec))
    assert whole_rows(data) == as_rows(made)


@given(many_records(), st.sampled_from(Codec))
@settings(deadline=None, max_examples=30)
def test_both_decoders_give_the_same(made: list[Plain], codec: Codec) -> None:
    data = bytes(build(made, base_offset=made[0][0], codec=codec))
    native = whole_rows(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "is_compiled", False)
        assert whole_rows(data) == native


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**42),
            maybe_bytes,
            maybe_bytes,
            st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=2),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(Codec),
    st.sampled_from([AiokafkaBuilder, KafkaPythonBuilder]),
)
@settings(deadline=None, max_examples=60)
def test_what_other_clients_write_is_decoded(
    made: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]],
    codec: Codec,
    builder_class: type,
) -> None:
    builder = builder_class(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for place, (timestamp, key, value, headers) in enumerate(made):
        builder.append(place, timestamp, key, value, headers)
    expected = [(place, *record[:3], tuple(record[3])) for place, record in enumerate(made)]
    assert whole_rows(bytes(builder.build())) == as_rows(expected)


@pytest.mark.usefixtures("either")
class TestWhatIsTaken:
    def test_only_offsets_of_the_range(self) -> None:
        data = batch(10) + batch(13) + batch(16)
        assert offsets(data, 11, 17) == [11, 12, 13, 14, 15, 16]

    def test_gaps_of_compaction_are_no_damage(self) -> None:
        made: list[Plain] = [(4, 1, b"k", b"v", ()), (9, 1, b"k", b"v", ())]
        data = bytes(build(made, base_offset=2, last_offset=20))
        empty = bytes(build([], base_offset=21, last_offset=30, codec=Codec.LZ4))
        decoder = Decoder("t", 0)
        found = [*decoder.feed(memoryview(data + empty), 0, 99, None), *decoder.flush()]
        assert [row["offset"] for each in found for row in each.to_pylist()] == [4, 9]
        assert decoder.next_offset == 31

    def test_a_torn_batch_is_left_for_the_next_fetch(self) -> None:
        whole, torn = batch(0), batch(3)
        for kept in (1, 20, HEADER_BYTES, len(torn) - 1):
            decoder = Decoder("t", 0)
            list(decoder.feed(memoryview(whole + torn[:kept]), 0, 99, None))
            assert decoder.next_offset == 3
            (rest,) = [*decoder.feed(memoryview(torn), 3, 99, None), *decoder.flush()]
            assert rest.column("offset").to_pylist() == [0, 1, 2, 3, 4, 5]

    def test_nothing_is_fetched_past_the_end(self) -> None:
        decoder = Decoder("t", 0)
        assert not list(decoder.feed(memoryview(batch(50)), 7, 40, None))
        assert decoder.next_offset == 50

    def test_the_time_of_appending_counts_when_the_batch_says_so(self) -> None:
        stamped = batch(0, log_append_time=True, max_timestamp=77)
        found = rows(stamped + batch(3, 1))
        assert [row["timestampType"] for row in found] == [1, 1, 1, 0]
        assert [row["timestamp"].timestamp() for row in found[2:]] == [0.077, 1.0]  # type: ignore[attr-defined]

    def test_times_too_far_for_microseconds_are_the_furthest_there_are(self) -> None:
        made: list[Plain] = [(0, 2**63 - 1, None, None, ()), (1, -(2**63) + 2, None, None, ())]
        data = build(made[:1]) + build(made[1:], base_offset=1)
        furthest = (2**63 - 1) // 1000 * 1000
        times = [row["timestamp"] for row in whole_rows(bytes(data))]
        assert times == [furthest, -furthest]

    def test_columns_that_are_not_wanted_are_left_out(self) -> None:
        made: list[Plain] = [(0, 1, b"k", b"v", (("h", b"1"),))]
        data = bytes(build(made))
        assert rows(data, columns=["value"]) == [{"value": b"v"}]
        assert rows(data, columns=["offset", "key"]) == [{"key": b"k", "offset": 0}]
        assert rows(data, columns=["headers"]) == [{"headers": [{"key": "h", "value": b"1"}]}]
        assert list(rows(data)[0]) == list(record_schema.COLUMNS)

    def test_records_that_compress_very_well_are_no_damage(self) -> None:
        line = b'{"service": "billing", "state": "up"}' * 30
        made = [(at, 1000 + at, None, line, ()) for at in range(3_000)]
        data = bytes(build(made, codec=Codec.ZSTD))
        assert 100 * len(data) + 2**20 < 3_000 * len(line)
        assert len(rows(data, columns=["offset"])) == 3_000

    def test_header_keys_that_are_no_text_are_made_text(self) -> None:
        made: list[Plain] = [(0, 1, None, None, (("\udcffé", b"1"), ("a", None)))]
        (row,) = rows(bytes(build(made)), headers=True)
        assert [header["key"] for header in row["headers"]] == ["\ufffdé", "a"]  # type: ignore[attr-defined]

    def test_small_batches_are_made_large_ones_and_large_ones_are_sliced(self) -> None:
        data = b"".join(batch(at * 3) for at in range(100))
        assert [part.num_rows for part in decoded(data, batch_rows=60)] == [60] * 5
        assert [part.num_rows for part in decoded(batch(0, 130), batch_rows=60)] == [60, 60, 10]
        assert len(decoded(data, batch_bytes=100)) > 5
        assert len(decoded(data)) == 1


@pytest.mark.usefixtures("either")
class TestTransactions:
    def data(self) -> bytes:
        """Producer 7 aborts 0–2, commits 4–6; producer 8 aborts 7–9; others are in between."""

        def of(first: int, producer: int) -> bytes:
            return batch(first, producer_id=producer, producer_epoch=0, transactional=True)

        return b"".join(
            [
                of(0, 7),
                marker(3, 7, ControlType.ABORT),
                of(4, 7),
                of(7, 8),
                marker(10, 7, ControlType.COMMIT),
                marker(11, 8, ControlType.ABORT),
                batch(12, 1, producer_id=8, producer_epoch=0),
                of(13, 8),
                marker(16, 8, ControlType.COMMIT),
                batch(17, 1),
            ]
        )

    def test_aborted_records_are_left_out_until_the_marker(self) -> None:
        expected = [4, 5, 6, 12, 13, 14, 15, 17]
        assert offsets(self.data(), 0, FOREVER, [(8, 7), (7, 0)]) == expected

    def test_a_range_that_begins_inside_an_aborted_transaction(self) -> None:
        assert offsets(self.data(), 1, 6, [(7, 0)]) == [4, 5]

    def test_reading_uncommitted_leaves_out_the_markers_only(self) -> None:
        assert offsets(self.data()) == [*range(3), *range(4, 10), *range(12, 16), 17]

    def test_markers_move_the_place_to_fetch_on(self) -> None:
        decoder = Decoder("t", 0)
        assert not list(decoder.feed(memoryview(marker(5, 7, ControlType.ABORT)), 5, 6, [(7, 1)]))
        assert decoder.next_offset == 6

    def test_a_marker_without_a_type_is_damage(self) -> None:
        how = {"producer_id": 7, "producer_epoch": 0, "transactional": True, "control": True}
        with pytest.raises(Corrupt, match="no complete key"):
            offsets(batch(0, 1, **how), 0, 9, [(7, 0)])


@pytest.mark.usefixtures("either")
class TestDamage:
    def test_a_wrong_checksum_names_the_batch(self) -> None:
        data = bytearray(batch(0) + batch(3))
        data[-1] ^= 1
        with pytest.raises(Corrupt, match=r"t-3: the batch at offset 3: it has CRC"):
            rows(bytes(data))

    def test_an_old_format_is_named(self) -> None:
        data = bytearray(batch(0))
        data[16] = 1
        with pytest.raises(Corrupt, match=r"format 1; only format 2"):
            rows(bytes(data[:40]))

    def test_an_impossible_length_is_named(self) -> None:
        data = bytearray(batch(0))
        data[8:12] = (-5).to_bytes(4, "big", signed=True)
        with pytest.raises(Corrupt, match="invalid length -5"):
            rows(bytes(data))

    @pytest.mark.parametrize("count", [-1, 4, 2**31 - 1])
    def test_a_wrong_count_takes_no_memory(self, count: int) -> None:
        data = bytearray(batch(0))
        data[57:61] = count.to_bytes(4, "big", signed=True)
        with pytest.raises(Corrupt, match="the batch at offset 0"):
            rows(resealed(data))

    def test_damaged_compression_is_damage(self) -> None:
        for codec in list(Codec)[1:]:
            data = bytearray(batch(0, 50, codec=codec))
            data[HEADER_BYTES:] = b"x" * (len(data) - HEADER_BYTES)
            with pytest.raises(Corrupt, match="the batch at offset 0"):
                rows(resealed(data))


def reference(data: bytes) -> list[tuple[object, ...]] | None:
    """Return what the plain decoder reads, None if it finds damage."""
    try:
        return [
            (
                record.offset,
                record.key,
                record.value,
                tuple(content for _, content in record.headers),
            )
            for record in records(data)
        ]
    except Corrupt:
        return None


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a batch with changed, deleted and inserted bytes, and a valid checksum."""
    made = draw(many_records())
    data = build(made, base_offset=made[0][0])
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(HEADER_BYTES, len(data)) | st.integers(23, len(data)))
        span = draw(st.integers(0, 3))
        data[at : at + span] = draw(st.binary(max_size=3))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[ATTRIBUTES_AT + 1] &= 0xD8  # Neither compressed nor a marker.
    return resealed(data)


@given(damaged())
@settings(deadline=None, max_examples=400)
def test_the_kernel_finds_damage_exactly_where_the_plain_decoder_does(data: bytes) -> None:
    base = int.from_bytes(data[:8], "big")
    expected = reference(data)
    try:
        found: list[tuple[object, ...]] | None = [
            (
                row["offset"],
                row["key"],
                row["value"],
                tuple(header["value"] for header in row["headers"] or ()),  # type: ignore[attr-defined]
            )
            for row in whole_rows(data)
        ]
    except Corrupt:
        found = None
    if expected or found or base < 0:
        assert found == expected


@given(st.binary(max_size=400), st.booleans())
@settings(deadline=None)
def test_any_bytes_give_batches_or_damage(noise: bytes, has_magic: bool) -> None:
    data = bytearray(noise)
    if has_magic and len(data) > HEADER_BYTES:
        data[:21] = bytes(8) + (len(data) - 12).to_bytes(4, "big") + bytes(4) + b"\2" + bytes(4)
        resealed(data)
    with suppress(Corrupt):
        decoded(bytes(data), headers=True)


def test_a_view_that_may_be_written_to_is_decoded_like_any_other() -> None:
    decoder = Decoder("t", 0)
    found: Iterator[pa.RecordBatch] = decoder.feed(memoryview(bytearray(batch(0))), 0, 9, None)
    assert [*found, *decoder.flush()][0].num_rows == 3


def test_a_column_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match="'offsets' is not a column of a topic; expected one of key, value"
    ):
        Decoder("t", 0, columns=["offsets"])
