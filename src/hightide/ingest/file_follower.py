"""Files that match patterns, followed across rotation.

A renamed file is read to its end and closed when it has been quiet for a while. A truncated file is
read from its beginning, and its unread rest is looked for in the copy that was made of it. A file
that was rotated while it was closed, or while the collector was down, is found again by its inode
or its contents, in the same directory.
"""

from __future__ import annotations

import glob
import os
import re
import stat as modes
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hightide.ingest.file_identity import EDGE_BYTES, FilePosition, Identity, digest
from hightide.ingest.lines import LINE_BYTES, Joiner, Line, Splitter

READ_BYTES = 1 << 18
# A file without writes for this long is closed.
IDLE_S = 60


@dataclass(frozen=True, slots=True)
class FollowRules:
    """How files are followed."""

    patterns: tuple[str, ...]
    # Whether files that exist before the first start are read from their end.
    from_end: bool = False
    # How long a rotated file must be quiet before its last, incomplete line is sent and it is
    # closed; and how long any file must be quiet before its last event of several lines is sent.
    quiet_s: float = 5.0
    begins: re.Pattern[bytes] | None = None
    line_bytes: int = LINE_BYTES


@dataclass(slots=True)
class OpenFile:
    """One open file."""

    path: str
    identity: Identity
    descriptor: int
    splitter: Splitter
    joiner: Joiner | None
    # The first bytes of the file, and those from before the position to the next read: they are
    # still known after the file was truncated.
    head: bytes
    recent: bytearray
    offset: int
    # The end of the last line that was returned.
    position: int
    last_data_s: float
    is_rotated: bool = False

    def read(self, now_s: float) -> list[Line]:
        """Read the next piece and return the complete lines; empty at the end of the file."""
        data = os.pread(self.descriptor, READ_BYTES, self.offset)
        if not data:
            return []
        self.last_data_s = now_s
        self.offset += len(data)
        self.recent += data
        if len(self.head) < EDGE_BYTES:
            self.head = (self.head + data)[:EDGE_BYTES]
        found = self.splitter.feed(data)
        return self._returned(found if self.joiner is None else self.joiner.feed(found))

    def finish(self) -> list[Line]:
        """Return the rest, when no more data is expected."""
        rest = self.splitter.finish()
        if self.joiner is not None:
            rest = self.joiner.feed(rest) + self.joiner.finish()
        return self._returned(rest)

    def end_event(self) -> list[Line]:
        """Return the event of several lines that is held back, without waiting for the next."""
        return [] if self.joiner is None else self._returned(self.joiner.finish())

    def _returned(self, lines: list[Line]) -> list[Line]:
        if lines:
            self.position = lines[-1].end
            needed = self.offset - self.position + EDGE_BYTES
            del self.recent[: max(0, len(self.recent) - needed)]
        return lines

    def is_cut(self) -> bool:
        """Return whether the data that was read is no longer there."""
        last = self.recent[-EDGE_BYTES:]
        return os.pread(self.descriptor, len(last), self.offset - len(last)) != last

    def place(self) -> FilePosition:
        size = min(EDGE_BYTES, self.position)
        end = len(self.recent) - (self.offset - self.position)
        tail = bytes(self.recent[end - size : end])
        return FilePosition(self.path, self.position, digest(self.head[:size], tail))

    def is_gone(self) -> bool:
        return os.fstat(self.descriptor).st_nlink == 0


