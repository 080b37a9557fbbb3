"""Offsets: earliest, latest, by timestamp, and out of range."""

from __future__ import annotations

import pytest

from tests.conformance.adapters import Record, Refused, confluent, values

T0 = 1_700_000_000_000


@pytest.fixture
def timed(broker):
    """A topic with ten records, one each second; three batches."""
    topic = broker.create_topic()
    for group in (range(4), range(4, 8), range(8, 10)):
        sent = [Record(b"%d" % at, timestamp=T0 + at * 1000) for at in group]
        confluent.produce(broker.bootstrap, topic, sent)
    return topic


@pytest.mark.needs("bounds")
def test_an_empty_topic_begins_and_ends_at_zero(broker, topic, client):
    assert client.bounds(broker.bootstrap, topic) == (0, 0)


@pytest.mark.needs("bounds")
def test_earliest_and_latest_are_told(broker, timed, client):
    assert client.bounds(broker.bootstrap, timed) == (0, 10)


@pytest.mark.needs("times")
@pytest.mark.parametrize(
    ("after_ms", "offset"),
    [(-5000, 0), (0, 0), (1, 1), (1000, 1), (3500, 4), (7000, 7), (9000, 9)],
)
def test_an_offset_is_found_by_time(broker, timed, client, after_ms, offset):
    assert client.offset_at(broker.bootstrap, timed, T0 + after_ms) == offset


@pytest.mark.needs("times")
def test_a_time_after_the_last_record_has_no_offset(broker, timed, client):
    assert client.offset_at(broker.bootstrap, timed, T0 + 9001) is None


@pytest.mark.needs("times")
def test_a_time_in_an_empty_topic_has_no_offset(broker, topic, client):
    assert client.offset_at(broker.bootstrap, topic, T0) is None


@pytest.mark.needs("max-timestamp")
def test_the_record_with_the_largest_timestamp_is_found(broker, topic, client):
    sent = [Record(b"x", timestamp=T0 + step) for step in (0, 900, 300)]
    client.produce(broker.bootstrap, topic, sent)
    assert client.max_timestamp(broker.bootstrap, topic) == (1, T0 + 900)


@pytest.mark.needs("read", "produce")
def test_reading_from_the_latest_gives_only_what_comes_after(broker, timed, client):
    with client.waiting(broker.bootstrap, timed, 10) as next_record:
        client.produce(broker.bootstrap, timed, [Record(b"new")])
        found = next_record()
    assert (found.offset, found.value) == (10, b"new")


@pytest.mark.extended
@pytest.mark.needs("reset")
def test_a_purged_offset_is_out_of_range_and_can_be_reset_to_the_earliest(broker, timed, client):
    assert confluent.delete_records(broker.bootstrap, timed, 6) == 6
    found = client.read(broker.bootstrap, timed, 4, start=2, reset="earliest")
    assert values(found) == [b"6", b"7", b"8", b"9"]


@pytest.mark.needs("reset")
def test_an_offset_that_does_not_exist_yet_is_out_of_range(broker, timed, client):
    found = client.read(broker.bootstrap, timed, 10, start=5000, reset="earliest")
    assert [record.offset for record in found] == list(range(10))


@pytest.mark.needs("tell-out-of-range")
def test_without_a_reset_the_consumer_is_told_that_the_offset_is_gone(broker, timed, client):
    confluent.delete_records(broker.bootstrap, timed, 6)
    with pytest.raises(Refused) as refusal:
        client.read(broker.bootstrap, timed, 1, start=2)
    assert refusal.value.name in {"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"}
