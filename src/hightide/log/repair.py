"""Repairing a damaged log: the intact batches are saved, and the missing ones are put back.

    damaged    │ batch │ batch │ ░░░░░ │ batch │          one file
    isolated   │ batch │ batch │  hole │ batch │          two files, and the old one set aside
    filled     │ batch │ batch │ batch │ batch │          three files

Isolation copies the intact batches of a damaged segment to files of their own. The old file moves
to a directory next to the log, `<topic>-<partition>.<time>-damaged`, for a person to look at. What
is left is a hole between two segments, as if a segment's file were lost. The log serves all other
records and accepts writes. `Fill` closes a hole with batches from another replica.

New files have the names that compaction uses, .cleaned and then .swap. So a crash at any point
leaves the old files or the new ones.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

from hightide.core.events import Event, Severity
from hightide.event_log import record
from hightide.log.damage import DamagedBytes, Extent, Hole, Scan, aside_name
from hightide.log.disk import Disk, DiskFailed
from hightide.log.log import Log
from hightide.log.segment import CLEANED, LOG, MAX_OFFSET, SUFFIXES, SWAP, OpenFiles, Segment
from hightide.wire.batch import batches, check
from hightide.wire.errors import Corrupt

_COPY_BYTES = 1024 * 1024
# At most this many checked bytes keep a thread busy before other jobs get a turn.
_CHECK_BYTES = 64 * 1024 * 1024

_log = logging.getLogger(__name__)


# ---- isolation


class Part(NamedTuple):
    """Intact batches of a damaged segment, which become a segment of their own."""

    base_offset: int
    limit_offset: int
    position: int
    end: int


def intact_parts(segment: Segment, damaged: list[DamagedBytes]) -> list[Part]:
    """Return what lies before, between and after the damaged bytes. The first part may be empty:
    a log keeps a segment where it began."""
    parts: list[Part] = []
    position, base = 0, segment.base_offset
    for found in damaged:
        parts.append(Part(base, found.start_offset, position, found.position))
        position, base = found.end, found.end_offset
    if position < segment.size:
        parts.append(Part(base, segment.limit_offset, position, segment.size))
    # Surplus bytes cost no offset, so an empty part may begin where the next one does.
    useful = [part for part, following in pairwise(parts) if part.base_offset < following[0]]
    return [*useful, parts[-1]]


def holes_of(damaged: list[DamagedBytes]) -> list[Hole]:
    return [Hole(d.start_offset, d.end_offset) for d in damaged if d.start_offset < d.end_offset]


def write_parts(segment: Segment, parts: list[Part]) -> None:
    """Copy the intact batches to files that the next start ignores. May run in any thread."""
    disk, old = segment.disk, segment.disk.open(segment.path(LOG))
    for part in parts:
        file = disk.create(_path(segment, part.base_offset, CLEANED))
        for at in range(part.position, part.end, _COPY_BYTES):
            file.append(old.read(at, min(_COPY_BYTES, part.end - at)))
        file.sync()


def install_parts(
    segment: Segment, parts: list[Part], aside: str, files: OpenFiles
) -> list[Segment]:
    """Set the damaged file aside and put the intact parts in its place."""
    disk, directory = segment.disk, segment.directory
    # The first part last: until it has its new name, the next start drops all of them.
    for part in reversed(parts):
        disk.rename(
            _path(segment, part.base_offset, CLEANED), _path(segment, part.base_offset, SWAP)
        )
    disk.sync_directory(directory)
    disk.make_directory(aside)
    disk.rename(segment.path(LOG), f"{aside}/{segment.path(LOG).rpartition('/')[2]}")
    disk.sync_directory(aside)
    for suffix in SUFFIXES[1:]:
        disk.remove(segment.path(suffix))
    installed = []
    for part in parts:
        disk.rename(_path(segment, part.base_offset, SWAP), _path(segment, part.base_offset, ""))
        new = Segment(disk, directory, part.base_offset, part.end - part.position, files)
        new.limit_offset = part.limit_offset
        new.created_ms = segment.created_ms
        installed.append(new)
    disk.sync_directory(directory)
    disk.sync_directory("")
    return installed


def _path(segment: Segment, base_offset: int, suffix: str) -> str:
    return f"{segment.directory}/{base_offset:020d}{LOG}{suffix}"


@dataclass(frozen=True, slots=True)
class RecordsDamaged(Event):
    """Bytes of a log are not what was written; the records there are refused."""

    severity: ClassVar[Severity] = Severity.ERROR
    log_dir: str
    directory: str
    first_offset: int
    last_offset: int
    kept_in: str
    why: str

    @property
    def place(self) -> tuple[str | None, int | None]:
        topic, _, partition = self.directory.rpartition("-")
        return topic, int(partition)

    def __str__(self) -> str:
        return (
            f"{self.log_dir}/{self.directory} is damaged {self.why}. The records at offsets"
            f" {self.first_offset} to {self.last_offset} are refused until they are copied from"
            f" another replica; all others are served. The damaged file is kept in {self.kept_in}"
        )


def report_damage(disk: Disk, directory: str, damaged: list[DamagedBytes], aside: str) -> None:
    """Say in words what was found and what becomes of it."""
    for found in damaged:
        offsets = (found.start_offset, found.end_offset - 1)
        record(_log, RecordsDamaged(disk.name, directory, *offsets, aside, found.why))


class Isolate:
    """The job that takes the damaged bytes of a segment out of a log."""

    def __init__(self, log: Log, segment: Segment, now_ms: int) -> None:
        self._log = log
        self._segment = segment
        self._damaged = log.damage.pending[segment]
        self._parts = intact_parts(segment, self._damaged)
        self._aside = aside_name(log.directory, now_ms)
        self._truncations = log.truncations
        self._failure: DiskFailed | None = None

    def run(self) -> None:
        try:
            write_parts(self._segment, self._parts)
        except DiskFailed as failure:
            self._failure = failure

    def finish(self) -> None:
        log, segment = self._log, self._segment
        try:
            if self._failure is not None:
                raise self._failure
            if segment in log.segments and log.truncations == self._truncations:
                log.damage.isolated(segment, holes_of(self._damaged))
                log.damage.save(log.disk, log.directory)
                new = install_parts(segment, self._parts, self._aside, log.segments.files)
                log.segments.split(segment, new)
                report_damage(log.disk, log.directory, self._damaged, self._aside)
                log.damage.changed()
            else:
                for part in self._parts:
                    log.disk.remove(_path(segment, part.base_offset, CLEANED))
        except DiskFailed as failure:
            _log.error("the damage in %s cannot be set aside yet: %s", log.directory, failure)


# ---- checks


class Check:
    """The job that checks a segment, up to some bytes and batches at a time."""

    def __init__(self, log: Log, segment: Segment, now_ms: int) -> None:
        self.log = log
        self.segment = segment
        self.is_finished = False
        self._now_ms = now_ms
        self._truncations = log.truncations
        self._scan = Scan(log.disk.open(segment.path(LOG)), Extent.of(log, segment))
        self._failure: DiskFailed | None = None
        self.max_bytes = _CHECK_BYTES
        self.max_batches = MAX_OFFSET

    @property
    def position(self) -> int:
        return self._scan.position

    @property
    def is_current(self) -> bool:
        """Whether the log still has the segment as it was."""
        log = self.log
        return (
            log.failure is None
            and log.truncations == self._truncations
            and self.segment in log.segments
        )

    def run(self) -> None:
        try:
            self._scan.step(self.max_bytes, self.max_batches)
        except DiskFailed as failure:
            self._failure = failure

    def finish(self) -> None:
        if self._failure is not None:
            _log.error("cannot check %s: %s", self.segment.path(LOG), self._failure)
        elif not self.is_current:
            pass
        elif not self._scan.is_done:
            return  # the next step follows
        elif self._scan.damage:
            self.log.damage.found(self.log, self.segment, self._scan.damage, self._now_ms)
        self.segment.checked_ms = self._now_ms
        self.is_finished = True


# ---- filling


class Fill:
    """Closes a hole of a log with batches from another replica, in a new segment."""

    def __init__(self, log: Log, hole: Hole) -> None:
        self.log = log
        self.hole = hole
        self.next_offset = hole.start
        self._truncations = log.truncations
        self._epochs = log.epochs.entries
        self._path = f"{log.directory}/{hole.start:020d}{LOG}"
        self._file = log.disk.create(self._path + CLEANED)

    @property
    def is_complete(self) -> bool:
        return self.next_offset >= self.hole.end

    @property
    def size(self) -> int:
        return self._file.size

    @property
    def is_current(self) -> bool:
        """Whether the log still has the hole."""
        return self.log.truncations == self._truncations and self.hole in self.log.damage.holes

    def append(self, data: memoryview) -> None:
        """Add the batches from another replica that belong into the hole.

        Raise Corrupt if they are damaged, do not follow the last ones, or were not written in the
        leader epoch that this log knows for their offsets.
        """
        gaps_before = self.log.segments[0].gaps_before
        for at, header in batches(data):
            if header.base_offset >= self.hole.end:
                if self.hole.end > gaps_before and self.next_offset < self.hole.end:
                    raise Corrupt(f"it has no record at offset {self.next_offset}")
                self.next_offset = self.hole.end
                break
            if header.last_offset < self.next_offset:
                continue
            check(data, at, at + header.size, stored=True)
            if header.base_offset != self.next_offset and not (
                self.next_offset < header.base_offset <= gaps_before
            ):
                raise Corrupt(f"it sent offset {header.base_offset}, not {self.next_offset}")
            if header.last_offset >= self.hole.end:
                raise Corrupt(f"its batch at offset {header.base_offset} reaches over the hole")
            epoch = self.log.epochs.epoch_for(header.base_offset)
            if epoch >= 0 and epoch != header.leader_epoch:
                raise Corrupt(
                    f"it has the record at offset {header.base_offset} from leader epoch"
                    f" {header.leader_epoch}, not {epoch}"
                )
            self._file.append(data[at : at + header.size])
            self.next_offset = header.last_offset + 1

    def sync(self) -> None:
        """Force the new file to disk. May run in any thread."""
        self._file.sync()

    def install(self) -> None:
        """Make the new segment part of the log."""
        log, disk = self.log, self.log.disk
        if self.next_offset == self.hole.start:
            self.drop()
            return
        there = log.segments[log.segments.index_of(self.hole.start)]
        if there.base_offset == self.hole.start and there.size:
            # The log has records there: they were appended after a truncation.  Their file has the
            # name of the new one, and must not be replaced.
            self.next_offset = min(self.hole.end, there.limit_offset, log.end_offset)
            self.drop()
        elif self._file.size:
            disk.rename(self._path + CLEANED, self._path + SWAP)
            disk.sync_directory(log.directory)
            disk.rename(self._path + SWAP, self._path)
            disk.sync_directory(log.directory)
            new = Segment(disk, log.directory, self.hole.start, self._file.size, log.segments.files)
            new.limit_offset = self.next_offset
            log.segments.insert(new)
        else:
            self.drop()
        log.is_uncleanable = False
        log.damage.filled(self.hole.start, self.next_offset)
        log.damage.save(disk, log.directory)

    def drop(self) -> None:
        """Give up; the hole stays."""
        self.log.disk.remove(self._path + CLEANED)
