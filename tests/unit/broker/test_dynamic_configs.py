"""Dynamic settings of topics and brokers: reading, changing, notifications."""

import asyncio
from typing import Any

import pytest

from hightide.broker.membership.dynamic_configs import (
    ConfigChanges,
    TopicConfigs,
    change_config,
    read_config,
)
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.zookeeper import znodes
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.interface import ensure_path
from hightide.zookeeper.operation import SetData
from hightide.zookeeper.zookeeper_errors import ConnectionLoss, NoNode


class UnreliableZooKeeper(InMemoryZooKeeper):
    """A ZooKeeper that a test can make unreachable."""

    is_unreachable = False

    async def get(self, path, watch=None):
        if self.is_unreachable:
            raise ConnectionLoss(path)
        return await super().get(path, watch)


def run(test) -> None:
    async def go() -> None:
        zookeeper = await UnreliableZooKeeper.open(None)
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


def test_a_topic_with_unknown_settings_needs_all_replicas_in_sync():
    async def test(zookeeper, configs, changed):
        await write(zookeeper, "t", min_insync_replicas="2")
        zookeeper.is_unreachable = True
        with pytest.raises(ConnectionLoss):
            await configs.read(["t"])
        settings = TopicSettings.effective(Settings(), configs.overrides("t"))
        assert settings.min_insync_replicas >= 3, "no ISR may count as large enough"
        zookeeper.is_unreachable = False
        await configs.read_missing()
        assert configs.overrides("t") == {"min.insync.replicas": "2"}
        assert changed == ["t"]

    run(test)


def test_a_topic_with_unknown_settings_is_flushed_at_once_and_keeps_everything():
    async def test(zookeeper, configs, changed):
        await write(zookeeper, "t", flush_messages="10", cleanup_policy="compact")
        zookeeper.is_unreachable = True
        with pytest.raises(ConnectionLoss):
            await configs.read(["t"])
        broker = Settings(log_retention_bytes=1, log_cleanup_policy=("compact", "delete"))
        settings = TopicSettings.effective(broker, configs.overrides("t"))
        assert not configs.is_known("t")
        assert settings.flush_messages == 1
        assert (settings.retention_ms, settings.retention_bytes) == (-1, -1)
        assert "compact" not in settings.cleanup_policy
        zookeeper.is_unreachable = False
        await configs.read_missing()
        settings = TopicSettings.effective(Settings(), configs.overrides("t"))
        assert configs.is_known("t")
        assert settings.flush_messages == 10
        assert settings.cleanup_policy == ("compact",)
        assert changed == ["t"]

    run(test)


def test_known_settings_stay_while_zookeeper_is_unreachable():
    async def test(zookeeper, configs, _changed):
        await write(zookeeper, "t", retention_ms="5")
        await configs.read(["t"])
        zookeeper.is_unreachable = True
        with pytest.raises(ConnectionLoss):
            await configs.read(["t"])
        assert configs.overrides("t") == {"retention.ms": "5"}

    run(test)


def test_a_topic_without_settings_has_the_defaults():
    async def test(_zookeeper, configs, _changed):
        await configs.read(["plain"])
        assert configs.overrides("plain") == {}
        configs.forget("plain")
        assert configs.overrides("plain") == {}

    run(test)


# -- changes and notifications --------------------------------------------------------------------

clock = [0]


def with_zookeeper(test):
    def run_test():
        async def main():
            zookeeper = await InMemoryZooKeeper.open(clock=lambda: clock[0])
            await ensure_path(zookeeper, znodes.CONFIG_CHANGES)
            await ensure_path(zookeeper, "/config/topics")
            try:
                await test(zookeeper)
            finally:
                await zookeeper.close()

        clock[0] = 0
        asyncio.run(main())

    run_test.__name__ = test.__name__
    return run_test


@with_zookeeper
async def test_a_change_of_settings_reaches_a_follower_once(zookeeper):
    applied = []

    async def apply(entity):
        applied.append((entity, await read_config(zookeeper, entity)))

    await change_config(zookeeper, "topics/old", lambda _config: {"a": "0"})
    changes = ConfigChanges(zookeeper, apply, lambda: 0)
    await changes.begin()
    await change_config(zookeeper, "topics/t", lambda _config: {"a": "1"})
    await change_config(zookeeper, "topics/t", lambda config: config | {"b": "2"})
    await changes.read()
    assert applied == [("topics/t", {"a": "1", "b": "2"})] * 2
    await changes.read()
    assert len(applied) == 2


@with_zookeeper
async def test_concurrent_changes_lose_nothing(zookeeper):
    other = await zookeeper.new_session()
    has_interfered = []

    def change(config):
        return config | {"mine": "1"}

    real = zookeeper.multi

    async def interfere(operations):
        if not has_interfered and any(isinstance(operation, SetData) for operation in operations):
            has_interfered.append(True)
            await change_config(other, "topics/t", lambda config: config | {"theirs": "2"})
        return await real(operations)

    await change_config(zookeeper, "topics/t", lambda _config: {})
    zookeeper.multi = interfere
    assert await change_config(zookeeper, "topics/t", change) == {"mine": "1", "theirs": "2"}
    assert await read_config(zookeeper, "topics/t") == {"mine": "1", "theirs": "2"}


@with_zookeeper
async def test_an_invalid_notification_is_skipped(zookeeper):
    applied = []

    async def apply(entity):
        applied.append(entity)

    changes = ConfigChanges(zookeeper, apply, lambda: 0)
    await changes.begin()
    await zookeeper.create(znodes.CONFIG_CHANGE_PREFIX, b"not json", sequence=True)
    await zookeeper.create(f"{znodes.CONFIG_CHANGES}/not-a-notification", b"")
    await change_config(zookeeper, "topics/t", lambda _config: {})
    await changes.read()
    assert applied == ["topics/t"]


@with_zookeeper
async def test_old_notifications_are_deleted(zookeeper):
    async def apply(entity):
        pass

    changes = ConfigChanges(zookeeper, apply, lambda: clock[0])
    await changes.begin()
    await change_config(zookeeper, "topics/t", lambda _config: {})
    clock[0] = 16 * 60 * 1000
    await change_config(zookeeper, "topics/t", lambda _config: {})
    await changes.read()
    assert await zookeeper.children(znodes.CONFIG_CHANGES) == ["config_change_0000000001"]


@with_zookeeper
async def test_without_the_parent_znode_a_change_fails_and_does_not_hang(zookeeper):
    await zookeeper.delete("/config/topics")
    with pytest.raises(Exception, match="no such znode") as failed:
        await change_config(zookeeper, "topics/t", lambda _config: {})
    error: Any = failed.value
    assert isinstance(error.cause, NoNode)
