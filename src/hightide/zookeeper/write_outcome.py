"""Writes whose outcome is known also when the connection broke under them.

ConnectionLoss leaves open whether a write happened. The next connection of the same session sees
all that the earlier one did, so reading there settles it: an ephemeral is ours if our session owns
it, and a compare-and-set happened if the znode has our data and the version after the expected one.
"""

from __future__ import annotations

import asyncio

from hightide.zookeeper.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NotConnected,
    SessionLost,
)
from hightide.zookeeper.interface import SessionState, ZooKeeper
from hightide.zookeeper.node import Stat

_LOOK_S = 0.02


async def create_ephemeral(
    zookeeper: ZooKeeper, path: str, data: bytes, timeout_ms: int | None = None
) -> Stat:
    """The Stat of our ephemeral, created now or by a call of this session that got no answer.

    NodeExists if it is another session's; SessionLost if ours ends before it is there;
    ConnectionLoss if there is no connection for `timeout_ms`, by default the session's timeout.
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
    """The Stat after writing `data` over `version`; BadVersion if somebody else wrote first.

    A write by somebody else of the same bytes counts as ours. SessionLost and ConnectionLoss as in
    `create_ephemeral`.
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
    """Wait until the same session is CONNECTED. By looking: a listener could not be taken back."""
    limit_ms = timeout_ms or zookeeper.timeout_ms
    try:
        async with asyncio.timeout(limit_ms / 1000):
            while zookeeper.state is not SessionState.CONNECTED:
                if zookeeper.state is SessionState.LOST:
                    raise SessionLost
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise NotConnected(detail=f"for {limit_ms} ms") from None
    if zookeeper.session_id != session_id:
        raise SessionLost(detail="another one has begun")
