"""Failures around ZooKeeper, and how the client handles them.

In each of these cases a program that trusts its client library too much loses data or hangs. A
proxy provokes them: it breaks, refuses and holds back connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
import threading
import time
from typing import Any, cast

import pytest
from kazoo.protocol.serialization import CloseInstance

from hightide.zookeeper.client import ZooKeeperClient
from hightide.zookeeper.interface import SessionState
from hightide.zookeeper.kazoo_thread import clock
from hightide.zookeeper.operation import SetData
from hightide.zookeeper.watch import EventType, WatchEvent
from hightide.zookeeper.watchdog import Watchdog
from hightide.zookeeper.write_outcome import compare_and_set, create_ephemeral
from hightide.zookeeper.zookeeper_errors import (
    BadVersion,
    ConnectionLoss,
    MultiFailed,
    NodeExists,
    NotConnected,
    SessionLost,
    TooLarge,
    ZooKeeperError,
)
from tests.support.eventually import eventually_async
from tests.zookeeper.client_world import (
    TIMEOUT_MS,
    States,
    block_for,
    block_until,
    proxy_to,
    scenario,
    session,
    switched_off,
)

CONNECTED, SUSPENDED = SessionState.CONNECTED, SessionState.SUSPENDED
DOUBTFUL, LOST = SessionState.DOUBTFUL, SessionState.LOST
TIMEOUT_S = TIMEOUT_MS / 1000


@pytest.fixture(params=["embedded", "zookeeper"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def proxy(server):
    with proxy_to(server) as proxy:
        yield proxy


def expire(client, hosts):
    """End a client's session from outside, without its event loop."""
    ended = threading.Event()

    async def take_over():
        async with session(hosts, resume=session_key):
            ended.set()

    session_key = client.session_key
    thread = threading.Thread(target=asyncio.run, args=[take_over()])
    thread.start()
    thread.join(20)
    assert ended.is_set()


