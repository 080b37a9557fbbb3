"""WriteTxnMarkers (27), versions 1 and 2: the end markers of transactions.

Transaction coordinators send it to the leaders of the partitions; so does an operator's tool, to
abort a hanging transaction.  A marker is acknowledged when the log end offset of that moment is
committed, whether the marker was written now or before.

On a connection that has not proved to be a broker's, only the request of the tool is served: abort
the transaction that is open in one partition, with the producer epoch and the coordinator epoch
that DescribeProducers shows.  It never commits, and it fences neither producers nor coordinators.
It is logged.

Errors per partition:
UNKNOWN_TOPIC_OR_PARTITION        there is no such partition
NOT_LEADER_OR_FOLLOWER            another broker leads it, or has since: the marker may be written
                                  or not
INVALID_TOPIC_EXCEPTION           a topic that no transaction writes to
NOT_ENOUGH_REPLICAS               the ISR is smaller than min.insync.replicas
NOT_ENOUGH_REPLICAS_AFTER_APPEND  the same, found after the append
REQUEST_TIMED_OUT                 the followers have not replicated the marker in time
INVALID_PRODUCER_EPOCH            the producer has been replaced
TRANSACTION_COORDINATOR_FENCED    the coordinator has been replaced
STALE_BROKER_EPOCH                a late copy, over a connection that the coordinator has given up
KAFKA_STORAGE_ERROR               the disk failed the write
CLUSTER_AUTHORIZATION_FAILED      only a broker may send such a marker
INVALID_TXN_STATE                 a tool: the producer has no open transaction in the partition
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from hightide.broker.handlers.request_context import Context
from hightide.broker.replication.replica import Replica
from hightide.core.metadata.topic_names import TRANSACTION_STATE
from hightide.core.transactions.transaction import Producer
from hightide.log.disk import DiskFailed
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

    Write = Callable[
        [Broker, WritableTxnMarker, Replica | None, str, WritableTxnMarkerPartitionResult], int
    ]

log = logging.getLogger(__name__)


def write_txn_markers(
    broker: Broker, request: WriteTxnMarkersRequest, context: Context
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    if context.connection.peer_broker_id < 0:
        if not _is_tool(request):
            broker.refusals.note(context.connection, context.client_id, "WriteTxnMarkers")
            return _refused(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return write_markers(broker, request, partial(_abort_open, context))
    if broker.transactions.marker_fencing.admits(context.connection):
        return write_markers(broker, request)
    return _refused(request, ErrorCode.STALE_BROKER_EPOCH)


def _is_tool(request: WriteTxnMarkersRequest) -> bool:
    """Whether the request is what an operator's tool sends: one abort, of one partition."""
    return len(_partitions(_unwritten(request))) == len(request.markers) == 1 and not (
        request.markers[0].transaction_result
    )


def _refused(request: WriteTxnMarkersRequest, code: ErrorCode) -> WriteTxnMarkersResponse:
    response = _unwritten(request)
    for partition in _partitions(response):
        partition.error_code = code
    return response


def write_markers(
    broker: Broker, request: WriteTxnMarkersRequest, write: Write | None = None
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    """Write markers; return the response, or an awaitable if replication is needed."""
    write = write or _write
    response = _unwritten(request)
    written: dict[Replica, None] = {}
    waits: list[WaitingMarker] = []
    for marker, results in zip(request.markers, response.markers, strict=True):
        for topic in results.topics:
            for result in topic.partitions:
                replica = broker.replica_manager.get(topic.name.encode(), result.partition_index)
                try:
                    end_offset = write(broker, marker, replica, topic.name, result)
                except KafkaError as error:
                    result.error_code = error.code
                    continue
                assert replica is not None
                written[replica] = None
                if replica.high_watermark < end_offset:
                    waits.append(WaitingMarker(result))
                    replica.purgatory.when_committed(end_offset, waits[-1])
    for replica in written:
        replica.markers_appended()
        if replica.needs_flush:
            broker.flusher.flush(replica)
    if not waits:
        return response
    return _committed(response, waits, broker.settings.request_timeout_ms)


def _abort_open(
    context: Context,
    broker: Broker,
    marker: WritableTxnMarker,
    replica: Replica | None,
    topic: str,
    result: WritableTxnMarkerPartitionResult,
) -> int:
    """Write a tool's marker, if it aborts the producer's open transaction and does no more."""
    if replica is not None and replica.leader is not None:
        log_ = replica.log
        state = log_.producers.get(marker.producer_id)
        if state is None:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        is_newer = marker.coordinator_epoch > max(state.coordinator_epoch, 0)
        if is_newer or marker.producer_epoch > state.epoch:
            # The marker would fence the producer, or its coordinator.
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if not log_.transactions.is_open(marker.producer_id):
            epochs = (marker.producer_epoch, marker.coordinator_epoch)
            if epochs != (state.epoch, state.coordinator_epoch):
                raise KafkaError(ErrorCode.INVALID_TXN_STATE)
            return log_.end_offset  # a repetition of the last marker
        log.warning(
            "%s, not a broker, asks to abort the transaction of producer %d, epoch %d, in %s-%d",
            context.sender,
            *(marker.producer_id, marker.producer_epoch, topic, result.partition_index),
        )
    return _write(broker, marker, replica, topic, result)


def _write(
    broker: Broker,
    marker: WritableTxnMarker,
    replica: Replica | None,
    topic: str,
    result: WritableTxnMarkerPartitionResult,
) -> int:
    """Write one marker; return the offset that must be committed before the acknowledgement."""
    if replica is None:
        raise KafkaError(
            broker.metadata.refusal(broker.metadata.get(topic), result.partition_index)
        )
    leader = replica.leader
    if leader is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if topic == TRANSACTION_STATE:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if (verdict := leader.write_error()) is not ErrorCode.NONE:
        raise KafkaError(verdict)
    now_ms = broker.now_ms()
    try:
        return replica.append_marker(
            Producer(marker.producer_id, marker.producer_epoch),
            marker.coordinator_epoch,
            marker.transaction_result,
            marker.transaction_version,
            now_ms,
        )
    except DiskFailed as failure:
        replica.report(failure, now_ms)
        raise


class WaitingMarker:
    """A marker in the log that is not committed yet."""

    __slots__ = ("result", "settled")

    def __init__(self, result: WritableTxnMarkerPartitionResult) -> None:
        self.result = result
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def complete(self, code: ErrorCode) -> None:
        if not self.settled.done():
            self.result.error_code = code
            self.settled.set_result(None)


async def _committed(
    response: WriteTxnMarkersResponse, waits: list[WaitingMarker], timeout_ms: int
) -> WriteTxnMarkersResponse:
    await asyncio.wait([marker.settled for marker in waits], timeout=timeout_ms / 1000)
    for marker in waits:
        marker.complete(ErrorCode.REQUEST_TIMED_OUT)
    return response


def _unwritten(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Return a response with an entry for every partition of the request."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _partitions(response: WriteTxnMarkersResponse) -> list[WritableTxnMarkerPartitionResult]:
    return [
        partition
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    ]
