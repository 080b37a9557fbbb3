"""The settings that are topics' own, as this broker knows them.

Every broker reads those of all topics: it hosts some, and clients ask any broker about any topic.
They are read when a topic is first heard of, and again when somebody says that they have changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from hightide.broker.config_changes import Change, change_config, read_config
from hightide.broker.reading import in_groups
from hightide.coordination import znodes
from hightide.coordination.errors import NoNode
from hightide.coordination.interface import Coordination
from hightide.core import topics as rules
from hightide.settings import Topic as TopicSettings
from hightide.wire.errors import KafkaError

log = logging.getLogger(__name__)

_NONE: Mapping[str, str] = {}


class TopicConfigs:
    """Overrides by topic; `changed` is called with a topic's name after its own have changed."""

    def __init__(self, coordination: Coordination, changed: Callable[[str], None]) -> None:
        self._coordination = coordination
        self._changed = changed
        self._overrides: dict[str, dict[str, str]] = {}

    def overrides(self, name: str) -> Mapping[str, str]:
        return self._overrides.get(name, _NONE)

    async def read_all(self) -> None:
        """Learn what is set for any topic."""
        try:
            names = await self._coordination.children(znodes.config_path("topics"))
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
        """Learn what is set for these topics."""

        async def read_one(name: str) -> None:
            found = await read_config(
                self._coordination, f"topics/{name}", TopicSettings.check, self.overrides(name)
            )
            # After a reconnect all are read, and almost none are others than they were.
            if found != self.overrides(name):
                self._overrides[name] = found
                self._changed(name)

        await in_groups(list(names), read_one)

    async def configure(self, name: str, change: Change) -> None:
        """Change the settings that are the topic's own."""
        config = await change_config(self._coordination, f"topics/{name}", change)
        self._overrides[name] = dict(config)
        self._changed(name)

    def forget(self, name: str) -> None:
        self._overrides.pop(name, None)
