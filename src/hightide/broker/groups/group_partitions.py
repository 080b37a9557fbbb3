"""The partitions of `__consumer_offsets` that this broker leads, and so coordinates.

The group id determines the partition of a group.  A broker that does not lead it answers with
NOT_COORDINATOR, and the client looks up the coordinator again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hightide.broker.coordinator_log import CoordinatorLog
from hightide.broker.groups.group_partition import Decide, GroupPartition, Refuse
from hightide.broker.groups.topic_matches import TopicMatches, find_matches
from hightide.broker.network.turn import Usage
from hightide.broker.replication.replica import Replica
from hightide.core.groups.consumer.consumer_group import Topic
from hightide.core.groups.group_rules import MINUTE_MS, MigrationPolicy, Rules
from hightide.core.metadata.topic_names import CONSUMER_OFFSETS, partition_for
from hightide.settings import Broker as Settings
from hightide.wire.compression import Codec
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_partition_for = lru_cache(maxsize=4096)(partition_for)


class GroupPartitions:
    """The group coordinators of this broker, by partition."""

    def __init__(self, broker: Broker) -> None:
        self.partitions: dict[int, GroupPartition] = {}
        self._broker = broker
        self._rules = _rules(broker.settings)
        self._topics: Mapping[str, Topic] | None = None
        self._matches = TopicMatches()

    def __iter__(self) -> Iterator[GroupPartition]:
        return iter(self.partitions.values())

    # -- changes ---------------------------------------------------------------------------

    def role_changed(self, replica: Replica) -> None:
        """Start, restart or stop the coordinator of a partition whose leader has changed."""
        former = self.partitions.get(replica.partition)
        if former is not None:
            if former.coordinator_log.replica is not replica and replica.leader is None:
                return  # the replica belongs to a deleted topic of the same name
            del self.partitions[replica.partition]
            former.resign()
        if replica.leader is not None:
            self._begin(CoordinatorLog(replica, self._broker.flusher))

    def _begin(self, coordinator_log: CoordinatorLog) -> None:
        broker = self._broker
        partition = GroupPartition(
            coordinator_log,
            self._rules,
            broker.environment.random,
            broker.now_ms,
            codec=Codec(broker.settings.offsets_topic_compression_codec),
            on_inconsistent=self._reload,
            count_groups=self._count_groups,
            count_bytes=self._count_bytes,
            compile_pattern=self._matches,
        )
        self.partitions[coordinator_log.replica.partition] = partition
        partition.load(self._all_topics)

    def _count_bytes(self) -> int:
        return sum(partition.coordinator.large_bytes for partition in self)

    def _count_groups(self) -> int:
        return sum(partition.coordinator.group_count for partition in self)

    def _reload(self, partition: GroupPartition, reason: str) -> None:
        """Load a partition again: its coordinator's state or clock is wrong, the log is right."""
        replica = partition.coordinator_log.replica
        if self.partitions.get(replica.partition) is partition:
            log.warning("%s: loading again: %s", partition, reason)
            self.role_changed(replica)

    def topics_changed(self, deleted: Collection[str]) -> None:
        """Pass on the topics of the cluster, and the topics that were deleted."""
        self._topics = None
        for partition in self:
            partition.coordinator.topics_changed(self._all_topics())
            for topic in deleted:
                partition.topic_deleted(topic)

    def _all_topics(self) -> Mapping[str, Topic]:
        if self._topics is None:
            self._topics = {
                topic.name: Topic(topic.topic_id, len(topic.partitions))
                for topic in self._broker.metadata_image
            }
        return self._topics

    def settings_changed(self) -> None:
        self._rules = _rules(self._broker.settings)
        for partition in self:
            partition.configured(self._rules)

    async def stop(self) -> None:
        """Stop coordinating; pending requests get NOT_COORDINATOR."""
        partitions, self.partitions = self.partitions, {}
        for partition in partitions.values():
            partition.resign()

    # -- requests --------------------------------------------------------------------------

    def find(self, group_id: str) -> GroupPartition | ErrorCode:
        """Return the partition of a group, or why this broker cannot serve the group."""
        topic = self._broker.metadata_image.topic(CONSUMER_OFFSETS)
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        found = self.partitions.get(_partition_for(group_id, len(topic.partitions)))
        if found is None:
            return ErrorCode.NOT_COORDINATOR
        if found.refusal is not ErrorCode.NONE:
            return found.refusal
        if self._broker.replica_manager.in_doubt():
            try:
                found.coordinator_log.replica.check_certain()
            except KafkaError:
                return ErrorCode.NOT_COORDINATOR
        return found

    def unmatched(self, group_id: str, expression: str | None = None) -> set[str]:
        """Return the expressions that a request about a group would match with all topics; it may
        bring one."""
        found = self.find(group_id)
        if isinstance(found, ErrorCode):
            return set()
        return found.coordinator.consumer_groups.unmatched(group_id, expression)

    async def ask_matched(self, expressions: set[str], usage: Usage, ask: Callable[[], Any]) -> Any:
        """Match expressions in the pool, then ask; return the response."""
        pool = self._broker.work_pool
        found = await find_matches(pool, usage, sorted(expressions), self._all_topics())
        with self._matches.given(found):
            answer = ask()
        return await answer if isinstance(answer, asyncio.Future) else answer

    def ask(
        self, group_id: str, decide: Decide, refuse: Refuse, timeout_ms: int | None = None
    ) -> Any:
        """Return the response to a request about one group, or a future of it."""
        found = self.find(group_id)
        if isinstance(found, ErrorCode):
            return refuse(found)
        return found.ask(decide, refuse, timeout_ms)


def _rules(settings: Settings) -> Rules:
    return Rules(
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        max_size=settings.group_max_size,
        max_count=settings.group_max_count,
        member_metadata_max_bytes=settings.group_member_metadata_max_bytes,
        metadata_max_bytes=settings.group_metadata_max_bytes,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * MINUTE_MS,
        offsets_retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
        consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        consumer_max_size=settings.group_consumer_max_size,
        consumer_assignors=settings.group_consumer_assignors,
        migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
    )
