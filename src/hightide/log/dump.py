"""Dumping the files of a log for people: every batch and record, and all damage.

dump(path)        the contents of one file, item by item
describe(item)    an item as lines of text
plain(item)       an item as JSON values

A dump is for a log that is broken, so it trusts nothing. It reads the file formats by itself, not
through the code that writes them, and never stops at damage: it continues with the next batch whose
CRC is right. It holds one batch in memory at a time.
"""

import os
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final, TypeAlias

from hightide.wire import batch as batches
from hightide.wire.batch import HEADER, HEADER_BYTES, LOG_OVERHEAD, BatchHeader, Record
from hightide.wire.compression import Codec
from hightide.wire.control import parse_marker
from hightide.wire.crc import Checksum, crc32c
from hightide.wire.errors import Corrupt

CHUNK_BYTES = 1024 * 1024
LARGEST_HELD_BYTES = 64 * 1024 * 1024
"""Larger batches are checked piece by piece, and their records are not shown."""

_FRONT = Struct(">qi4xb")
"""Offset, length and magic, which all formats have at the same place."""
_MAGIC_AT = 16
_OLD_CRC = Struct(">12xI")
_MIN_OLD_LENGTH = 14


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch of format 2. Its header is shown as it is, valid or not."""

    position: int
    header: BatchHeader
    crc_ok: bool
    problems: tuple[str, ...] = ()
    data: bytes | None = field(default=None, repr=False)
    """The batch, unless it is too large to hold."""

    @property
    def size(self) -> int:
        return self.header.size

    def records(self) -> Iterator[Record]:
        """Yield the records; raise Corrupt where they are damaged."""
        if self.data is None:
            raise Corrupt(f"a batch of {self.header.size} bytes is too large to show its records")
        return batches.records(self.data)


@dataclass(frozen=True, slots=True)
class OldMessage:
    """A message, or a set of compressed messages, from Kafka before 0.11; not shown."""

    position: int
    size: int
    offset: int
    magic: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that cannot be decoded."""

    position: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an index, a producer snapshot or a leader-epoch checkpoint."""

    position: int
    fields: Mapping[str, int]
    problems: tuple[str, ...] = ()


Dumped: TypeAlias = DumpedBatch | OldMessage | Damage | Entry


def dump(path: Path) -> Iterator[Dumped]:
    """Yield the contents of a segment or of one of its other files; the name says which."""
    if path.name == "leader-epoch-checkpoint":
        yield from _read_epochs(path.read_bytes())
        return
    number, *suffixes = path.name.split(".")
    base_offset = int(number) if number.isascii() and number.isdigit() else 0
    kind = suffixes[0] if suffixes else "log"
    with path.open("rb", buffering=CHUNK_BYTES) as file:
        if kind == "snapshot":
            yield from _read_snapshot(file.read())
        elif kind in _TABLES:
            yield from _read_table(file, _TABLES[kind], base_offset)
        else:
            yield from read_segment(file, base_offset)


def read_segment(
    file: BinaryIO, base_offset: int = 0
) -> Iterator[DumpedBatch | OldMessage | Damage]:
    """Yield the batches of a segment whose first offset should be at least `base_offset`."""
    end = file.seek(0, os.SEEK_END)
    at = 0
    next_offset = base_offset
    while at < end:
        item = _item_at(file, at, end, next_offset)
        if isinstance(item, OldMessage):
            next_offset = item.offset + 1
        elif isinstance(item, DumpedBatch) and item.crc_ok:
            next_offset = item.header.last_offset + 1
        yield item
        at += item.size


def _item_at(
    file: BinaryIO, at: int, end: int, next_offset: int
) -> DumpedBatch | OldMessage | Damage:
    found = _try_at(file, at, end, next_offset)
    if isinstance(found, DumpedBatch) and not found.crc_ok:
        # The length may be wrong too, unless a batch begins where this one ends.
        after = at + found.size
        if after < end and not _may_begin(_bytes_at(file, after, HEADER_BYTES)):
            found = "its CRC is wrong, and no batch begins where its length says that it ends"
    if isinstance(found, str):
        return Damage(at, _find_batch(file, at + 1, end, next_offset) - at, found)
    return found


def _bytes_at(file: BinaryIO, at: int, length: int) -> bytes:
    file.seek(at)
    return file.read(length)


def _try_at(file: BinaryIO, at: int, end: int, next_offset: int) -> DumpedBatch | OldMessage | str:
    """Return the batch or message at `at`, or the reason why there is none."""
    front = _bytes_at(file, at, HEADER_BYTES)
    if len(front) < _FRONT.size:
        return f"the file ends after {len(front)} bytes of a batch"
    offset, length, magic = _FRONT.unpack_from(front)
    size = LOG_OVERHEAD + length
    if not any(front) and _is_zero(file, at, end):
        return "only zeros: the space was preallocated and never written, or its content was lost"
    if magic in (0, 1) and length >= _MIN_OLD_LENGTH and at + size <= end:
        if _OLD_CRC.unpack_from(front) == (_checksum(zlib.crc32, file, at + _MAGIC_AT, at + size),):
            return OldMessage(at, size, offset, magic)
        return f"a message of the old format {magic} may begin here, but its CRC is wrong"
    if magic != batches.MAGIC:
        return f"no batch begins here: the magic is {magic} and the length {length}"
    if size < HEADER_BYTES:
        return f"the length of the batch is {length}, which is impossible"
    if at + size > end or len(front) < HEADER_BYTES:
        return f"the batch has {size} bytes by its header, but the file ends after {end - at}"
    return _open_batch(file, at, batches.read_header(front), next_offset)


def _open_batch(file: BinaryIO, at: int, header: BatchHeader, next_offset: int) -> DumpedBatch:
    data = _bytes_at(file, at, header.size) if header.size <= LARGEST_HELD_BYTES else None
    if data is None:
        crc = _checksum(crc32c, file, at + batches.ATTRIBUTES_AT, at + header.size)
    else:
        crc = crc32c(memoryview(data)[batches.ATTRIBUTES_AT :])
    problems = []
    if crc != header.crc:
        problems.append(f"its CRC is {crc:#010x} instead of {header.crc:#010x}")
    if header.attributes & batches.CODEC_MASK > max(Codec):
        problems.append(f"its codec {header.attributes & batches.CODEC_MASK} is unknown")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        count, offsets = header.record_count, header.last_offset_delta + 1
        problems.append(f"its header says {count} records for {offsets} offsets")
    if header.base_offset < next_offset:
        problems.append(
            f"its base offset is {header.base_offset}, which is not after {next_offset - 1}"
        )
    return DumpedBatch(at, header, crc == header.crc, tuple(problems), data)


def _checksum(algorithm: Checksum, file: BinaryIO, at: int, end: int) -> int:
    crc = 0
    file.seek(at)
    while at < end and (piece := file.read(min(CHUNK_BYTES, end - at))):
        crc = algorithm(piece, crc)
        at += len(piece)
    return crc


def _is_zero(file: BinaryIO, at: int, end: int) -> bool:
    file.seek(at)
    while at < end and (piece := file.read(min(CHUNK_BYTES, end - at))):
        if piece.count(0) != len(piece):
            return False
        at += len(piece)
    return True


def _may_begin(front: bytes) -> bool:
    """Say whether a batch, an older message or preallocated space may begin with these bytes."""
    if len(front) < HEADER_BYTES or not any(front):
        return True
    offset, length, magic = _FRONT.unpack_from(front)
    if magic in (0, 1):
        return bool(offset >= 0 and length >= _MIN_OLD_LENGTH)
    return _is_plausible(BatchHeader._make(HEADER.unpack(front)))


def _is_plausible(header: BatchHeader) -> bool:
    return (
        header.magic == batches.MAGIC
        and header.base_offset >= 0
        and header.batch_length >= HEADER_BYTES - LOG_OVERHEAD
        and header.attributes & ~0x7F == 0
        and header.attributes & batches.CODEC_MASK <= max(Codec)
        and 0 <= header.record_count <= header.last_offset_delta + 1
    )


def _find_batch(file: BinaryIO, at: int, end: int, next_offset: int) -> int:
    """Return where the next batch with a right CRC and later offsets begins; `end` if none."""
    magic = bytes((batches.MAGIC,))
    while at < end:
        # Chunks overlap by a header, so that no batch is missed between two of them.
        chunk = _bytes_at(file, at, CHUNK_BYTES + HEADER_BYTES - 1)
        start = chunk.find(magic, _MAGIC_AT) - _MAGIC_AT
        while 0 <= start <= len(chunk) - HEADER_BYTES and start < CHUNK_BYTES:
            header = batches.read_header(chunk, start)
            if (
                _is_plausible(header)
                and header.base_offset >= next_offset
                and at + start + header.size <= end
                and _open_batch(file, at + start, header, next_offset).crc_ok
            ):
                return at + start
            start = chunk.find(magic, start + _MAGIC_AT + 1) - _MAGIC_AT
        at += CHUNK_BYTES
    return end


@dataclass(frozen=True, slots=True)
class _Table:
    """A file with entries of one size."""

    layout: Struct
    names: tuple[str, ...]
    relative: str | None = None
    """The field that is relative to the segment's base offset."""


