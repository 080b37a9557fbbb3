"""Access control lists (ACLs) of znodes.

The tree stores an ACL as opaque bytes: the entries in ZooKeeper's wire format, or no bytes at all
for the open ACL (`world:anyone`, all permissions), which nearly every znode has.

An Identity is what one connection has proved about itself: its address, and the users it has sent
a password for. The tree calls it in two places: to check a permission, and to resolve the ACL that
a request sets.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from hightide.zookeeper.node import OPEN_ACL
from hightide.zookeeper.quota import Quota
from hightide.zookeeper.zookeeper_errors import InvalidAcl

_INT = struct.Struct(">i")

READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL = READ | WRITE | CREATE | DELETE | ADMIN


class Entry(NamedTuple):
    """One ACL entry: permissions for an id. The scheme defines what the id means."""

    permissions: int
    scheme: str
    id: str


ANYONE = Entry(ALL, "world", "anyone")


class Access(Protocol):
    """Access checks that the tree makes for a request."""

    @property
    def quota(self) -> Quota | None:
        """How large the request may make the tree; None is not limited."""

    def may(self, acl: bytes, permission: int) -> bool:
        """Return whether the ACL grants at least one of the permissions."""

    def resolve(self, path: str, acl: bytes) -> bytes:
        """Return the ACL to store for a requested one; raise InvalidAcl if it is not valid."""


def encode(entries: Iterable[Entry]) -> bytes:
    """Encode entries as the tree stores them."""
    entries = tuple(entries)
    return OPEN_ACL if entries == (ANYONE,) else wire(entries)


def wire(entries: Sequence[Entry]) -> bytes:
    """Encode entries as a client receives them."""
    parts = [_INT.pack(len(entries))]
    for permissions, *texts in entries:
        parts.append(_INT.pack(permissions))
        for text in texts:
            data = text.encode()
            parts += _INT.pack(len(data)), data
    return b"".join(parts)


MAX_ENTRIES = 32
"""Entries of one ACL. Every operation on a znode visits them, and a multi has many operations."""
MAX_BYTES = 4096
"""One ACL. The decoded form of thousands of them is cached."""


@lru_cache(maxsize=4096)
def decode(acl: bytes) -> tuple[Entry, ...]:
    """Decode an ACL that `encode` made."""
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


def count(acl: bytes) -> int:
    """Return the number of entries of an ACL that is not the open one."""
    return int.from_bytes(acl[:4], "big")


def digest(credentials: bytes) -> str:
    """Return the digest id, `user:hash`, that the credentials `user:password` prove."""
    import hashlib
    from binascii import b2a_base64

    text = credentials.decode(errors="replace")
    hashed = b2a_base64(hashlib.sha1(text.encode(), usedforsecurity=False).digest(), newline=False)
    return f"{text.partition(':')[0]}:{hashed.decode()}"


class Identity:
    """What a connection has proved. Immutable: a queued request keeps its identity."""

    __slots__ = ("_is_super", "ids", "quota")

    def __init__(self, ids: tuple[tuple[str, str], ...], quota: Quota | None = None) -> None:
        self.ids = ids
        """Pairs of scheme and id."""
        self.quota = quota
        self._is_super = any(scheme == "super" for scheme, _ in ids)

    def with_ids(self, *more: tuple[str, str]) -> Identity:
        """Return this identity with additional ids."""
        new = tuple(pair for pair in more if pair not in self.ids)
        return Identity(self.ids + new, self.quota)

    def with_quota(self, quota: Quota) -> Identity:
        """Return this identity with another quota."""
        return Identity(self.ids, quota)

    def may(self, acl: bytes, permission: int) -> bool:
        if acl == OPEN_ACL or self._is_super:
            return True
        entries = decode(acl)
        return not entries or any(
            entry.permissions & permission and self._is(entry.scheme, entry.id) for entry in entries
        )

    def resolve(self, path: str, acl: bytes) -> bytes:
        """Drop duplicate entries and replace `auth` by the digest ids of this identity."""
        if acl == OPEN_ACL:
            return acl
        _check_size(path, acl)
        requested = dict.fromkeys(decode(acl))
        resolved: list[Entry] = []
        for entry in requested:
            if entry.scheme == "auth":
                mine = [pair for pair in self.ids if pair[0] == "digest"]
                if not mine:
                    raise InvalidAcl(path, "scheme auth needs an authenticated connection")
                resolved += [Entry(entry.permissions, *pair) for pair in mine]
            elif _is_valid(entry):
                resolved.append(entry)
            else:
                raise InvalidAcl(path, f"{entry.scheme}:{entry.id}")
        if not resolved:
            raise InvalidAcl(path, "it is empty")
        # The scheme auth stands for every id that the connection has proved.
        _check_size(path, stored := encode(resolved))
        return stored

    def _is(self, scheme: str, name: str) -> bool:
        if scheme == "world":
            return name == "anyone"
        if scheme == "ip":
            return any(own == "ip" and _within(address, name) for own, address in self.ids)
        return (scheme, name) in self.ids


class _Unchecked:
    """Access of a caller inside this process: ACLs are not checked."""

    __slots__ = ()
    quota = None

    def may(self, acl: bytes, permission: int) -> bool:  # noqa: ARG002
        return True

    def resolve(self, path: str, acl: bytes) -> bytes:  # noqa: ARG002
        return acl


UNCHECKED: Access = _Unchecked()


def without_secrets(entries: Iterable[Entry]) -> list[Entry]:
    """Hide password hashes from a client without ADMIN permission: a hash can be guessed."""
    return [
        entry._replace(id=re.sub(":.*", ":x", entry.id)) if entry.scheme == "digest" else entry
        for entry in entries
    ]


def _check_size(path: str, acl: bytes) -> None:
    if len(acl) > MAX_BYTES or count(acl) > MAX_ENTRIES:
        raise InvalidAcl(path, f"it has more than {MAX_ENTRIES} entries or {MAX_BYTES} bytes")


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
    network, own = _network(text), _address(address)
    return network is not None and own is not None and own in network


@lru_cache(maxsize=4096)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse a connection's address; None if it has no known one."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Parse `address` or `address/bits`; None if it is neither."""
    _, slash, bits = text.partition("/")
    if slash and not bits.isdecimal():
        return None  # ZooKeeper accepts a prefix length, not a netmask.
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
