"""The settings of topics, known and not known yet."""

import asyncio

import pytest

from hightide.broker.membership.dynamic_configs import TopicConfigs
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import ConnectionLoss
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.interface import ensure_path


class Away(InMemoryZooKeeper):
    """A coordinator that cannot be reached now and then."""

    is_away = False

    async def get(self, path, watch=None):
        if self.is_away:
            raise ConnectionLoss(path)
        return await super().get(path, watch)


def run(test) -> None:
    async def go() -> None:
        zookeeper = await Away.open(None)
        try:
            await ensure_path(zookeeper, znodes.config_path("topics"))
            changed: list[str] = []
            await test(zookeeper, TopicConfigs(zookeeper, changed.append), changed)
        finally:
            await zookeeper.close()

    asyncio.run(go())


async def write(zookeeper: InMemoryZooKeeper, topic: str, **overrides: str) -> None:
    data = znodes.EntityConfig({k.replace("_", "."): v for k, v in overrides.items()}).encode()
    await zookeeper.create(znodes.topic_config_path(topic), data)


def test_a_topic_whose_settings_could_not_be_read_is_led_with_caution():
    async def test(zookeeper, configs, changed):
        await write(zookeeper, "t", min_insync_replicas="2")
        zookeeper.is_away = True
        with pytest.raises(ConnectionLoss):
            await configs.read(["t"])
        settings = TopicSettings.effective(Settings(), configs.overrides("t"))
        assert settings.min_insync_replicas >= 3, "no ISR may seem large enough"
        zookeeper.is_away = False
        await configs.read_missing()
        assert configs.overrides("t") == {"min.insync.replicas": "2"}
        assert changed == ["t"]

    run(test)


def test_a_topic_whose_settings_could_not_be_read_is_flushed_at_once_and_keeps_everything():
    async def test(coordination, configs, changed):
        await write(coordination, "t", flush_messages="10", cleanup_policy="compact")
        coordination.is_away = True
        with pytest.raises(ConnectionLoss):
            await configs.read(["t"])
        broker = Settings(log_retention_bytes=1, log_cleanup_policy=("compact", "delete"))
        settings = TopicSettings.effective(broker, configs.overrides("t"))
        assert settings.flush_messages == 1
        assert (settings.retention_ms, settings.retention_bytes) == (-1, -1)
        assert "compact" not in settings.cleanup_policy
        coordination.is_away = False
        await configs.read_missing()
        settings = TopicSettings.effective(Settings(), configs.overrides("t"))
        assert settings.flush_messages == 10
        assert settings.cleanup_policy == ("compact",)
        assert changed == ["t"]

    run(test)


def test_what_was_known_goes_on_while_it_cannot_be_read():
    async def test(zookeeper, configs, _changed):
        await write(zookeeper, "t", retention_ms="5")
        await configs.read(["t"])
        zookeeper.is_away = True
        with pytest.raises(ConnectionLoss):
            await configs.read(["t"])
        assert configs.overrides("t") == {"retention.ms": "5"}

    run(test)


def test_a_topic_without_settings_of_its_own_is_not_led_with_caution():
    async def test(_zookeeper, configs, _changed):
        await configs.read(["plain"])
        assert configs.overrides("plain") == {}
        configs.forget("plain")
        assert configs.overrides("plain") == {}

    run(test)
