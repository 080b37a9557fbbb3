"""The records of `__transaction_state` are Kafka's, byte for byte."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.wire.errors import Corrupt, WireError
from hightide.wire.records.transaction_state import (
    PartitionsOfTopic,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)


def value(**changes: object) -> TransactionLogValue:
    fields: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 2,
        "transaction_timeout_ms": 60_000,
        "transaction_status": 1,
        "transaction_partitions": [PartitionsOfTopic(topic="a", partition_ids=[0, 3])],
        "transaction_last_update_timestamp_ms": 5,
        "transaction_start_timestamp_ms": 4,
    }
    return TransactionLogValue(**{**fields, **changes})


def test_a_key_is_its_version_and_the_id() -> None:
    assert encode_key("tx") == bytes.fromhex("0000 0002 7478")
    assert decode_key(encode_key("tx")) == "tx"


def test_version_0_of_a_value() -> None:
    data = bytes.fromhex(
        "0000 0000000000000007 0002 0000ea60 01"
        "00000001 0001 61 00000002 00000000 00000003"
        "0000000000000005 0000000000000004"
    )
    assert encode_value(value(), 0) == data
    assert decode_value(data) == value()


def test_version_1_of_a_value_tags_what_it_adds() -> None:
    data = bytes.fromhex(
        "0001 0000000000000007 0002 0000ea60 01"
        "02 02 61 03 00000000 00000003 00"
        "0000000000000005 0000000000000004"
        "03  00 08 0000000000000006  01 08 0000000000000008  02 02 0002"
    )
    full = value(previous_producer_id=6, next_producer_id=8, client_transaction_version=2)
    assert encode_value(full) == data
    assert decode_value(data) == full


def test_an_empty_transaction_has_no_list_of_partitions() -> None:
    empty = value(transaction_status=0, transaction_partitions=None)
    assert bytes.fromhex("ffffffff") in encode_value(empty, 0)
    assert decode_value(encode_value(empty, 0)) == empty == decode_value(encode_value(empty))


def test_fields_of_later_versions_are_passed_over() -> None:
    """KIP-915: later fields are tagged, so version 1 stays readable."""
    data = encode_value(value())
    assert data.endswith(b"\0")
    assert decode_value(data[:-1] + bytes.fromhex("01 09 02 ffff")) == value()


def test_what_version_0_cannot_hold_is_not_lost_silently() -> None:
    with pytest.raises(WireError):
        encode_value(value(next_producer_id=8), 0)


def test_a_key_of_a_later_version_is_another_kind_of_record() -> None:
    assert decode_key(b"\0\1anything") is None


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0", b"\xff\xff", b"\0\7", encode_value(value())[:-3]]
)
def test_a_damaged_value_is_told(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_value(data)


@given(st.binary(max_size=80))
def test_any_bytes_give_a_value_or_corrupt(data: bytes) -> None:
    for read in (decode_key, decode_value):
        with contextlib.suppress(Corrupt):
            read(data)
