"""Validation and conversion of record batches beyond the plain case.

`Log.append` itself handles the batches that most producers send to most topics. Everything else is
here, off the fast path: the reasons to refuse a batch, and topics that stamp the append time, store
another codec, or need a key in every record.
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
    build,
    read_header,
    records,
)
from hightide.wire.compression import MAX_INFLATED_BYTES, Codec
from hightide.wire.control import ControlType, Marker, build_marker, parse_marker
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

PLAIN_ATTRIBUTES = max(Codec)
"""Attributes up to this number hold a codec and no flag."""
PLAIN_TRANSACTIONAL = TRANSACTIONAL_FLAG | PLAIN_ATTRIBUTES
"""Attributes from the flag up to this number hold a codec and the transactional flag."""
MIN_RECORD_BYTES = 7

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
        )

    @property
    def are_plain(self) -> bool:
        """Whether a batch with plain attributes and a valid timestamp needs no more checks."""
        return (
            not (self.compacted or self.codec is not None or self.append_time)
            and self.before_max_ms >= 1 << 62
        )


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


def check_timestamps(header: BatchHeader, rules: ValidationRules, now_ms: int) -> None:
    """Refuse timestamps too far from the clock, unless the topic uses LogAppendTime."""
    if rules.append_time:
        return
    if header.max_timestamp - now_ms > rules.after_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.max_timestamp} is more than {rules.after_max_ms} ms ahead of the"
            " broker's clock (message.timestamp.after.max.ms)",
        )
    if 0 <= header.base_timestamp < now_ms - rules.before_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} is more than {rules.before_max_ms} ms behind the"
            " broker's clock (message.timestamp.before.max.ms)",
        )


def check_keys(batch: memoryview) -> None:
    """Refuse records without a key: compaction could not keep them."""
    try:
        if any(record.key is None for record in records(batch)):
            raise KafkaError(
                ErrorCode.INVALID_RECORD, "a compacted topic needs a key in every record"
            )
    except Corrupt as damage:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(damage)) from damage


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
    batch: memoryview, header: BatchHeader, codec: Codec, level: int | None
) -> bytearray:
    """Return the same records compressed with the topic's codec."""
    try:
        return build(
            records(batch),
            codec=codec,
            level=level,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            max_timestamp=header.max_timestamp,
        )
    except (Corrupt, ValueError) as damage:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(damage)) from damage


def stamp_append_time(buf: bytearray, start: int, end: int, attributes: int, now_ms: int) -> None:
    """Make `now_ms` the timestamp of every record, and compute the CRC again."""
    stamped = (attributes | LOG_APPEND_TIME_FLAG) & 0xFFFF
    buf[start + ATTRIBUTES_AT : start + ATTRIBUTES_AT + 2] = stamped.to_bytes(2, "big")
    at = start + _MAX_TIMESTAMP_AT
    buf[at : at + 8] = now_ms.to_bytes(8, "big")
    crc = crc32c(memoryview(buf)[start + ATTRIBUTES_AT : end])
    buf[start + CRC_AT : start + CRC_AT + 4] = crc.to_bytes(4, "big")


def convert(
    buf: bytearray, view: memoryview, start: int, end: int, rules: ValidationRules, now_ms: int
) -> tuple[bytearray, int, int, int]:
    """Run the checks and conversions that the topic's settings ask for.

    Return the batch to store (buffer, start, end) and its log append time or -1.
    """
    header = BatchHeader._make(HEADER.unpack_from(buf, start))
    check_attributes(header, rules)
    check_timestamps(header, rules, now_ms)
    if rules.compacted:
        check_keys(view[start:end])
    attributes = header.attributes
    if rules.codec is not None and rules.codec is not header.codec:
        buf = recompress(view[start:end], header, rules.codec, rules.level)
        start, end = 0, len(buf)
        if end > min(rules.max_message_bytes, rules.segment_bytes):
            raise refusal(buf, 0, end, rules.max_message_bytes, rules.segment_bytes)
        attributes = BatchHeader._make(HEADER.unpack_from(buf)).attributes
    if not rules.append_time:
        return buf, start, end, -1
    stamp_append_time(buf, start, end, attributes, now_ms)
    return buf, start, end, now_ms


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
