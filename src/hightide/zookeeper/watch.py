"""One-shot watches: who wants to hear of which znode, and what fires them.

A watcher is a number that the shell chooses: a connection of the server, or a session. A watch
fires once and is gone. The events of a change come in ZooKeeper's order: the znode's own watchers
first, then those of its parent's children; and a watcher that watches both data and children of a
deleted znode hears of it once.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from hightide.zookeeper.node import OPEN_ACL, split
from hightide.zookeeper.operation import Change, Created, DataSet, Deleted


class EventType(IntEnum):
    """ZooKeeper's numbers."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4


class WatchEvent(NamedTuple):
    """Something happened to `path`: go and read."""

    type: EventType
    path: str


class FiredWatch(NamedTuple):
    """An event that is owed to a watcher, if it may read by this access list."""

    watcher: int
    event: WatchEvent
    acl: bytes = OPEN_ACL


class Watches:
    """The watches that are armed. Dicts rather than sets, so that the order is always the same."""

    __slots__ = ("_children", "_data", "_held")

    def __init__(self) -> None:
        self._data: dict[str, dict[int, None]] = {}
        self._children: dict[str, dict[int, None]] = {}
        self._held: dict[int, dict[tuple[bool, str], None]] = {}

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    def watch_data(self, path: str, watcher: int) -> None:
        """Fires when the znode's data changes, or it is created or deleted."""
        self._data.setdefault(path, {})[watcher] = None
        self._held.setdefault(watcher, {})[True, path] = None

    def watch_children(self, path: str, watcher: int) -> None:
        """Fires when a child comes or goes, or the znode itself is deleted."""
        self._children.setdefault(path, {})[watcher] = None
        self._held.setdefault(watcher, {})[False, path] = None

    def forget(self, watcher: int) -> None:
        """Drop what a watcher armed; it is gone."""
        for is_data, path in self._held.pop(watcher, ()):
            self._disarm(watcher, is_data, path)

    def has(self, watcher: int, path: str, *, data: bool, children: bool) -> bool:
        """Whether the watcher has armed one of these on the znode."""
        held = self._held.get(watcher, {})
        return (data and (True, path) in held) or (children and (False, path) in held)

    def remove(self, watcher: int, path: str, *, data: bool, children: bool) -> bool:
        """Disarm these; False if none was armed."""
        held = self._held.get(watcher, {})
        gone = [key for key in ((True, path), (False, path)) if key in held]
        gone = [key for key in gone if (data if key[0] else children)]
        for is_data, _ in gone:
            self._disarm(watcher, is_data, path)
            self._release(watcher, is_data, path)
        return bool(gone)

    def fire(self, change: Change, acl: bytes, parent_acl: bytes) -> list[FiredWatch]:
        """Disarm and return every watch that this change touches.

        The access lists are those of the znode, if it is deleted as it was, and of its parent.
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
        if not held:
            del self._held[watcher]


def _fired(watchers: Iterable[int], kind: EventType, path: str, acl: bytes) -> list[FiredWatch]:
    return [FiredWatch(watcher, WatchEvent(kind, path), acl) for watcher in watchers]
