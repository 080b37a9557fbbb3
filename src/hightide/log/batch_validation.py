"""What a log checks and changes in a producer's batch beyond the plain case.

`Log.append` itself handles the batch that most producers send to most topics. Everything that
needs a second look is here, out of the way of the fast path: batches that must be refused, topics
that stamp the time of arrival, that store another codec, or that need a key in every record.
"""

from __future__ import annotations

from typing import NamedTuple

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
    records,
)
from hightide.wire.compression import MAX_INFLATED_BYTES, Codec
from hightide.wire.control import parse_marker
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

PLAIN_ATTRIBUTES = max(Codec)
"""Attributes up to this number name a codec and nothing else."""
PLAIN_TRANSACTIONAL = TRANSACTIONAL_FLAG | PLAIN_ATTRIBUTES
"""From the flag itself up to this number they also say that a batch is part of a transaction."""
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


class Rules(NamedTuple):
    """A topic's settings for what may come in, in the form that the checks need."""

    compacted: bool
    codec: Codec | None
    level: int | None
    append_time: bool
    before_max_ms: int
    after_max_ms: int

    @classmethod
    def of(cls, config: Topic) -> Rules:
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
        )

    @property
    def are_plain(self) -> bool:
        """Whether a batch with plain attributes and a timestamp in time needs no other look."""
        return (
            not (self.compacted or self.codec is not None or self.append_time)
            and self.before_max_ms >= 1 << 62
        )


def refusal(buf: bytearray, start: int, end: int, max_bytes: int, segment_bytes: int) -> KafkaError:
    """Why a batch whose header does not fit its place is refused."""
    size = end - start
    if size < HEADER_BYTES:
        # Formats before the current one had shorter headers, with the magic in the same place.
        if size > LOG_OVERHEAD + 4 and buf[start + LOG_OVERHEAD + 4] < MAGIC:
            return _old_format(buf[start + LOG_OVERHEAD + 4])
        code = ErrorCode.INVALID_RECORD if size <= 0 else ErrorCode.CORRUPT_MESSAGE
        return KafkaError(code, f"{max(size, 0)} bytes are no record batch")
    header = BatchHeader._make(HEADER.unpack_from(buf, start))
    if header.magic < MAGIC:
        return _old_format(header.magic)
    if header.magic > MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"magic {header.magic} is not known")
    if header.size != size:
        return KafkaError(
            ErrorCode.INVALID_RECORD,
            f"exactly one batch is expected: it claims {header.size} bytes, {size} were sent",
        )
    if size > max_bytes:
        return KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, max.message.bytes is {max_bytes}",
        )
    if size > segment_bytes:
        return KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {size} bytes, segment.bytes is {segment_bytes}",
        )
    if header.base_offset != 0:
        return KafkaError(
            ErrorCode.INVALID_RECORD, f"the base offset must be 0, not {header.base_offset}"
        )
    return KafkaError(
        ErrorCode.INVALID_RECORD,
        f"the batch claims {header.record_count} records for {header.last_offset_delta + 1} offsets"
        f" in {size} bytes",
    )


def _old_format(magic: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        f"record format {magic} is too old; only format {MAGIC} is stored",
    )


def check_attributes(header: BatchHeader, rules: Rules) -> None:
    """Refuse flags that a producer may not set."""
    attributes = header.attributes
    if attributes & CODEC_MASK > PLAIN_ATTRIBUTES:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {attributes & CODEC_MASK} is not known"
        )
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if attributes & ~_KNOWN_FLAGS:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"attributes {attributes:#06x} are not known")
    if header.is_log_append_time and not rules.append_time:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "producers may not set the timestamp type LogAppendTime"
        )
    if header.is_transactional and header.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")


def check_timestamps(header: BatchHeader, rules: Rules, now_ms: int) -> None:
    """Refuse timestamps too far from the clock; topics that stamp their own do not look."""
    if rules.append_time:
        return
    if header.max_timestamp - now_ms > rules.after_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.max_timestamp} is more than {rules.after_max_ms} ms ahead",
        )
    if 0 <= header.base_timestamp < now_ms - rules.before_max_ms:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.base_timestamp} is more than {rules.before_max_ms} ms ago",
        )


def check_keys(batch: memoryview) -> None:
    """Refuse records without a key: compaction could never keep them."""
    try:
        if any(record.key is None for record in records(batch)):
            raise KafkaError(
                ErrorCode.INVALID_RECORD, "a compacted topic needs a key in every record"
            )
    except Corrupt as damage:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(damage)) from damage


def check_copy(
    batch: memoryview, header: BatchHeader, end_offset: int, epoch: int, newest_epoch: int
) -> None:
    """Raise Corrupt unless a batch from the leader is whole and follows what is there."""
    if header.magic != MAGIC or header.size < HEADER_BYTES or header.last_offset_delta < 0:
        raise Corrupt(f"what should be the batch at offset {end_offset} is none")
    if crc32c(batch[ATTRIBUTES_AT:]) != header.crc:
        raise Corrupt(f"the batch at offset {header.base_offset} does not match its CRC")
    if header.base_offset < end_offset:
        raise Corrupt(f"the batch at offset {header.base_offset} does not follow {end_offset - 1}")
    if header.leader_epoch > newest_epoch:
        raise Corrupt(
            f"the batch at offset {header.base_offset} is of epoch {header.leader_epoch},"
            f" but who sent it leads in epoch {newest_epoch}"
        )
    if header.leader_epoch < epoch:
        raise Corrupt(
            f"the batch at offset {header.base_offset} is of epoch {header.leader_epoch},"
            f" the one before it of epoch {epoch}"
        )
    if header.attributes & CONTROL_FLAG:
        # What cannot be followed must not be written: it would be found half way through.
        for record in records(batch):
            parse_marker(record)


def recompress(
    batch: memoryview, header: BatchHeader, codec: Codec, level: int | None
) -> bytearray:
    """The same records in the topic's own codec."""
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
    """Make `now_ms` the time of every record. Both changes lie under the CRC, so it changes too."""
    stamped = (attributes | LOG_APPEND_TIME_FLAG) & 0xFFFF
    buf[start + ATTRIBUTES_AT : start + ATTRIBUTES_AT + 2] = stamped.to_bytes(2, "big")
    at = start + _MAX_TIMESTAMP_AT
    buf[at : at + 8] = now_ms.to_bytes(8, "big")
    crc = crc32c(memoryview(buf)[start + ATTRIBUTES_AT : end])
    buf[start + CRC_AT : start + CRC_AT + 4] = crc.to_bytes(4, "big")


def count_limit(size: int, attributes: int) -> int:
    """The most records that a batch of this size can really hold, so that no header can make the
    offsets leap."""
    room = size - HEADER_BYTES if not attributes & CODEC_MASK else MAX_INFLATED_BYTES
    return room // MIN_RECORD_BYTES
