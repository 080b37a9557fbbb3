"""ZooKeeper: the client session, the znode tree, Kafka's layout of it, backup, and a server.

Nothing here knows Kafka's wire protocol or the log.

    interface          what the rest of the program codes against
    client             a session with an ensemble or with the embedded server, on kazoo
    in_memory          the same interface on a tree in this process, for simulations and tests
    tree               the znode tree as a pure state machine
    server/            the embedded server: the tree behind ZooKeeper's client protocol
    znodes             Kafka's znode layout
    snapshot, backup   the znodes as a value and as a file
"""

from __future__ import annotations

import os
from pathlib import Path

DATABASE = "zookeeper.db"
"""The embedded server's SQLite file, in its own directory or in a broker's first log directory."""

OLD_DATABASE = "coordination.db"
"""The name of the same file in earlier versions."""

CREDENTIALS = "HIGHTIDE_ZOOKEEPER_CREDENTIALS"
OLD_CREDENTIALS = "HIGHTIDE_COORDINATOR_CREDENTIALS"
"""Environment variables with lines of user:password; the second is the name in earlier versions."""


def environment_credentials() -> str:
    """Return the credentials in the environment, "" if there are none."""
    return os.environ.get(CREDENTIALS) or os.environ.get(OLD_CREDENTIALS, "")


def database_file(directory: Path) -> Path:
    """Return the database file in `directory`: an existing file keeps its old name."""
    old = directory / OLD_DATABASE
    new = directory / DATABASE
    return old if old.exists() and not new.exists() else new
