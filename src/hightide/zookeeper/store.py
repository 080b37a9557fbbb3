"""The tree in one SQLite file: after-images of znodes and sessions, one commit per group.

The file holds after-images and not a log of transactions: it stays as small as the tree, opening it
is one scan, and `sqlite3 FILE 'select path, data from node'` shows the cluster. A commit is on disk
when `write` returns (write-ahead log, synchronous=FULL); after a kill SQLite drops an incomplete
commit. The file is locked while it is open, so a second process is refused.

This module, and `sqlite3` with it, is imported when a file is opened: a program that uses an
ensemble does not load it. All methods block, and belong to the thread that opened the store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from hightide.zookeeper.node import Stat, Znode
from hightide.zookeeper.operation import CloseSession
from hightide.zookeeper.session import Session
from hightide.zookeeper.tree import Draft, Tree
from hightide.zookeeper.zookeeper_errors import StorageError, ZooKeeperError

_FORMAT = 1
"""Stored in SQLite's user_version, so that an older program refuses a newer file."""

_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE node(
    path TEXT PRIMARY KEY, data BLOB, acl BLOB NOT NULL, czxid INTEGER NOT NULL,
    mzxid INTEGER NOT NULL, ctime INTEGER NOT NULL, mtime INTEGER NOT NULL,
    version INTEGER NOT NULL, cversion INTEGER NOT NULL, aversion INTEGER NOT NULL,
    ephemeral_owner INTEGER NOT NULL, data_length INTEGER NOT NULL,
    num_children INTEGER NOT NULL, pzxid INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE session(
    id INTEGER PRIMARY KEY, timeout_ms INTEGER NOT NULL, password BLOB NOT NULL);
CREATE TABLE committed(zxid INTEGER NOT NULL);
INSERT INTO committed VALUES(0);
PRAGMA user_version=1;
COMMIT;
"""


class Store:
    """An open, locked file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(file, timeout=0, isolation_level=None)
        except (OSError, sqlite3.Error) as failure:
            raise StorageError(str(file), f"cannot open the file: {failure}") from failure
        try:
            self._prepare()
        except sqlite3.Error as failure:
            self._db.close()
            if "locked" in str(failure):
                raise StorageError(
                    str(file), "the file is in use, by another process or twice by this one"
                ) from failure
            raise StorageError(str(file), f"cannot use the file: {failure}") from failure
        except StorageError:
            self._db.close()
            raise

    def _prepare(self) -> None:
        execute = self._db.execute
        # Exclusive locking comes first: then the write-ahead log needs no shared memory file.
        execute("PRAGMA locking_mode=EXCLUSIVE")
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        (version,) = execute("PRAGMA user_version").fetchone()
        if version == 0 and not execute("SELECT 1 FROM sqlite_schema").fetchone():
            self._db.executescript(_SCHEMA)
        elif version != _FORMAT:
            raise StorageError(
                str(self._file), f"format {version} is not supported, expected {_FORMAT}"
            )
        # A read takes no exclusive lock; an empty write transaction does, and keeps it.
        execute("BEGIN IMMEDIATE")
        execute("COMMIT")

    def load(self) -> Tree:
        """Load the tree as of the last commit, without watches."""
        try:
            (zxid,) = self._db.execute("SELECT zxid FROM committed").fetchone()
            nodes = {
                path: Znode(data, acl, Stat._make(stat))
                for path, data, acl, *stat in self._db.execute("SELECT * FROM node")
            }
            sessions = {
                session_id: Session(timeout_ms, password)
                for session_id, timeout_ms, password in self._db.execute("SELECT * FROM session")
            }
            tree = Tree.restored(zxid, nodes, sessions)
            flaw = next(tree.flaws(), None)
        except (sqlite3.Error, TypeError, AttributeError, ZooKeeperError) as damage:
            raise StorageError(str(self._file), f"the content is damaged: {damage}") from damage
        if flaw is not None:
            raise StorageError(str(self._file), f"the content is damaged: {flaw}")
        return tree

    def write(
        self,
        zxid: int,
        nodes: Mapping[str, Znode | None],
        sessions: Mapping[int, Session | None],
    ) -> None:
        """Write these after-images in one transaction."""
        kept = [(path, *node[:2], *node.stat) for path, node in nodes.items() if node]
        gone = [(path,) for path, node in nodes.items() if node is None]
        opened = [(key, *session) for key, session in sessions.items() if session]
        closed = [(key,) for key, session in sessions.items() if session is None]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("DELETE FROM node WHERE path=?", gone)
            self._db.executemany(f"REPLACE INTO node VALUES(?{',?' * 13})", kept)
            self._db.executemany("DELETE FROM session WHERE id=?", closed)
            self._db.executemany("REPLACE INTO session VALUES(?,?,?)", opened)
            self._db.execute("UPDATE committed SET zxid=?", (zxid,))
            self._db.execute("COMMIT")
        except sqlite3.Error as failure:
            raise StorageError(str(self._file), f"cannot write the file: {failure}") from failure

    def close(self) -> None:
        self._db.close()


def open_tree(file: Path, time_ms: int | None) -> tuple[Store, Tree]:
    """Open the file. With a time, close the sessions stored in it: their clients are gone."""
    store = Store(file)
    try:
        tree = store.load()
        if time_ms is not None:
            _end_sessions(store, tree, time_ms)
    except BaseException:
        store.close()
        raise
    return store, tree


def _end_sessions(store: Store, tree: Tree, time_ms: int) -> None:
    draft = Draft(tree)
    closed = [draft.decide(CloseSession(), owner, time_ms) for owner in sorted(tree.sessions)]
    if closed:
        store.write(draft.zxid, draft.nodes, draft.sessions)
    for decision in closed:
        assert decision.transaction is not None
        tree.apply(decision.transaction)
