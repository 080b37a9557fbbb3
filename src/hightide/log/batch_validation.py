"""Validation and conversion of record batches beyond the plain case.

`Log.append` itself handles the batches that most producers send to most topics. Everything else is
here, off the fast path: the reasons to refuse a batch, compressed batches, and topics that stamp
the append time, store another codec, or need a key in every record.

A batch that is expensive to decompress, walk or compress is not checked on the event loop:
`check_inline` raises NotInline, and the caller runs `check_records` in a thread
(`broker/record_checks.py`) and appends the batch that it returns.
"""

from __future__ import annotations

from typing import NamedTuple

from hightide.core.transactions.transaction import Producer
from hightide.settings import Topic
from hightide.wire.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    read_header,
    records,
)
from hightide.wire.compression import (
    MAX_INFLATED_BYTES,
    Codec,
    InflatedTooLarge,
    compress,
    inflate,
    is_for_every_reader,
)
from hightide.wire.control import ControlType, Marker, build_marker, parse_marker
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.record_walk import IS_COMPILED, REASONS, Flaw, walk

PLAIN_ATTRIBUTES = max(Codec)
"""Attributes up to this number hold a codec and no flag."""
PLAIN_TRANSACTIONAL = TRANSACTIONAL_FLAG | PLAIN_ATTRIBUTES
"""Attributes from the flag up to this number hold a codec and the transactional flag."""
MIN_RECORD_BYTES = 7

INLINE_PLAIN_BYTES = 4 * 1024 * 1024 if IS_COMPILED else 32 * 1024
"""A batch without compression up to this size is walked on the event loop, within 6 ms."""
INLINE_PACKED_BYTES = 256 * 1024
_INLINE_INFLATED_BYTES = 1024 * 1024 if IS_COMPILED else 32 * 1024
_INLINE_GZIP_BYTES = _INLINE_INFLATED_BYTES // 4  # it takes four times as long as the others
_INLINE_RECOMPRESSED_BYTES = 16 * 1024

_MAX_TIMESTAMP_AT = 35
_KNOWN_FLAGS = CODEC_MASK | LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
_CODEC_NAMES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class ValidationRules(NamedTuple):
    """The topic settings that decide which batches are accepted and how they are stored."""

    compacted: bool
    codec: Codec | None
    level: int | None
    append_time: bool
    before_max_ms: int
    after_max_ms: int
    max_message_bytes: int
    segment_bytes: int
    validates: bool
    max_inflated_bytes: int

    @classmethod
    def of(cls, config: Topic) -> ValidationRules:
        name = config.compression_type
        level = {
            "gzip": config.compression_gzip_level,
            "lz4": config.compression_lz4_level,
            "zstd": config.compression_zstd_level,
        }.get(name)
        return cls(
            compacted="compact" in config.cleanup_policy,
            codec=_CODEC_NAMES.get(name),
            level=level,
            append_time=config.message_timestamp_type == "LogAppendTime",
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            max_message_bytes=config.max_message_bytes,
            segment_bytes=config.segment_bytes,
            validates=config.record_validation_enable,
            max_inflated_bytes=config.max_decompressed_message_bytes,
        )

    def needs_walk(self, codec: int) -> bool:
        """Whether the records of a batch with this codec must be looked at."""
        return self.validates or self.compacted or self.recompresses(codec)

    def recompresses(self, codec: int) -> bool:
        return self.codec is not None and self.codec != codec


class NotInline(Exception):
    """A batch is too expensive to be checked on the event loop."""


class CheckedBatch(NamedTuple):
    """A batch whose records have been checked: these very bytes are stored."""

    batch: bytearray
    lowest_timestamp: int
    highest_timestamp: int
    rules: ValidationRules


def refusal(buf: bytearray, start: int, end: int, max_bytes: int, segment_bytes: int) -> KafkaError:
    """Say why a batch with an invalid header is refused."""
    size = end - start
    if size < HEADER_BYTES:
        # Older formats have shorter headers, with the magic at the same place.
        if size > LOG_OVERHEAD + 4 and buf[start + LOG_OVERHEAD + 4] < MAGIC:
            return _old_format(buf[start + LOG_OVERHEAD + 4])
        code = ErrorCode.INVALID_RECORD if size <= 0 else ErrorCode.CORRUPT_MESSAGE
        return KafkaError(code, f"{max(size, 0)} bytes are not a record batch")
    header = BatchHeader._make(HEADER.unpack_from(buf, start))
    if header.magic < MAGIC:
        return _old_format(header.magic)
    if header.magic > MAGIC:
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"unknown magic {header.magic}; this broker stores format {MAGIC}",
        )
    if header.size != size:
        return KafkaError(
            ErrorCode.INVALID_RECORD,
            f"expected one record batch of {header.size} bytes (from its header), got {size} bytes",
        )
    if size > max_bytes:
        return KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {size} bytes, but max.message.bytes is {max_bytes}",
        )
    if size > segment_bytes:
        return KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the record batch has {size} bytes, but segment.bytes is {segment_bytes}",
        )
    if header.base_offset != 0:
        return KafkaError(
            ErrorCode.INVALID_RECORD, f"the base offset must be 0, not {header.base_offset}"
        )
    return KafkaError(
        ErrorCode.INVALID_RECORD,
        f"the header says {header.record_count} records for {header.last_offset_delta + 1} offsets"
        f" in {size} bytes",
    )


