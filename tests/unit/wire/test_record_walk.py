"""The walk over a batch's records: compiled and plain agree, and find what the decoder finds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.wire import record_walk
from hightide.wire.batch import HEADER_BYTES, Record, build, read_header, records
from hightide.wire.errors import Corrupt
from hightide.wire.record_walk import NO_TIMESTAMPS, Flaw, walk, walk_plain
from hightide.wire.varint import encode_signed

texts = st.one_of(st.none(), st.binary(max_size=300))
some_records = st.lists(
    st.tuples(
        st.one_of(st.just(-1), st.integers(0, 2**40), st.integers(-(2**60), 2**60)),
        texts,
        texts,
        st.lists(st.tuples(st.text(max_size=5), texts), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


def made(fields: list) -> tuple[bytes, int, int]:
    batch = build([Record(i, *each) for i, each in enumerate(fields)])
    header = read_header(batch)
    return bytes(batch[HEADER_BYTES:]), header.record_count, header.base_timestamp


@given(fields=some_records)
@settings(max_examples=100, deadline=None)
def test_sound_records_have_no_flaw(fields: list) -> None:
    data, count, base = made(fields)
    stamps = [each[0] for each in fields]
    lowest = min((stamp for stamp in stamps if stamp != -1), default=NO_TIMESTAMPS)
    without_key = sum(each[1] is None for each in fields)
    wanted = (0, len(data), lowest, max(-1, *stamps), without_key)
    assert walk_plain(data, 0, len(data), count, base) == wanted
    assert walk(b"xyz" + data, 3, 3 + len(data), count, base) == wanted


@given(
    fields=some_records,
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 5),
    more=st.integers(-1, 1),
    base=st.sampled_from([0, -1, 2**63 - 1, -(2**63), 1_700_000_000_000]),
)
@settings(max_examples=500, deadline=None)
def test_both_walks_agree_about_any_bytes(
    fields: list, changes: list[tuple[int, int]], cut: int, more: int, base: int
) -> None:
    sound, count, _ = made(fields)
    data = bytearray(sound[: len(sound) - cut])
    for at, byte in changes:
        if data:
            data[at % len(data)] = byte
    end = len(data)
    assert walk(data, 0, end, count + more, base) == walk_plain(data, 0, end, count + more, base)


@given(data=st.binary(max_size=60), count=st.integers(0, 5), base=st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=500, deadline=None)
def test_both_walks_agree_about_noise(data: bytes, count: int, base: int) -> None:
    assert walk(data, 0, len(data), count, base) == walk_plain(data, 0, len(data), count, base)


@given(
    fields=some_records,
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_what_has_no_flaw_can_be_decoded(fields: list, changes: list[tuple[int, int]]) -> None:
    batch = build([Record(i, *each) for i, each in enumerate(fields)])
    header = read_header(batch)
    for at, byte in changes:
        batch[HEADER_BYTES + at % (len(batch) - HEADER_BYTES)] = byte
    found = walk(batch, HEADER_BYTES, len(batch), header.record_count, header.base_timestamp)
    if found[0]:
        return
    decoded = list(records(batch))
    assert len(decoded) == header.record_count
    assert max(-1, *(record.timestamp for record in decoded)) == found[3]


def record(body: bytes) -> bytes:
    return encode_signed(len(body)) + body


FLAWED = {
    "no bytes": (b"", Flaw.CUT_SHORT),
    "a length past the end": (encode_signed(50) + b"\0", Flaw.CUT_SHORT),
    "a negative length": (encode_signed(-2), Flaw.RECORD_LENGTH),
    "an endless number": (b"\xff" * 11, Flaw.BAD_NUMBER),
    "a number of 33 bits": (b"\xff\xff\xff\xff\x1f", Flaw.BAD_NUMBER),
    "an empty record": (record(b""), Flaw.RECORD_END),
    "a wrong offset delta": (record(b"\0\0\2\1\1\0"), Flaw.OFFSET_DELTA),
    "a key of length -2": (record(b"\0\0\0\3\1\0"), Flaw.KEY_LENGTH),
    "a key past the record": (record(b"\0\0\0\x40\1\0"), Flaw.RECORD_END),
    "a value of length -2": (record(b"\0\0\0\1\3\0"), Flaw.VALUE_LENGTH),
    "a negative header count": (record(b"\0\0\0\1\1\1"), Flaw.HEADER_COUNT),
    "too many headers": (record(b"\0\0\0\1\1\4\0"), Flaw.HEADER_COUNT),
    "a header without a key": (record(b"\0\0\0\1\1\2\1\1"), Flaw.HEADER_KEY_LENGTH),
    "a header value of length -2": (record(b"\0\0\0\1\1\2\0\3"), Flaw.HEADER_VALUE_LENGTH),
    "bytes after the headers": (record(b"\0\0\0\1\1\0\0"), Flaw.RECORD_END),
    "bytes after the record": (record(b"\0\0\0\1\1\0") + b"\0", Flaw.TRAILING_BYTES),
    "a timestamp over 64 bits": (
        record(b"\0" + encode_signed(2**63 - 1) + b"\0\1\1\0"),
        Flaw.TIMESTAMP,
    ),
}


@pytest.mark.parametrize("name", FLAWED)
@pytest.mark.parametrize("function", [walk, walk_plain])
def test_each_flaw_is_found(name: str, function: record_walk.Walk) -> None:
    data, flaw = FLAWED[name]
    assert function(data, 0, len(data), 1, 5)[0] == flaw


def test_every_flaw_has_a_reason() -> None:
    assert set(record_walk.REASONS) == set(Flaw) - {Flaw.NONE}


def test_positions_outside_the_buffer_are_refused() -> None:
    for start, end in ((0, 4), (-1, 2), (3, 2)):
        for function in (walk, walk_plain):
            with pytest.raises(ValueError, match="buffer"):
                function(b"abc", start, end, 1, 0)


def test_the_decoder_refuses_what_the_walk_refuses() -> None:
    for data, flaw in FLAWED.values():
        if flaw is not Flaw.OFFSET_DELTA:
            batch = build([Record(0, 5, None, b"")])[:HEADER_BYTES] + data
            batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
            with pytest.raises(Corrupt):
                list(records(batch))
