"""Rows go to their partitions whole, in order, and where Kafka's default partitioner sends them."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.spark.blocking_client import Identity
from hightide.spark.columns.partitioner import partitions_of
from hightide.spark.sink.delivery import stamped
from hightide.spark.sink.row_routing import MIN_RUN, Routes, encoded, spread
from hightide.spark.sink.rows import Unwritable
from hightide.spark.sink.tasks import first_numbers
from hightide.wire.batch import TRANSACTIONAL_FLAG, check, records

COUNTS = {"a": 3, "b": 1, "c": 7}


def table(**columns):
    types = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values, types[name]) for name, values in columns.items()], list(columns)
    )


def written(batches):
    """Return the records of each partition, as a consumer would see them."""
    found = defaultdict(list)
    for batch in batches:
        check(batch.batch, 0, len(batch.batch))
        read = list(records(memoryview(batch.batch)))
        assert len(read) == batch.records
        found[batch.topic, batch.partition] += [(record.key, record.value) for record in read]
    return dict(found)


rows = st.lists(
    st.tuples(
        st.sampled_from(sorted(COUNTS)),
        st.one_of(st.none(), st.binary(max_size=6)),
        st.one_of(st.none(), st.integers(0, 20)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(1, 20), st.integers(1, 2000), st.integers(0, 5))
def test_every_row_goes_once_where_its_partition_or_key_says(rows, cut, round_bytes, task):
    rows = [
        (topic, key, None if partition is None else partition % COUNTS[topic])
        for topic, key, partition in rows
    ]
    batches = [
        table(
            topic=[row[0] for row in part],
            key=[row[1] for row in part],
            partition=[row[2] for row in part],
            value=[b"%d" % (start + at) for at in range(len(part))],
        )
        for start in range(0, len(rows), cut)
        for part in [rows[start : start + cut]]
    ]
    found = written(encoded(batches, Routes(COUNTS), task, round_bytes))
    values = [value for rows in found.values() for _, value in rows]
    assert Counter(values) == Counter(b"%d" % at for at in range(len(rows)))
    for (topic, partition), each in found.items():
        numbers = [int(value) for _, value in each]
        assert numbers == sorted(numbers)
        assert 0 <= partition < COUNTS[topic]
        for (key, _), number in zip(each, numbers, strict=True):
            wanted_topic, wanted_key, asked = rows[number]
            assert (topic, key) == (wanted_topic, wanted_key)
            if asked is not None:
                assert partition == asked
            elif key is not None:
                assert partition == partitions_of(pa.array([key]), COUNTS[topic])[0]
    assert found == written(encoded(batches, Routes(COUNTS), task, round_bytes))


@given(st.integers(0, 20_000), st.integers(1, 12), st.integers(0, 100))
def test_rows_without_a_key_are_spread_in_long_runs(rows, count, start):
    chosen = spread(rows, count, start)
    sizes = Counter(chosen.tolist())
    assert sum(sizes.values()) == rows
    if rows >= MIN_RUN * count:
        assert len(sizes) == count
        assert max(sizes.values()) <= -(-rows // count)
    changes = np.count_nonzero(np.diff(chosen)) if rows else 0
    assert changes <= min(count, -(-rows // MIN_RUN))


def test_a_task_that_goes_on_spreads_on():
    batches = [table(value=[b"x"])] * 30
    found = written(encoded(batches, Routes({"a": 3}, "a"), round_bytes=1))
    assert {where: len(rows) for where, rows in found.items()} == dict.fromkeys(
        [("a", 0), ("a", 1), ("a", 2)], 10
    )


def test_a_topic_for_all_weighs_more_than_what_rows_say():
    found = written(encoded([table(value=[b"x"])], Routes({"b": 1}, "b")))
    assert found == {("b", 0): [(None, b"x")]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"topic": None, "partition": None}, "its column topic is null"),
        ({"topic": "nowhere", "partition": None}, "topic 'nowhere', which does not exist"),
        ({"topic": "a", "partition": 3}, "partition 3 of 'a', which has the partitions 0 to 2"),
        ({"topic": "a", "partition": -1}, "partition -1 of 'a'"),
    ],
)
def test_a_row_that_can_go_nowhere_is_refused_in_words(row, words):
    batch = table(topic=[row["topic"]], partition=[row["partition"]], value=[b"x"])
    with pytest.raises(Unwritable, match=words):
        list(encoded([batch], Routes(COUNTS)))


def test_text_that_is_no_header_is_refused_in_words():
    batch = pa.RecordBatch.from_pydict({"value": [b"x"], "headers": ["no"]})
    with pytest.raises(Unwritable, match="the column headers"):
        list(encoded([batch], Routes({"a": 1}, "a")))


def test_a_batch_is_stamped_with_who_writes_it_and_stays_whole():
    routes = Routes({"a": 1}, "a", is_transactional=True)
    (made,) = encoded([table(value=[b"x", b"y"])], routes)
    batch = stamped(made.batch, Identity(4711, 9), 123)
    header = check(batch, 0, len(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 9, 123)
    assert header.attributes & TRANSACTIONAL_FLAG
    assert [record.value for record in records(memoryview(made.batch))] == [b"x", b"y"]


def test_partitions_are_numbered_through():
    assert first_numbers(COUNTS) == {"a": 0, "b": 3, "c": 4}
