"""The registration of a broker in `/brokers/ids`: an ephemeral znode of its session.

The czxid of the znode is the broker epoch.  It grows with every registration, so a message for an
earlier registration of the same broker can be told apart.

The id may be taken, mostly by an earlier session of this broker that has not expired yet, so the
broker waits.  A znode that is still there after a session timeout belongs to another live broker.
Two brokers with one id would both serve the same partitions, so this one refuses to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from hightide.broker.membership.identity import StartupRefused
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.write_outcome import create_ephemeral
from hightide.zookeeper.zookeeper_errors import MalformedZnode, NodeExists, NoNode

log = logging.getLogger(__name__)

# A session expires up to one tick after its timeout, and a tick is at most half a timeout.
_TIMEOUTS = 1.5
_POLL_S = 1.0


async def register(
    zookeeper: ZooKeeper, broker_id: int, registration: znodes.BrokerRegistration
) -> int:
    """Register this broker in the current session; return the broker epoch."""
    path = znodes.broker_path(broker_id)
    data = registration.encode()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + zookeeper.timeout_ms * _TIMEOUTS / 1000
    changed = asyncio.Event()
    is_logged = False
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
            raise StartupRefused(
                f"broker id {broker_id} is taken by {_owner(found, path)}, which is alive;"
                " give this broker another broker.id"
            )
        if not is_logged:
            is_logged = True
            log.warning(
                "broker id %d is taken by %s; waiting until that session has expired",
                broker_id,
                _owner(found, path),
            )
        # Not only the watch: it is lost with its connection.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                await changed.wait()


def _owner(data: bytes, path: str) -> str:
    try:
        registration = znodes.BrokerRegistration.decode(data, path)
    except MalformedZnode:
        return "a broker with an unreadable registration"
    addresses = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in registration.endpoints)
    return f"the broker at {addresses or 'no address'}"
