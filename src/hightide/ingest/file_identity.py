"""Recognise a file.

A name says little: logs are renamed when they are rotated, or copied and then truncated. An inode
says more, but is reused. So a position in a file carries a fingerprint of what was read up to
there, its first and its last bytes. Where the fingerprint fits, under any name or in a copy,
reading continues; where it does not, the file is a new one.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

EDGE_BYTES = 256


@dataclass(frozen=True, slots=True)
class Identity:
    """The device and inode of a file, valid as long as the file exists."""

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
    """How far a file was read, and how to recognise it."""

    path: str
    position: int
    fingerprint: str

    def fits(self, descriptor: int) -> bool:
        """Return whether an open file has the data that was read, up to the position."""
        return self.fingerprint == fingerprint(descriptor, self.position)

    @property
    def is_telling(self) -> bool:
        """Whether enough was read to recognise a copy; files often start with the same text."""
        return self.position >= EDGE_BYTES


def fingerprint(descriptor: int, position: int) -> str | None:
    """Return the fingerprint of the data before a position; None if the file is shorter."""
    size = min(EDGE_BYTES, position)
    head = os.pread(descriptor, size, 0)
    tail = os.pread(descriptor, size, position - size)
    return None if len(head) < size or len(tail) < size else digest(head, tail)


def digest(head: bytes, tail: bytes) -> str:
    return hashlib.blake2b(head + tail, digest_size=12).hexdigest()
