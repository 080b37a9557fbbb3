"""Controlled shutdown: other brokers take over leadership before this broker stops.

A partition without another in-sync replica stays here until the end.  The controller may be down,
or stopping itself, so the request is retried a few times.  After that the broker stops anyway, and
the end of its session starts the elections.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hightide.client.broker_connection import CODES, ConnectionFailed
from hightide.client.retry import Backoff
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.zookeeper.interface import SessionState
from hightide.zookeeper.zookeeper_errors import ZooKeeperError

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 0.25  # a new controller is found within that time
_LIMIT_S = 10.0


async def transfer_leadership(broker: Broker) -> None:
    """Ask the controller to move leadership away, if there are other brokers."""
    if broker.metadata.broker_ids == [broker.broker_id]:
        return
    try:
        async with asyncio.timeout(_LIMIT_S):
            await _request_with_retries(broker)
    except TimeoutError:
        log.warning("controlled shutdown timed out after %.0f s; stopping without it", _LIMIT_S)


async def _request_with_retries(broker: Broker) -> None:
    settings = broker.settings
    pause_s = min(settings.controlled_shutdown_retry_backoff_ms / 1000, _LONGEST_PAUSE_S)
    backoff = Backoff.every(pause_s, attempts=1 + settings.controlled_shutdown_max_retries)
    while True:
        # Without ZooKeeper there are no elections. It may be back soon.
        if broker.zookeeper.state is not SessionState.CONNECTED:
            log.warning("no broker can take over leadership: ZooKeeper is unreachable")
        elif await _request_shutdown(broker):
            return
        if not await backoff.pause():
            return


async def _request_shutdown(broker: Broker) -> bool:
    """Send one request; return whether the controller has granted it."""
    try:
        response = await broker.controller_channel.controlled_shutdown()
    except (ConnectionFailed, KafkaError, ZooKeeperError) as failure:
        log.warning("controlled shutdown failed: %s", failure)
        return False
    if response.error_code != ErrorCode.NONE:
        code = CODES.get(response.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)
        log.warning("controlled shutdown was refused: %s", code.name)
        return False
    for partition in response.remaining_partitions:
        log.warning(
            "%s-%d has no other in-sync replica and will have no leader",
            partition.topic_name,
            partition.partition_index,
        )
    return True
