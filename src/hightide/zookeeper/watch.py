"""One-shot watches: which session watches which znode, and which changes fire a watch.

A watcher is a number that the caller chooses: a session id. A watch fires once and is removed. The
events of a change come in ZooKeeper's order: the watches on the znode first, then the child watches
on its parent. A watcher with both a data and a child watch on a deleted znode gets one event.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from hightide.zookeeper.node import OPEN_ACL, split
from hightide.zookeeper.operation import Change, Created, DataSet, Deleted


class EventType(IntEnum):
    """Event types with ZooKeeper's numbers."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4


class WatchEvent(NamedTuple):
    """The znode `path` changed: the client should read it again."""

    type: EventType
    path: str


class FiredWatch(NamedTuple):
    """An event for a watcher, to be sent if this ACL lets the watcher read."""

    watcher: int
    event: WatchEvent
    acl: bytes = OPEN_ACL


class Watches:
    """The armed watches. Dicts and not sets, so that the order is deterministic."""

    __slots__ = ("_children", "_count", "_data", "_held", "size")

    def __init__(self) -> None:
        self._count = 0
        self.size = 0
        """The lengths of the paths of all watches."""
        self._data: dict[str, dict[int, None]] = {}
        self._children: dict[str, dict[int, None]] = {}
        self._held: dict[int, dict[tuple[bool, str], None]] = {}

    def __len__(self) -> int:
        return self._count

    def count_of(self, watcher: int) -> int:
        """Return the number of watches of one watcher."""
        return len(self._held.get(watcher, ()))

    def watch_data(self, path: str, watcher: int) -> None:
        """Arm a watch that fires when the znode's data changes, or it is created or deleted."""
        self._data.setdefault(path, {})[watcher] = None
        self._hold(watcher, True, path)

    def watch_children(self, path: str, watcher: int) -> None:
        """Arm a watch that fires when a child is created or deleted, or the znode is deleted."""
        self._children.setdefault(path, {})[watcher] = None
        self._hold(watcher, False, path)

    def _hold(self, watcher: int, is_data: bool, path: str) -> None:
        held = self._held.setdefault(watcher, {})
        if (is_data, path) not in held:
            held[is_data, path] = None
            self._count += 1
            self.size += len(path)

    def forget(self, watcher: int) -> None:
        """Drop all watches of a watcher whose connection or session is gone."""
        for is_data, path in self._held.pop(watcher, ()):
            self._disarm(watcher, is_data, path)
            self._count -= 1
            self.size -= len(path)

    def has(self, watcher: int, path: str, *, data: bool, children: bool) -> bool:
        """Return whether the watcher has one of these watches on the znode."""
        held = self._held.get(watcher, {})
        return (data and (True, path) in held) or (children and (False, path) in held)

    def remove(self, watcher: int, path: str, *, data: bool, children: bool) -> bool:
        """Disarm these watches; return False if none was armed."""
        held = self._held.get(watcher, {})
        gone = [key for key in ((True, path), (False, path)) if key in held]
        gone = [key for key in gone if (data if key[0] else children)]
        for is_data, _ in gone:
            self._disarm(watcher, is_data, path)
            self._release(watcher, is_data, path)
        return bool(gone)

    def fire(self, change: Change, acl: bytes, parent_acl: bytes) -> list[FiredWatch]:
        """Disarm and return every watch that this change fires.

        The ACLs are those of the znode (of a deleted one, its last) and of its parent.
        """
        if isinstance(change, DataSet):
            return _fired(self._take_data(change.path), EventType.CHANGED, change.path, acl)
        if isinstance(change, Created):
            own = _fired(self._take_data(change.path), EventType.CREATED, change.path, acl)
        elif isinstance(change, Deleted):
            watchers = self._take_data(change.path) | self._take_children(change.path)
            own = _fired(watchers, EventType.DELETED, change.path, acl)
        else:
            return []
        parent, _ = split(change.path)
        return own + _fired(self._take_children(parent), EventType.CHILD, parent, parent_acl)

    def _disarm(self, watcher: int, is_data: bool, path: str) -> None:
        table = self._data if is_data else self._children
        watchers = table[path]
        del watchers[watcher]
        if not watchers:
            del table[path]

    def _take_data(self, path: str) -> dict[int, None]:
        watchers = self._data.pop(path, {})
        for watcher in watchers:
            self._release(watcher, True, path)
        return watchers

    def _take_children(self, path: str) -> dict[int, None]:
        watchers = self._children.pop(path, {})
        for watcher in watchers:
            self._release(watcher, False, path)
        return watchers

    def _release(self, watcher: int, is_data: bool, path: str) -> None:
        held = self._held[watcher]
        del held[is_data, path]
        self._count -= 1
        self.size -= len(path)
        if not held:
            del self._held[watcher]


def _fired(watchers: Iterable[int], kind: EventType, path: str, acl: bytes) -> list[FiredWatch]:
    return [FiredWatch(watcher, WatchEvent(kind, path), acl) for watcher in watchers]
