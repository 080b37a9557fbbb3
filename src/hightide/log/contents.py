"""What the files of a log hold, read by their formats alone.

This is for the day on which a log is broken, so it trusts nothing: it does not go through the code
that writes these files, never stops at damage, and goes on with the next batch that proves itself
by its CRC. It holds one batch in memory at a time.
"""

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final, TypeAlias

from hightide.wire import batch as batches
from hightide.wire.batch import HEADER, HEADER_BYTES, LOG_OVERHEAD, BatchHeader, Record
from hightide.wire.compression import Codec
from hightide.wire.crc import Checksum, crc32c
from hightide.wire.errors import Corrupt

CHUNK_BYTES = 1024 * 1024
LARGEST_HELD_BYTES = 64 * 1024 * 1024
"""Larger batches are checked piece by piece, and their records are not shown."""

_FRONT = Struct(">qi4xb")
"""Offset, length and magic, which every format has at the same place."""
_MAGIC_AT = 16
_OLD_CRC = Struct(">12xI")
_MIN_OLD_LENGTH = 14


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch of format 2. Its header is shown as it is, right or wrong."""

    position: int
    header: BatchHeader
    crc_ok: bool
    problems: tuple[str, ...] = ()
    data: bytes | None = field(default=None, repr=False)
    """The whole batch, unless it is too large to be held."""

    @property
    def size(self) -> int:
        return self.header.size

    def records(self) -> Iterator[Record]:
        """Its records; Corrupt where they are damaged."""
        if self.data is None:
            raise Corrupt(f"a batch of {self.header.size} bytes is too large to be opened")
        return batches.records(self.data)


@dataclass(frozen=True, slots=True)
class OldMessage:
    """A message, or a set of compressed ones, that a Kafka before 0.11 wrote; passed over."""

    position: int
    size: int
    offset: int
    magic: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that cannot be read as what they should be."""

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


def read(path: Path) -> Iterator[Dumped]:
    """The contents of a segment or of one of the files beside it, told apart by its name."""
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
    """The batches of a segment whose first offset should be at least `base_offset`."""
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
        # The length may be as wrong as the rest, unless something begins where it leads.
        after = at + found.size
        if after < end and not _may_begin(_bytes_at(file, after, HEADER_BYTES)):
            found = "its CRC is wrong, and no batch begins where it says that it ends"
    if isinstance(found, str):
        return Damage(at, _find_batch(file, at + 1, end, next_offset) - at, found)
    return found


def _bytes_at(file: BinaryIO, at: int, length: int) -> bytes:
    file.seek(at)
    return file.read(length)


def _try_at(file: BinaryIO, at: int, end: int, next_offset: int) -> DumpedBatch | OldMessage | str:
    """What begins at `at`, or why nothing can."""
    front = _bytes_at(file, at, HEADER_BYTES)
    if len(front) < _FRONT.size:
        return f"the file ends after {len(front)} bytes of a batch"
    offset, length, magic = _FRONT.unpack_from(front)
    size = LOG_OVERHEAD + length
    if not any(front) and _is_zero(file, at, end):
        return "nothing but zeros: the space was reserved and never written, or was lost"
    if magic in (0, 1) and length >= _MIN_OLD_LENGTH and at + size <= end:
        if _OLD_CRC.unpack_from(front) == (_checksum(zlib.crc32, file, at + _MAGIC_AT, at + size),):
            return OldMessage(at, size, offset, magic)
        return f"a message of the old format {magic} may begin here, but its CRC is wrong"
    if magic != batches.MAGIC:
        return f"no batch begins here: the magic is {magic} and the length {length}"
    if size < HEADER_BYTES:
        return f"the batch claims an impossible length of {length}"
    if at + size > end or len(front) < HEADER_BYTES:
        return f"the batch claims {size} bytes, and the file ends after {end - at}"
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
        problems.append(f"it names an unknown codec, {header.attributes & batches.CODEC_MASK}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        count, offsets = header.record_count, header.last_offset_delta + 1
        problems.append(f"it claims {count} records for {offsets} offsets")
    if header.base_offset < next_offset:
        problems.append(
            f"its offsets begin at {header.base_offset} and not after {next_offset - 1}"
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
    """Whether a batch may begin with these bytes, or an older message, or reserved space."""
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
    """Where the next batch begins that its CRC proves and that has later offsets; else `end`."""
    magic = bytes((batches.MAGIC,))
    while at < end:
        # Neighbouring chunks overlap by a header, so that none is missed between them.
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
    """A file of entries of one size."""

    layout: Struct
    names: tuple[str, ...]
    relative: str | None = None
    """The field that counts from the segment's base offset."""


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
        # Kafka reserves the space of an index that is in use; what is not used yet is zero.
        if previous is not None and not any(data) and _is_zero(file, at, end):
            return
        values = table.layout.unpack(data)
        problems = []
        if table.relative and previous and not all(map(int.__ge__, values, previous)):
            problems.append("it does not ascend from the entry before it")
        previous = values
        fields = dict(zip(table.names, values, strict=True))
        if table.relative:
            fields[table.relative] += base_offset
        yield Entry(at, fields, tuple(problems))
    if end % size:
        yield Damage(end - end % size, end % size, f"{end % size} bytes are no entry of {size}")


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
        yield Damage(0, len(data), "the producer snapshot ends inside its front")
        return
    version, crc, count = _SNAPSHOT_FRONT.unpack_from(data)
    if version != 1:
        yield Damage(0, len(data), f"producer snapshots of version {version} are unknown")
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
        yield Damage(
            at, len(data) - at, f"{count} producers are missing in the bytes that are left"
        )


def _read_epochs(data: bytes) -> Iterator[Entry | Damage]:
    """A line with the version, one with the count, and one for each epoch with its start offset."""
    lines = data.split(b"\n")
    at = 0
    entries = 0
    for number, line in enumerate(lines):
        words = line.split()
        if number >= 2 and words:
            try:
                epoch, start_offset = map(int, words)
            except ValueError:
                yield Damage(at, len(line), "no epoch and start offset are on this line")
            else:
                yield Entry(at, {"leader_epoch": epoch, "start_offset": start_offset})
            entries += 1
        at += len(line) + 1
    if lines[0].strip() != b"0":
        yield Damage(0, len(lines[0]), "the version on the first line is not 0")
    if len(lines) < 2 or lines[1].strip() != b"%d" % entries:
        yield Damage(0, len(data), f"the second line does not say {entries}, the number of epochs")
