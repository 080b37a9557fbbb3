"""Arrow rows become the record batches that other clients would have written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.spark.columns import kernels
from hightide.spark.columns.encode import CODECS, encode, following
from hightide.spark.columns.record_schema import HEADERS_TYPE
from hightide.wire.batch import HEADER_BYTES, Headers, build, check, read_header, records
from hightide.wire.compression import Codec

with warnings.catch_warnings():
    # Reading its own schemas, kafka-python calls functions that are to be removed.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records as kafka_records

NOW_MS = 1_700_000_000_000

Plain = tuple[int | None, bytes | None, bytes | None, Headers]

maybe_bytes = st.none() | st.binary(max_size=200)
plain_rows = st.lists(
    st.tuples(
        st.none() | st.integers(-1, 2**42),
        maybe_bytes,
        maybe_bytes,
        st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=12,
)


@pytest.fixture(params=[True, False], ids=["native", "plain"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "is_compiled", request.param)


def as_arrow(made: list[Plain]) -> pa.RecordBatch:
    headers = [[{"key": k, "value": v} for k, v in row[3]] or None for row in made]
    return pa.record_batch(
        {
            "timestamp": pa.array([row[0] for row in made], pa.int64()),
            "key": pa.array([row[1] for row in made], pa.binary()),
            "value": pa.array([row[2] for row in made], pa.binary()),
            "headers": pa.array(headers, HEADERS_TYPE),
        }
    )


def expected(made: list[Plain]) -> list[Plain]:
    return [(NOW_MS if row[0] is None else row[0], *row[1:]) for row in made]


def read(batches: Iterator[tuple[bytes, int]]) -> list[Plain]:
    found: list[Plain] = []
    for batch, count in batches:
        header = check(batch, 0, len(batch))
        assert header.size == len(batch)
        assert header.record_count == count
        found += [
            (record.timestamp, record.key, record.value, record.headers)
            for record in records(batch)
        ]
    return found


@given(plain_rows, st.sampled_from(list(CODECS)), st.integers(100, 2000))
@settings(deadline=None)
def test_what_is_encoded_is_read_again(made: list[Plain], codec: str, max_bytes: int) -> None:
    batches = encode(as_arrow(made), codec=codec, now_ms=NOW_MS, max_bytes=max_bytes)
    assert read(batches) == expected(made)


@given(plain_rows)
@settings(deadline=None)
def test_a_batch_is_byte_for_byte_what_the_plain_builder_makes(made: list[Plain]) -> None:
    who: dict[str, Any] = {"producer_id": 5, "producer_epoch": 2, "base_sequence": 7}
    ((batch, _),) = encode(as_arrow(made), now_ms=NOW_MS, is_transactional=True, **who)
    numbered = [(place, *row) for place, row in enumerate(expected(made))]
    assert batch == build(numbered, transactional=True, **who)  # type: ignore[arg-type]


@given(plain_rows, st.sampled_from(list(CODECS)))
@settings(deadline=None, max_examples=50)
def test_other_clients_read_what_is_encoded(made: list[Plain], codec: str) -> None:
    ((batch, _),) = encode(as_arrow(made), codec=codec, now_ms=NOW_MS)
    for reader in (
        aiokafka_records.DefaultRecordBatch(bytearray(batch)),
        kafka_records.DefaultRecordBatch(bytearray(batch)),
    ):
        assert reader.validate_crc()
        found = [
            (record.timestamp, record.key, record.value, tuple(record.headers)) for record in reader
        ]
        assert found == expected(made)


@given(plain_rows, st.integers(0, 11), st.integers(0, 11))
@settings(deadline=None, max_examples=50)
def test_a_slice_is_encoded_without_what_is_around_it(
    made: list[Plain], first: int, count: int
) -> None:
    part = as_arrow(made).slice(first, count)
    assert read(encode(part, now_ms=NOW_MS)) == expected(made[first : first + count])


@pytest.mark.usefixtures("either")
class TestBatches:
    def test_they_are_split_where_the_next_record_does_not_fit(self) -> None:
        rows = pa.record_batch({"value": [b"x" * 100] * 50})
        batches = list(encode(rows, now_ms=0, max_bytes=1000))
        assert sum(count for _, count in batches) == 50
        assert all(len(batch) <= 1000 for batch, _ in batches)
        assert len(batches) <= 8

    def test_a_record_larger_than_a_batch_has_one_of_its_own(self) -> None:
        rows = pa.record_batch({"value": [b"a", b"x" * 5000, b"b", b"c"]})
        assert [count for _, count in encode(rows, now_ms=0, max_bytes=200)] == [1, 1, 2]

    def test_sequences_go_on_from_batch_to_batch_and_over_the_largest(self) -> None:
        rows = pa.table({"value": [b"x" * 100] * 6})
        who: dict[str, Any] = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 2**31 - 3}
        batches = encode(rows, now_ms=0, max_bytes=300, **who)
        headers = [read_header(batch) for batch, _ in batches]
        sequences = [header.base_sequence for header in headers]
        assert len(sequences) > 2
        for header, after in zip(headers, sequences[1:], strict=False):
            assert after == following(header.base_sequence, header.record_count)
        assert {header.producer_id for header in headers} == {3}
        assert following(2**31 - 1, 1) == 0
        assert following(-1, 5) == -1

    def test_one_that_compression_makes_larger_goes_uncompressed(self) -> None:
        rows = pa.record_batch({"value": [bytes(range(40))]})
        ((batch, _),) = encode(rows, codec="gzip", now_ms=0)
        if kernels.is_compiled:
            assert read_header(batch).codec is Codec.NONE
        assert next(records(batch)).value == bytes(range(40))

    def test_no_rows_make_no_batch(self) -> None:
        assert not list(encode(as_arrow([(1, b"k", b"v", ())]).slice(0, 0), now_ms=0))

    def test_text_of_either_width_is_utf8_and_an_absent_column_is_null(self) -> None:
        for kind in (pa.string(), pa.large_string()):
            rows = pa.record_batch({"key": pa.array(["ü", None], kind)})
            assert read(encode(rows, now_ms=4)) == [
                (4, "ü".encode(), None, ()),
                (4, None, None, ()),
            ]
        nothing = pa.record_batch(
            {"key": pa.nulls(1), "value": pa.nulls(1), "headers": pa.nulls(1)}
        )
        assert read(encode(nothing, now_ms=4)) == [(4, None, None, ())]

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    def test_times_of_every_unit_become_whole_milliseconds(self, unit: str) -> None:
        size = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
        times = pa.array([5 * size, None, 0], pa.timestamp(unit, "UTC"))
        rows = pa.record_batch({"value": [b"", b"", b""], "timestamp": times})
        assert [row[0] for row in read(encode(rows, now_ms=9))] == [5000, 9, 0]

    def test_a_millisecond_is_not_rounded_up(self) -> None:
        times = pa.array([1_999, -1], pa.timestamp("us"))
        rows = pa.record_batch({"value": [b"", b""], "timestamp": times})
        assert [row[0] for row in read(encode(rows, now_ms=9))] == [1, -1]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"value": [1]}, "the column value is int64; it must be text or bytes"),
        ({"key": [1.0]}, "the column key is double"),
        ({"headers": ["a"]}, "must be a list of key and value"),
        ({"headers": [[{"key": "a"}]]}, "must be a list of key and value"),
        (
            {"headers": [[{"key": None, "value": b""}]]},
            "the column headers.key|a header has no key",
        ),
        ({"timestamp": ["now"]}, "must be a timestamp or milliseconds"),
        ({"timestamp": [-2]}, "-2 ms is before 1970"),
    ],
)
def test_what_no_record_can_hold_is_refused_in_words(
    columns: dict[str, list[object]], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        list(encode(pa.record_batch(columns), now_ms=0))


def test_a_header_without_a_key_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b"1"}]], HEADERS_TYPE)
    with pytest.raises(ValueError, match="a header has no key"):
        list(encode(pa.record_batch({"headers": headers}), now_ms=0))


def test_an_unknown_codec_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ValueError, match="'br' is not a codec; expected one of none, gzip, snappy"):
        list(encode(pa.record_batch({"value": [b""]}), codec="br", now_ms=0))


def test_the_size_of_a_batch_counts_its_header() -> None:
    rows = pa.record_batch({"value": [b"x" * 10] * 9})
    ((whole, _),) = encode(rows, now_ms=0)
    one_less = list(encode(rows, now_ms=0, max_bytes=len(whole) - 1))
    assert [count for _, count in one_less] == [8, 1]
    assert len(list(encode(rows, now_ms=0, max_bytes=len(whole)))) == 1
    assert len(one_less[1][0]) == HEADER_BYTES + 17
