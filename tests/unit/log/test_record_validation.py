"""What a log refuses because of the records inside a batch, and what it must not refuse."""

import json
import os

import lz4.frame
import pytest

from hightide.log.batch_validation import (
    NotInline,
    ValidationRules,
    check_records,
)
from hightide.log.disk import Disk
from hightide.log.log import Log
from hightide.log.segment import OpenFiles
from hightide.wire.batch import CRC_AT, HEADER_BYTES, Record, build, read_header, records
from hightide.wire.compression import Codec, compress
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_helpers import NOW, topic

CODECS = list(Codec)


def new_log(disk: Disk, **settings: object) -> Log:
    disk.make_directory("t-0")
    return Log.create(disk, "t", 0, topic(**settings), OpenFiles(64), NOW)


def signed(batch: bytearray) -> bytearray:
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[CRC_AT : CRC_AT + 4] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch


def with_payload(codec: Codec, payload: bytes, count: int = 1) -> bytearray:
    """A batch with a right CRC and any bytes as its records."""
    batch = build([Record(i, NOW, b"k", b"v") for i in range(count)])[:HEADER_BYTES]
    batch[22] = codec
    return signed(batch + compress(codec, payload))


def append(log: Log, batch: bytearray) -> tuple[int, int, int]:
    return log.append(batch, memoryview(batch), 0, len(batch), 0, NOW)


def refused(log: Log, batch: bytearray) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        append(log, batch)
    assert log.end_offset == 0
    return caught.value.code


@pytest.mark.parametrize("codec", CODECS)
def test_random_bytes_with_a_right_crc_are_refused(disk: Disk, codec: Codec) -> None:
    log = new_log(disk)
    assert refused(log, with_payload(codec, os.urandom(500))) is ErrorCode.INVALID_RECORD
    batch = with_payload(codec, b"")[:HEADER_BYTES] + os.urandom(100)
    assert refused(log, signed(batch)) is ErrorCode.INVALID_RECORD


def test_lz4_that_javas_clients_cannot_read_is_refused(disk: Disk) -> None:
    """librdkafka reads blocks that depend on each other; Java's clients fail at such a batch."""
    values = [Record(i, NOW, None, b"tide" * 1_000) for i in range(100)]
    plain = build(values)
    log = new_log(disk)
    for linked in (True, False):
        batch = plain[:HEADER_BYTES]
        batch[22] = Codec.LZ4
        batch += lz4.frame.compress(bytes(plain[HEADER_BYTES:]), block_linked=linked)
        if linked:
            assert refused(log, signed(batch)) is ErrorCode.INVALID_RECORD
        else:
            append(log, signed(batch))
    assert log.end_offset == 100


@pytest.mark.parametrize("codec", CODECS)
def test_a_count_of_nine_million_with_one_record_is_refused(disk: Disk, codec: Codec) -> None:
    batch = build([Record(0, NOW, b"k", b"v")], codec=codec)
    batch[57:61] = (9_000_000).to_bytes(4, "big")
    batch[23:27] = (8_999_999).to_bytes(4, "big")
    assert refused(new_log(disk), signed(batch)) is ErrorCode.INVALID_RECORD


def test_without_validation_they_are_stored(disk: Disk) -> None:
    log = new_log(disk, record_validation_enable="false")
    append(log, with_payload(Codec.NONE, os.urandom(500)))
    append(log, with_payload(Codec.ZSTD, os.urandom(500)))
    assert log.end_offset == 2


def test_a_wrong_max_timestamp_in_the_header_is_corrected(disk: Disk) -> None:
    log = new_log(disk)
    append(log, build([Record(0, NOW - 5, None, b"v")], max_timestamp=NOW - 500))
    found = log.offset_for_timestamp(None)
    assert found is not None
    assert found[:2] == (NOW - 5, 0)


def test_records_over_the_limit_are_too_large_and_not_corrupt() -> None:
    rules = ValidationRules.of(topic(max_decompressed_message_bytes=100_000))
    batch = build([Record(0, NOW, None, bytes(100_001))], codec=Codec.ZSTD)
    with pytest.raises(KafkaError) as caught:
        check_records(batch, rules)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    check_records(build([Record(0, NOW, None, bytes(90_000))], codec=Codec.ZSTD), rules)


def test_what_recompression_would_make_unreadable_is_refused() -> None:
    rules = ValidationRules.of(
        topic(max_decompressed_message_bytes=100_000, compression_type="zstd")
    )
    with pytest.raises(KafkaError) as caught:
        check_records(build([Record(0, NOW, None, bytes(100_001))]), rules)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_large_batches_are_not_checked_on_the_event_loop(disk: Disk, codec: Codec) -> None:
    log = new_log(disk)
    batch = build([Record(0, NOW, None, bytes(2_000_000))], codec=codec)
    with pytest.raises(NotInline):
        append(log, batch)
    checked = check_records(batch, log.rules)
    log.append(batch, memoryview(batch), 0, len(batch), 0, NOW, None, checked)
    assert log.end_offset == 1


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", CODECS)
def test_recompression_keeps_every_record(name: str, codec: Codec) -> None:
    rules = ValidationRules.of(topic(compression_type=name))
    sent = [Record(i, NOW + i, b"k", b"v" * i, (("h", b"x"),)) for i in range(50)]
    batch = build(sent, codec=codec, producer_id=4, producer_epoch=1, base_sequence=7)
    stored = check_records(batch, rules).batch
    header = read_header(stored)
    assert list(records(stored)) == sent
    assert crc32c(memoryview(stored)[21:]) == header.crc
    assert header.codec is rules.codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 7)


def test_heartbeats_at_400_to_1_are_found_by_time(disk: Disk) -> None:
    line = json.dumps({"host": "web-1", "status": "ok", "pad": "-" * 2000}).encode()
    log = new_log(disk)
    batch = build([Record(i, NOW + i, b"web-1", line) for i in range(10_000)], codec=Codec.ZSTD)
    assert 10_000 * len(line) > 400 * len(batch)
    with pytest.raises(NotInline):
        append(log, batch)
    checked = check_records(batch, log.rules)
    log.append(batch, memoryview(batch), 0, len(batch), 0, NOW, None, checked)
    found = log.offset_for_timestamp(NOW + 7_000)
    assert found is not None
    assert found[:2] == (NOW + 7_000, 7_000)