_TABLES: Final = {
    "index": _Table(Struct(">ii"), ("offset", "position"), "offset"),
    "timeindex": _Table(Struct(">qi"), ("timestamp", "offset"), "offset"),
    "txnindex": _Table(
        Struct(">hqqqq"),
        ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset"),
    ),
}


def _read_table(file: BinaryIO, table: _Table, base_offset: int) -> Iterator[Entry | Damage]:
    end = file.seek(0, os.SEEK_END)
    size = table.layout.size
    previous: tuple[int, ...] | None = None
    for at in range(0, end - size + 1, size):
        data = _bytes_at(file, at, size)
        if len(data) < size:
            return
        # Kafka preallocates the file of an index in use; the unused rest is zero.
        if previous is not None and not any(data) and _is_zero(file, at, end):
            return
        values = table.layout.unpack(data)
        problems = []
        if table.relative and previous and not all(map(int.__ge__, values, previous)):
            problems.append("it is not greater than the entry before it")
        previous = values
        fields = dict(zip(table.names, values, strict=True))
        if table.relative:
            fields[table.relative] += base_offset
        yield Entry(at, fields, tuple(problems))
    if end % size:
        yield Damage(
            end - end % size, end % size, f"{end % size} bytes are not an entry of {size} bytes"
        )


_SNAPSHOT_FRONT = Struct(">hIi")
_SNAPSHOT_CRC_END = 6
_PRODUCER = Struct(">qhiqiqiq")
_PRODUCER_FIELDS: Final = (
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "last_offset",
    "offset_delta",
    "timestamp",
    "coordinator_epoch",
    "current_transaction_first_offset",
)


