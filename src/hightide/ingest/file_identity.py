"""Which file it is.

A name says little: logs are renamed when they are rotated, or copied and then cut to nothing.  An
inode says more, but is used again.  So a position in a file carries a fingerprint of what was read
up to there, its first and its last bytes; where the fingerprint fits, reading goes on, be it under
another name or in a copy, and where it does not, the file is a new one.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

EDGE_BYTES = 256


@dataclass(frozen=True, slots=True)
class Identity:
    """What the file system calls a file, as long as it is there."""

    device: int
    inode: int

    def __str__(self) -> str:
        return f"{self.device}:{self.inode}"

    @classmethod
    def of(cls, stat: os.stat_result) -> Identity:
        return cls(stat.st_dev, stat.st_ino)

    @classmethod
    def parse(cls, text: str) -> Identity:
        device, _, inode = text.partition(":")
        return cls(int(device), int(inode))


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far a file has been read, and how to know it again."""

    path: str
    position: int
    fingerprint: str

    def fits(self, descriptor: int) -> bool:
        """Whether an open file has, up to the position, what was read."""
        return self.fingerprint == fingerprint(descriptor, self.position)

    @property
    def is_telling(self) -> bool:
        """Whether enough was read to know it in a copy; files often begin with the same words."""
        return self.position >= EDGE_BYTES


def fingerprint(descriptor: int, position: int) -> str | None:
    """Of what is before a position; None if the file is shorter."""
    size = min(EDGE_BYTES, position)
    head = os.pread(descriptor, size, 0)
    tail = os.pread(descriptor, size, position - size)
    return None if len(head) < size or len(tail) < size else digest(head, tail)


def digest(head: bytes, tail: bytes) -> str:
    return hashlib.blake2b(head + tail, digest_size=12).hexdigest()
