"""A key goes to the partition to which other clients would send it."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.spark.columns import kernels
from hightide.spark.columns.partitioner import partitions_of

with warnings.catch_warnings():
    # Reading its own schemas, kafka-python calls functions that are to be removed.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


@given(st.lists(st.none() | st.binary(max_size=40), max_size=8), st.integers(1, 1000))
@settings(deadline=None)
def test_keys_are_spread_as_kafka_python_spreads_them(keys: list[bytes | None], count: int) -> None:
    expected = [
        -1 if key is None else (kafka_python_murmur2(key) & 0x7FFFFFFF) % count for key in keys
    ]
    column = pa.array(keys, pa.binary())
    assert partitions_of(column, count).tolist() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "is_compiled", False)
        assert partitions_of(column, count).tolist() == expected


def test_known_hashes_of_java_hold() -> None:
    """From the tests of Kafka's own partitioner: the hash of each key, as a signed number."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    keys = pa.array(list(known))
    count = 2**31 - 1
    assert partitions_of(keys, count).tolist() == [
        (partition & 0x7FFFFFFF) % count for partition in known.values()
    ]


def test_text_and_slices_are_keys_too() -> None:
    keys = pa.array(["x", "a", "b", None, "c"])
    whole = partitions_of(keys, 7)
    assert partitions_of(keys.slice(1, 3), 7).tolist() == whole[1:4].tolist()
    assert partitions_of(keys.cast(pa.large_binary()), 7).tolist() == whole.tolist()
    assert partitions_of(pa.nulls(2), 7).tolist() == [-1, -1]


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        partitions_of(pa.array([b"a"]), 0)
