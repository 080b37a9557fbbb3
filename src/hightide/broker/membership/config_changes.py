"""Settings that change while brokers run: `/config/TYPE/NAME`, and the notifications of changes.

Whoever changes the settings of a topic or a broker writes them and, in the same multi, a sequential
znode that names them.  Every broker watches for those, remembers the last number it has seen, and
reads what is named.  Notifications are kept for a quarter of an hour, then whoever sees them first
sweeps them away; so a broker that was away reads everything when it comes back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

from hightide.broker.membership.watch_loop import WatchLoop
from hightide.settings import InvalidSetting
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import BadVersion, MalformedZnode, MultiFailed, NodeExists, NoNode
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.operation import Create, Operation, SetData

log = logging.getLogger(__name__)

_KEPT_MS = 15 * 60 * 1000

Change = Callable[[dict[str, str]], dict[str, str]]
"""From the settings that an entity has of its own to those that it shall have."""

Check = Callable[[dict[str, str]], None]
"""Raises InvalidSetting."""


class ConfigChanges:
    """Follows the notifications."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        apply: Callable[[str], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:
        """`apply` is called with the path of an entity whose settings may have changed."""
        self.reading = WatchLoop(znodes.CONFIG_CHANGES, self.read)
        self._zookeeper = zookeeper
        self._apply = apply
        self._now_ms = now_ms
        self._last_seen = -1

    async def begin(self) -> None:
        """Count from here: what is there now is known to whoever reads all settings after this."""
        names = await self._zookeeper.children(znodes.CONFIG_CHANGES, self.reading.wake)
        self._last_seen = max(map(_sequence, names), default=-1)

    async def read(self) -> None:
        names = await self._zookeeper.children(znodes.CONFIG_CHANGES, self.reading.wake)
        names.sort(key=_sequence)
        for name in names:
            if _sequence(name) > self._last_seen:
                await self._follow(f"{znodes.CONFIG_CHANGES}/{name}")
                self._last_seen = _sequence(name)
        await self._sweep(names)

    async def _follow(self, path: str) -> None:
        try:
            data, _ = await self._zookeeper.get(path)
            await self._apply(znodes.ConfigChange.decode(data, path).entity_path)
        except NoNode:
            log.warning("%s was gone before it was read", path)
        except MalformedZnode as damage:
            log.error("%s", damage)

    async def _sweep(self, names: Sequence[str]) -> None:
        """Delete what is too old; the names come oldest first."""
        for name in names:
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            stat = await self._zookeeper.exists(path)
            if stat is not None:
                if stat.ctime > self._now_ms() - _KEPT_MS:
                    return
                with contextlib.suppress(NoNode):  # another broker sweeps as well
                    await self._zookeeper.delete(path)


def _sequence(name: str) -> int:
    try:
        return znodes.sequence_of(name)
    except MalformedZnode:
        return -1


async def read_config(
    zookeeper: ZooKeeper,
    entity_path: str,
    check: Check = lambda _settings: None,
    had: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The settings of an entity, without those that `check` refuses.

    Anybody may write to the tree.  Where nothing that is there makes sense, what the entity `had`
    goes on.
    """
    path = znodes.config_path(entity_path)
    try:
        data, _ = await zookeeper.get(path)
        config = znodes.EntityConfig.decode(data, path).config
    except NoNode:
        return {}
    except MalformedZnode as damage:
        log.error("%s", damage)
        return dict(had)
    usable = {}
    for name, value in config.items():
        try:
            check({name: value})
            usable[name] = value
        except InvalidSetting as wrong:
            log.error("a setting of %s is ignored: %s", entity_path, wrong)
    return usable


async def change_config(
    zookeeper: ZooKeeper, entity_path: str, change: Change
) -> Mapping[str, str]:
    """Change the settings of a topic or broker and tell those who follow; what they are now.

    Somebody else may write at the same time: then `change` is asked again, about what he wrote.
    """
    path = znodes.config_path(entity_path)
    notification = Create(
        znodes.CONFIG_CHANGE_PREFIX, znodes.ConfigChange(entity_path).encode(), sequence=True
    )
    while True:
        write: Operation
        try:
            data, stat = await zookeeper.get(path)
        except NoNode:
            config = change({})
            write = Create(path, znodes.EntityConfig(config).encode())
        else:
            config = change(_found(data, path))
            write = SetData(path, znodes.EntityConfig(config).encode(), stat.version)
        try:
            await zookeeper.multi([write, notification])
        except MultiFailed as failed:
            was_there = isinstance(write, SetData)
            if isinstance(failed.cause, (BadVersion, NoNode) if was_there else NodeExists):
                continue
            raise
        return config


def _found(data: bytes, path: str) -> dict[str, str]:
    """What was set; nothing if that makes no sense, which is then written over."""
    try:
        return dict(znodes.EntityConfig.decode(data, path).config)
    except MalformedZnode as damage:
        log.error("%s", damage)
        return {}