class TestWatches:
    @scenario
    async def test_a_watch_of_an_earlier_connection_never_calls_back(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client, session(server.hosts) as other:
            states = States(client)
            events: list[WatchEvent] = []
            await client.create("/a")
            await client.get("/a", events.append)
            await client.children("/", events.append)
            proxy.cut()
            await states.until(SUSPENDED, CONNECTED)
            await other.set("/a", b"1")
            await other.create("/b")
            assert (await client.get("/a"))[0] == b"1"
            later: list[WatchEvent] = []
            assert await client.children("/", later.append) == ["a", "b"]
            await other.create("/c")
            await eventually_async(lambda: later)
            assert later == [WatchEvent(EventType.CHILD, "/")]
            assert events == []

    @scenario
    async def test_a_watch_of_an_earlier_session_never_calls_back(self, server):
        async with session(server.hosts) as client:
            states = States(client)
            events: list[WatchEvent] = []
            await client.exists("/a", events.append)
            expire(client, server.hosts)
            await states.until(LOST, CONNECTED)
            later: list[WatchEvent] = []
            await client.exists("/a", later.append)
            await client.create("/a")
            assert later == [WatchEvent(EventType.CREATED, "/a")]
            assert events == []

    @scenario
    async def test_a_watch_of_a_session_that_was_given_up_never_calls_back(self, server):
        async with session(server.hosts) as client:
            states = States(client)
            events: list[WatchEvent] = []
            await client.exists("/a", events.append)
            assert await asyncio.to_thread(client.abandon, 5000)
            await states.until(LOST, CONNECTED)
            later: list[WatchEvent] = []
            await client.exists("/a", later.append)
            await client.create("/a")
            assert later == [WatchEvent(EventType.CREATED, "/a")]
            assert events == []


class TestLiveness:
    @scenario
    async def test_an_event_loop_that_hangs_gives_up_its_session(self, server):
        async with session(server.hosts) as client:
            states = States(client)
            former = client.session_id
            await client.create("/e", ephemeral=True)
            watchdog = Watchdog(
                asyncio.get_running_loop(), 500, lambda _: client.abandon(timeout_ms=5000)
            )
            watchdog.start()
            started = time.monotonic()
            block_until(lambda: gone(server.hosts, "/e"))
            assert time.monotonic() - started < 0.5 + 5
            assert client.state is CONNECTED, "the event loop hangs and cannot know yet"
            block_for(0.3)
            assert not client._kazoo.connected, "a new session would be of no use"
            with pytest.raises(ConnectionLoss):
                await client.create("/late", ephemeral=True)
            await states.until(LOST, CONNECTED)
            watchdog.stop()
            assert client.session_id != former
            assert await client.children("/") == []

    @pytest.mark.extended
    @scenario
    async def test_a_listener_that_takes_long_costs_no_session(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            client.on_state(lambda _: time.sleep(1.5 * TIMEOUT_S / 2))
            await client.create("/e", ephemeral=True)
            proxy.cut()
            await states.until(SUSPENDED, CONNECTED)
            assert await client.children("/") == ["e"]

    @pytest.mark.extended
    @scenario
    async def test_without_a_watchdog_a_hanging_loop_keeps_its_session(self, server):
        async with session(server.hosts) as client:
            states = States(client)
            await client.create("/e", ephemeral=True)
            block_for(1.5 * TIMEOUT_S)
            assert await client.children("/") == ["e"]
            assert states == []

    @scenario
    async def test_giving_up_a_session_does_not_wait_for_a_silent_server(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            former = client.session_id
            proxy.silence()
            started = time.monotonic()
            assert not await asyncio.to_thread(client.abandon, timeout_ms=200)
            assert time.monotonic() - started < 2
            with pytest.raises(NotConnected):
                await client.create("/late")
            proxy.heal()
            await states.until(LOST, CONNECTED)
            assert client.session_id != former
            assert await client.children("/") == []


def gone(hosts, path):
    """Return whether a znode is deleted, from a thread with its own event loop."""

    async def look():
        async with session(hosts) as other:
            found.append(await other.exists(path))

    found: list[object] = []
    thread = threading.Thread(target=asyncio.run, args=[look()])
    thread.start()
    thread.join(20)
    return found == [None]


class TestBackOff:
    @pytest.mark.extended
    @scenario
    async def test_attempts_never_get_rare_and_a_closed_door_is_explained(self, zookeeper, caplog):
        with proxy_to(zookeeper) as proxy, caplog.at_level(logging.WARNING):
            async with session(proxy.hosts + zookeeper.chroot, session_timeout_ms=20_000) as client:
                await client.create("/a")
                proxy.refuse()
                proxy.accepted_at.clear()
                await eventually_async(lambda: len(proxy.accepted_at) >= 8)
                gaps = [
                    b - a for a, b in zip(proxy.accepted_at, proxy.accepted_at[1:], strict=False)
                ]
                assert max(gaps) < 2 * 1.4 + 1
                assert max(gaps) > 2 * min(gaps), "the pauses grow at first"
                proxy.heal()
                await client.connected(10_000)
        explained = [
            message for message in caplog.messages if "closes them without an answer" in message
        ]
        assert len(explained) == 1
        assert "older than what this process has seen" in explained[0]
        assert sum("ZooKeeper session " in message for message in caplog.messages) == 1, (
            "one for SUSPENDED"
        )


class TestLease:
    @pytest.mark.extended
    @scenario
    async def test_silence_for_the_whole_timeout_is_doubt(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            former = client.session_id
            await client.create("/e", ephemeral=True)
            asked_at = time.monotonic()
            proxy.silence()
            await states.until(SUSPENDED, DOUBTFUL)
            doubt_after_s = states.times[1] - asked_at
            # The last ping may have been answered just before.
            assert TIMEOUT_S / 2 < doubt_after_s < TIMEOUT_S + 0.5
            with pytest.raises(NotConnected):
                await client.get("/e")
            await eventually_gone(server, "/e")
            proxy.lose_responses()
            await states.until(LOST, CONNECTED)
            assert client.session_id != former

    @pytest.mark.extended
    @scenario
    async def test_doubt_comes_before_others_can_see_the_ephemerals_go(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client, session(server.hosts) as witness:
            states = States(client)
            gone_at: list[float] = []
            await client.create("/e", ephemeral=True)
            await witness.exists("/e", lambda _: gone_at.append(time.monotonic()))
            proxy.silence()
            await eventually_async(lambda: gone_at and DOUBTFUL in states)
            assert states.times[states.index(DOUBTFUL)] < gone_at[0]
            proxy.lose_responses()

    @scenario
    async def test_the_lease_begins_when_a_question_is_asked_not_when_it_is_answered(
        self, server, proxy
    ):
        async with session(proxy.hosts + server.chroot, session_timeout_ms=20_000) as client:
            proxy.hold_responses()
            asked_at = clock()
            call = asyncio.create_task(client.exists("/"))
            await asyncio.sleep(0.5)
            proxy.heal()
            await call
            assert asked_at <= client._kazoo.lease_renewed_at < asked_at + 0.4
            assert client._kazoo.last_response_at > asked_at + 0.4

    @scenario
    async def test_a_silent_server_is_noticed_also_by_one_who_keeps_asking(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)

            async def keep_asking():
                with contextlib.suppress(ZooKeeperError):
                    while True:
                        asyncio.get_running_loop().create_task(swallow(client.exists("/")))
                        await asyncio.sleep(0.02)

            asking = asyncio.create_task(keep_asking())
            silent_at = time.monotonic()
            proxy.silence()
            await eventually_async(lambda: SUSPENDED in states)
            assert states.times[0] - silent_at < TIMEOUT_S
            asking.cancel()
            proxy.lose_responses()
            await client.connected(20_000)

    @pytest.mark.extended
    @scenario
    async def test_a_session_in_doubt_may_be_found_alive(self, server):
        async with session(server.hosts) as client:
            states = States(client)
            former = client.session_id
            await client.create("/e", ephemeral=True)
            await asyncio.to_thread(server.kill)
            await states.until(SUSPENDED, DOUBTFUL)
            # A server that starts gives every session its full timeout again.
            await asyncio.to_thread(server.restart)
            await states.until(SUSPENDED, DOUBTFUL, CONNECTED)
            assert client.session_id == former
            assert await client.children("/") == ["e"]


async def swallow(call):
    with contextlib.suppress(ZooKeeperError):
        await call


async def eventually_gone(server, path):
    async with session(server.hosts) as witness:
        gone = asyncio.Event()
        while await witness.exists(path, lambda _: gone.set()) is not None:
            await asyncio.wait_for(gone.wait(), 20)


class TestNothingIsQueued:
    @scenario
    async def test_a_call_without_a_connection_fails_at_once_and_never_happens(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            proxy.refuse()
            await states.until(SUSPENDED)
            started = time.monotonic()
            for call in (client.create("/a"), client.get("/"), client.multi([])):
                with pytest.raises(NotConnected):
                    await call
            assert time.monotonic() - started < 0.5
            proxy.heal()
            await states.until(SUSPENDED, CONNECTED)
            assert await client.children("/") == []

    @scenario
    async def test_a_call_under_way_fails_with_the_connection(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            proxy.silence()
            calls = [asyncio.ensure_future(client.create(f"/{n}")) for n in range(5)]
            await asyncio.sleep(0)
            started = time.monotonic()
            proxy.lose_responses()
            for call in calls:
                with pytest.raises(ConnectionLoss):
                    await call
            assert time.monotonic() - started < TIMEOUT_S / 2

    @scenario
    async def test_a_call_made_while_others_are_being_failed_is_not_left_behind(
        self, server, proxy
    ):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            kazoo, number = client._kazoo, client._connection.number
            fail_all, late = kazoo._notify_pending, []

            def fail_all_then_call(state):
                fail_all(state)
                late.append(kazoo.submit(number, CloseInstance, cast(Any, None)))

            kazoo._notify_pending = fail_all_then_call
            proxy.cut()
            await states.until(SUSPENDED, CONNECTED)
            assert late == [False]

    @scenario
    async def test_a_call_has_a_time_limit(self, server, proxy):
        async with session(proxy.hosts + server.chroot, call_timeout_ms=100) as client:
            proxy.hold_responses()
            with pytest.raises(ConnectionLoss, match="no response within 100 ms"):
                await client.create("/a")
            proxy.heal()
            await eventually_answers(client)
            assert await client.children("/") == ["a"], "the write was executed"

    @scenario
    async def test_many_large_calls_do_not_hold_up_the_event_loop(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            await client.create("/a")
            proxy.silence()
            started = time.monotonic()
            calls = [asyncio.create_task(client.set("/a", b"x" * 100_000)) for _ in range(1000)]
            await asyncio.sleep(0)
            assert time.monotonic() - started < TIMEOUT_S / 2
            await states.until(SUSPENDED)
            proxy.lose_responses()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {ConnectionLoss}
            await client.connected(20_000)

    @scenario
    async def test_data_that_no_server_takes_costs_no_connection(self, server):
        async with session(server.hosts) as client:
            states = States(client)
            await client.create("/a", b"x" * 1_000_000)
            with pytest.raises(TooLarge, match="1000001 bytes"):
                await client.set("/a", b"x" * 1_000_001)
            with pytest.raises(MultiFailed, match="too much data") as caught:
                await client.multi([SetData("/a", b"x" * 600_000)] * 3)
            assert caught.value.index == 1
            assert (await client.get("/a"))[1].version == 0
            assert states == []

    @scenario
    async def test_a_loop_that_is_behind_cannot_write_in_a_session_it_does_not_know(self, server):
        async with session(server.hosts) as client:
            states = States(client)
            former, kazoo = client.session_id, client._kazoo
            expire(client, server.hosts)
            # The event loop has not run since, and still has the earlier session.
            block_until(lambda: kazoo._session_id not in (None, former) and kazoo._open)
            assert (client.state, client.session_id) == (CONNECTED, former)
            with pytest.raises(NotConnected):
                await client.create("/e", ephemeral=True)
            assert client.state is SUSPENDED, "it knows of the broken connection"
            await states.until(SUSPENDED, LOST, CONNECTED)
            assert await client.exists("/e") is None

    @scenario
    async def test_an_ephemeral_always_belongs_to_the_session_its_maker_believed_in(self, server):
        """Sessions end at random moments under load."""
        chance = random.Random(7)
        async with session(server.hosts) as client, session(server.hosts) as witness:
            ended = asyncio.Event()

            async def write(writer):
                number = 0
                while not ended.is_set():
                    number += 1
                    path = f"/{client.session_id & (2**64 - 1):x}-{writer}-{number}"
                    try:
                        await client.create(path, ephemeral=True)
                    except (ConnectionLoss, SessionLost):
                        await asyncio.sleep(0)

            wrong: list[str] = []

            async def look():
                while not ended.is_set():
                    for name in await witness.children("/"):
                        stat = await witness.exists(f"/{name}")
                        owner = "" if stat is None else f"{stat.ephemeral_owner & (2**64 - 1):x}"
                        if owner and not name.startswith(f"{owner}-"):
                            wrong.append(f"{name} of {owner}")

            async with asyncio.TaskGroup() as tasks:
                for writer in range(4):
                    tasks.create_task(write(writer))
                looking = tasks.create_task(look())
                for _ in range(25):
                    await client.connected(20_000)
                    await asyncio.sleep(chance.random() * 0.02)
                    assert await asyncio.to_thread(client.abandon, 5000)
                ended.set()
                await looking
            assert wrong == []


async def eventually_answers(client):
    async with asyncio.timeout(20):
        while True:
            try:
                await client.exists("/")
            except ConnectionLoss:
                await client.connected(20_000)
            else:
                return


class TestAmbiguity:
    @scenario
    async def test_an_ephemeral_whose_answer_was_lost_is_known_to_be_ours(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client, session(server.hosts) as witness:
            created = asyncio.Event()
            await witness.exists("/e", lambda _: created.set())
            proxy.hold_responses()
            registering = asyncio.create_task(create_ephemeral(client, "/e", b"me"))
            await asyncio.wait_for(created.wait(), 20)
            proxy.lose_responses()
            stat = await registering
            assert stat.ephemeral_owner == client.session_id
            assert await witness.get("/e") == (b"me", stat)

    @scenario
    async def test_an_ephemeral_that_was_never_asked_for_is_created_again(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            proxy.refuse()
            await states.until(SUSPENDED)
            registering = asyncio.create_task(create_ephemeral(client, "/e", b"me"))
            await asyncio.sleep(0)
            proxy.heal()
            assert (await registering).ephemeral_owner == client.session_id

    @scenario
    async def test_an_ephemeral_of_another_session_is_not_ours(self, server):
        async with session(server.hosts) as client, session(server.hosts) as other:
            await create_ephemeral(other, "/e", b"")
            with pytest.raises(NodeExists, match=f"{other.session_id:#x}"):
                await create_ephemeral(client, "/e", b"")

    @scenario
    async def test_registering_ends_with_the_session(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            proxy.refuse()
            await states.until(SUSPENDED)
            registering = asyncio.create_task(
                create_ephemeral(client, "/e", b"", timeout_ms=20_000)
            )
            await asyncio.sleep(0)
            former, kazoo = client.session_id, client._kazoo
            expire(client, server.hosts)
            proxy.heal()
            # The loss and the next session are reported together.
            block_until(lambda: kazoo._session_id not in (None, former) and kazoo._open)
            with pytest.raises(SessionLost, match="a new session has begun"):
                await registering
            assert await client.children("/") == []

    @scenario
    async def test_no_call_waits_for_a_connection_without_limit(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            proxy.refuse()
            await states.until(SUSPENDED)
            with pytest.raises(NotConnected, match="300 ms"):
                await create_ephemeral(client, "/e", b"", timeout_ms=300)
            with pytest.raises(NotConnected, match="300 ms"):
                await compare_and_set(client, "/e", b"", 0, timeout_ms=300)
            proxy.heal()

    @scenario
    async def test_a_write_whose_answer_was_lost_is_found(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client, session(server.hosts) as witness:
            await client.create("/a", b"0")
            written = asyncio.Event()
            await witness.get("/a", lambda _: written.set())
            proxy.hold_responses()
            writing = asyncio.create_task(compare_and_set(client, "/a", b"1", 0))
            await asyncio.wait_for(written.wait(), 20)
            proxy.lose_responses()
            stat = await writing
            assert await witness.get("/a") == (b"1", stat)
            assert stat.version == 1

    @scenario
    async def test_a_write_that_never_arrived_is_made_again(self, server, proxy):
        async with session(proxy.hosts + server.chroot) as client:
            await client.create("/a", b"0")
            proxy.silence()
            writing = asyncio.create_task(compare_and_set(client, "/a", b"1", 0))
            await asyncio.sleep(0)
            proxy.lose_responses()
            assert (await writing).version == 1

    @scenario
    async def test_a_write_that_came_second_is_refused(self, server):
        async with session(server.hosts) as client:
            await client.create("/a", b"0")
            await client.set("/a", b"other")
            with pytest.raises(BadVersion, match="expected 0, found 1"):
                await compare_and_set(client, "/a", b"mine", 0)


class TestEnds:
    @scenario
    async def test_after_its_loss_a_session_is_followed_by_a_new_one(self, server):
        async with session(server.hosts) as client:
            states = States(client)
            former = client.session_id
            await client.create("/e", ephemeral=True)
            expire(client, server.hosts)
            await states.until(SUSPENDED, LOST, CONNECTED)
            assert states.sessions[:2] == [former, former]
            assert states.sessions[2] == client.session_id != former
            assert await client.children("/") == []

    @scenario
    async def test_a_fault_of_the_client_library_is_survived(self, server, proxy, caplog):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            former = client.session_id
            # A response without a request ends kazoo's thread.
            answer = struct.pack("!iqi", 4711, 1, 0)
            proxy.say(struct.pack("!i", len(answer)) + answer)
            await states.until(LOST, CONNECTED)
            assert client.session_id != former
            assert await client.children("/") == []
            assert "internal error" in caplog.text

    @pytest.mark.parametrize("trouble", ["refuse", "silence", "kill"])
    @scenario
    async def test_closing_takes_no_longer_than_a_few_seconds(self, server, proxy, trouble):
        async with session(proxy.hosts + server.chroot) as client:
            states = States(client)
            if trouble == "kill":
                await asyncio.to_thread(server.kill)
            else:
                getattr(proxy, trouble)()
            started = time.monotonic()
            await client.close()
            assert time.monotonic() - started < 4
            assert states[-1] is LOST
            proxy.lose_responses()

    @scenario
    async def test_closing_is_quick_when_no_server_is_reachable(self):
        with switched_off() as hosts:
            started = time.monotonic()
            with pytest.raises(NotConnected):
                await ZooKeeperClient.connect(hosts, connection_timeout_ms=300)
            assert time.monotonic() - started < 4

    @pytest.mark.extended
    @scenario
    async def test_unreachable_hosts_leave_time_for_the_reachable_one(self, embedded):
        with switched_off() as one, switched_off() as two, switched_off() as three:
            hosts = ",".join((one, two, three, embedded.hosts))
            started = time.monotonic()
            async with session(hosts, session_timeout_ms=6000) as client:
                assert time.monotonic() - started < 6, "the session would have expired"
                assert client.state is CONNECTED

    @pytest.mark.extended
    @scenario
    async def test_nothing_is_called_back_after_closing(self, server, proxy):
        client = await ZooKeeperClient.connect(proxy.hosts + server.chroot)
        async with session(server.hosts) as other:
            events: list[WatchEvent] = []
            states = States(client)
            await client.exists("/a", events.append)
            proxy.hold_responses()
            await other.create("/a")
            await client.close()
            proxy.heal()
            proxy.cut()
            count = len(states)
            await other.exists("/a")
            await asyncio.sleep(0.1)
            assert (events, len(states)) == ([], count)
