"""Settings that change while brokers run: `/config/TYPE/NAME`, and notifications of changes.

A change of the settings of a topic or broker is written together with a sequential znode that names
the topic or broker, in one multi.  Every broker watches these notifications, remembers the last
number it has seen, and reads the settings that a new one names.  A notification is kept for 15
minutes; then the first broker that sees it deletes it.  So a broker that was disconnected reads all
settings when it returns.
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
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.operation import Create, Delete, Operation, SetData
from hightide.zookeeper.zookeeper_errors import (
    BadVersion,
    MalformedZnode,
    MultiFailed,
    NodeExists,
    NoNode,
)

log = logging.getLogger(__name__)

_KEPT_MS = 15 * 60 * 1000

Change = Callable[[dict[str, str]], dict[str, str]]
"""Maps the current settings of an entity to its new settings."""

Check = Callable[[dict[str, str]], None]
"""Raises InvalidSetting for settings that an entity may not have."""


class ConfigChanges:
    """Follows the notifications, and applies what they name."""

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
        """Skip the notifications so far; the caller reads all settings after this."""
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
            log.warning("notification %s was deleted before it was read", path)
        except MalformedZnode as damage:
            log.error("%s", damage)

    async def _sweep(self, names: Sequence[str]) -> None:
        """Delete old notifications; `names` has the oldest first."""
        for name in names:
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            stat = await self._zookeeper.exists(path)
            if stat is not None:
                if stat.ctime > self._now_ms() - _KEPT_MS:
                    return
                with contextlib.suppress(NoNode):  # another broker deletes it as well
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
    previous: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Read the settings of an entity, without those that `check` refuses.

    Any client may write to ZooKeeper.  If the znode is invalid, the `previous` settings stay.
    """
    path = znodes.config_path(entity_path)
    try:
        data, _ = await zookeeper.get(path)
        config = znodes.EntityConfig.decode(data, path).config
    except NoNode:
        return {}
    except MalformedZnode as damage:
        log.error("%s", damage)
        return dict(previous)
    usable = {}
    for name, value in config.items():
        try:
            check({name: value})
            usable[name] = value
        except InvalidSetting as wrong:
            log.error("ignoring an invalid setting of %s: %s", entity_path, wrong)
    return usable


