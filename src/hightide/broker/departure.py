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
from hightide.coordination.errors import CoordinationError
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_SOON_S = 0.25  # a new controller needs no longer to be found


async def hand_over(broker: Broker) -> None:
    """Let others lead, as far as there are others."""
    if broker.metadata.broker_ids == [broker.broker_id]:
        return
    settings = broker.settings
    pause_s = min(settings.controlled_shutdown_retry_backoff_ms / 1000, _SOON_S)
    for _ in range(1 + settings.controlled_shutdown_max_retries):
        try:
            answer = await broker.ask_to_leave()
        except (ConnectionFailed, KafkaError, CoordinationError) as failure:
            log.warning("the controller does not let this broker go: %s", failure)
        else:
            if answer.error_code == ErrorCode.NONE:
                for each in answer.remaining_partitions:
                    topic, index = each.topic_name, each.partition_index
                    log.warning("nobody else can lead %s-%d", topic, index)
                return
            log.warning("the controller answers %s", CODES.get(answer.error_code))
        await asyncio.sleep(pause_s)
