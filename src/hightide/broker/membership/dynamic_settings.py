"""What was set of this broker since its start: for all brokers, and for it alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from hightide.broker.membership.config_changes import Change, change_config, read_config
from hightide.settings import Broker as Settings
from hightide.settings import InvalidSetting, Scope
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper

log = logging.getLogger(__name__)


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
