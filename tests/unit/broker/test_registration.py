"""A broker's znode: taken, taken already, taken by somebody else; and settings that change."""

import asyncio

import pytest

from hightide.broker.membership.dynamic_configs import ConfigChanges, change_config, read_config
from hightide.broker.membership.identity import Refused
from hightide.broker.membership.registration import register
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import ConnectionLoss, NoNode
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.interface import ensure_path
from hightide.zookeeper.operation import SetData

HERE = znodes.BrokerRegistration((znodes.Endpoint("PLAINTEXT", "here", 9092),), 1)
THERE = znodes.BrokerRegistration((znodes.Endpoint("PLAINTEXT", "there", 9092),), 1)


def on_a_tree(test):
    def run(monkeypatch):
        async def main():
            tree = await InMemoryZooKeeper.open(clock=lambda: clock[0])
            await ensure_path(tree, znodes.BROKER_IDS)
            await ensure_path(tree, znodes.CONFIG_CHANGES)
            await ensure_path(tree, "/config/topics")
            try:
                await test(tree, monkeypatch)
            finally:
                await tree.close()

        clock[0] = 0
        asyncio.run(main())

    run.__name__ = test.__name__
    return run


clock = [0]


@on_a_tree
async def test_the_epoch_is_the_czxid_and_grows_with_every_life(tree, monkeypatch):
    one = await tree.new_session()
    first = await register(one, 1, HERE)
    stat = await tree.exists(znodes.broker_path(1))
    assert (stat.czxid, stat.ephemeral_owner) == (first, one.session_id)
    assert znodes.BrokerRegistration.decode((await tree.get("/brokers/ids/1"))[0], "") == HERE
    await one.close()
    assert await tree.exists(znodes.broker_path(1)) is None
    assert await register(await tree.new_session(), 1, HERE) > first


@on_a_tree
async def test_an_id_that_an_old_session_still_holds_is_waited_for(tree, monkeypatch):
    old, new = await tree.new_session(), await tree.new_session()
    before = await register(old, 1, HERE)
    waiting = asyncio.create_task(register(new, 1, HERE))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await old.close()
    async with asyncio.timeout(5):
        assert await waiting > before


@on_a_tree
async def test_an_id_that_another_broker_keeps_is_refused_with_its_address(tree, monkeypatch):
    other, mine = await tree.new_session(), await tree.new_session()
    await register(other, 1, THERE)
    monkeypatch.setattr("hightide.broker.membership.registration._LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(InMemoryZooKeeper, "timeout_ms", 30)
    with pytest.raises(Refused, match="broker id 1 is taken by the broker at there:9092"):
        await register(mine, 1, HERE)
    assert (await tree.exists(znodes.broker_path(1))).ephemeral_owner == other.session_id


@on_a_tree
async def test_a_registration_whose_answer_was_lost_is_found(tree, monkeypatch):
    session = await tree.new_session()
    real = session.create

    async def deaf(path, data, *, ephemeral):
        await real(path, data, ephemeral=ephemeral)
        raise ConnectionLoss

    session.create = deaf
    epoch = await register(session, 1, HERE)
    assert (await tree.exists(znodes.broker_path(1))).czxid == epoch


@on_a_tree
async def test_a_change_of_settings_reaches_whoever_follows_once(tree, monkeypatch):
    heard = []

    async def apply(entity):
        heard.append((entity, await read_config(tree, entity)))

    await change_config(tree, "topics/old", lambda _had: {"a": "0"})
    changes = ConfigChanges(tree, apply, lambda: 0)
    await changes.begin()
    await change_config(tree, "topics/t", lambda _had: {"a": "1"})
    await change_config(tree, "topics/t", lambda had: had | {"b": "2"})
    await changes.read()
    assert heard == [("topics/t", {"a": "1", "b": "2"})] * 2
    await changes.read()
    assert len(heard) == 2


@on_a_tree
async def test_two_who_change_settings_at_once_lose_nothing(tree, monkeypatch):
    other = await tree.new_session()
    meddled = []

    def change(had):
        return had | {"mine": "1"}

    real = tree.multi

    async def meddle(operations):
        if not meddled and any(isinstance(each, SetData) for each in operations):
            meddled.append(True)
            await change_config(other, "topics/t", lambda had: had | {"theirs": "2"})
        return await real(operations)

    await change_config(tree, "topics/t", lambda _had: {})
    tree.multi = meddle
    assert await change_config(tree, "topics/t", change) == {"mine": "1", "theirs": "2"}
    assert await read_config(tree, "topics/t") == {"mine": "1", "theirs": "2"}


@on_a_tree
async def test_a_notification_that_makes_no_sense_stops_nothing(tree, monkeypatch):
    heard = []

    async def apply(entity):
        heard.append(entity)

    changes = ConfigChanges(tree, apply, lambda: 0)
    await changes.begin()
    await tree.create(znodes.CONFIG_CHANGE_PREFIX, b"not json", sequence=True)
    await tree.create(f"{znodes.CONFIG_CHANGES}/who-put-this-here", b"")
    await change_config(tree, "topics/t", lambda _had: {})
    await changes.read()
    assert heard == ["topics/t"]


@on_a_tree
async def test_old_notifications_are_swept_away(tree, monkeypatch):
    async def apply(entity):
        pass

    changes = ConfigChanges(tree, apply, lambda: clock[0])
    await changes.begin()
    await change_config(tree, "topics/t", lambda _had: {})
    clock[0] = 16 * 60 * 1000
    await change_config(tree, "topics/t", lambda _had: {})
    await changes.read()
    assert await tree.children(znodes.CONFIG_CHANGES) == ["config_change_0000000001"]


@on_a_tree
async def test_without_the_place_for_settings_a_change_fails_and_does_not_hang(tree, monkeypatch):
    await tree.delete("/config/topics")
    with pytest.raises(Exception, match="no such znode") as failed:
        await change_config(tree, "topics/t", lambda _had: {})
    assert isinstance(failed.value.cause, NoNode)
