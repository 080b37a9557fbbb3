"""Where the next fetch begins."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.client.fetcher import OffsetOutOfRange, end_of
from hightide.wire import batch
from hightide.wire.errors import Corrupt


@st.composite
def logs(draw):
    """Batches with gaps before and inside them, and the offset after each."""
    offset, parts, ends = draw(st.integers(0, 10**12)), [], []
    for _ in range(draw(st.integers(0, 5))):
        base = offset + draw(st.integers(0, 3))
        last = base + draw(st.integers(0, 5))
        record = (base, 0, None, bytes(draw(st.integers(0, 50))), ())
        parts.append(bytes(batch.build([record], base_offset=base, last_offset=last)))
        offset = last + 1
        ends.append(offset)
    return parts, ends


@given(logs(), st.integers(0, 10**6))
def test_a_fetch_goes_on_after_the_last_whole_batch(log, cut):
    parts, ends = log
    data = b"".join(parts)
    cut = cut % (len(data) + 1)
    expected, size = 7, 0
    for part, end in zip(parts, ends, strict=True):
        size += len(part)
        if size <= cut:
            expected = max(7, end)
    assert end_of(memoryview(data[:cut]), 7) == expected


def test_a_batch_without_a_length_is_no_batch():
    with pytest.raises(Corrupt, match="impossible length 0"):
        end_of(memoryview(bytes(100)), 0)


def test_what_is_out_of_range_can_be_told_across_processes():
    error = pickle.loads(pickle.dumps(OffsetOutOfRange("t", 1, 5, 10, 20)))
    assert (error.topic, error.partition, error.offset) == ("t", 1, 5)
    assert str(error) == "t/1 has no records at offset 5: it begins at 10 and ends at 20."