async def change_config(
    zookeeper: ZooKeeper, entity_path: str, change: Change, *, deletes_empty: bool = False
) -> Mapping[str, str]:
    """Change the settings of a topic or broker, notify all brokers, and return the new settings.

    If another client writes at the same time, `change` is called again with what it wrote.  With
    `deletes_empty`, an entity without settings does not exist.
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
            if deletes_empty and not config:
                return config
            write = Create(path, znodes.EntityConfig(config).encode())
        else:
            config = change(_decode(data, path))
            if deletes_empty and not config:
                write = Delete(path, stat.version)
            else:
                write = SetData(path, znodes.EntityConfig(config).encode(), stat.version)
        try:
            await zookeeper.multi([write, notification])
        except MultiFailed as failed:
            was_there = isinstance(write, SetData | Delete)
            if isinstance(failed.cause, (BadVersion, NoNode) if was_there else NodeExists):
                continue
            raise
        return config


def _decode(data: bytes, path: str) -> dict[str, str]:
    """Decode settings; an invalid znode counts as empty, and is overwritten."""
    try:
        return dict(znodes.EntityConfig.decode(data, path).config)
    except MalformedZnode as damage:
        log.error("%s", damage)
        return {}


class BrokerConfigs:
    """The dynamic settings of this broker: for all brokers (`cluster`), and for this one (`own`).

    `apply` gets the effective settings after a change.
    """

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

    async def _read(self, entity: str, scope: Scope, previous: Mapping[str, str]) -> dict[str, str]:
        return await read_config(
            self._zookeeper,
            f"brokers/{entity}",
            lambda settings: Settings.check_change(settings, scope),
            previous,
        )

    def concerns(self, entity: str) -> bool:
        """Whether an entity of `/config/brokers` is this broker, or all brokers."""
        return entity in (str(self._broker_id), znodes.DEFAULT_ENTITY)

    async def configure(self, change: Change, own: bool) -> None:
        """Change the dynamic settings of this broker, or of all brokers."""
        entity = str(self._broker_id) if own else znodes.DEFAULT_ENTITY
        config = dict(await change_config(self._zookeeper, f"brokers/{entity}", change))
        if own:
            self.own = config
        else:
            self.cluster = config
        self._change()

    def _change(self) -> None:
        # A reconnect reads all settings, mostly unchanged; applying them visits every log.
        configured = (self.cluster, self.own)
        if configured == self._applied:
            return
        try:
            settings = self._settings().changed(self.cluster, self.own)
        except InvalidSetting as wrong:
            # Any client may write to ZooKeeper; the broker keeps the settings it has.
            log.error("ignoring invalid dynamic settings of this broker: %s", wrong)
            return
        self._applied = configured
        self._apply(settings)


_NONE: Mapping[str, str] = {}
NO_ENTITY = ("", ".", "..")
"""Names that no znode can have."""
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
    """The settings of all topics, as far as they override the broker's.

    A broker knows those of every topic: it hosts some, and clients may ask any broker about any
    topic.  It reads them when it learns of a topic, and after a notification.  `changed` is called
    with the name of a topic whose settings have changed.
    """

    def __init__(self, zookeeper: ZooKeeper, changed: Callable[[str], None]) -> None:
        self._zookeeper = zookeeper
        self._changed = changed
        self._overrides: dict[str, dict[str, str]] = {}
        self._unread: dict[str, None] = {}

    def is_known(self, name: str) -> bool:
        """Whether `overrides` are the topic's own, not the safe ones of an unread topic."""
        return name not in self._unread

    def overrides(self, name: str) -> Mapping[str, str]:
        if name in self._unread:
            return _UNKNOWN
        return self._overrides.get(name, _NONE)

    async def read_all(self) -> None:
        """Read the settings of all topics."""
        try:
            names = await self._zookeeper.children(znodes.config_path("topics"))
        except NoNode:
            return
        await self.read(names)

    async def notified(self, name: str) -> None:
        """Read the settings that a notification names; any client may have written it."""
        try:
            rules.check_name(name)
        except KafkaError as wrong:
            log.error("ignoring a notification for an invalid topic name: %s", wrong.detail)
        else:
            await self.read([name])

    async def read(self, names: Iterable[str]) -> None:
        """Read the settings of these topics.  Until that succeeds, new topics get safe ones."""
        topics = list(names)
        self._unread.update(dict.fromkeys(name for name in topics if name not in self._overrides))

        async def read_one(name: str) -> None:
            known = self._overrides.get(name, _NONE)
            found = await read_config(self._zookeeper, f"topics/{name}", TopicSettings.check, known)
            # A reconnect reads the settings of all topics; almost none have changed.
            before = self.overrides(name)
            self._unread.pop(name, None)
            self._overrides[name] = found
            if found != before:
                self._changed(name)

        await in_groups(topics, read_one)

    async def read_missing(self) -> None:
        """Retry the topics whose settings could not be read."""
        if self._unread:
            await self.read(list(self._unread))

    async def configure(self, name: str, change: Change) -> None:
        """Change the settings of a topic."""
        config = await change_config(self._zookeeper, f"topics/{name}", change)
        self._overrides[name] = dict(config)
        self._unread.pop(name, None)
        self._changed(name)

    def forget(self, name: str) -> None:
        self._unread.pop(name, None)
        self._overrides.pop(name, None)


class ClientMetricsConfigs:
    """The subscriptions of clients' metrics (KIP-714), by name.

    `check` refuses a config, and `changed` gets each config that is new or different; an empty one
    means that the subscription is deleted.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        check: Check,
        changed: Callable[[str, Mapping[str, str]], None],
    ) -> None:
        self.configs: dict[str, dict[str, str]] = {}
        self._zookeeper = zookeeper
        self._check = check
        self._changed = changed

    async def read_all(self) -> None:
        """Read all subscriptions."""
        try:
            found = await self._zookeeper.children(znodes.config_path(znodes.CLIENT_METRICS))
        except NoNode:
            found = []
        names = {znodes.desanitized(name) for name in found}
        await in_groups([*names, *(self.configs.keys() - names)], self.read)

    async def notified(self, entity_name: str) -> None:
        """Read the subscription that a notification names; any client may have written it."""
        name = znodes.desanitized(entity_name)
        if znodes.sanitized(name) != entity_name or entity_name in NO_ENTITY:
            log.error("ignoring a notification for an invalid subscription: %r", entity_name)
        else:
            await self.read(name)

    async def read(self, name: str) -> None:
        """Read one subscription."""
        known = self.configs.get(name, _NONE)
        self._apply(name, await read_config(self._zookeeper, _path_of(name), self._check, known))

    async def configure(self, name: str, change: Change) -> None:
        """Change a subscription; without configs it is deleted."""
        path = _path_of(name)
        config = await change_config(self._zookeeper, path, change, deletes_empty=True)
        self._apply(name, dict(config))

    def _apply(self, name: str, config: dict[str, str]) -> None:
        if config == self.configs.get(name, _NONE):
            return
        if config:
            self.configs[name] = config
        else:
            self.configs.pop(name, None)
        self._changed(name, config)


def _path_of(subscription: str) -> str:
    return f"{znodes.CLIENT_METRICS}/{znodes.sanitized(subscription)}"