@dataclass(slots=True)
class FileFollower:
    """All files of some patterns. `known` are the positions of files, open or not."""

    rules: FollowRules
    known: dict[Identity, FilePosition]
    say: Callable[[str], None] = print
    open: dict[Identity, OpenFile] = field(default_factory=dict)
    is_first_scan: bool = True
    # The files of the last scan.
    seen: frozenset[Identity] = frozenset()

    def scan(self, now_s: float) -> None:
        """Find the matching files."""
        seen = dict(_matching(self.rules.patterns))
        for identity, (path, size) in seen.items():
            if identity in self.open:
                self.open[identity].path = path
            elif not self._is_read(identity, path, size):
                self._begin(path, now_s)
        for identity, followed in self.open.items():
            followed.is_rotated = identity not in seen
        if self.is_first_scan:
            self._find_rotated(list(self.known), now_s)
            self.is_first_scan = False
        else:
            vanished = self.seen - seen.keys() - self.open.keys()
            self._find_rotated([identity for identity in self.known if identity in vanished], now_s)
        self.seen = frozenset(seen)

    def _is_read(self, identity: Identity, path: str, size: int) -> bool:
        """Return whether a file need not be opened: it was read to its end."""
        place = self.known.get(identity)
        if place is None or place.position != size:
            return False
        return not self.is_first_scan or _fits(path, place)

    def lines(self, now_s: float, byte_limit: int) -> Iterator[tuple[OpenFile, Line]]:
        """Yield the new lines of all files in turn, up to a number of bytes."""
        bytes_read = 0
        ended: set[Identity] = set()
        # A truncated file may add its copy to the open files, so list them again.
        while bytes_read < byte_limit and (busy := [it for it in self.open if it not in ended]):
            for followed in [self.open[identity] for identity in busy]:
                if followed.is_cut():
                    for line in self._restart(followed, now_s):
                        yield followed, line
                before = followed.offset
                for line in followed.read(now_s):
                    yield followed, line
                bytes_read += followed.offset - before
                if followed.offset == before:
                    ended.add(followed.identity)
        for followed in list(self.open.values()):
            for line in self._rest_of_quiet(followed, now_s):
                yield followed, line

    def finish(self) -> Iterator[tuple[OpenFile, Line]]:
        """Yield the incomplete lines at the ends of files."""
        for followed in self.open.values():
            for line in followed.finish():
                yield followed, line

    def places(self, of: Iterable[OpenFile]) -> dict[Identity, FilePosition]:
        """Return the positions to store when the lines of these files are delivered."""
        return {followed.identity: followed.place() for followed in of}

    def close(self) -> None:
        for followed in self.open.values():
            os.close(followed.descriptor)
        self.open.clear()

    def _rest_of_quiet(self, followed: OpenFile, now_s: float) -> list[Line]:
        if now_s - followed.last_data_s < self.rules.quiet_s:
            return []
        rest = followed.finish() if followed.is_rotated else followed.end_event()
        is_idle = now_s - followed.last_data_s >= max(IDLE_S, self.rules.quiet_s)
        if not rest and (followed.is_rotated or (is_idle and self._is_delivered(followed))):
            # It is opened again if it grows.
            del self.open[followed.identity]
            if followed.is_gone():
                self.known.pop(followed.identity, None)
            os.close(followed.descriptor)
        return rest

    def _is_delivered(self, followed: OpenFile) -> bool:
        place = self.known.get(followed.identity)
        return place is not None and place.position == followed.position == followed.offset

    def _begin(self, path: str, now_s: float, place: FilePosition | None = None) -> OpenFile | None:
        """Open a file at the position where reading continues."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.say(f"{path} cannot be read: {error.strerror}.")
            return None
        identity = Identity.of(os.fstat(descriptor))
        if identity in self.open:
            os.close(descriptor)
            return None
        position = self._start(identity, descriptor) if place is None else place.position
        followed = self._followed(path, identity, descriptor, position, now_s)
        self.open[identity] = followed
        return followed

    def _start(self, identity: Identity, descriptor: int) -> int:
        place = self.known.get(identity)
        if place is not None and place.fits(descriptor):
            return place.position
        for other in self.known.values():
            if other.is_telling and other.fits(descriptor):
                return other.position  # A copy of a file that was read to there.
        if self.is_first_scan and self.rules.from_end and not self.known:
            return os.fstat(descriptor).st_size
        return 0

    def _followed(
        self, path: str, identity: Identity, descriptor: int, position: int, now_s: float
    ) -> OpenFile:
        size = min(EDGE_BYTES, position)
        rules = self.rules
        return OpenFile(
            path=path,
            identity=identity,
            descriptor=descriptor,
            splitter=Splitter(position, rules.line_bytes),
            joiner=None if rules.begins is None else Joiner(rules.begins, rules.line_bytes),
            head=os.pread(descriptor, size, 0),
            recent=bytearray(os.pread(descriptor, size, position - size)),
            offset=position,
            position=position,
            last_data_s=now_s,
        )

    def _restart(self, followed: OpenFile, now_s: float) -> list[Line]:
        """Start a truncated file from its beginning; return the rest that no copy holds."""
        is_copied = self._find_copy(followed.place(), followed.identity, now_s)
        rest = [] if is_copied else followed.finish()
        fresh = self._followed(followed.path, followed.identity, followed.descriptor, 0, now_s)
        for name in ("splitter", "joiner", "head", "recent", "offset", "position"):
            setattr(followed, name, getattr(fresh, name))
        self.known.pop(followed.identity, None)
        return rest

    def _find_copy(self, place: FilePosition, original: Identity, now_s: float) -> bool:
        """Continue in a copy that holds everything that was read of the original."""
        if not place.is_telling:
            return False
        for path, identity, size in _beside(place.path):
            if identity == original or size < place.position or not _fits(path, place):
                continue
            if identity not in self.open and identity not in self.known:
                followed = self._begin(path, now_s, place)
                if followed is not None:
                    followed.is_rotated = True
            return True
        return False

    def _find_rotated(self, identities: Iterable[Identity], now_s: float) -> None:
        """Find files that were rotated while they were not open, to read their rest."""
        for identity in identities:
            place = self.known[identity]
            if identity in self.open:
                if self.open[identity].position != place.position:
                    self._find_copy(place, identity, now_s)
                continue
            for path, found, size in _beside(place.path):
                if found == identity and size > place.position and _fits(path, place):
                    followed = self._begin(path, now_s, place)
                    if followed is not None:
                        followed.is_rotated = True


def existing(known: Mapping[Identity, FilePosition]) -> dict[Identity, FilePosition]:
    """Return the positions of files that still exist."""
    inodes: dict[str, set[Identity]] = {}
    kept = {}
    for identity, place in known.items():
        folder = os.path.dirname(place.path) or "."
        if folder not in inodes:
            inodes[folder] = {found for _, found, _ in _beside(place.path)}
        if identity in inodes[folder]:
            kept[identity] = place
    return kept


def _matching(patterns: Iterable[str]) -> Iterator[tuple[Identity, tuple[str, int]]]:
    for pattern in patterns:
        for path in sorted(glob.glob(os.path.expanduser(pattern), recursive=True)):
            try:
                found = os.stat(path)
            except OSError:
                continue  # It is gone meanwhile.
            if modes.S_ISREG(found.st_mode):
                yield Identity.of(found), (os.path.abspath(path), found.st_size)


def _beside(path: str) -> Iterator[tuple[str, Identity, int]]:
    """Yield the regular files in the directory of a path, with identities and sizes."""
    try:
        with os.scandir(os.path.dirname(path) or ".") as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    yield entry.path, Identity.of(found), found.st_size
    except OSError:
        return


def _fits(path: str, place: FilePosition) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return place.fits(descriptor)
    finally:
        os.close(descriptor)
