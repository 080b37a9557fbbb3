"""The settings that are topics' own, as this broker knows them.

Every broker reads those of all topics: it hosts some, and clients ask any broker about any topic.
They are read when a topic is first heard of, and again when somebody says that they have changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from hightide.broker.membership.config_changes import Change, change_config, read_config
from hightide.broker.membership.watch_loop import in_groups
from hightide.core.metadata import topic_names as rules
from hightide.settings import Topic as TopicSettings
from hightide.wire.errors import KafkaError
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import NoNode
from hightide.zookeeper.interface import ZooKeeper

log = logging.getLogger(__name__)

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
            found = await read_config(
                self._zookeeper, f"topics/{name}", TopicSettings.check, had
            )
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
