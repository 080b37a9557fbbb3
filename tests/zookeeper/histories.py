"""Random histories: requests of several sessions to a server, one after the other.

A history is data, independent of a server. Its steps follow from the seed alone, never from a
response, so two servers can get the same requests. Paths are few, so that the sessions collide.
"""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.zookeeper.jute import OPEN, Acl

SESSIONS = 3

USERS = {"ann": b"ann:secret", "bob": b"bob:hidden"}


def digest(user: str) -> str:
    """Return the id of a user in an ACL of the scheme digest."""
    return f"{user}:{base64.b64encode(hashlib.sha1(USERS[user]).digest()).decode()}"


EVERYTHING, READ, WRITE, CREATE, DELETE, ADMIN = 31, 1, 2, 4, 8, 16

ACLS: dict[str, tuple[Acl, ...] | None] = {
    "open": OPEN,
    "world may read": (Acl(READ, "world", "anyone"),),
    "world may not create": (Acl(EVERYTHING - CREATE, "world", "anyone"),),
    "world may not delete": (Acl(EVERYTHING - DELETE, "world", "anyone"),),
    "no permissions": (Acl(0, "world", "anyone"),),
    "ann": (Acl(EVERYTHING, "digest", digest("ann")),),
    "ann, and all may read": (
        Acl(EVERYTHING, "digest", digest("ann")),
        Acl(READ, "world", "anyone"),
    ),
    "ann may write, bob may read": (
        Acl(WRITE | ADMIN, "digest", digest("ann")),
        Acl(READ, "digest", digest("bob")),
    ),
    "the requester": (Acl(EVERYTHING, "auth", ""),),
    "loopback": (Acl(EVERYTHING, "ip", "127.0.0.1"),),
    "loopback's network": (Acl(EVERYTHING, "ip", "127.0.0.0/8"),),
    "another network": (Acl(EVERYTHING, "ip", "10.0.0.0/8"),),
    "twice": (*OPEN, *OPEN),
    "empty": (),
    "none": None,
    "an unknown scheme": (Acl(EVERYTHING, "carrier-pigeon", "anyone"),),
    "another world": (Acl(EVERYTHING, "world", "stranger"),),
    "no digest": (Acl(EVERYTHING, "digest", "ann"),),
    "no address": (Acl(EVERYTHING, "ip", "here"),),
    "no network": (Acl(EVERYTHING, "ip", "127.0.0.1/99"),),
    "a good and a bad one": (*OPEN, Acl(EVERYTHING, "carrier-pigeon", "anyone")),
}
WRONG_ACLS = {"empty", "none", "an unknown scheme", "another world", "no digest"} | {
    "no address",
    "no network",
    "a good and a bad one",
}

# Not for clients that check paths themselves.
ODD_PATHS = (
    "a",
    "/a/",
    "//",
    "/a//b",
    "/.",
    "/a/.",
    "/..",
    "/a/../b",
    "/a/...",
    "/\x00",
    "/a\x01",
    "/\x1f",
    "/\x7f",
    "/\u0085",
    "/\ue000",
    "/\uf8ff",
    "/\ufff0",
    "/\ufffe",
    "/ü/é",
    "/a b",
    "/" + "long" * 100,
    "/%s",
    None,
)


class Step(NamedTuple):
    """The next request of session number `session`."""

    session: int
    name: str
    arguments: tuple[Any, ...] = ()


