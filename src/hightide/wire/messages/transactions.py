"""Transactions: add partitions and offsets, commit or abort, describe and list.

From version 4 on AddPartitionsToTxn has several transactions, and brokers send it to each other.
The transaction coordinator sends WriteTxnMarkers to the leaders of the partitions.
"""

from __future__ import annotations

from hightide.wire.types import field, i8, i16, i32, i64, message, part


@part
class AddPartitionsToTxnTopic:
    name: str
    partitions: list[i32]


@part
class AddPartitionsToTxnTransaction:
    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic]


@message(key=24, versions=(0, 5), flexible=3)
class AddPartitionsToTxnRequest:
    """Add partitions to a transaction before records are written to them."""

    transactions: list[AddPartitionsToTxnTransaction] = field(since=4, default=[])
    v3_and_below_transactional_id: str = field(until=3, default="")
    v3_and_below_producer_id: i64 = field(until=3, default=0)
    v3_and_below_producer_epoch: i16 = field(until=3, default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(until=3, default=[])


@part
class AddPartitionsToTxnPartitionResult:
    partition_index: i32
    partition_error_code: i16


@part
class AddPartitionsToTxnTopicResult:
    name: str
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


@part
class AddPartitionsToTxnResult:
    transactional_id: str
    topic_results: list[AddPartitionsToTxnTopicResult]


@message(key=24, versions=(0, 5), flexible=3)
class AddPartitionsToTxnResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = 0
    error_code: i16 = field(since=4, ignorable=True, default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(since=4, default=[])
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(until=3, default=[])


@message(key=25, versions=(0, 4), flexible=3)
class AddOffsetsToTxnRequest:
    """Add the offset commits of a group to a transaction."""

    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    group_id: str


@message(key=25, versions=(0, 4), flexible=3)
class AddOffsetsToTxnResponse:
    """The result."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0


@message(key=26, versions=(0, 5), flexible=3)
class EndTxnRequest:
    """Commit or abort a transaction."""

    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    committed: bool


@message(key=26, versions=(0, 5), flexible=3)
class EndTxnResponse:
    """The result. The markers may follow later."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    producer_id: i64 = field(since=5, ignorable=True, default=-1)
    producer_epoch: i16 = field(since=5, ignorable=True, default=-1)


@part
class TxnOffsetCommitRequestPartition:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = field(since=2, ignorable=True, default=-1)
    committed_metadata: str | None


@part
class TxnOffsetCommitRequestTopic:
    name: str
    partitions: list[TxnOffsetCommitRequestPartition]


@message(key=28, versions=(0, 5), flexible=3)
class TxnOffsetCommitRequest:
    """Commit offsets of a group, which take effect when the transaction commits."""

    transactional_id: str
    group_id: str
    producer_id: i64
    producer_epoch: i16
    generation_id: i32 = field(since=3, default=-1)
    member_id: str = field(since=3, default="")
    group_instance_id: str | None = field(since=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic]


@part
class TxnOffsetCommitResponsePartition:
    partition_index: i32
    error_code: i16 = 0


@part
class TxnOffsetCommitResponseTopic:
    name: str
    partitions: list[TxnOffsetCommitResponsePartition]


@message(key=28, versions=(0, 5), flexible=3)
class TxnOffsetCommitResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = 0
    topics: list[TxnOffsetCommitResponseTopic]


@part
class WritableTxnMarkerTopic:
    name: str
    partition_indexes: list[i32]


@part
class WritableTxnMarker:
    producer_id: i64
    producer_epoch: i16
    transaction_result: bool
    topics: list[WritableTxnMarkerTopic]
    coordinator_epoch: i32
    transaction_version: i8 = field(since=2, ignorable=True, default=0)


@message(key=27, versions=(1, 2), flexible=1)
class WriteTxnMarkersRequest:
    """Ask leaders to write commit or abort markers to their partitions."""

    markers: list[WritableTxnMarker]


@part
class WritableTxnMarkerPartitionResult:
    partition_index: i32
    error_code: i16 = 0


@part
class WritableTxnMarkerTopicResult:
    name: str
    partitions: list[WritableTxnMarkerPartitionResult]


@part
class WritableTxnMarkerResult:
    producer_id: i64
    topics: list[WritableTxnMarkerTopicResult]


@message(key=27, versions=(1, 2), flexible=1)
class WriteTxnMarkersResponse:
    """The result for each partition."""

    markers: list[WritableTxnMarkerResult]


@part
class TopicRequest:
    name: str
    partition_indexes: list[i32]


@message(key=61, versions=(0, 0), flexible=0)
class DescribeProducersRequest:
    """Request the active producers of partitions."""

    topics: list[TopicRequest]


@part
class ProducerState:
    producer_id: i64
    producer_epoch: i32
    last_sequence: i32 = -1
    last_timestamp: i64 = -1
    coordinator_epoch: i32
    current_txn_start_offset: i64 = -1


@part
class PartitionResponse:
    partition_index: i32
    error_code: i16 = 0
    error_message: str | None = None
    active_producers: list[ProducerState]


@part
class TopicResponse:
    name: str
    partitions: list[PartitionResponse]


@message(key=61, versions=(0, 0), flexible=0)
class DescribeProducersResponse:
    """The producer state of each partition."""

    throttle_time_ms: i32 = 0
    topics: list[TopicResponse]


@message(key=65, versions=(0, 0), flexible=0)
class DescribeTransactionsRequest:
    """Request the state of transactions by transactional id."""

    transactional_ids: list[str]


@part
class TopicData:
    topic: str
    partitions: list[i32]


@part
class TransactionState:
    error_code: i16 = 0
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: i32
    transaction_start_time_ms: i64
    producer_id: i64
    producer_epoch: i16
    topics: list[TopicData]


@message(key=65, versions=(0, 0), flexible=0)
class DescribeTransactionsResponse:
    """The state of each transaction and its partitions."""

    throttle_time_ms: i32 = 0
    transaction_states: list[TransactionState]


@message(key=66, versions=(0, 1), flexible=0)
class ListTransactionsRequest:
    """Request the transactions that this broker coordinates."""

    state_filters: list[str]
    producer_id_filters: list[i64]
    duration_filter: i64 = field(since=1, default=-1)


@part
class ListedTransactionState:
    transactional_id: str
    producer_id: i64
    transaction_state: str


@message(key=66, versions=(0, 1), flexible=0)
class ListTransactionsResponse:
    """The transactions that match the filters."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    unknown_state_filters: list[str]
    transaction_states: list[ListedTransactionState]