def _old_format(magic: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        f"record format {magic} is too old; send format {MAGIC} (Kafka 0.11 or later)",
    )


def check_attributes(header: BatchHeader, rules: ValidationRules) -> None:
    """Refuse attributes that a producer must not set."""
    attributes = header.attributes
    if attributes & CODEC_MASK > PLAIN_ATTRIBUTES:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {attributes & CODEC_MASK}"
        )
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients must not write control records")
    if attributes & ~_KNOWN_FLAGS:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"unknown attributes {attributes:#06x}")
    if header.is_log_append_time and not rules.append_time:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "producers must not set the timestamp type LogAppendTime"
        )
    if header.is_transactional and header.producer_id < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "a transactional record batch needs a producer id"
        )


def check_timestamps(lowest: int, highest: int, rules: ValidationRules, now_ms: int) -> None:
    """Refuse timestamps too far from the clock, unless the topic uses LogAppendTime."""
    if rules.append_time:
        return
    if highest - now_ms > rules.after_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {highest} is more than {rules.after_max_ms} ms ahead of the"
            " broker's clock (message.timestamp.after.max.ms)",
        )
    if 0 <= lowest < now_ms - rules.before_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {lowest} is more than {rules.before_max_ms} ms behind the"
            " broker's clock (message.timestamp.before.max.ms)",
        )


def check_walk(flaw: int, at: int, without_key: int, rules: ValidationRules) -> None:
    """Refuse records with a flaw, and records without a key that compaction could not keep."""
    if flaw:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"{REASONS[Flaw(flaw)]} (byte {at} of the records)"
        )
    if without_key and rules.compacted:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a compacted topic needs a key in every record")


def check_inline(buf: bytearray, start: int, end: int, rules: ValidationRules) -> CheckedBatch:
    """Run `check_records` if it is cheap; raise NotInline if it is not."""
    codec = Codec(buf[start + ATTRIBUTES_AT + 1] & CODEC_MASK)
    if rules.recompresses(codec):
        limit = _INLINE_RECOMPRESSED_BYTES
    else:
        limit = _INLINE_GZIP_BYTES if codec is Codec.GZIP else _INLINE_INFLATED_BYTES
    if end - start > min(INLINE_PACKED_BYTES, limit):
        raise NotInline
    try:
        return check_records(buf[start:end], rules, min(limit, rules.max_inflated_bytes))
    except InflatedTooLarge:
        raise NotInline from None


def check_records(
    batch: bytearray, rules: ValidationRules, limit: int | None = None
) -> CheckedBatch:
    """Decompress and walk the records of a batch, and compress them again if the topic has another
    codec. The header and the attributes have been checked. With `limit`, raise InflatedTooLarge if
    the records have more bytes than that."""
    header = read_header(batch)
    codec = header.codec
    packed = memoryview(batch)[HEADER_BYTES:]
    try:
        if codec is Codec.NONE:
            data: bytes | bytearray | memoryview = packed
            if limit is not None and len(packed) > limit:
                raise InflatedTooLarge
        else:
            data = inflate(codec, packed, limit or rules.max_inflated_bytes)
            if not is_for_every_reader(codec, packed):
                raise Corrupt(
                    "its lz4 blocks depend on each other, which Java's clients cannot read"
                )
    except InflatedTooLarge as error:
        if limit is not None and limit < rules.max_inflated_bytes:
            raise
        raise _inflated_too_large(rules) from error
    except Corrupt as damage:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(damage)) from damage
    flaw, at, lowest, highest, without_key = walk(
        data, 0, len(data), header.record_count, header.base_timestamp
    )
    check_walk(flaw, at, without_key, rules)
    if rules.codec is not None and rules.codec is not codec:
        if rules.codec is not Codec.NONE and len(data) > rules.max_inflated_bytes:
            raise _inflated_too_large(rules)
        batch = recompress(header, data, rules.codec, rules.level)
        if len(batch) > min(rules.max_message_bytes, rules.segment_bytes):
            raise refusal(batch, 0, len(batch), rules.max_message_bytes, rules.segment_bytes)
    return CheckedBatch(batch, lowest, highest, rules)


def _inflated_too_large(rules: ValidationRules) -> KafkaError:
    # The answer on which Java's producer splits the batch and sends its parts.
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the records have more than {rules.max_inflated_bytes} bytes after decompression"
        " (max.decompressed.message.bytes)",
    )


