"""Damaged parts of a log: how they are found, and which offsets are refused because of them.

    .log file   │ batch │ batch │ damaged bytes │ batch │ batch │
    offsets     │ 0..9  │10..19 │  20..29 lost  │30..39 │40..49 │     a `Hole`: 20..29

`Scan` reads a file batch by batch. The CRC covers everything but the base offset, the length and
the leader epoch. These follow from the neighbours: each batch begins where the last one ends,
except where compaction removed records, and the log's history has the leader epochs. After damaged
bytes the scan looks for the next intact batch, so one flipped bit costs one batch. The batch that
it finds has no neighbour before it, so something else must agree with its base offset.

`Damage` is a log's list of holes. A read inside a hole is refused with CORRUPT_MESSAGE, and a read
before it ends there: a consumer never gets damaged records, and never jumps over missing ones. The
holes are kept in a file of the log, with a checksum, until the records are copied from another
replica (`log/repair.py`).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from hightide.log.checkpoint import decode_lines, encode_lines
from hightide.log.disk import Disk, File
from hightide.log.index import MAX_RELATIVE_OFFSET
from hightide.log.segment import LOG, MAX_OFFSET, Segment, Slice
from hightide.wire.batch import ATTRIBUTES_AT, HEADER_BYTES, LOG_OVERHEAD, MAGIC
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.log.log import Log

DAMAGED_OFFSETS = "damaged-offsets"

READ_BYTES = 1024 * 1024
_MIN_LENGTH = HEADER_BYTES - LOG_OVERHEAD
_MAGIC_AT = 16
# Base offset, length, leader epoch, magic, CRC, last offset delta.
_unpack = Struct(">qiibI2xi").unpack_from
_UNLIMITED = 1 << 62

_log = logging.getLogger(__name__)

DAMAGED_SUFFIX = "-damaged"
_MAX_NAME_BYTES = 255

Epochs = Sequence[tuple[int, int]]
"""Leader epochs and their start offsets, oldest first."""


class DamagedBytes(NamedTuple):
    """A part of a segment's file that is not intact, and the offsets that it costs."""

    position: int
    end: int
    start_offset: int
    end_offset: int
    why: str


class Hole(NamedTuple):
    """Offsets whose records are lost here. Another replica may have them."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1}"


class Extent(NamedTuple):
    """The part of a segment that a scan covers, and what its batches must fit."""

    base_offset: int
    limit_offset: int
    size: int
    gaps_before: int
    """Compaction may have removed records before this offset."""
    epochs: Epochs = ()
    epochs_before: int = MAX_OFFSET
    """The history of leader epochs is complete before this offset."""

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the batch at `offset`; -1 if it is not known."""
        if offset >= self.epochs_before:
            return -1
        known = bisect_right(self.epochs, offset, key=lambda entry: entry[1]) - 1
        return self.epochs[known][0] if known >= 0 else -1

    def epoch_end(self, offset: int) -> int:
        """Return where the next leader epoch begins."""
        following = bisect_right(self.epochs, offset, key=lambda entry: entry[1])
        return self.epochs[following][1] if following < len(self.epochs) else MAX_OFFSET

    @classmethod
    def of(cls, log: Log, segment: Segment) -> Extent:
        """Describe a segment of a log, up to damage that is known."""
        size, limit = segment.size, min(segment.limit_offset, log.end_offset)
        for known in log.damage.pending.get(segment, ())[:1]:
            size, limit = known.position, known.start_offset
        return cls(segment.base_offset, limit, size, segment.gaps_before, log.epochs.entries)


