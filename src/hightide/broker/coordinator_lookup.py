"""FindCoordinator: the broker that leads the partition of a group or transactional id.

The internal topics are created by the first lookup.  The client that sent it waits a little for the
new topic: otherwise its next request would reach a broker that does not know the topic yet.
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
from hightide.zookeeper.zookeeper_errors import ZooKeeperError

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_CREATION_TIMEOUT_S = 3.0
_POLL_S = 0.005


class CoordinatorType(IntEnum):
    """The coordinator's key type, numbered as in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1

    @property
    def topic(self) -> str:
        return CONSUMER_OFFSETS if self is CoordinatorType.GROUP else TRANSACTION_STATE


def known_coordinator(broker: Broker, kind: CoordinatorType, name: str) -> int:
    """Return the coordinator's broker id, or NO_BROKER while it is unknown."""
    topic = broker.metadata_image.topic(kind.topic)
    if topic is None:
        return NO_BROKER
    state = topic.partitions.get(partition_for(name, len(topic.partitions)))
    return NO_BROKER if state is None else broker.metadata_image.leader(state)


async def coordinator_of(broker: Broker, kind: CoordinatorType, name: str) -> int:
    """Return the coordinator's broker id; create its topic if it does not exist.

    COORDINATOR_NOT_AVAILABLE if the partition has no leader within some seconds.
    """
    if broker.metadata_image.topic(kind.topic) is None:
        await _create(broker, kind.topic)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CREATION_TIMEOUT_S
    while (found := known_coordinator(broker, kind, name)) == NO_BROKER:
        if loop.time() >= deadline:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the partition of {kind.topic} for {name} has no leader",
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
            log.error("topic %s cannot be created: %s", topic, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}: {error}") from error
    except ZooKeeperError as error:
        log.warning("topic %s cannot be created now: %s", topic, error)
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}: {error}") from error
