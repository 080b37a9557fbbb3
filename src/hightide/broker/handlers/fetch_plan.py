"""What a Fetch gets: per partition a slice of its log or a refusal, within the request's limits.

Only indexes are looked at.  The records themselves are read when the socket takes them.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from hightide.broker.network.connection import Connection
from hightide.broker.replication.replica import Replica
from hightide.core.metadata.image import Topic
from hightide.core.partition.follower import divergence
from hightide.core.partition.leader import Leader
from hightide.log.disk import DiskFailed
from hightide.log.log import Slice
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.hot import fetch_codec as hot

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_WRONG_BROKER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class Plan:
    """What all partitions of a request share."""

    __slots__ = ("_broker", "_budget", "_by_id", "_leaders", "byte_count", "is_urgent")

    def __init__(self, broker: Broker, request: hot.Fetch, version: int) -> None:
        self._broker = broker
        self._by_id = version >= hot.TOPIC_IDS
        self._budget = min(request.max_bytes, broker.settings.fetch_max_bytes)
        self._leaders: set[int] = set()
        self.byte_count = 0
        self.is_urgent = False
        """Whether there is something else to say than records."""

    def slice(
        self, replica: Replica, wanted: hot.RequestedPartition, end_offset: int
    ) -> Slice | None:
        """Records before `end_offset`; None if there are none, or no room for them."""
        limit = min(wanted.max_bytes, self._budget)
        if limit <= 0 and self.byte_count:
            return None
        try:
            found = replica.log.read(wanted.fetch_offset, max(limit, 0), end_offset)
        except (DiskFailed, Corrupt) as error:
            log.error("cannot read %s-%d: %s", replica.topic, replica.partition, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from None
        # A batch larger than the limit is given only when nothing else is: clients must get on.
        if found is None or (found.length > limit and self.byte_count):
            return None
        self.byte_count += found.length
        self._budget -= found.length
        return found

    def diverging(
        self, replica: Replica, partition: int, parts: tuple[int, int]
    ) -> hot.FetchedPartition:
        """Whoever asks has something else before that offset than this log."""
        self.is_urgent = True
        return hot.FetchedPartition(
            partition,
            0,
            replica.high_watermark,
            replica.log.last_stable_offset,
            replica.log.start_offset,
            diverging_epoch=parts,
        )

    def refused(
        self, topic: bytes, partition: int, replica: Replica | None, error: KafkaError
    ) -> hot.FetchedPartition:
        self.is_urgent = True
        leader = None
        if error.code in _WRONG_BROKER:
            leader = self._leader(topic, partition)
        start_offset = -1 if replica is None else replica.log.start_offset
        return hot.FetchedPartition(
            partition, error.code, log_start_offset=start_offset, leader=leader
        )

    def _leader(self, topic: bytes, partition: int) -> tuple[int, int] | None:
        found = _find_topic(self._broker, topic, self._by_id)
        state = None if found is None else found.partitions.get(partition)
        if state is None:
            return None
        self._leaders.add(state.leader)
        return state.leader, state.leader_epoch

    def nodes(self, connection: Connection) -> list[hot.Node]:
        """Where the leaders are that refusals have named."""
        if not self._leaders:
            return []
        return [
            hot.Node(each.broker_id, each.host, each.port, each.rack)
            for each in self._broker.addresses(connection)
            if each.broker_id in self._leaders
        ]


def check_epoch(replica: Replica, epoch: int) -> None:
    """FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless the client means the present epoch."""
    if epoch >= 0 and epoch != replica.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH
            if epoch < replica.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH
        )


def parting(
    leader: Leader, replica: Replica, wanted: hot.RequestedPartition
) -> tuple[int, int] | None:
    """Where a reader's log parts from this one; OFFSET_OUT_OF_RANGE if it cannot be said."""
    offset, log_ = wanted.fetch_offset, replica.log
    parts = divergence(log_.epochs, leader.end_offset, offset, wanted.last_fetched_epoch)
    if parts == (-1, -1) or (
        parts is None and not log_.start_offset <= offset <= leader.end_offset
    ):
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return parts


def not_here(broker: Broker, topic: bytes, partition: int, by_id: bool) -> KafkaError:
    found = _find_topic(broker, topic, by_id)
    if found is None and by_id:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return KafkaError(broker.metadata.refusal(found, partition))


def _find_topic(broker: Broker, topic: bytes, by_id: bool) -> Topic | None:
    metadata = broker.metadata
    if by_id:
        return metadata.get_by_id(uuid.UUID(bytes=topic))
    return metadata.get(topic.decode(errors="replace"))
