"""Ends the ZooKeeper session of a process that has died, on its behalf.

A session outlives its process until its timeout, because ZooKeeper cannot tell a process that died
from one that was cut off.  A parent that has seen its child die can: it takes over the session with
the key that the child has reported, and closes it.
"""

from __future__ import annotations

import logging

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from hightide.zookeeper.kazoo_thread import SessionKey

__all__ = ["SessionKey", "end_session"]

log = logging.getLogger(__name__)

_TIMEOUT_S = 2.0
# kazoo's own lines are about the connection, and ours says what became of it.
_silent = logging.Logger("kazoo of end_session", logging.CRITICAL + 1)


def end_session(hosts: str, key: SessionKey) -> bool:
    """Close a session, with its ephemeral znodes; return False if no server answers in time."""
    client = KazooClient(hosts, timeout=_TIMEOUT_S, client_id=key, logger=_silent)
    try:
        client.start(_TIMEOUT_S)
        client.stop()
    except KazooTimeoutError:
        log.warning("cannot end the session of a broker that died: no answer from %s", hosts)
        return False
    finally:
        client.stop()
        client.close()
    return True
