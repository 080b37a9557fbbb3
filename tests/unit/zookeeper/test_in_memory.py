"""InMemoryZooKeeper behaves the same in memory and with a file."""

import asyncio
import functools
import inspect

import pytest

from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.interface import (
    SessionState,
    ZooKeeper,
    delete_recursively,
    ensure_path,
)
from hightide.zookeeper.operation import Check, Create, Delete, SetData
from hightide.zookeeper.watch import EventType
from hightide.zookeeper.znodes import PERSISTENT_ROOTS
from hightide.zookeeper.zookeeper_errors import (
    BadArguments,
    BadVersion,
    MultiFailed,
    NodeExists,
    NoNode,
    SessionLost,
)


def on_both(scenario):
    """Run a scenario coroutine once in memory and once with a file."""

    @functools.wraps(scenario)
    def test(file, tmp_path):
        async def main():
            path = tmp_path / "zookeeper.db" if file else None
            zookeeper = await InMemoryZooKeeper.open(path, clock=lambda: 1234)
            try:
                await scenario(zookeeper)
            finally:
                await zookeeper.close()

        asyncio.run(main())

    signature = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("file", "tmp_path")]
    )
    vars(test)["__signature__"] = signature
    return pytest.mark.parametrize("file", [False, True], ids=["memory", "file"])(test)


@on_both
async def test_what_is_written_can_be_read(zookeeper: ZooKeeper):
    assert await zookeeper.create("/a", b"1") == "/a"
    data, stat = await zookeeper.get("/a")
    assert (data, stat.version, stat.ctime, stat.czxid) == (b"1", 0, 1234, 2)
    stat = await zookeeper.set("/a", b"2", version=0)
    assert (await zookeeper.get("/a")) == (b"2", stat)
    assert (await zookeeper.exists("/a")) == stat
    assert (await zookeeper.children("/")) == ["a", "zookeeper"]
    await zookeeper.delete("/a", version=1)
    assert (await zookeeper.exists("/a")) is None


@on_both
async def test_refusals_are_raised_and_harm_nothing(zookeeper):
    await zookeeper.create("/a")
    with pytest.raises(NodeExists):
        await zookeeper.create("/a")
    with pytest.raises(BadVersion):
        await zookeeper.set("/a", b"", version=5)
    for read in (zookeeper.get, zookeeper.children):
        with pytest.raises(NoNode):
            await read("/missing")
    with pytest.raises(BadArguments):
        await zookeeper.exists("not/absolute")
    assert (await zookeeper.get("/a"))[1].version == 0


@on_both
async def test_a_multi_gives_a_path_a_stat_and_nothing(zookeeper):
    await zookeeper.create("/epoch", b"1")
    path, stat, checked, deleted = await zookeeper.multi(
        [
            Create("/n-", sequence=True),
            SetData("/epoch", b"2", 0),
            Check("/epoch", 1),
            Delete("/n-0000000001"),
        ]
    )
    assert (path, stat.version, checked, deleted) == ("/n-0000000001", 1, None, None)
    with pytest.raises(MultiFailed) as refusal:
        await zookeeper.multi([Check("/epoch", 0), SetData("/epoch", b"3")])
    assert (refusal.value.index, type(refusal.value.cause)) == (0, BadVersion)
    assert (await zookeeper.get("/epoch"))[0] == b"2"


@on_both
async def test_calls_are_answered_in_the_order_they_were_made(zookeeper):
    await zookeeper.create("/a", b"0")
    writes = [zookeeper.set("/a", b"%d" % number) for number in range(1, 50)]
    *stats, (data, _) = await asyncio.gather(*writes, zookeeper.get("/a"))
    assert data == b"49"
    assert [stat.version for stat in stats] == list(range(1, 50))


