"""A durable tree: acknowledged writes survive a kill, a full disk and a restart."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import hightide
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.interface import SessionState
from hightide.zookeeper.operation import Create, SetData
from hightide.zookeeper.zookeeper_errors import StorageError

SOURCE = str(Path(hightide.__file__).parent.parent)

WRITERS = 4
WRITER = f"""
import asyncio, sys
from pathlib import Path
from hightide.zookeeper.zookeeper_errors import NodeExists
from hightide.zookeeper.in_memory import InMemoryZooKeeper
from hightide.zookeeper.operation import SetData

async def write(zookeeper, writer):
    for half in "ab":
        try:
            await zookeeper.create(f"/{{writer}}{{half}}", b"0")
        except NodeExists:
            pass
    number = int((await zookeeper.get(f"/{{writer}}a"))[0])
    while True:
        number += 1
        data = b"%d" % number
        await zookeeper.multi([SetData(f"/{{writer}}{{half}}", data) for half in "ab"])
        print(writer, number, flush=True)

async def main():
    zookeeper = await InMemoryZooKeeper.open(Path(sys.argv[1]))
    await zookeeper.create("/alive", ephemeral=True)
    await asyncio.gather(*(write(zookeeper, writer) for writer in range({WRITERS})))

asyncio.run(main())
"""


def python(*arguments):
    return subprocess.Popen(
        [sys.executable, "-c", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_process_loses_no_acknowledged_write_and_tears_no_multi(tmp_path):
    file = tmp_path / "zookeeper.db"
    acknowledged = [0] * WRITERS
    for kill in range(6):
        process = python(WRITER, file)
        lines = [process.stdout.readline() for _ in range(40 + 17 * kill)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        assert not process.communicate()[1]
        for line in lines:
            if line.endswith("\n"):
                writer, number = map(int, line.split())
                acknowledged[writer] = number

        async def check():
            zookeeper = await InMemoryZooKeeper.open(file)
            try:
                assert await zookeeper.exists("/alive") is None
                for writer in range(WRITERS):
                    first, stat = await zookeeper.get(f"/{writer}a")
                    second, _ = await zookeeper.get(f"/{writer}b")
                    assert first == second, "a multi was torn"
                    assert int(first) == stat.version
                    assert acknowledged[writer] <= int(first) <= acknowledged[writer] + 1
            finally:
                await zookeeper.close()

        asyncio.run(check())
    assert sum(acknowledged) > 6 * 40


def test_reopening_gives_the_same_tree_without_the_old_sessions(tmp_path):
    file = tmp_path / "deep" / "zookeeper.db"

    async def write():
        zookeeper = await InMemoryZooKeeper.open(file)
        await zookeeper.create("/a", b"\x00\xff")
        await zookeeper.set("/a", b"2")
        await zookeeper.multi([Create("/a/b"), Create("/a/c-", b"", False, True)])
        await zookeeper.delete("/a/b")
        tree = zookeeper._committer.tree
        await zookeeper.close()
        return tree

    async def reopen():
        zookeeper = await InMemoryZooKeeper.open(file)
        tree = zookeeper._committer.tree
        await zookeeper.close()
        return tree

    before, after = asyncio.run(write()), asyncio.run(reopen())
    after.check()
    assert after.nodes == before.nodes
    assert after.zxid == before.zxid + 2, "opening and closing the second session"
    assert before.sessions == after.sessions == {}


def test_a_file_in_use_is_refused_in_words(tmp_path):
    file = tmp_path / "zookeeper.db"

    async def main():
        zookeeper = await InMemoryZooKeeper.open(file)
        try:
            with pytest.raises(StorageError, match="in use"):
                await InMemoryZooKeeper.open(file)
            opening = "import asyncio, sys, pathlib; from hightide.zookeeper import in_memory;"
            opening += "asyncio.run(in_memory.InMemoryZooKeeper.open(pathlib.Path(sys.argv[1])))"
            process = python(opening, file)
            _, errors = await asyncio.to_thread(process.communicate)
            assert process.returncode == 1
            assert f"{file} (the file is in use" in errors
            await zookeeper.create("/still-working")
        finally:
            await zookeeper.close()

    asyncio.run(main())


DAMAGE = {
    "orphan": "DELETE FROM node WHERE path='/a'",
    "miscount": "UPDATE node SET num_children=7 WHERE path='/a'",
    "from the future": "UPDATE committed SET zxid=0",
    "no zxid": "DELETE FROM committed",
    "relative": "INSERT INTO node VALUES('x',x'',x'',0,0,0,0,0,0,0,0,0,0,0,0)",
    "blob for a path": "UPDATE node SET path=x'00' WHERE path='/a/b'",
    "text for a number": "UPDATE node SET czxid='soon' WHERE path='/a/b'",
    "no session": "UPDATE node SET ephemeral_owner=99 WHERE path='/a/b'",
}


def damaged(file: Path, kind: str):
    if kind == "directory":
        file.mkdir()
    elif kind == "not SQLite":
        file.write_bytes(b"certainly not a database" * 100)
    elif kind == "newer":
        database = sqlite3.connect(file)
        database.execute("PRAGMA user_version=3")
        database.close()
    else:
        asyncio.run(create_a_child(file))
        database = sqlite3.connect(file)
        database.execute(DAMAGE[kind])
        database.commit()
        database.close()


async def create_a_child(file):
    zookeeper = await InMemoryZooKeeper.open(file)
    await zookeeper.create("/a")
    await zookeeper.create("/a/b")
    await zookeeper.close()


@pytest.mark.parametrize("kind", ["directory", "not SQLite", "newer", *DAMAGE])
def test_a_file_that_cannot_be_used_is_refused_with_its_name(tmp_path, kind):
    file = tmp_path / "zookeeper.db"
    damaged(file, kind)
    with pytest.raises(StorageError) as refusal:
        asyncio.run(InMemoryZooKeeper.open(file))
    assert str(file) in str(refusal.value)


def test_a_commit_that_fails_is_never_answered_as_done(tmp_path):
    file = tmp_path / "zookeeper.db"

    async def fill_up():
        zookeeper = await InMemoryZooKeeper.open(file)
        committer = zookeeper._committer
        states = []
        zookeeper.on_state(states.append)
        await zookeeper.create("/a", b"kept")
        # SQLite reports a full disk when the file may not grow.
        await committer._in_thread(committer._store._db.execute, "PRAGMA max_page_count=1")
        large = zookeeper.create("/large", bytes(100_000))
        results = await asyncio.gather(
            large, zookeeper.set("/a", b"lost"), zookeeper.get("/a"), return_exceptions=True
        )
        assert [type(result) for result in results] == [StorageError] * 3
        assert "full" in str(results[0])
        assert states == [SessionState.LOST]
        assert committer.tree.get("/a").data == b"kept"
        await zookeeper.close()

    async def reopen():
        zookeeper = await InMemoryZooKeeper.open(file)
        assert (await zookeeper.get("/a"))[0] == b"kept"
        assert await zookeeper.exists("/large") is None
        await zookeeper.close()

    asyncio.run(fill_up())
    asyncio.run(reopen())


def test_writes_made_together_share_a_commit(tmp_path):
    async def main():
        zookeeper = await InMemoryZooKeeper.open(tmp_path / "zookeeper.db")
        committer = zookeeper._committer
        statements = []
        await committer._in_thread(committer._store._db.set_trace_callback, statements.append)
        await zookeeper.create("/a")
        await asyncio.gather(*(zookeeper.set("/a", b"%d" % n) for n in range(100)))
        await zookeeper.multi([SetData("/a", b"x"), SetData("/a", b"y")])
        await zookeeper.close()
        return statements.count("COMMIT")

    assert asyncio.run(main()) == 4, "create, all sets, multi, the end of the session"


def test_a_commit_waits_for_the_disk(tmp_path):
    async def main():
        zookeeper = await InMemoryZooKeeper.open(tmp_path / "zookeeper.db")
        committer = zookeeper._committer

        def pragma(name):
            return committer._store._db.execute(f"PRAGMA {name}").fetchone()[0]

        settings = [
            await committer._in_thread(pragma, name)
            for name in ("journal_mode", "synchronous", "locking_mode")
        ]
        await zookeeper.close()
        return settings

    assert asyncio.run(main()) == ["wal", 2, "exclusive"]


def test_sqlite_is_not_loaded_for_a_tree_in_memory():
    process = python(
        "import asyncio, sys; from hightide.zookeeper.in_memory import InMemoryZooKeeper;"
        "asyncio.run(InMemoryZooKeeper.open()); print('sqlite3' in sys.modules)"
    )
    output, errors = process.communicate()
    assert (output, errors) == ("False\n", "")


def test_the_log_that_a_large_commit_made_long_is_cut(tmp_path, monkeypatch):
    from hightide.zookeeper import store

    monkeypatch.setattr(store, "_LOG_BYTES", 100_000)
    file = tmp_path / "zookeeper.db"
    log = tmp_path / "zookeeper.db-wal"

    async def scenario():
        zookeeper = await InMemoryZooKeeper.open(file)
        await zookeeper.multi([Create(f"/{n}", bytes(900_000)) for n in range(10)])
        longest = log.stat().st_size
        for number in range(3):
            await zookeeper.set("/0", bytes([number]))
        assert longest > 9_000_000
        assert log.stat().st_size < 2_000_000
        await zookeeper.close()

    asyncio.run(scenario())
