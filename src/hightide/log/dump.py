"""The contents of a log's files for people: every batch and record, and whatever is damaged.

dump(path)        the contents of one file, one by one
describe(item)    one of them as lines of text
plain(item)       one of them as what JSON can hold
"""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from hightide.log.contents import Damage, Dumped, DumpedBatch, Entry, OldMessage
from hightide.log.contents import read as dump
from hightide.wire import batch as batches
from hightide.wire.batch import BatchHeader, Record
from hightide.wire.compression import Codec
from hightide.wire.control import parse_marker
from hightide.wire.errors import Corrupt

__all__ = ["Damage", "Dumped", "DumpedBatch", "Entry", "OldMessage", "describe", "dump", "plain"]


def describe(item: Dumped, *, with_records: bool = False) -> Iterator[str]:
    """The lines of text for one item; nothing in them can act on a terminal."""
    match item:
        case Damage():
            yield f"damaged: {item.size} bytes from {item.position}: {item.reason}"
        case OldMessage():
            yield (
                f"offset {item.offset} at {item.position} size {item.size}: "
                f"a message of the old format {item.magic}, not shown"
            )
        case Entry():
            text = " ".join(f"{name} {value}" for name, value in item.fields.items())
            yield f"{text} at {item.position}" + _complain(item.problems)
        case DumpedBatch():
            yield _describe_header(item)
            if with_records:
                yield from _describe_records(item)


def _complain(problems: tuple[str, ...]) -> str:
    return f"  DAMAGED: {'; '.join(problems)}" if problems else ""


def _flags(header: BatchHeader) -> list[str]:
    flags = {
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete-horizon": header.delete_horizon_ms is not None,
        "log-append-time": header.is_log_append_time,
    }
    return [name for name, is_set in flags.items() if is_set]


def _codec_name(header: BatchHeader) -> str:
    number = header.attributes & batches.CODEC_MASK
    return Codec(number).name.lower() if number <= max(Codec) else f"unknown-{number}"


def _describe_header(item: DumpedBatch) -> str:
    header = item.header
    words = [
        f"offsets {header.base_offset}-{header.last_offset} count {header.record_count}",
        f"at {item.position} size {header.size} crc {'ok' if item.crc_ok else 'WRONG'}",
        f"codec {_codec_name(header)} epoch {header.leader_epoch}",
    ]
    if header.producer_id >= 0:
        words.append(
            f"producer {header.producer_id} producer-epoch {header.producer_epoch} "
            f"sequence {header.base_sequence}"
        )
    words.append(f"time {_time(header.base_timestamp)} to {_time(header.max_timestamp)}")
    return " ".join(words + _flags(header)) + _complain(item.problems)


def _describe_records(item: DumpedBatch) -> Iterator[str]:
    try:
        for record in item.records():
            yield f"  offset {record.offset} time {_time(record.timestamp)} " + _content(
                item, record
            )
    except Corrupt as damage:
        yield f"  DAMAGED: {damage}"


def _content(item: DumpedBatch, record: Record) -> str:
    if item.header.is_control:
        with suppress(Corrupt):
            if marker := parse_marker(record):
                return f"{marker.type.name} coordinator-epoch {marker.coordinator_epoch}"
    text = f"key {_quote(record.key)} value {_quote(record.value)}"
    if record.headers:
        pairs = (f"{key!r}: {_quote(value)}" for key, value in record.headers)
        text += f" headers {{{', '.join(pairs)}}}"
    return text


def _quote(value: bytes | None) -> str:
    """Text where the bytes are text, with everything escaped that does not print."""
    if value is None:
        return "null"
    try:
        return repr(value.decode())
    except UnicodeDecodeError:
        return repr(value)


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return str(timestamp_ms)
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Plain: TypeAlias = str | int | list["Plain"] | dict[str, "Plain"] | None


def plain(item: Dumped, *, with_records: bool = False) -> dict[str, Plain]:
    """The item as what JSON can hold; bytes that are no text become {"base64": ...}."""
    match item:
        case Damage():
            return {"damaged": item.reason, "position": item.position, "size": item.size}
        case OldMessage():
            return {
                "offset": item.offset,
                "position": item.position,
                "size": item.size,
                "magic": item.magic,
            }
        case Entry():
            return {**item.fields, "position": item.position, "problems": [*item.problems]}
        case DumpedBatch():
            header = item.header
            out: dict[str, Plain] = {
                **header._asdict(),
                "last_offset": header.last_offset,
                "position": item.position,
                "size": header.size,
                "crc_ok": item.crc_ok,
                "codec": _codec_name(header),
                "flags": [*_flags(header)],
                "problems": [*item.problems],
            }
            if with_records:
                shown: list[Plain] = []
                out["records"] = shown
                try:
                    shown.extend(_plain_record(record) for record in item.records())
                except Corrupt as damage:
                    out["problems"] = [*item.problems, str(damage)]
            return out


def _plain_record(record: Record) -> dict[str, Plain]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _plain_bytes(record.key),
        "value": _plain_bytes(record.value),
        "headers": [
            [key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), _plain_bytes(value)]
            for key, value in record.headers
        ],
    }


def _plain_bytes(value: bytes | None) -> Plain:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
