"""The plan of a Fetch response: for each partition a slice of its log or an error, within limits.

A plan looks at indexes only.  The records are read when the socket takes them.
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
from hightide.log.segment import Slice
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.hot import fetch_codec as hot

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_FETCH = 1
_WRONG_BROKER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class FetchPlan:
    """What all partitions of a request share: its byte limit, and the leaders to name."""

    __slots__ = (
        "_broker", "_by_id", "_is_follower", "_leaders", "_room", "byte_count", "is_urgent",
    )  # fmt: skip

    def __init__(self, broker: Broker, request: hot.Fetch, version: int) -> None:
        self._broker = broker
        self._by_id = version >= hot.TOPIC_IDS
        self._is_follower = request.replica_id >= 0
        self._room = min(request.max_bytes, broker.settings.fetch_max_bytes)
        self._leaders: set[int] = set()
        self.byte_count = 0
        self.is_urgent = False
        """Whether the response has to say something other than records."""

    def slice(
        self, replica: Replica, requested: hot.RequestedPartition, end_offset: int
    ) -> Slice | None:
        """Take records before `end_offset`; None if there are none, or no room for them."""
        limit = min(requested.max_bytes, self._room)
        if limit <= 0 and self.byte_count:
            return None
        try:
            found = replica.log.read(requested.fetch_offset, max(limit, 0), end_offset)
        except (DiskFailed, Corrupt) as error:
            log.error("cannot read %s-%d: %s", replica.topic, replica.partition, error)
            if isinstance(error, DiskFailed):
                replica.log.disk_failed(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from None
        except KafkaError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE and replica.has_others_in_sync:
                # Another replica is about to lead. This error makes clients look for it.
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from None
            raise
        # A batch larger than the limit is sent only if it is the first: the client must advance.
        if found is None or (found.length > limit and self.byte_count):
            return None
        self.byte_count += found.length
        self._room -= found.length
        return found

    def diverging(
        self, replica: Replica, partition: int, diverging: tuple[int, int]
    ) -> hot.FetchedPartition:
        """The client's log differs from this one before its fetch offset."""
        self.is_urgent = True
        return hot.FetchedPartition(
            partition,
            0,
            replica.high_watermark,
            replica.log.last_stable_offset,
            replica.log.start_offset,
            diverging_epoch=diverging,
        )

    def refused(
        self, topic: bytes, partition: int, replica: Replica | None, error: KafkaError
    ) -> hot.FetchedPartition:
        self.is_urgent = True
        self._count_refused(replica, error)
        leader = None
        if error.code in _WRONG_BROKER and (replica is None or replica.leader is None):
            leader = self._leader(topic, partition)
        start_offset = -1 if replica is None else replica.log.start_offset
        return hot.FetchedPartition(
            partition, error.code, log_start_offset=start_offset, leader=leader
        )

    def _count_refused(self, replica: Replica | None, error: KafkaError) -> None:
        requests = self._broker.requests
        if self._is_follower:
            requests.of_followers.failed(error.code)
            return
        requests.of(_FETCH).failed(error.code)
        elsewhere = self._broker.replica_manager.traffic.elsewhere
        traffic = elsewhere if replica is None else replica.traffic
        traffic.fetches += 1
        traffic.failed_fetches += 1

    def _leader(self, topic: bytes, partition: int) -> tuple[int, int] | None:
        found = _find_topic(self._broker, topic, self._by_id)
        state = None if found is None else found.partitions.get(partition)
        if state is None:
            return None
        self._leaders.add(state.leader)
        return state.leader, state.leader_epoch

    def nodes(self, connection: Connection) -> list[hot.Node]:
        """The addresses of the leaders that the errors name."""
        if not self._leaders:
            return []
        return [
            hot.Node(address.broker_id, address.host, address.port, address.rack)
            for address in self._broker.addresses(connection)
            if address.broker_id in self._leaders
        ]


def check_epoch(replica: Replica, epoch: int) -> None:
    """Raise FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless the client's epoch is current."""
    if epoch >= 0 and epoch != replica.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH
            if epoch < replica.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH
        )


def find_divergence(
    leader: Leader, replica: Replica, requested: hot.RequestedPartition
) -> tuple[int, int] | None:
    """The epoch and offset where the client's log diverges from this one; None if it does not.

    Raises OFFSET_OUT_OF_RANGE if that cannot be determined.
    """
    offset, log_ = requested.fetch_offset, replica.log
    diverging = divergence(log_.epochs, leader.end_offset, offset, requested.last_fetched_epoch)
    if diverging == (-1, -1) or (
        diverging is None and not log_.start_offset <= offset <= leader.end_offset
    ):
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return diverging


def not_here(broker: Broker, topic: bytes, partition: int, by_id: bool) -> KafkaError:
    """The error for a partition that has no replica on this broker."""
    found = _find_topic(broker, topic, by_id)
    if found is None and by_id:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return KafkaError(broker.metadata.refusal(found, partition))


def _find_topic(broker: Broker, topic: bytes, by_id: bool) -> Topic | None:
    metadata = broker.metadata
    if by_id:
        return metadata.get_by_id(uuid.UUID(bytes=topic))
    return metadata.get(topic.decode(errors="replace"))
