"""Who coordinates a group or a transactional id: whoever leads the partition that keeps it.

The topics that keep them are made when they are first asked for, and the client that asked waits a
little for them: its next request would come to a broker that does not know them yet.
"""

from __future__ import annotations

import asyncio
import logging
from enum import IntEnum
from typing import TYPE_CHECKING

from hightide.broker.controller import announce_topic
from hightide.broker.controller.topic_changes import default_counts, internal_overrides
from hightide.core.controller.placement import place
from hightide.core.metadata.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE, partition_for
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.zookeeper.errors import ZooKeeperError

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_CREATION_TIMEOUT_S = 3.0
_POLL_S = 0.005


class CoordinatorType(IntEnum):
    """What is coordinated, by the number that FindCoordinator has for it."""

    GROUP = 0
    TRANSACTION = 1

    @property
    def topic(self) -> str:
        return CONSUMER_OFFSETS if self is CoordinatorType.GROUP else TRANSACTION_STATE


def known_coordinator(broker: Broker, kind: CoordinatorType, name: str) -> int:
    """The id of the broker, or NOBODY while it is not known."""
    topic = broker.metadata_image.topic(kind.topic)
    if topic is None:
        return NO_BROKER
    state = topic.partitions.get(partition_for(name, len(topic.partitions)))
    return NO_BROKER if state is None else broker.metadata_image.leader(state)


async def coordinator_of(broker: Broker, kind: CoordinatorType, name: str) -> int:
    """The id of the broker; its topic is made if there is none.

    COORDINATOR_NOT_AVAILABLE if there is no such broker, or not soon.
    """
    if broker.metadata_image.topic(kind.topic) is None:
        await _create(broker, kind.topic)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CREATION_TIMEOUT_S
    while (found := known_coordinator(broker, kind, name)) == NO_BROKER:
        if loop.time() >= deadline:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the partition that keeps {name} has no leader",
            )
        await asyncio.sleep(_POLL_S)
    return found


async def _create(broker: Broker, topic: str) -> None:
    settings, racks = broker.settings, broker.metadata.racks
    count, factor = default_counts(settings, topic, len(racks))
    first = broker.environment.random.randrange(len(racks))
    try:
        assignment = place(racks, count, factor, first)
        overrides = internal_overrides(settings, topic, factor)
        new_id = broker.environment.new_id
        await announce_topic(broker.zookeeper, topic, assignment, overrides, new_id)
    except KafkaError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            log.error("topic %s cannot be made: %s", topic, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}: {error}") from error
    except ZooKeeperError as error:
        log.warning("topic %s cannot be made now: %s", topic, error)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}: {error}") from error
