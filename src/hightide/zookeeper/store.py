"""The tree in one SQLite file: after-images of znodes and sessions, one commit per group.

The file holds after-images and not a log of transactions: it stays as small as the tree, opening it
is one scan, and `sqlite3 FILE 'select path, data from node'` shows the cluster. A commit is on disk
when `write` returns (write-ahead log, synchronous=FULL); after a kill SQLite drops an incomplete
commit. The file is locked while it is open, so a second process is refused.

SQLite does not notice a flipped bit in a value. So every row has a checksum of its key and its
values, and the row in `committed` has the sum of all checksums, which shows a row that is missing
or of an earlier commit. SQLite takes a damaged frame in its write-ahead log for a commit that did
not finish, so the zxid of the last commit is also in a small file beside the database. All of this
is checked when the file is opened; after that the server serves the tree in memory.

This module, and `sqlite3` with it, is imported when a file is opened: a program that uses an
ensemble does not load it. All methods block, and belong to the thread that opened the store.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from hightide import private_files
from hightide.zookeeper.node import Stat, Znode
from hightide.zookeeper.operation import CloseSession
from hightide.zookeeper.session import Session
from hightide.zookeeper.tree import Draft, Tree
from hightide.zookeeper.zookeeper_errors import StorageError, ZooKeeperError

_FORMAT = 2
"""Stored in SQLite's user_version, so that an older program refuses a newer file."""

_UNCHECKED_FORMAT = 1
"""The format without checksums. Opening such a file rewrites it."""

_TABLES = (
    """CREATE TABLE node(
    path TEXT PRIMARY KEY, data BLOB, acl BLOB NOT NULL, czxid INTEGER NOT NULL,
    mzxid INTEGER NOT NULL, ctime INTEGER NOT NULL, mtime INTEGER NOT NULL,
    version INTEGER NOT NULL, cversion INTEGER NOT NULL, aversion INTEGER NOT NULL,
    ephemeral_owner INTEGER NOT NULL, data_length INTEGER NOT NULL,
    num_children INTEGER NOT NULL, pzxid INTEGER NOT NULL,
    checksum INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE session(
    id INTEGER PRIMARY KEY, timeout_ms INTEGER NOT NULL, password BLOB NOT NULL,
    checksum INTEGER NOT NULL)""",
    "CREATE TABLE committed(zxid INTEGER NOT NULL, digest INTEGER NOT NULL)",
)

_WHAT_TO_DO = (
    "Damaged content is not served. Move the file away, and restore the latest backup with"
    " `hightide zookeeper restore BACKUP --to DIRECTORY`"
)

_LOG_BYTES = 64 * 1024 * 1024
"""The write-ahead log, when its commits are in the file."""

_ZXID = struct.Struct(">q8s")
"""The file with the last commit's zxid: the zxid and its checksum."""


class _Damaged(Exception):
    """The text says what is wrong with the content."""


_UNUSABLE = (sqlite3.Error, ValueError, TypeError, AttributeError, ZooKeeperError, _Damaged)
"""What reading damaged rows raises."""


def _checksum(*values: bytes | str | int | None) -> int:
    """Return 64 bits that depend on every value, on its type and on its place."""
    # repr is unambiguous: quotes, escapes and commas keep the values apart.
    return int.from_bytes(blake2b(repr(values).encode(), digest_size=8).digest(), signed=True)