def _read_snapshot(data: bytes) -> Iterator[Entry | Damage]:
    if len(data) < _SNAPSHOT_FRONT.size:
        yield Damage(0, len(data), "the producer snapshot ends inside its header")
        return
    version, crc, count = _SNAPSHOT_FRONT.unpack_from(data)
    if version != 1:
        yield Damage(0, len(data), f"unknown producer snapshot version {version}")
        return
    actual = crc32c(memoryview(data)[_SNAPSHOT_CRC_END:])
    if actual != crc:
        yield Damage(0, len(data), f"the snapshot's CRC is {actual:#010x} instead of {crc:#010x}")
    at = _SNAPSHOT_FRONT.size
    while count > 0 and len(data) - at >= _PRODUCER.size:
        values = _PRODUCER.unpack_from(data, at)
        yield Entry(at, dict(zip(_PRODUCER_FIELDS, values, strict=True)))
        at += _PRODUCER.size
        count -= 1
    if count or at != len(data):
        yield Damage(at, len(data) - at, f"{count} producers are missing from the rest of the file")


def _read_epochs(data: bytes) -> Iterator[Entry | Damage]:
    """Read a leader-epoch checkpoint: the version, the count, then one epoch and start offset in
    each line."""
    lines = data.split(b"\n")
    at = 0
    entries = 0
    for number, line in enumerate(lines):
        words = line.split()
        if number >= 2 and words:
            try:
                epoch, start_offset = map(int, words)
            except ValueError:
                yield Damage(at, len(line), "this line has no epoch and start offset")
            else:
                yield Entry(at, {"leader_epoch": epoch, "start_offset": start_offset})
            entries += 1
        at += len(line) + 1
    if lines[0].strip() != b"0":
        yield Damage(0, len(lines[0]), "the version on the first line is not 0")
    if len(lines) < 2 or lines[1].strip() != b"%d" % entries:
        yield Damage(0, len(data), f"the second line is not {entries}, the number of epochs")


# ---- presentation


def describe(item: Dumped, *, with_records: bool = False) -> Iterator[str]:
    """Yield the lines of text for an item, without control characters for a terminal."""
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
    """Return the bytes as text if they are UTF-8, with unprintable characters escaped."""
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
    """Return an item as JSON values; bytes that are not text become {"base64": ...}."""
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