class Scan:
    """A check of every batch of a segment's file, in steps. It may run in any thread."""

    def __init__(
        self, file: File, extent: Extent, position: int = 0, expected: int | None = None
    ) -> None:
        """Begin at `position`, with the batch that holds offset `expected`."""
        self.position = position
        self.damage: list[DamagedBytes] = []
        self._file = file
        self._extent = extent
        self.expected = extent.base_offset if expected is None else expected
        # The first batch may begin before the offset, also at the beginning of the file.
        self._is_first = expected is not None
        self._starts = [start for _, start in extent.epochs]
        self._buffer = bytearray()

    @property
    def is_done(self) -> bool:
        return self.position >= self._extent.size

    def run(self) -> list[DamagedBytes]:
        """Check the rest of the file; return the damaged parts."""
        self.step(_UNLIMITED, _UNLIMITED)
        return self.damage

    def step(self, max_bytes: int, max_batches: int) -> None:
        """Check some bytes, up to the end of a batch."""
        until = min(self._extent.size, self.position + max_bytes)
        while self.position < until and max_batches > 0:
            max_batches -= self._block(until, max_batches)
        expected, extent = self.expected, self._extent
        if self.is_done and extent.limit_offset > max(expected, extent.gaps_before):
            self.expected = extent.limit_offset
            why = f"{self._file.path} ends before offset {extent.limit_offset}"
            lost = DamagedBytes(extent.size, extent.size, expected, self.expected, why)
            self.damage.append(lost)

    # One long function: it runs for every batch of gigabytes, and a call per batch would double
    # its time for small batches.
    def _block(self, until: int, max_batches: int) -> int:
        """Check the batches of one block; return their number."""
        size = self._extent.size
        if len(self._buffer) < READ_BYTES:
            self._buffer = bytearray(min(READ_BYTES, size))
        buffer, start = self._buffer, self.position
        view = memoryview(buffer)
        filled = self._file.read_into(view[: size - start], start)
        at = count = 0
        expected = self.expected
        limit = min(self._extent.limit_offset, self._extent.base_offset + MAX_RELATIVE_OFFSET + 1)
        gaps_before, starts, epochs = self._extent.gaps_before, self._starts, self._extent.epochs
        epochs_before = self._extent.epochs_before
        why = ""
        while filled - at >= HEADER_BYTES and start + at < until and count < max_batches:
            offset, length, epoch, magic, crc, delta = _unpack(buffer, at)
            after = at + LOG_OVERHEAD + length
            if magic != MAGIC or length < _MIN_LENGTH or start + after > size:
                why = "there is no record batch"
                break
            if after > filled:
                break
            if crc32c(view[at + ATTRIBUTES_AT : after]) != crc:
                why = "the CRC of the record batch does not match"
                break
            last = offset + delta
            if offset != expected and not (
                expected < offset <= gaps_before or (self._is_first and offset < expected <= last)
            ):
                why = f"the record batch has offset {offset}, not {expected}"
                break
            if delta < 0 or last >= limit:
                why = f"the record batch ends at offset {last}, not before {limit}"
                break
            if starts:
                known = bisect_right(starts, offset) - 1
                if known >= 0 and epoch != epochs[known][0] and offset < epochs_before:
                    why = f"the record batch has leader epoch {epoch}, not {epochs[known][0]}"
                    break
            self._is_first = False
            expected = last + 1
            at = after
            count += 1
        self.expected = expected
        self.position = start + at
        view.release()
        if not why and at == 0 and self.position < until:
            # A read that is too short has met the end of a file that was cut.
            if filled < min(size - start, len(buffer)) or size - start < HEADER_BYTES:
                why = "the file ends inside a record batch"
            else:
                # The batch is larger than the buffer, and its length is within the file.
                self._buffer = bytearray(LOG_OVERHEAD + _unpack(buffer, 0)[1])
        if why:
            self._skip(f"at byte {self.position} of {self._file.path}: {why}")
        return max(count, 1)

    def _skip(self, why: str) -> None:
        """Note the damage, and continue at the next intact batch."""
        position, expected = self.position, self.expected
        self.position, following = self._next_intact(position)
        self.expected = max(expected, following)
        self._is_first = False
        if self.expected > expected:
            damaged = DamagedBytes(position, self.position, expected, self.expected, why)
        else:
            # The bytes are too many, but no offset is missing.
            damaged = DamagedBytes(position, self.position, expected, expected, why)
        self.damage.append(damaged)

    def _next_intact(self, damaged_at: int) -> tuple[int, int]:
        """Return where the next intact batch begins, and its base offset; else the end."""
        size = self._extent.size
        head = self._file.read(damaged_at, HEADER_BYTES)
        likely = -1
        if len(head) == HEADER_BYTES:
            _, length, _, _, _, delta = _unpack(head)
            after, likely = damaged_at + LOG_OVERHEAD + length, self.expected + delta + 1
            if damaged_at < after < size:
                base = self._base_of_intact(after, likely)
                if base is not None:
                    return after, base
        at = damaged_at + 1
        while at < size:
            block = self._file.read(at, READ_BYTES + HEADER_BYTES)
            found = block.find(MAGIC, _MAGIC_AT)
            while 0 <= found < READ_BYTES + _MAGIC_AT:
                start = at + found - _MAGIC_AT
                if self._may_begin(block, found - _MAGIC_AT):
                    base = self._base_of_intact(start, likely)
                    if base is not None:
                        return start, base
                found = block.find(MAGIC, found + 1)
            at += READ_BYTES
        return size, self._extent.limit_offset

    def _may_begin(self, block: bytes, at: int) -> bool:
        base = int.from_bytes(block[at : at + 8], "big", signed=True)
        return self.expected <= base < self._extent.limit_offset

    def _base_of_intact(self, position: int, likely: int) -> int | None:
        """Return the base offset of the batch at `position`, if an intact one is there.

        It must be `likely`, as the header of the damaged batch says, or agree with where the next
        batch begins or the segment ends.
        """
        size = self._extent.size
        head = self._file.read(position, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return None
        offset, length, epoch, magic, crc, delta = _unpack(head)
        if (
            magic != MAGIC
            or not _MIN_LENGTH <= length <= size - position - LOG_OVERHEAD
            or not self.expected <= offset <= offset + delta < self._extent.limit_offset
        ):
            return None
        if self._extent.epoch_at(offset) not in (-1, epoch):
            return None
        body = self._file.read(position + ATTRIBUTES_AT, LOG_OVERHEAD + length - ATTRIBUTES_AT)
        if crc32c(body) != crc:
            return None
        after, next_offset = position + LOG_OVERHEAD + length, offset + delta + 1
        is_right = offset == likely or self._ends_well(after, next_offset)
        return offset if is_right else None

    def _ends_well(self, position: int, next_offset: int) -> bool:
        """Whether a batch that ends here agrees with what follows it."""
        limit, gaps_before = self._extent.limit_offset, self._extent.gaps_before
        if position < self._extent.size:
            base = int.from_bytes(self._file.read(position, 8), "big", signed=True)
        elif limit < MAX_OFFSET:
            base = limit
        else:
            return True  # nothing is known of the end of the newest segment
        return base == next_offset or next_offset < base <= gaps_before


class CheckedPart(NamedTuple):
    """The result of a check before records are sent."""

    end: int
    """Everything up to this position is intact, unless the part is damaged."""
    next_offset: int
    is_intact: bool
    damage: list[DamagedBytes]
    """All damage of the segment. None at all although a part is not intact: the index is wrong."""


def check_part(part: Slice, extent: Extent, ahead_bytes: int) -> CheckedPart:
    """Check the records that a consumer gets next, and some bytes behind them.

    The batch after them must follow, or the last of their offsets may be wrong.
    """
    scan = Scan(part.file, extent, part.position, part.offset)
    scan.step(max(part.length + 1, ahead_bytes), _UNLIMITED)
    if not scan.damage:
        return CheckedPart(scan.position, scan.expected, True, [])
    return CheckedPart(part.position, part.offset, False, Scan(part.file, extent).run())


class Damage:
    """The holes of one log, and the segments that are damaged or suspected of it."""

    __slots__ = (
        "_is_compacted",
        "changed",
        "gaps_before",
        "holes",
        "pending",
        "refused",
        "suspects",
    )

    def __init__(self, holes: Iterable[Hole] = (), gaps_before: int = 0) -> None:
        self.holes: list[Hole] = sorted(holes)
        self.gaps_before = gaps_before
        """Before this offset a log that is not compacted may lack records."""
        self._is_compacted = False
        self.pending: dict[Segment, list[DamagedBytes]] = {}
        """Damage in files that have not been replaced yet."""
        self.suspects: dict[Segment, None] = {}
        """Segments in which a reader met something odd; the next check looks at them."""
        self.refused: list[Hole] = []
        """All offsets that are refused now; `Log.read` looks at this."""
        self.changed: Callable[[], None] = lambda: None
        """Called when holes or damage were found, or when the last hole was filled."""
        self._count()

    def __bool__(self) -> bool:
        return bool(self.holes or self.pending)

    def __str__(self) -> str:
        return ", ".join(map(str, self.refused))

    def _count(self) -> None:
        # Until the good batches after the damage are in a file of their own, all are refused.
        waiting = [
            Hole(damaged[0].start_offset, max(segment.limit_offset, damaged[-1].end_offset))
            for segment, damaged in self.pending.items()
        ]
        self.refused = sorted(self.holes + waiting)

    # ---- reading

    def readable_end(self, offset: int, end_offset: int) -> int:
        """Return where a read from `offset` must end; refuse an offset inside a hole."""
        for hole in self.refused:
            if offset < hole.start:
                return min(end_offset, hole.start)
            if offset < hole.end:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"the records at {hole} are damaged on this broker",
                )
        return end_offset

    def hole_at(self, offset: int) -> Hole | None:
        """Return the hole that holds `offset`, for a reader that must go on behind it."""
        return next((hole for hole in self.refused if hole.start <= offset < hole.end), None)

    # ---- changing

    def suspect(self, segments: Sequence[Segment], why: str) -> None:
        """A reader met something odd, perhaps in a file that `why` names."""
        named = [segment for segment in segments if segment.path(LOG) in why]
        for segment in named or segments:
            if segment not in self.suspects:
                _log.warning("%s is checked: %s", segment.path(LOG), why)
                self.suspects[segment] = None

    def found(self, log: Log, segment: Segment, damaged: list[DamagedBytes], now_ms: int) -> None:
        """A check found damage in a segment. Nothing is appended to a damaged segment."""
        self.suspects.pop(segment, None)
        if segment not in self.pending and segment in log.segments:
            _log.error("%s is damaged %s", segment.path(LOG), damaged[0].why)
            if segment is log.active_segment:
                log.roll(now_ms)
            log.hints.clear()
            self.pending[segment] = damaged
            self._count()
            self.changed()

    def lost(self, start: int, end: int) -> None:
        """These offsets are missing between two segments."""
        self.holes = _merged([*self.holes, Hole(start, end)])
        self._count()

    def isolated(self, segment: Segment, holes: Iterable[Hole]) -> None:
        """The good batches of a segment are in files without damage."""
        self.pending.pop(segment, None)
        self.holes = _merged([*self.holes, *holes])
        self._count()

    def filled(self, start: int, end: int) -> None:
        """The records from `start` to `end` are in the log again."""
        self.holes = [part for hole in self.holes for part in _without(hole, start, end)]
        self._count()
        if not self:
            self.changed()

    def kept(self, log: Log) -> None:
        """The log was truncated, or has dropped its oldest records."""
        if not (self or self.suspects):
            return
        was_damaged = bool(self)
        self.holes = [
            Hole(max(hole.start, log.start_offset), min(hole.end, log.end_offset))
            for hole in self.holes
            if hole.start < log.end_offset and hole.end > log.start_offset
        ]
        segments = set(log.segments)
        self.pending = {s: found for s, found in self.pending.items() if s in segments}
        self.suspects = {s: None for s in self.suspects if s in segments}
        self._count()
        if was_damaged and not self:
            self.changed()

    # ---- gaps

    # Compaction removes records, so offsets are missing in a compacted log. In any other log a
    # missing offset is damage. A log that is not compacted any more keeps its gaps, and a follower
    # copies them.

    def configured(self, log: Log) -> None:
        """The topic has these settings now."""
        is_compacted = "compact" in log.config.cleanup_policy
        if self._is_compacted and not is_compacted:
            self._has_gaps_before(log, log.end_offset)
        self._is_compacted = is_compacted
        log.segments.set_gaps_before(
            MAX_OFFSET if is_compacted else max(self.gaps_before, log.cleaned_offset)
        )

    def gap_copied(self, log: Log, offset: int) -> None:
        """The leader sent no record directly before `offset`."""
        if not self._is_compacted:
            self._has_gaps_before(log, offset)
            log.segments.set_gaps_before(max(self.gaps_before, log.cleaned_offset))

    def _has_gaps_before(self, log: Log, offset: int) -> None:
        if offset > self.gaps_before:
            self.gaps_before = offset
            self.save(log.disk, log.directory)

    # ---- on disk

    def save(self, disk: Disk, directory: str) -> None:
        """Keep the holes for the next start."""
        path = f"{directory}/{DAMAGED_OFFSETS}"
        if self.holes or self.gaps_before:
            disk.replace(path, encode(self.holes, self.gaps_before))
        elif disk.exists(path):
            disk.remove(path)
            disk.sync_directory(directory)


