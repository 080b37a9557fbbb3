"""The console's password: a file with one line, compared by scrypt.

The line is the password, or what `hash_of` made of it:

    scrypt:16384:8:1:SALT:HASH      (both in hexadecimal)
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from dataclasses import dataclass
from pathlib import Path

KIND = "scrypt"
COST, BLOCK, PARALLEL = 2**14, 8, 1
MOST_MEMORY = 256 * 1024 * 1024
SALT_BYTES, HASH_BYTES = 16, 32
FEWEST_CHARACTERS = 8


class BadPassword(Exception):
    """The file has no password that could be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Password:
    """What is kept of a password."""

    cost: int
    block: int
    parallel: int
    salt: bytes
    hash: bytes

    def is_right(self, given: str) -> bool:
        """Whether this is the password; takes some 50 ms, and so belongs into a thread."""
        found = _scrypt(given, self.salt, self.cost, self.block, self.parallel)
        return hmac.compare_digest(found, self.hash)

    def line(self) -> str:
        parts = (KIND, self.cost, self.block, self.parallel, self.salt.hex(), self.hash.hex())
        return ":".join(map(str, parts))


def hash_of(text: str) -> Password:
    if len(text) < FEWEST_CHARACTERS:
        raise BadPassword(f"a password has at least {FEWEST_CHARACTERS} characters")
    salt = os.urandom(SALT_BYTES)
    return Password(COST, BLOCK, PARALLEL, salt, _scrypt(text, salt, COST, BLOCK, PARALLEL))


def read(path: Path) -> Password:
    """The password of a file; raise BadPassword if there is none."""
    try:
        line = path.read_text("utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadPassword(f"cannot read {path}: {reason}") from None
    if "\n" in line:
        raise BadPassword(f"{path} has more than one line")
    if not line.startswith(f"{KIND}:"):
        try:
            return hash_of(line)
        except BadPassword as error:
            raise BadPassword(f"{path}: {error}") from None
    try:
        _, cost, block, parallel, salt, digest = line.split(":")
        password = Password(
            int(cost), int(block), int(parallel), bytes.fromhex(salt), bytes.fromhex(digest)
        )
        if len(password.hash) != HASH_BYTES:
            raise ValueError
        password.is_right("")
    except (ValueError, TypeError, OverflowError):  # numbers that scrypt does not take
        raise BadPassword(f"{path} has a line of scrypt that is not valid") from None
    return password


def is_open_to_others(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _scrypt(text: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        text.encode(), salt=salt, n=cost, r=block, p=parallel, maxmem=MOST_MEMORY, dklen=HASH_BYTES
    )