def check_fetched_batch(
    batch: memoryview, header: BatchHeader, end_offset: int, epoch: int, newest_epoch: int
) -> None:
    """Raise Corrupt unless a batch from the leader is intact and follows the end of the log."""
    if header.magic != MAGIC or header.size < HEADER_BYTES or header.last_offset_delta < 0:
        raise Corrupt(f"the leader sent no valid batch header for offset {end_offset}")
    if crc32c(batch[ATTRIBUTES_AT:]) != header.crc:
        raise Corrupt(f"the batch at offset {header.base_offset} does not match its CRC")
    if header.base_offset < end_offset:
        raise Corrupt(f"the batch at offset {header.base_offset} does not follow {end_offset - 1}")
    if header.leader_epoch > newest_epoch:
        raise Corrupt(
            f"the batch at offset {header.base_offset} has epoch {header.leader_epoch},"
            f" but the leader that sent it is in epoch {newest_epoch}"
        )
    if header.leader_epoch < epoch:
        raise Corrupt(
            f"the batch at offset {header.base_offset} has epoch {header.leader_epoch},"
            f" but the batch before it has epoch {epoch}"
        )
    if header.attributes & CONTROL_FLAG:
        # Check markers before the write: a marker that cannot be applied must not be in the log.
        for record in records(batch):
            parse_marker(record)


def recompress(
    header: BatchHeader, data: bytes | bytearray | memoryview, codec: Codec, level: int | None
) -> bytearray:
    """Return a batch with the same records, which are in `data`, compressed with another codec."""
    packed = compress(codec, data, level)
    attributes = header.attributes & ~CODEC_MASK | codec
    length = HEADER_BYTES - LOG_OVERHEAD + len(packed)
    batch = bytearray(HEADER_BYTES)
    HEADER.pack_into(batch, 0, *header._replace(batch_length=length, crc=0, attributes=attributes))
    batch += packed
    crc = crc32c(memoryview(batch)[ATTRIBUTES_AT:])
    batch[CRC_AT : CRC_AT + 4] = crc.to_bytes(4, "big")
    return batch


def stamp_append_time(buf: bytearray, start: int, end: int, attributes: int, now_ms: int) -> None:
    """Make `now_ms` the timestamp of every record, and compute the CRC again."""
    stamped = (attributes | LOG_APPEND_TIME_FLAG) & 0xFFFF
    buf[start + ATTRIBUTES_AT : start + ATTRIBUTES_AT + 2] = stamped.to_bytes(2, "big")
    stamp_max_timestamp(buf, start, end, now_ms)


def stamp_max_timestamp(buf: bytearray, start: int, end: int, max_timestamp: int) -> None:
    """Correct the largest timestamp in the header, and compute the CRC again."""
    at = start + _MAX_TIMESTAMP_AT
    buf[at : at + 8] = max_timestamp.to_bytes(8, "big", signed=True)
    crc = crc32c(memoryview(buf)[start + ATTRIBUTES_AT : end])
    buf[start + CRC_AT : start + CRC_AT + 4] = crc.to_bytes(4, "big")


def settle_timestamps(
    buf: bytearray,
    start: int,
    end: int,
    lowest: int,
    highest: int,
    rules: ValidationRules,
    now_ms: int,
) -> tuple[int, int]:
    """Check the timestamps of a batch, and correct its header, which may say another maximum than
    the records have. Return the batch's maximum, and its log append time or -1."""
    header = read_header(buf, start)
    if rules.append_time:
        stamp_append_time(buf, start, end, header.attributes, now_ms)
        return now_ms, now_ms
    check_timestamps(lowest, max(highest, header.max_timestamp), rules, now_ms)
    if highest != header.max_timestamp:
        stamp_max_timestamp(buf, start, end, highest)
    return highest, -1


def convert_own(batch: bytearray, rules: ValidationRules, now_ms: int) -> bytearray:
    """Return a batch that the broker built as the topic's settings ask for."""
    codec = read_header(batch).codec
    if rules.recompresses(codec):
        batch = check_records(batch, rules).batch
    if rules.append_time:
        stamp_append_time(batch, 0, len(batch), read_header(batch).attributes, now_ms)
    return batch


def max_record_count(size: int, attributes: int) -> int:
    """Return the largest number of records that a batch of this size can hold. A header with a
    larger count would waste offsets."""
    room = size - HEADER_BYTES if not attributes & CODEC_MASK else MAX_INFLATED_BYTES
    return room // MIN_RECORD_BYTES


def marker_batch(
    producer: Producer,
    coordinator_epoch: int,
    is_commit: bool,
    rules: ValidationRules,
    now_ms: int,
) -> bytearray:
    """Build a transaction marker."""
    kind = ControlType.COMMIT if is_commit else ControlType.ABORT
    batch = build_marker(
        Marker(kind, coordinator_epoch),
        timestamp=now_ms,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
    )
    if rules.append_time:
        stamp_append_time(batch, 0, len(batch), read_header(batch).attributes, now_ms)
    return batch
