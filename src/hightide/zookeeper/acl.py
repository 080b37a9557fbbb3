"""Access lists: who may do what with a znode.

The tree keeps an access list as bytes that it never looks into: the entries as ZooKeeper's wire
has them, and nothing at all for the list that lets everybody do everything, which nearly every
znode has. An Identity is what one connection has proved about itself: its address, and whatever
names it brought a password for. The tree asks it two things while deciding: may you do this, and
what does the list that you want to set really say.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from hightide.zookeeper.errors import InvalidAcl
from hightide.zookeeper.node import OPEN_ACL

_INT = struct.Struct(">i")

READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL = READ | WRITE | CREATE | DELETE | ADMIN


class Entry(NamedTuple):
    """These permissions for this id, which means what its scheme says."""

    permissions: int
    scheme: str
    id: str


ANYONE = Entry(ALL, "world", "anyone")


class Access(Protocol):
    """What the tree must know about an asker."""

    def may(self, acl: bytes, permission: int) -> bool:
        """Whether the list grants at least one of the permissions."""

    def resolve(self, path: str, acl: bytes) -> bytes:
        """The list to store when the asker wants to set this one; InvalidAcl if there is none."""


def encode(entries: Iterable[Entry]) -> bytes:
    """The bytes that the tree keeps."""
    entries = tuple(entries)
    return OPEN_ACL if entries == (ANYONE,) else wire(entries)


def wire(entries: Sequence[Entry]) -> bytes:
    """The bytes that a client gets."""
    parts = [_INT.pack(len(entries))]
    for permissions, *texts in entries:
        parts.append(_INT.pack(permissions))
        for text in texts:
            data = text.encode()
            parts += _INT.pack(len(data)), data
    return b"".join(parts)


@lru_cache(maxsize=1024)
def decode(acl: bytes) -> tuple[Entry, ...]:
    """The entries of a list that `encode` made."""
    if acl == OPEN_ACL:
        return (ANYONE,)
    position = 0

    def number() -> int:
        nonlocal position
        position += 4
        return int.from_bytes(acl[position - 4 : position], "big", signed=True)

    def text() -> str:
        nonlocal position
        length = number()
        position += length
        return acl[position - length : position].decode()

    return tuple(Entry(number(), text(), text()) for _ in range(number()))


def digest(credentials: bytes) -> str:
    """The id that `user:password` proves, as access lists name it: `user:hash`."""
    import hashlib
    from binascii import b2a_base64

    text = credentials.decode(errors="replace")
    hashed = b2a_base64(hashlib.sha1(text.encode(), usedforsecurity=False).digest(), newline=False)
    return f"{text.partition(':')[0]}:{hashed.decode()}"


class Identity:
    """What a connection has proved. Immutable: a queued request keeps the one it came with."""

    __slots__ = ("_is_super", "ids")

    def __init__(self, ids: tuple[tuple[str, str], ...]) -> None:
        self.ids = ids
        """Pairs of scheme and id."""
        self._is_super = any(scheme == "super" for scheme, _ in ids)

    def with_ids(self, *more: tuple[str, str]) -> Identity:
        """This identity and more."""
        return Identity(self.ids + tuple(pair for pair in more if pair not in self.ids))

    def may(self, acl: bytes, permission: int) -> bool:
        if acl == OPEN_ACL or self._is_super:
            return True
        entries = decode(acl)
        return not entries or any(
            entry.permissions & permission and self._is(entry.scheme, entry.id) for entry in entries
        )

    def resolve(self, path: str, acl: bytes) -> bytes:
        """Entries once each, and `auth` replaced by the names that the asker has proved."""
        if acl == OPEN_ACL:
            return acl
        wanted = dict.fromkeys(decode(acl))
        resolved: list[Entry] = []
        for entry in wanted:
            if entry.scheme == "auth":
                mine = [pair for pair in self.ids if pair[0] == "digest"]
                if not mine:
                    raise InvalidAcl(path, "auth is asked for, but nobody is authenticated")
                resolved += [Entry(entry.permissions, *pair) for pair in mine]
            elif _is_valid(entry):
                resolved.append(entry)
            else:
                raise InvalidAcl(path, f"{entry.scheme}:{entry.id}")
        if not resolved:
            raise InvalidAcl(path, "it is empty")
        return encode(resolved)

    def _is(self, scheme: str, name: str) -> bool:
        if scheme == "world":
            return name == "anyone"
        if scheme == "ip":
            return any(own == "ip" and _within(address, name) for own, address in self.ids)
        return (scheme, name) in self.ids


class _Unchecked:
    """An asker inside this process, for whom access lists do not count."""

    __slots__ = ()

    def may(self, acl: bytes, permission: int) -> bool:  # noqa: ARG002
        return True

    def resolve(self, path: str, acl: bytes) -> bytes:  # noqa: ARG002
        return acl


UNCHECKED: Access = _Unchecked()


def without_secrets(entries: Iterable[Entry]) -> list[Entry]:
    """Entries as somebody who may not change them sees them: a hash invites guessing."""
    return [
        entry._replace(id=re.sub(":.*", ":x", entry.id)) if entry.scheme == "digest" else entry
        for entry in entries
    ]


def _is_valid(entry: Entry) -> bool:
    match entry.scheme:
        case "world":
            return entry.id == "anyone"
        case "digest":
            return len(entry.id.rstrip(":").split(":")) == 2
        case "ip":
            return _network(entry.id) is not None
    return False


def _within(address: str, text: str) -> bool:
    network = _network(text)
    try:
        return network is not None and ipaddress.ip_address(address) in network
    except ValueError:
        return False  # Nobody knows where this connection comes from.


@lru_cache(maxsize=256)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """What `address` or `address/bits` stands for; None if it stands for nothing."""
    _, slash, bits = text.partition("/")
    if slash and not bits.isdecimal():
        return None  # ZooKeeper knows no netmasks.
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
