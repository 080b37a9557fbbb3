"""Subscriptions and assignments: the bytes of kafka-python, and back."""

from __future__ import annotations

import warnings
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.core.groups.classic.classic_group import read_subscription, subscribed_topics
from hightide.wire.errors import WireError
from hightide.wire.records.consumer_protocol import (
    ConsumerAssignment,
    ConsumerPartitions,
    ConsumerSubscription,
    read,
    version_of,
    write,
)

with warnings.catch_warnings():
    # While it loads its schemas, kafka-python calls functions that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription

VERSIONS = range(4)
OWNED = [ConsumerPartitions(topic="a", partitions=[1, 2])]


def theirs(version: int) -> bytes:
    partition = ConsumerProtocolSubscription.TopicPartition(topic="a", partitions=[1, 2])
    subscription = ConsumerProtocolSubscription(
        topics=["a", "b"],
        user_data=b"x",
        owned_partitions=[partition] if version >= 1 else [],
        generation_id=7 if version >= 2 else -1,
        rack_id="r" if version >= 3 else None,
        version=version,
    )
    return bytes(subscription.encode())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_subscription_is_read_and_written_as_others_do(version: int) -> None:
    ours = ConsumerSubscription(
        topics=["a", "b"],
        user_data=b"x",
        owned_partitions=OWNED if version >= 1 else [],
        generation_id=7 if version >= 2 else -1,
        rack_id="r" if version >= 3 else None,
    )
    assert write(ours, version) == theirs(version)
    assert read(ConsumerSubscription, theirs(version)) == ours
    assert version_of(theirs(version)) == version
    assert subscribed_topics(theirs(version)) == frozenset({"a", "b"})


@pytest.mark.parametrize("version", VERSIONS)
def test_an_assignment_is_read_and_written_as_others_do(version: int) -> None:
    partition = ConsumerProtocolAssignment.TopicPartition(topic="a", partitions=[1, 2])
    bytes_of_it = ConsumerProtocolAssignment(
        assigned_partitions=[partition], user_data=None, version=version
    ).encode()
    ours = ConsumerAssignment(assigned_partitions=OWNED)
    assert write(ours, version) == bytes_of_it
    assert read(ConsumerAssignment, bytes_of_it) == ours


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    later = b"\0\x09" + theirs(3)[2:] + b"what is new"
    assert read(ConsumerSubscription, later).rack_id == "r"
    assert version_of(later) == 3


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_subscription_or_none(data: bytes) -> None:
    read_subscription(data)
    with suppress(WireError):
        read(ConsumerAssignment, data)
