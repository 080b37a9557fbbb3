"""The registration of a broker: created, waited for, refused."""

import asyncio

import pytest

from hightide.broker.membership.identity import StartupRefused
from hightide.broker.membership.registration import register
from hightide.zookeeper import znodes
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.interface import ensure_path
from hightide.zookeeper.zookeeper_errors import ConnectionLoss

HERE = znodes.BrokerRegistration((znodes.Endpoint("PLAINTEXT", "here", 9092),), 1)
THERE = znodes.BrokerRegistration((znodes.Endpoint("PLAINTEXT", "there", 9092),), 1)


def with_zookeeper(test):
    def run(monkeypatch):
        async def main():
            zookeeper = await InMemoryZooKeeper.open()
            await ensure_path(zookeeper, znodes.BROKER_IDS)
            try:
                await test(zookeeper, monkeypatch)
            finally:
                await zookeeper.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@with_zookeeper
async def test_the_epoch_is_the_czxid_and_grows_with_every_registration(zookeeper, monkeypatch):
    one = await zookeeper.new_session()
    first = await register(one, 1, HERE)
    stat = await zookeeper.exists(znodes.broker_path(1))
    assert (stat.czxid, stat.ephemeral_owner) == (first, one.session_id)
    assert znodes.BrokerRegistration.decode((await zookeeper.get("/brokers/ids/1"))[0], "") == HERE
    await one.close()
    assert await zookeeper.exists(znodes.broker_path(1)) is None
    assert await register(await zookeeper.new_session(), 1, HERE) > first


@with_zookeeper
async def test_an_id_that_an_old_session_still_holds_is_waited_for(zookeeper, monkeypatch):
    old, new = await zookeeper.new_session(), await zookeeper.new_session()
    before = await register(old, 1, HERE)
    waiting = asyncio.create_task(register(new, 1, HERE))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await old.close()
    async with asyncio.timeout(5):
        assert await waiting > before


@with_zookeeper
async def test_an_id_that_another_broker_keeps_is_refused_with_its_address(zookeeper, monkeypatch):
    other, mine = await zookeeper.new_session(), await zookeeper.new_session()
    await register(other, 1, THERE)
    monkeypatch.setattr("hightide.broker.membership.registration._POLL_S", 0.01)
    monkeypatch.setattr(InMemoryZooKeeper, "timeout_ms", 30)
    with pytest.raises(StartupRefused, match="broker id 1 is taken by the broker at there:9092"):
        await register(mine, 1, HERE)
    assert (await zookeeper.exists(znodes.broker_path(1))).ephemeral_owner == other.session_id


@with_zookeeper
async def test_a_registration_whose_response_was_lost_is_found(zookeeper, monkeypatch):
    session = await zookeeper.new_session()
    real = session.create

    async def lose_response(path, data, *, ephemeral):
        await real(path, data, ephemeral=ephemeral)
        raise ConnectionLoss

    session.create = lose_response
    epoch = await register(session, 1, HERE)
    assert (await zookeeper.exists(znodes.broker_path(1))).czxid == epoch
