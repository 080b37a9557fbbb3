"""Produce: record batches, and the producer ids that make retries idempotent.

Clients, tests and cold paths use these declarations. The hot path of the broker has a hand-tuned
codec in `wire.hot`, which must agree with them.
"""

from __future__ import annotations

from hightide.wire.types import Records, field, i16, i32, i64, message, part


@part
class PartitionProduceData:
    index: i32
    records: Records | None


@part
class TopicProduceData:
    name: str
    partition_data: list[PartitionProduceData]


@message(key=0, versions=(3, 12), flexible=9)
class ProduceRequest:
    """Append record batches to partitions of which the broker is leader."""

    transactional_id: str | None = None
    acks: i16
    timeout_ms: i32
    topic_data: list[TopicProduceData]


@part
class BatchIndexAndErrorMessage:
    batch_index: i32
    batch_index_error_message: str | None = None


@part
class LeaderIdAndEpoch:
    leader_id: i32 = -1
    leader_epoch: i32 = -1


@part
class PartitionProduceResponse:
    index: i32
    error_code: i16 = 0
    base_offset: i64
    log_append_time_ms: i64 = -1
    log_start_offset: i64 = field(since=5, ignorable=True, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field(since=8, ignorable=True, default=[])
    error_message: str | None = field(since=8, ignorable=True, default=None)
    current_leader: LeaderIdAndEpoch | None = field(since=10, tag=0, default=None)


@part
class TopicProduceResponse:
    name: str
    partition_responses: list[PartitionProduceResponse]


@part
class NodeEndpoint:
    node_id: i32
    host: str
    port: i32
    rack: str | None = None


@message(key=0, versions=(3, 12), flexible=9)
class ProduceResponse:
    """The base offset of each batch, or the error."""

    responses: list[TopicProduceResponse]
    throttle_time_ms: i32 = 0
    node_endpoints: list[NodeEndpoint] = field(since=10, tag=0, default=[])


@message(key=22, versions=(0, 5), flexible=2)
class InitProducerIdRequest:
    """Request a producer id, for idempotence or for a transactional id."""

    transactional_id: str | None
    transaction_timeout_ms: i32
    producer_id: i64 = field(since=3, default=-1)
    producer_epoch: i16 = field(since=3, default=-1)


@message(key=22, versions=(0, 5), flexible=2)
class InitProducerIdResponse:
    """The producer id and epoch for the header of batches."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    producer_id: i64 = -1
    producer_epoch: i16
