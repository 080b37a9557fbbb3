"""Writes whose outcome is known even if the connection broke during the request.

ConnectionLoss leaves open whether the server executed a write. The next connection of the same
session sees everything that the earlier one wrote, so a read there decides it: an ephemeral is ours
if our session owns it, and a compare-and-set was executed if the znode has our data and the version
after the expected one.
"""

from __future__ import annotations

import asyncio

from hightide.zookeeper.interface import SessionState, ZooKeeper
from hightide.zookeeper.node import Stat
from hightide.zookeeper.zookeeper_errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NotConnected,
    SessionLost,
)

_POLL_S = 0.02


async def create_ephemeral(
    zookeeper: ZooKeeper, path: str, data: bytes, timeout_ms: int | None = None
) -> Stat:
    """Create an ephemeral and return its Stat, also if an earlier unanswered call created it.

    Raises NodeExists if another session owns it, SessionLost if our session ends before, and
    ConnectionLoss if there is no connection for `timeout_ms`, by default the session timeout.
    """
    session_id = zookeeper.session_id
    while True:
        try:
            await zookeeper.create(path, data, ephemeral=True)
        except (NodeExists, ConnectionLoss):
            await _connected(zookeeper, session_id, timeout_ms)
        try:
            stat = await zookeeper.exists(path)
        except ConnectionLoss:
            continue
        if stat is not None and stat.ephemeral_owner == session_id:
            return stat
        if stat is not None:
            raise NodeExists(path, f"its owner is session {stat.ephemeral_owner:#x}")


async def compare_and_set(
    zookeeper: ZooKeeper,
    path: str,
    data: bytes,
    version: int,
    timeout_ms: int | None = None,
) -> Stat:
    """Write `data` over `version` and return the Stat; raise BadVersion if another client wrote.

    A write of the same bytes by another client counts as ours. Raises SessionLost and
    ConnectionLoss as `create_ephemeral` does.
    """
    session_id = zookeeper.session_id
    while True:
        try:
            return await zookeeper.set(path, data, version)
        except (BadVersion, ConnectionLoss):
            await _connected(zookeeper, session_id, timeout_ms)
        try:
            found, stat = await zookeeper.get(path)
        except ConnectionLoss:
            continue
        if found == data and stat.version == version + 1:
            return stat
        if stat.version != version:
            raise BadVersion(path, f"expected {version}, found {stat.version}")


async def _connected(zookeeper: ZooKeeper, session_id: int, timeout_ms: int | None) -> None:
    """Wait until the same session is CONNECTED. Polls, since a listener cannot be removed."""
    limit_ms = timeout_ms or zookeeper.timeout_ms
    try:
        async with asyncio.timeout(limit_ms / 1000):
            while zookeeper.state is not SessionState.CONNECTED:
                if zookeeper.state is SessionState.LOST:
                    raise SessionLost
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise NotConnected(detail=f"for {limit_ms} ms") from None
    if zookeeper.session_id != session_id:
        raise SessionLost(detail="a new session has begun")
