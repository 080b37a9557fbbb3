"""Settings that change while brokers run: `/config/TYPE/NAME`, and the notifications of changes.

Whoever changes the settings of a topic or a broker writes them and, in the same multi, a sequential
znode that names them.  Every broker watches for those, remembers the last number it has seen, and
reads what is named.  Notifications are kept for a quarter of an hour, then whoever sees them first
sweeps them away; so a broker that was away reads everything when it comes back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from hightide.broker.membership.watch_loop import WatchLoop, in_groups
from hightide.core.metadata import topic_names as rules
from hightide.settings import Broker as Settings
from hightide.settings import InvalidSetting, Scope
from hightide.settings import Topic as TopicSettings
from hightide.wire.errors import KafkaError
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
        self.watch_loop = WatchLoop(znodes.CONFIG_CHANGES, self.read)
        self._zookeeper = zookeeper
        self._apply = apply
        self._now_ms = now_ms
        self._last_seen = -1

    async def begin(self) -> None:
        """Count from here: what is there now is known to whoever reads all settings after this."""
        names = await self._zookeeper.children(znodes.CONFIG_CHANGES, self.watch_loop.wake)
        self._last_seen = max(map(_sequence, names), default=-1)

    async def read(self) -> None:
        names = await self._zookeeper.children(znodes.CONFIG_CHANGES, self.watch_loop.wake)
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


class DynamicSettings:
    """Follows `/config/brokers`; `apply` gets the settings that the broker has now."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        broker_id: int,
        settings: Callable[[], Settings],
        apply: Callable[[Settings], None],
    ) -> None:
        self.cluster: dict[str, str] = {}
        self.own: dict[str, str] = {}
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._settings = settings
        self._apply = apply
        self._applied: tuple[dict[str, str], dict[str, str]] | None = None

    async def read(self) -> None:
        self.cluster = await self._read(znodes.DEFAULT_ENTITY, Scope.CLUSTER, self.cluster)
        self.own = await self._read(str(self._broker_id), Scope.BROKER, self.own)
        self._change()

    async def _read(self, entity: str, scope: Scope, had: Mapping[str, str]) -> dict[str, str]:
        return await read_config(
            self._zookeeper,
            f"brokers/{entity}",
            lambda settings: Settings.check_change(settings, scope),
            had,
        )

    def concerns(self, entity: str) -> bool:
        """Whether settings of this broker, or of all, are meant."""
        return entity in (str(self._broker_id), znodes.DEFAULT_ENTITY)

    async def configure(self, change: Change, own: bool) -> None:
        """Change what was set since the start, for this broker or for all."""
        entity = str(self._broker_id) if own else znodes.DEFAULT_ENTITY
        config = dict(await change_config(self._zookeeper, f"brokers/{entity}", change))
        if own:
            self.own = config
        else:
            self.cluster = config
        self._change()

    def _change(self) -> None:
        # After a reconnect all is read, and mostly as it was; to apply it goes through every log.
        wanted = (self.cluster, self.own)
        if wanted == self._applied:
            return
        try:
            settings = self._settings().changed(self.cluster, self.own)
        except InvalidSetting as wrong:
            # Anybody may write to the tree; what worked so far goes on working.
            log.error("settings in the tree are ignored: %s", wrong)
            return
        self._applied = wanted
        self._apply(settings)


_NONE: Mapping[str, str] = {}
# Settings of a topic whose own settings could not be read yet. No true setting is more careful:
# every record is forced to disk before its acknowledgement, nothing is dropped or compacted, and
# the ISR must hold all replicas. The controller knows the true min.insync.replicas, and a smaller
# ISR must not count as safe here than there.
_UNKNOWN: Mapping[str, str] = {
    "min.insync.replicas": str(2**31 - 1),
    "flush.messages": "1",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}


class TopicConfigs:
    """Overrides by topic; `changed` is called with a topic's name after its own have changed."""

    def __init__(self, zookeeper: ZooKeeper, changed: Callable[[str], None]) -> None:
        self._zookeeper = zookeeper
        self._changed = changed
        self._overrides: dict[str, dict[str, str]] = {}
        self._unread: dict[str, None] = {}

    def overrides(self, name: str) -> Mapping[str, str]:
        if name in self._unread:
            return _UNKNOWN
        return self._overrides.get(name, _NONE)

    async def read_all(self) -> None:
        """Learn what is set for any topic."""
        try:
            names = await self._zookeeper.children(znodes.config_path("topics"))
        except NoNode:
            return
        await self.read(names)

    async def notified(self, name: str) -> None:
        """Somebody says that a topic's settings have changed; it may be anybody."""
        try:
            rules.check_name(name)
        except KafkaError as wrong:
            log.error("settings are said to have changed of what is no topic: %s", wrong.detail)
        else:
            await self.read([name])

    async def read(self, names: Iterable[str]) -> None:
        """Learn what is set for these topics.  What is not known before, is not until then."""
        wanted = list(names)
        self._unread.update(dict.fromkeys(name for name in wanted if name not in self._overrides))

        async def read_one(name: str) -> None:
            had = self._overrides.get(name, _NONE)
            found = await read_config(self._zookeeper, f"topics/{name}", TopicSettings.check, had)
            # After a reconnect all are read, and almost none are others than they were.
            before = self.overrides(name)
            self._unread.pop(name, None)
            self._overrides[name] = found
            if found != before:
                self._changed(name)

        await in_groups(wanted, read_one)

    async def read_missing(self) -> None:
        """Try again what could not be read."""
        if self._unread:
            await self.read(list(self._unread))

    async def configure(self, name: str, change: Change) -> None:
        """Change the settings that are the topic's own."""
        config = await change_config(self._zookeeper, f"topics/{name}", change)
        self._overrides[name] = dict(config)
        self._unread.pop(name, None)
        self._changed(name)

    def forget(self, name: str) -> None:
        self._unread.pop(name, None)
        self._overrides.pop(name, None)
