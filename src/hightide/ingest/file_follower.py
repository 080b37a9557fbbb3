"""Files that match patterns, followed across rotation.

A file that was renamed is read to its end and then let go, when nobody has written to it for a
while.  A file that was cut begins anew, and what it had beyond the position is looked for in the
copy that was made of it.  A file that was rotated while nobody looked is found again by its inode
or by its contents, in the directory where it was.
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
# A file that nobody has written to for so long is not kept open.
IDLE_S = 60


@dataclass(frozen=True, slots=True)
class FollowRules:
    """How files are followed."""

    patterns: tuple[str, ...]
    # Whether files that are there before the first start are read from their beginning.
    from_end: bool = False
    # How long a rotated file must be quiet before its last, incomplete line is taken and it is let
    # go; and how long any file must be quiet before its last event of several lines is taken.
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
    # The first bytes of the file, and those around the position up to where the next read begins:
    # what was read is known also after somebody has cut the file.
    head: bytes
    recent: bytearray
    offset: int
    # Up to where lines were given out.
    position: int
    last_data_s: float
    is_rotated: bool = False

    def read(self, now_s: float) -> list[Line]:
        """What can be given out of the next piece; nothing at the end of the file."""
        data = os.pread(self.descriptor, READ_BYTES, self.offset)
        if not data:
            return []
        self.last_data_s = now_s
        self.offset += len(data)
        self.recent += data
        if len(self.head) < EDGE_BYTES:
            self.head = (self.head + data)[:EDGE_BYTES]
        found = self.splitter.feed(data)
        return self._given(found if self.joiner is None else self.joiner.feed(found))

    def finish(self) -> list[Line]:
        """What is left, when nothing more is awaited."""
        rest = self.splitter.finish()
        if self.joiner is not None:
            rest = self.joiner.feed(rest) + self.joiner.finish()
        return self._given(rest)

    def end_event(self) -> list[Line]:
        """The event of several lines that is held back, without waiting for the next."""
        return [] if self.joiner is None else self._given(self.joiner.finish())

    def _given(self, lines: list[Line]) -> list[Line]:
        if lines:
            self.position = lines[-1].end
            needed = self.offset - self.position + EDGE_BYTES
            del self.recent[: max(0, len(self.recent) - needed)]
        return lines

    def is_cut(self) -> bool:
        """Whether what was read is no longer what is there."""
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
    """All files of some patterns.  `known` are the places of files, open or not."""

    rules: FollowRules
    known: dict[Identity, FilePosition]
    say: Callable[[str], None] = print
    open: dict[Identity, OpenFile] = field(default_factory=dict)
    is_first_scan: bool = True

    def scan(self, now_s: float) -> None:
        """Look which files there are."""
        seen = dict(_matching(self.rules.patterns))
        for identity, (path, size) in seen.items():
            if identity in self.open:
                self.open[identity].path = path
            elif not self._is_read(identity, path, size):
                self._begin(path, now_s)
        for identity, followed in self.open.items():
            followed.is_rotated = identity not in seen
        if self.is_first_scan:
            self._find_rotated(now_s)
            self.is_first_scan = False

    def _is_read(self, identity: Identity, path: str, size: int) -> bool:
        """Whether a file needs not to be opened: its end is known, and was so at the start."""
        place = self.known.get(identity)
        if place is None or place.position != size:
            return False
        return not self.is_first_scan or _fits(path, place)

    def lines(self, now_s: float, byte_limit: int) -> Iterator[tuple[OpenFile, Line]]:
        """What is new in all files, in turns, until it is enough."""
        taken = 0
        ended: set[Identity] = set()
        # A file that was cut may bring its copy with it, so what is open is looked at anew.
        while taken < byte_limit and (busy := [it for it in self.open if it not in ended]):
            for followed in [self.open[identity] for identity in busy]:
                if followed.is_cut():
                    for line in self._begin_anew(followed, now_s):
                        yield followed, line
                before = followed.offset
                for line in followed.read(now_s):
                    yield followed, line
                taken += followed.offset - before
                if followed.offset == before:
                    ended.add(followed.identity)
        for followed in list(self.open.values()):
            for line in self._rest_of_quiet(followed, now_s):
                yield followed, line

    def finish(self) -> Iterator[tuple[OpenFile, Line]]:
        """The incomplete lines at the ends of files."""
        for followed in self.open.values():
            for line in followed.finish():
                yield followed, line

    def places(self, of: Iterable[OpenFile]) -> dict[Identity, FilePosition]:
        """The places to be kept when what was given out of some files has been delivered."""
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
            # It is opened again if it grows; until then it costs nothing.
            del self.open[followed.identity]
            if followed.is_gone():
                self.known.pop(followed.identity, None)
            os.close(followed.descriptor)
        return rest

    def _is_delivered(self, followed: OpenFile) -> bool:
        place = self.known.get(followed.identity)
        return place is not None and place.position == followed.position == followed.offset

    def _begin(self, path: str, now_s: float, place: FilePosition | None = None) -> OpenFile | None:
        """Open a file where reading has to go on."""
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
                return other.position  # A copy of a file that was read that far.
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

    def _begin_anew(self, followed: OpenFile, now_s: float) -> list[Line]:
        """A file was cut.  What it had beyond the position is in a copy, or only here."""
        is_copied = self._find_copy(followed.place(), followed.identity, now_s)
        rest = [] if is_copied else followed.finish()
        anew = self._followed(followed.path, followed.identity, followed.descriptor, 0, now_s)
        for name in ("splitter", "joiner", "head", "recent", "offset", "position"):
            setattr(followed, name, getattr(anew, name))
        self.known.pop(followed.identity, None)
        return rest

    def _find_copy(self, place: FilePosition, original: Identity, now_s: float) -> bool:
        """Go on in a copy that has all that was read of the original."""
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

    def _find_rotated(self, now_s: float) -> None:
        """Files that were rotated away while nobody looked: the rest of each has to be read."""
        for identity, place in list(self.known.items()):
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
    """The places of files that are still there; the others need not be remembered."""
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
                continue  # It has gone since.
            if modes.S_ISREG(found.st_mode):
                yield Identity.of(found), (os.path.abspath(path), found.st_size)


def _beside(path: str) -> Iterator[tuple[str, Identity, int]]:
    """The plain files in the directory of a path, with their identities and sizes."""
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
