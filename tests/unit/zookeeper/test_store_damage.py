"""Damage to the database of the embedded ZooKeeper: found when it is opened, or without effect."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hightide.zookeeper.node import Znode, initial_nodes, new_znode
from hightide.zookeeper.session import Session
from hightide.zookeeper.store import Store, open_tree
from hightide.zookeeper.zookeeper_errors import StorageError
from tests.support.seeds import first_seed

TOPICS = 40
OWNER = 7


class Content(NamedTuple):
    zxid: int
    nodes: dict[str, Znode]
    sessions: dict[int, Session]


def content(file: Path) -> Content:
    """Open the file, read it and close it."""
    store, tree = open_tree(file, None)
    store.close()
    return Content(tree.zxid, tree.nodes, tree.sessions)


def topics(zxid: int) -> dict[str, Znode]:
    """Return a tree with topics, an ephemeral znode, an ACL, znodes of several pages, no data."""
    nodes = initial_nodes()
    root = nodes["/"].stat
    names = [f"/topic-{number}" for number in range(TOPICS)]
    for number, name in enumerate(names):
        data = None if number % 9 == 8 else b'{"topic_id":"%040d"}' % number
        data = b"large" * 2000 if number % 20 == 19 else data
        acl = b"\0\0\0\1\0\0\0\1\0\0\0\5world\0\0\0\6anyone" if number % 7 == 6 else b""
        owner = OWNER if number % 10 == 5 else 0
        nodes[name] = new_znode(data, acl, owner, zxid, 1_700_000_000_000)
    children = root.num_children + TOPICS
    nodes["/"] = nodes["/"]._replace(stat=root._replace(num_children=children, pzxid=zxid))
    return nodes


def fill(store: Store) -> None:
    nodes = topics(1)
    store.load()
    store.write(1, nodes, {OWNER: Session(6000, b"password" * 2), 9: Session(9000, b"secret" * 2)})
    for zxid in range(2, 30):
        path = f"/topic-{zxid}"
        store.write(zxid, {path: nodes[path].with_data(b"changed-%d" % zxid, zxid, 5)}, {})


@pytest.fixture(scope="module", params=["stopped", "killed"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a server leaves behind when it is stopped or killed."""
    folder = tmp_path_factory.mktemp("database")
    store = Store(folder / "zookeeper.db")
    fill(store)
    if request.param == "stopped":
        store.close()
        assert [file.name for file in folder.iterdir()] == ["zookeeper.db"]
        return folder
    # SQLite moves the write-ahead log into the file now and then; half of it stays.
    store._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    store.write(30, {"/topic-3": None, "/": topics(1)["/"].without_child(30)}, {9: None})
    store.write(31, {}, {11: Session(1, b"x" * 16)})
    copy = tmp_path_factory.mktemp("killed") / "files"
    shutil.copytree(folder, copy)
    store.close()
    assert sorted(file.name for file in copy.iterdir()) == [
        "zookeeper.db",
        "zookeeper.db-wal",
        "zookeeper.db-zxid",
    ]
    return copy


def fresh(files: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(files, folder)
    return folder / "zookeeper.db"


def bits(files: Path, count: int, seed: int) -> Iterator[tuple[str, int, int]]:
    """Choose bits of all files; the pages with the header and the schema get more than others."""
    chosen = random.Random(seed)
    names = sorted(file.name for file in files.iterdir())
    for number in range(count):
        name = names[number % len(names)]
        size = (files / name).stat().st_size
        end = min(size, 200) if number % 5 == 0 else size
        yield name, chosen.randrange(end), 1 << chosen.randrange(8)


def flip(file: Path, offset: int, mask: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        (byte,) = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte ^ mask]))


def check_flips(files: Path, tmp_path: Path, count: int) -> None:
    expected = content(fresh(files, tmp_path / "copy"))
    seed = first_seed()
    found = 0
    for name, offset, mask in bits(files, count, seed):
        file = fresh(files, tmp_path / "copy")
        flip(file.with_name(name), offset, mask)
        where = f"seed {seed}: {name}, byte {offset}, mask {mask}"
        try:
            got = content(file)
        except StorageError:
            found += 1
        else:
            assert got == expected, where
            assert content(file) == expected, f"{where}: the second time"
    assert found > count // 10


def test_a_flipped_bit_is_found_or_has_no_effect(files: Path, tmp_path: Path) -> None:
    check_flips(files, tmp_path, 400)


@pytest.mark.extended
def test_thousands_of_flipped_bits_are_found_or_have_no_effect(files: Path, tmp_path: Path) -> None:
    check_flips(files, tmp_path, 6000)


def test_a_missing_write_ahead_log_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path / "live" / "zookeeper.db")
    fill(store)
    for name in ("zookeeper.db", "zookeeper.db-zxid"):
        (tmp_path / "copy").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "live" / name, tmp_path / "copy" / name)
    store.close()
    with pytest.raises(StorageError, match="restore the latest backup"):
        content(tmp_path / "copy" / "zookeeper.db")


