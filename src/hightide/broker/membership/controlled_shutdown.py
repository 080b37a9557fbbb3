"""A broker takes its leave: others lead what it leads before it stops.

What cannot be moved, because nobody else has all of it, stays until the end.  The controller may
be gone or about to go itself, so it is asked a few times; in the end the broker stops all the same,
and its session tells the rest.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hightide.client.connection import CODES, ConnectionFailed
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.zookeeper.errors import ZooKeeperError
from hightide.zookeeper.interface import SessionState

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_SOON_S = 0.25  # a new controller needs no longer to be found
_LIMIT_S = 10.0


async def hand_over(broker: Broker) -> None:
    """Let others lead, as far as there are others."""
    if broker.metadata.broker_ids == [broker.broker_id]:
        return
    try:
        async with asyncio.timeout(_LIMIT_S):
            await _ask_a_few_times(broker)
    except TimeoutError:
        log.warning("the controller did not let this broker go in %.0f s", _LIMIT_S)


async def _ask_a_few_times(broker: Broker) -> None:
    settings = broker.settings
    pause_s = min(settings.controlled_shutdown_retry_backoff_ms / 1000, _SOON_S)
    for _ in range(1 + settings.controlled_shutdown_max_retries):
        # Without a coordinator nobody can be elected. It may only be moving.
        if broker.zookeeper.state is not SessionState.CONNECTED:
            log.warning("nobody can take over: the coordinator is away")
        elif await _may_go(broker):
            return
        await asyncio.sleep(pause_s)


async def _may_go(broker: Broker) -> bool:
    try:
        answer = await broker.controller_channel.controlled_shutdown()
    except (ConnectionFailed, KafkaError, ZooKeeperError) as failure:
        log.warning("the controller does not let this broker go: %s", failure)
        return False
    if answer.error_code != ErrorCode.NONE:
        code = CODES.get(answer.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)
        log.warning("the controller does not let this broker go: %s", code.name)
        return False
    for each in answer.remaining_partitions:
        log.warning("nobody else can lead %s-%d", each.topic_name, each.partition_index)
    return True