def _merged(holes: list[Hole]) -> list[Hole]:
    merged: list[Hole] = []
    for hole in sorted(hole for hole in holes if hole.start < hole.end):
        if merged and hole.start <= merged[-1].end:
            merged[-1] = Hole(merged[-1].start, max(merged[-1].end, hole.end))
        else:
            merged.append(hole)
    return merged


def _without(hole: Hole, start: int, end: int) -> Iterator[Hole]:
    for part in (Hole(hole.start, min(hole.end, start)), Hole(max(hole.start, end), hole.end)):
        if part.start < part.end:
            yield part


def encode(holes: Iterable[Hole], gaps_before: int) -> bytes:
    lines = [f"gaps {gaps_before}", *(f"{hole.start} {hole.end}" for hole in holes)]
    return encode_lines([*lines, f"crc {crc32c(' '.join(lines).encode()):08x}"])


def decode(data: bytes) -> tuple[list[Hole], int]:
    """Return the holes and the end of the gaps; raise ValueError if a bit has changed."""
    *lines, (word, checksum) = decode_lines(data)
    text = " ".join(" ".join(fields) for fields in lines)
    if word != "crc" or int(checksum, 16) != crc32c(text.encode()):
        raise ValueError("its checksum does not match")
    (_, gaps_before), *holes = lines
    return _merged([Hole(int(start), int(end)) for start, end in holes]), int(gaps_before)


def load_damage(disk: Disk, directory: str, unknown_gaps_before: int) -> Damage:
    """Return what was known at the last stop. If the file is damaged, the checks of the log find
    the holes again, and gaps before `unknown_gaps_before` are taken for compaction."""
    path = f"{directory}/{DAMAGED_OFFSETS}"
    if not disk.exists(path):
        return Damage()
    try:
        return Damage(*decode(disk.read_file(path)))
    except ValueError as error:
        _log.warning("ignoring the damaged file %s/%s: %s", disk.name, path, error)
        return Damage(gaps_before=unknown_gaps_before)


# ---- directories for what is set aside


def aside_name(directory: str, now_ms: int) -> str:
    """Return the name of the directory for the damaged files of a log."""
    suffix = f".{now_ms}{DAMAGED_SUFFIX}"
    return directory[: _MAX_NAME_BYTES - len(suffix)] + suffix


def set_aside_at(name: str) -> int | None:
    """Return when a directory for damaged files was made; None if `name` is another directory."""
    if not name.endswith(DAMAGED_SUFFIX):
        return None
    _, _, at = name.removesuffix(DAMAGED_SUFFIX).rpartition(".")
    return int(at) if at.isdecimal() else None