def _signed(number: int) -> int:
    """Reduce a sum of checksums to the 64 bits of an SQLite integer."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class Store:
    """An open, locked file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._zxid_descriptor: int | None = None
        self._is_sound = False
        try:
            private_files.make_directory(file.parent)
            # SQLite gives its write-ahead log the mode of the database.
            private_files.create(file)
            private_files.close_to_others(
                file.with_name(f"{file.name}{end}") for end in ("", "-wal", "-shm", "-zxid")
            )
            self._db = sqlite3.connect(file, timeout=0, isolation_level=None)
        except (OSError, sqlite3.Error) as failure:
            raise StorageError(str(file), f"cannot open the file: {failure}") from failure
        try:
            self._prepare()
        except (sqlite3.Error, ValueError) as failure:
            self._db.close()
            if "locked" in str(failure):
                raise StorageError(
                    str(file), "the file is in use, by another process or twice by this one"
                ) from failure
            if isinstance(failure, sqlite3.OperationalError):
                raise StorageError(str(file), f"cannot use the file: {failure}") from failure
            raise self._damaged(str(failure)) from failure
        except StorageError:
            self._db.close()
            raise

    def _prepare(self) -> None:
        execute = self._db.execute
        # Exclusive locking comes first: then the write-ahead log needs no shared memory file.
        execute("PRAGMA locking_mode=EXCLUSIVE")
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        # A log that a large commit has made longer is cut when the next one is written.
        execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
        # A read takes no exclusive lock; an empty write transaction does, and keeps it.
        execute("BEGIN IMMEDIATE")
        execute("COMMIT")
        (version,) = execute("PRAGMA user_version").fetchone()
        if version == 0 and not execute("SELECT 1 FROM sqlite_schema").fetchone():
            self._create(0, {}, {})
        elif version not in (_FORMAT, _UNCHECKED_FORMAT):
            raise StorageError(
                str(self._file), f"format {version} is not supported, expected {_FORMAT}"
            )

    def load(self) -> Tree:
        """Load the tree as of the last commit, without watches."""
        try:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            tree = self._load() if version == _FORMAT else self._upgrade()
        except _UNUSABLE as damage:
            raise self._damaged(str(damage)) from damage
        known = self._last_zxid()
        if known > tree.zxid:
            raise self._damaged(
                f"it ends at zxid {tree.zxid}, but zxid {known} was committed; {self._file}-wal is"
                f" damaged or missing, or {self._file} is an older copy. To use an older copy,"
                f" delete {self._zxid_file}"
            )
        self._is_sound = True
        return tree

    def _load(self) -> Tree:
        execute = self._db.execute
        if [sql for (sql,) in execute("SELECT sql FROM sqlite_schema")] != list(_TABLES):
            raise _Damaged("the tables are not those that were created")
        ((result,),) = execute("PRAGMA quick_check(1)")
        if result != "ok":
            raise _Damaged(result)
        ((zxid, digest),) = execute("SELECT * FROM committed")
        total = _checksum("committed", zxid)
        nodes: dict[str, Znode] = {}
        for path, data, acl, *stat, checksum in execute("SELECT * FROM node"):
            if checksum != _checksum("node", path, data, acl, *stat):
                raise _Damaged(f"the checksum of {path!r} is wrong")
            total += checksum
            nodes[path] = Znode(data, acl, Stat._make(stat))
        sessions: dict[int, Session] = {}
        for session_id, timeout_ms, password, checksum in execute("SELECT * FROM session"):
            if checksum != _checksum("session", session_id, timeout_ms, password):
                raise _Damaged(f"the checksum of session {session_id!r} is wrong")
            total += checksum
            sessions[session_id] = Session(timeout_ms, password)
        if _signed(total) != digest:
            raise _Damaged("the sum of all checksums is wrong: rows are missing or outdated")
        return _sound_tree(zxid, nodes, sessions)

    def _upgrade(self) -> Tree:
        """Load a file without checksums, and add them."""
        execute = self._db.execute
        (zxid,) = execute("SELECT zxid FROM committed").fetchone()
        nodes = {
            path: Znode(data, acl, Stat._make(stat))
            for path, data, acl, *stat in execute("SELECT * FROM node")
        }
        sessions = {
            session_id: Session(timeout_ms, password)
            for session_id, timeout_ms, password in execute("SELECT * FROM session")
        }
        tree = _sound_tree(zxid, nodes, sessions)
        self._create(zxid, nodes, sessions)
        return tree

    def _create(
        self, zxid: int, nodes: Mapping[str, Znode], sessions: Mapping[int, Session]
    ) -> None:
        """Create the tables with this content, in place of those of an earlier format."""
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        for name in ("node", "session", "committed"):
            execute(f"DROP TABLE IF EXISTS {name}")
        for table in _TABLES:
            execute(table)
        execute("INSERT INTO committed VALUES(0,?)", (_checksum("committed", 0),))
        self._replace(zxid, nodes, sessions)
        execute(f"PRAGMA user_version={_FORMAT}")
        execute("COMMIT")

    def write(
        self,
        zxid: int,
        nodes: Mapping[str, Znode | None],
        sessions: Mapping[int, Session | None],
    ) -> None:
        """Write these after-images in one transaction."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._replace(zxid, nodes, sessions)
            self._db.execute("COMMIT")
            self._keep_zxid(zxid)
        except (OSError, sqlite3.Error) as failure:
            raise StorageError(str(self._file), f"cannot write the file: {failure}") from failure

    def _replace(
        self,
        zxid: int,
        nodes: Mapping[str, Znode | None],
        sessions: Mapping[int, Session | None],
    ) -> None:
        execute = self._db.execute
        (before, total) = execute("SELECT zxid, digest FROM committed").fetchone()
        total += _checksum("committed", zxid) - _checksum("committed", before)
        kept, gone, opened, closed = [], [], [], []
        for path, node in nodes.items():
            for (checksum,) in execute("SELECT checksum FROM node WHERE path=?", (path,)):
                total -= checksum
            if node is None:
                gone.append((path,))
            else:
                row = (path, node.data, node.acl, *node.stat)
                kept.append((*row, checksum := _checksum("node", *row)))
                total += checksum
        for key, session in sessions.items():
            for (checksum,) in execute("SELECT checksum FROM session WHERE id=?", (key,)):
                total -= checksum
            if session is None:
                closed.append((key,))
            else:
                opened.append((key, *session, checksum := _checksum("session", key, *session)))
                total += checksum
        self._db.executemany("DELETE FROM node WHERE path=?", gone)
        self._db.executemany(f"REPLACE INTO node VALUES(?{',?' * 14})", kept)
        self._db.executemany("DELETE FROM session WHERE id=?", closed)
        self._db.executemany("REPLACE INTO session VALUES(?,?,?,?)", opened)
        execute("UPDATE committed SET zxid=?, digest=?", (zxid, _signed(total)))

    # The file with the last zxid. It is not forced to disk: it must outlive the process, and after
    # a power cut it may be older than the database but not newer.

    @property
    def _zxid_file(self) -> Path:
        return self._file.with_name(f"{self._file.name}-zxid")

    def _keep_zxid(self, zxid: int) -> None:
        if self._zxid_descriptor is None:
            self._zxid_descriptor = os.open(self._zxid_file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(self._zxid_descriptor, _ZXID.pack(zxid, _zxid_checksum(zxid)), 0)

    def _last_zxid(self) -> int:
        """Return the zxid that was committed last; 0 if it is not known."""
        try:
            zxid, checksum = _ZXID.unpack(self._zxid_file.read_bytes())
        except (FileNotFoundError, struct.error):
            return 0
        return int(zxid) if checksum == _zxid_checksum(zxid) else 0

    def _damaged(self, what: str) -> StorageError:
        return StorageError(str(self._file), f"the content is damaged: {what}. {_WHAT_TO_DO}")

    def close(self) -> None:
        """Close the file. SQLite moves the write-ahead log into it, unless a commit has failed."""
        self._db.close()
        if self._zxid_descriptor is not None:
            os.close(self._zxid_descriptor)
            self._zxid_descriptor = None
        if self._is_sound and not self._file.with_name(f"{self._file.name}-wal").exists():
            self._zxid_file.unlink(missing_ok=True)


def _zxid_checksum(zxid: int) -> bytes:
    return _checksum("zxid", zxid).to_bytes(8, signed=True)


def _sound_tree(zxid: int, nodes: Mapping[str, Znode], sessions: Mapping[int, Session]) -> Tree:
    tree = Tree.restored(zxid, nodes, sessions)
    flaw = next(tree.flaws(), None)
    if flaw is not None:
        raise _Damaged(flaw)
    return tree


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
