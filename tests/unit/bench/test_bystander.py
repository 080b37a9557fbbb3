"""The abuse of a broker: every frame is a legal request, and waits become figures."""

from __future__ import annotations

import struct

import pytest

from bench import abuses
from bench.abuses import ABUSES
from bench.bystander import METRICS, Workload, missed_waits, percentile, summary
from bench.harness.families import ABUSED
from hightide.wire import batch
from hightide.wire.codec import decode
from hightide.wire.frame import decode_request_header
from hightide.wire.messages import REQUESTS

SMALL = {
    "describe-configs": abuses.describe_configs(50),
    "list-offsets": abuses.list_offsets([0] * 10),
    "fetch": abuses.fetch(1_500),
    "produce": abuses.produce("compacted", abuses.inflating_records(100), range(3)),
    "metadata": abuses.metadata_many(50),
    "describe-groups": abuses.describe_groups(50),
    "offset-fetch": abuses.offset_fetch(50),
    "describe-transactions": abuses.describe_transactions(50),
    "describe-producers": abuses.describe_producers(50),
}


def requests_of(data):
    """Decode frames one after the other; nothing may be left over."""
    found = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        frame, data = memoryview(data[4 : 4 + size]), data[4 + size :]
        assert len(frame) == size
        header, at = decode_request_header(frame)
        found.append(decode(REQUESTS[header.api_key], frame[at:], header.api_version))
    return found


@pytest.mark.parametrize("name", SMALL)
def test_a_frame_is_one_request(name):
    assert len(requests_of(SMALL[name])) == 1


def test_names_and_partitions_are_as_many_as_the_abuse_says():
    (request,) = requests_of(abuses.describe_configs())
    assert len(request.resources) == 6_000
    (request,) = requests_of(abuses.metadata_many())
    assert len({topic.name for topic in request.topics}) == 10_000
    assert not request.allow_auto_topic_creation


def test_half_of_the_fetched_partitions_are_known():
    (request,) = requests_of(abuses.fetch(1_501))
    known, unknown = request.topics
    assert {one.partition for one in known.partitions} == set(range(abuses.KNOWN_PARTITIONS))
    assert len(unknown.partitions) == 751


def test_pipelined_requests_end_with_a_whole_frame():
    data = abuses.pipelined()
    assert 167_000 < len(data) <= abuses.PIPELINED_BYTES
    assert len(requests_of(data)) > 10_000


def test_only_the_last_tiny_record_has_the_timestamp_that_is_asked_for():
    data = abuses.tiny_records(100)
    header = batch.check(data, 0, len(data))
    (request,) = requests_of(SMALL["list-offsets"])
    (asked,) = {one.timestamp for one in request.topics[0].partitions}
    assert [one.timestamp == asked for one in batch.records(data)] == [False] * 99 + [True]
    assert header.record_count == 100


def test_a_batch_that_inflates_fits_into_a_message_and_has_keys():
    data = abuses.inflating_records()
    assert 850_000 < len(data) < 1_000_000
    assert len(batch.payload(data)[1]) > 40_000_000
    assert all(one.key for one in batch.records(abuses.inflating_records(10)))


def test_half_a_frame_announces_the_whole():
    data = abuses.half_frame()
    (size,) = struct.unpack_from(">i", data)
    assert size + 4 == abuses.WHOLE_FRAME_BYTES == 2 * len(data)
    header, _ = decode_request_header(memoryview(data)[4:])
    assert header.api_key == 0


def test_waits_become_the_worst_and_the_99th_percentile():
    waits = [0.001] * 98 + [0.002, 0.5]
    sample = summary({"produce": waits, "metadata": [0.003], "oversleep": [0.0, 0.004]})
    assert sample["produce_worst_ms"] == 500
    assert sample["produce_p99_ms"] == 2
    assert sample["metadata_worst_ms"] == sample["metadata_p99_ms"] == 3
    assert sample["oversleep_ms"] == 4


def test_requests_that_are_due_during_a_wait_count_from_when_they_are_due():
    assert missed_waits(due=1.005, done=1.017) == pytest.approx([0.012, 0.007, 0.002])
    assert missed_waits(due=1.005, done=1.005) == []
    assert missed_waits(due=1.005, done=1.001) == []


def test_a_percentile_of_one_value_is_that_value():
    assert percentile([7.0], 0.99) == percentile([7.0], 0.0) == 7.0


def test_every_abuse_has_its_name_and_belongs_to_the_section():
    assert len({abuse.name for abuse in ABUSES}) == len({abuse.title for abuse in ABUSES})
    assert all(ABUSED.takes(f"bystander-{abuse.name}") for abuse in ABUSES)
    assert {*ABUSED.columns, *ABUSED.columns_without_ratio} <= {metric.key for metric in METRICS}
    assert Workload("bystander-none", "no abuse").metrics == METRICS