def test_a_former_copy_in_place_of_the_file_of_a_killed_server_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "zookeeper.db")
    fill(store)
    store.close()
    former = (tmp_path / "zookeeper.db").read_bytes()
    store, _ = open_tree(tmp_path / "zookeeper.db", None)
    store.write(30, {}, {})
    kept = (tmp_path / "zookeeper.db-zxid").read_bytes()
    store.close()
    (tmp_path / "zookeeper.db").write_bytes(former)
    (tmp_path / "zookeeper.db-zxid").write_bytes(kept)
    with pytest.raises(StorageError, match=r"delete .*zookeeper\.db-zxid"):
        content(tmp_path / "zookeeper.db")
    (tmp_path / "zookeeper.db-zxid").unlink()
    assert content(tmp_path / "zookeeper.db").zxid == 29


def test_pages_of_different_times_are_found(tmp_path: Path) -> None:
    """A disk that lost a write gives the former content of a page."""
    file = tmp_path / "zookeeper.db"
    store = Store(file)
    fill(store)
    store.close()
    before = file.read_bytes()
    store, tree = open_tree(file, None)
    changed = tree.nodes["/topic-1"].with_data(b"newer", 30, 9)
    store.write(30, {"/topic-1": changed}, {})
    store.close()
    after = file.read_bytes()
    assert len(before) == len(after)
    pages = [
        at for at in range(0, len(after), 4096) if before[at : at + 4096] != after[at : at + 4096]
    ]
    assert len(pages) == 2, "the znode's, and that of the zxid and the digest"
    for at in pages:
        file.write_bytes(after[:at] + before[at : at + 4096] + after[at + 4096 :])
        with pytest.raises(StorageError, match="damaged"):
            content(file)


CHANGES = {
    "a znode less": "DELETE FROM node WHERE path='/topic-4'; UPDATE node SET"
    " num_children=num_children-1 WHERE path='/'",
    "a session less": "DELETE FROM session WHERE id=9",
    "other data": "UPDATE node SET data=x'00', data_length=1 WHERE path='/topic-4'",
    "data instead of null": "UPDATE node SET data=x'' WHERE path='/topic-8'",
    "another name": "UPDATE node SET path='/topic-x' WHERE path='/topic-4'",
    "another ACL": "UPDATE node SET acl=x'' WHERE path='/topic-6'",
    "another version": "UPDATE node SET version=version+1 WHERE path='/topic-4'",
    "another timeout": "UPDATE session SET timeout_ms=1 WHERE id=9",
    "another zxid": "UPDATE committed SET zxid=zxid+1",
    "another digest": "UPDATE committed SET digest=digest+1",
    "two rows of the zxid": "INSERT INTO committed SELECT * FROM committed",
    "another table": "CREATE TABLE more(number INTEGER)",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_row_is_found(change: str, tmp_path: Path) -> None:
    file = tmp_path / "zookeeper.db"
    store = Store(file)
    fill(store)
    store.close()
    database = sqlite3.connect(file)
    database.executescript(CHANGES[change])
    database.close()
    with pytest.raises(StorageError, match=r"damaged: .*hightide zookeeper restore"):
        content(file)


UNCHECKED_TABLES = """
CREATE TABLE node(
    path TEXT PRIMARY KEY, data BLOB, acl BLOB NOT NULL, czxid INTEGER NOT NULL,
    mzxid INTEGER NOT NULL, ctime INTEGER NOT NULL, mtime INTEGER NOT NULL,
    version INTEGER NOT NULL, cversion INTEGER NOT NULL, aversion INTEGER NOT NULL,
    ephemeral_owner INTEGER NOT NULL, data_length INTEGER NOT NULL,
    num_children INTEGER NOT NULL, pzxid INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE session(
    id INTEGER PRIMARY KEY, timeout_ms INTEGER NOT NULL, password BLOB NOT NULL);
CREATE TABLE committed(zxid INTEGER NOT NULL);
INSERT INTO committed VALUES(3);
PRAGMA user_version=1;
"""


def test_a_file_without_checksums_is_upgraded_and_checked_from_then_on(tmp_path: Path) -> None:
    file = tmp_path / "zookeeper.db"
    expected = Content(3, topics(2), {OWNER: Session(6000, b"p" * 16)})
    database = sqlite3.connect(file)
    database.execute("PRAGMA journal_mode=WAL")
    database.executescript(UNCHECKED_TABLES)
    database.executemany(
        f"INSERT INTO node VALUES(?{',?' * 13})",
        [(path, *node[:2], *node.stat) for path, node in expected.nodes.items()],
    )
    database.execute("INSERT INTO session VALUES(?,?,?)", (OWNER, *expected.sessions[OWNER]))
    database.commit()
    database.close()
    assert content(file) == expected
    assert content(file) == expected
    database = sqlite3.connect(file)
    database.execute("UPDATE node SET version=1 WHERE path='/topic-4'")
    database.commit()
    database.close()
    with pytest.raises(StorageError, match="the checksum of '/topic-4' is wrong"):
        content(file)