class History:
    """Random choices. `odd` allows requests that no client library sends."""

    def __init__(self, seed: int, odd: bool) -> None:
        self.chance = random.Random(seed)
        self.odd = odd

    def steps(self, count: int) -> Iterator[Step]:
        choices: dict[Callable[[], tuple[str, tuple[Any, ...]]], int] = {
            self._create: 24,
            self._delete: 10,
            self._set: 14,
            self._get: 10,
            self._exists: 10,
            self._children: 10,
            self._acls: 4,
            self._multi: 14,
            self._session: 3,
            self._sync: 1,
        }
        kinds, weights = list(choices), list(choices.values())
        for kind in self.chance.choices(kinds, weights, k=count):
            name, arguments = kind()
            yield Step(self.chance.randrange(SESSIONS), name, arguments)

    def _path(self) -> str | None:
        if self.odd and self._rarely(0.03):
            return self.chance.choice(ODD_PATHS)
        depth = self.chance.choice((1, 1, 1, 1, 2, 2, 3))
        return "".join("/" + self.chance.choice("abcs") for _ in range(depth))

    def _rarely(self, share: float) -> bool:
        return self.chance.random() < share

    def _data(self) -> bytes | None:
        if self._rarely(0.1):
            return None
        if self._rarely(0.02):
            return self.chance.randbytes(1) * 5000
        return self.chance.randbytes(self.chance.randrange(5))

    def _version(self) -> int:
        return self.chance.choice((-1, -1, -1, -1, -1, 0, 0, 1, 2))

    def _acl(self) -> str:
        if self._rarely(0.9):
            return "open"
        right = [name for name in ACLS if name not in WRONG_ACLS]
        return self.chance.choice(list(ACLS) if self.odd and self._rarely(0.3) else right)

    def _flags(self) -> int:
        """1 ephemeral, 2 sequential; 4 to 6 are not supported by the embedded server."""
        if self.odd and self._rarely(0.03):
            return self.chance.choice((7, 99, -1))
        return self._rarely(0.3) | self._rarely(0.25) << 1

    def _create(self) -> tuple[str, tuple[Any, ...]]:
        name = self.chance.choice(("create", "create2"))
        return name, (self._path(), self._data(), self._acl(), self._flags())

    def _delete(self) -> tuple[str, tuple[Any, ...]]:
        return "delete", (self._path(), self._version())

    def _set(self) -> tuple[str, tuple[Any, ...]]:
        return "set", (self._path(), self._data(), self._version())

    def _get(self) -> tuple[str, tuple[Any, ...]]:
        return "get", (self._path(), self._rarely(0.8))

    def _exists(self) -> tuple[str, tuple[Any, ...]]:
        return "exists", (self._path(), self._rarely(0.8))

    def _children(self) -> tuple[str, tuple[Any, ...]]:
        name = self.chance.choice(("children", "children2"))
        return name, (self._path(), self._rarely(0.8))

    def _acls(self) -> tuple[str, tuple[Any, ...]]:
        if self._rarely(0.4):
            return "get acl", (self._path(),)
        return "set acl", (self._path(), self._acl(), self._version())

    def _sync(self) -> tuple[str, tuple[Any, ...]]:
        return "sync", (self._path(),)

    def _multi(self) -> tuple[str, tuple[Any, ...]]:
        parts: list[tuple[Any, ...]] = []
        for _ in range(self.chance.choice((0, 1, 1, 1, 2, 2, 3, 4, 6))):
            name, (path, *arguments) = self.chance.choice(
                (self._create, self._create, self._delete, self._set, self._check)
            )()
            parts.append((name, path or "/a", *arguments))
        if self.odd and self._rarely(0.15):
            reads = [self.chance.choice((self._read_data, self._read_children))() for _ in parts]
            return "multi read", (tuple(reads),)
        return "multi", (tuple(parts),)

    def _check(self) -> tuple[str, tuple[Any, ...]]:
        return "check", (self._path(), self._version())

    def _read_data(self) -> tuple[Any, ...]:
        return "get", self._path() or "/a"

    def _read_children(self) -> tuple[Any, ...]:
        return "children", self._path() or "/a"

    def _session(self) -> tuple[str, tuple[Any, ...]]:
        """Sessions end, lose their connection, or authenticate."""
        kind = self.chance.choice(("restart", "drop", "authenticate", "authenticate"))
        if kind == "authenticate":
            return kind, (self.chance.choice(list(USERS)),)
        if kind == "drop" and self.odd:
            lists = tuple(
                tuple(str(self._path()) for _ in range(self.chance.randrange(4))) for _ in range(3)
            )
            return "drop and watch", (self.chance.randrange(30), lists)
        return kind, ()