@on_both
async def test_writes_made_together_see_each_other(zookeeper):
    results = await asyncio.gather(
        zookeeper.create("/a"),
        zookeeper.create("/a"),
        zookeeper.create("/a/b", ephemeral=True),
        zookeeper.children("/a"),
        zookeeper.delete("/a/b"),
        zookeeper.delete("/a"),
        zookeeper.exists("/a"),
        return_exceptions=True,
    )
    assert [str(results[0]), type(results[1]), *results[2:]] == [
        "/a", NodeExists, "/a/b", ["b"], None, None, None,
    ]  # fmt: skip


@on_both
async def test_a_watch_fires_once_and_before_the_writer_has_its_answer(zookeeper):
    seen = []
    await zookeeper.exists("/a", seen.append)
    await zookeeper.children("/", seen.append)
    await zookeeper.create("/a")
    assert [(event.type, event.path) for event in seen] == [
        (EventType.CREATED, "/a"),
        (EventType.CHILD, "/"),
    ]
    await zookeeper.set("/a", b"1")
    await zookeeper.create("/b")
    assert len(seen) == 2


@on_both
async def test_a_callback_armed_twice_is_called_once_and_a_deletion_once_for_both_kinds(
    zookeeper,
):
    seen = []
    await zookeeper.create("/a")
    for _ in range(2):
        await zookeeper.get("/a", seen.append)
        await zookeeper.children("/a", seen.append)
    await zookeeper.delete("/a")
    assert [(event.type, event.path) for event in seen] == [(EventType.DELETED, "/a")]


@on_both
async def test_a_failing_callback_does_not_harm_the_writer_or_other_watchers(zookeeper):
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    seen = []
    await zookeeper.exists("/a", lambda _: 1 / 0)
    await zookeeper.exists("/a", seen.append)
    assert await zookeeper.create("/a") == "/a"
    assert len(seen) == 1
    assert [type(context["exception"]) for context in errors] == [ZeroDivisionError]


@on_both
async def test_a_second_session_sees_the_first_ones_ephemerals_go(zookeeper):
    other = await zookeeper.new_session()
    await other.create("/e", ephemeral=True)
    stat = await zookeeper.exists("/e")
    assert stat.ephemeral_owner == other.session_id != zookeeper.session_id
    seen = []
    await zookeeper.exists("/e", seen.append)
    await other.close()
    assert [(event.type, event.path) for event in seen] == [(EventType.DELETED, "/e")]


@on_both
async def test_a_closed_session_hears_of_it_and_answers_nothing_more(zookeeper):
    other = await zookeeper.new_session()
    states, events = [], []
    other.on_state(states.append)
    await other.exists("/a", events.append)
    await other.close()
    await other.close()
    assert states == [SessionState.LOST]
    assert other.state is SessionState.LOST
    for call in (other.get("/"), other.create("/a"), other.multi([])):
        with pytest.raises(SessionLost):
            await call
    await zookeeper.create("/a")
    assert events == []


@on_both
async def test_when_all_sessions_are_closed_no_new_one_can_begin(zookeeper):
    await zookeeper.close()
    with pytest.raises(SessionLost):
        await zookeeper.new_session()


@on_both
async def test_a_cancelled_caller_does_no_harm(zookeeper):
    await zookeeper.create("/a")
    loop = asyncio.get_running_loop()
    impatient = loop.create_task(zookeeper.set("/a", b"1"))
    await asyncio.sleep(0)
    impatient.cancel()
    await zookeeper.set("/a", b"2")
    data, stat = await zookeeper.get("/a")
    assert (data, stat.version) == (b"2", 2), "the cancelled write was executed"


@on_both
async def test_paths_are_made_with_their_parents_and_deleted_with_their_children(zookeeper):
    for path in PERSISTENT_ROOTS:
        await ensure_path(zookeeper, path)
        await ensure_path(zookeeper, path)
        assert (await zookeeper.exists(path)) is not None
    await ensure_path(zookeeper, "/a/b/c")
    await delete_recursively(zookeeper, "/a")
    await delete_recursively(zookeeper, "/a")
    assert (await zookeeper.exists("/a")) is None
