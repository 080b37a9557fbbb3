"""This broker's place in `/brokers/ids`: an ephemeral znode that lives as long as its session.

The znode's czxid is the broker epoch: it grows with every registration, so a message to an earlier
life of the same broker can be told apart.

The id may be taken.  Mostly it is by an earlier session of this very broker that has not expired
yet; that is waited out.  What is still there after a session's timeout belongs to another broker
that is alive, and two brokers with one id would both answer for the same partitions: refuse.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from hightide.broker.membership.identity import Refused
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import MalformedZnode, NodeExists, NoNode
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.write_outcome import create_ephemeral

log = logging.getLogger(__name__)

# A session ends between its timeout and one tick later, and a tick is at most half a timeout.
_PATIENCE = 1.5
_LOOK_AGAIN_S = 1.0


async def register(
    zookeeper: ZooKeeper, broker_id: int, registration: znodes.BrokerRegistration
) -> int:
    """Make this session's broker known; the broker epoch."""
    path = znodes.broker_path(broker_id)
    data = registration.encode()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + zookeeper.timeout_ms * _PATIENCE / 1000
    changed = asyncio.Event()
    told = False
    while True:
        try:
            return (await create_ephemeral(zookeeper, path, data)).czxid
        except NodeExists:
            changed.clear()
        try:
            found, _ = await zookeeper.get(path, lambda _event: changed.set())
        except NoNode:
            continue
        if loop.time() > deadline:
            raise Refused(
                f"broker id {broker_id} is taken by {_whose(found, path)}, which is alive;"
                " give this broker another broker.id"
            )
        if not told:
            told = True
            log.warning(
                "broker id %d is taken by %s; waiting until that session has expired",
                broker_id,
                _whose(found, path),
            )
        # A watch dies with its connection, so it is not waited for alone.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await changed.wait()


def _whose(data: bytes, path: str) -> str:
    try:
        found = znodes.BrokerRegistration.decode(data, path)
    except MalformedZnode:
        return "somebody whose registration cannot be read"
    addresses = ", ".join(f"{each.host}:{each.port}" for each in found.endpoints)
    return f"the broker at {addresses or 'no address'}"
