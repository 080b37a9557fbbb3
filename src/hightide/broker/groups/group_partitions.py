"""The groups that this broker coordinates: those of the partitions of their topic led here.

A group belongs to the partition that its name leads to.  Whoever asks a broker that does not lead
it is told so, and asks for the right one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hightide.broker.coordinator_log import CoordinatorLog
from hightide.broker.groups.group_partition import Fact, GroupPartition, Refuse
from hightide.broker.groups.rules_from_settings import rules_of
from hightide.broker.replication.replica import Replica
from hightide.core.groups.consumer.consumer_group import Topic
from hightide.core.metadata.internal_topics import partition_for
from hightide.core.metadata.topic_names import CONSUMER_OFFSETS
from hightide.wire.compression import Codec
from hightide.wire.errors import ErrorCode

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_partition_for = lru_cache(maxsize=4096)(partition_for)


class GroupPartitions:
    """The partitions, by their number."""

    def __init__(self, broker: Broker) -> None:
        self.partitions: dict[int, GroupPartition] = {}
        self._broker = broker
        self._rules = rules_of(broker.settings)
        self._topics: Mapping[str, Topic] | None = None

    def __iter__(self) -> Iterator[GroupPartition]:
        return iter(self.partitions.values())

    # -- asking ----------------------------------------------------------------------------

    def find(self, group_id: str) -> GroupPartition | ErrorCode:
        """Where a group is coordinated, or why it is not here."""
        topic = self._broker.picture.topic(CONSUMER_OFFSETS)
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        found = self.partitions.get(_partition_for(group_id, len(topic.partitions)))
        if found is None:
            return ErrorCode.NOT_COORDINATOR
        if found.refusal is not ErrorCode.NONE:
            return found.refusal
        return found

    def ask(self, group_id: str, fact: Fact, refuse: Refuse, limit_ms: int | None = None) -> Any:
        """The answer to a request about one group, or a future of it."""
        found = self.find(group_id)
        if isinstance(found, ErrorCode):
            return refuse(found)
        return found.ask(fact, refuse, limit_ms)

    # -- what changes ----------------------------------------------------------------------

    def role_changed(self, replica: Replica) -> None:
        """This broker leads a partition of the topic in another epoch, or does not any more."""
        former = self.partitions.pop(replica.partition, None)
        if former is not None:
            former.resign()
        if replica.leader is not None:
            self._begin(CoordinatorLog(replica, self._broker.flusher))

    def _begin(self, led_log: CoordinatorLog) -> None:
        broker = self._broker
        partition = GroupPartition(
            led_log,
            self._rules,
            broker.surroundings.random,
            broker.now_ms,
            codec=Codec(broker.settings.offsets_topic_compression_codec),
            on_doubt=self._begin_anew,
        )
        self.partitions[led_log.replica.partition] = partition
        partition.load(self._all_topics)

    def _begin_anew(self, partition: GroupPartition, why: str) -> None:
        """What a machine knows, or what its deadlines mean, is in doubt; the log is not."""
        replica = partition.led_log.replica
        if self.partitions.get(replica.partition) is partition:
            log.warning("%r is loaded again: %s", partition, why)
            self.role_changed(replica)

    def topics_changed(self, deleted: Collection[str]) -> None:
        """There are other topics now, or more partitions; and some are known to be deleted."""
        self._topics = None
        for partition in self:
            partition.machine.topics_changed(self._all_topics())
            for topic in deleted:
                partition.topic_deleted(topic)

    def _all_topics(self) -> Mapping[str, Topic]:
        if self._topics is None:
            self._topics = {
                each.name: Topic(each.topic_id, len(each.partitions))
                for each in self._broker.picture
            }
        return self._topics

    def settings_changed(self) -> None:
        self._rules = rules_of(self._broker.settings)
        for partition in self:
            partition.machine.rules = self._rules

    async def stop(self) -> None:
        """Tell everybody who waits that others coordinate now."""
        partitions, self.partitions = self.partitions, {}
        for partition in partitions.values():
            partition.resign()
