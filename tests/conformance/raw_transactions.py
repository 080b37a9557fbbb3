"""Transactions over a plain socket: single requests, in any version, with any content.

`RawProducer` keeps the state of a client (producer id, epoch, sequences) and sends only the
requests that a test asks for, so that a test can omit a step, repeat it, or send it too late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from hightide.wire.messages.groups import FindCoordinatorRequest
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from hightide.wire.messages.produce import InitProducerIdRequest
from hightide.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TopicRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.conformance.raw import Raw, produce_request, produced
from tests.conformance.replicated import LIMIT_S
from tests.support.eventually import eventually

GROUP, TRANSACTION = 0, 1
UNCOMMITTED, COMMITTED = 0, 1
COME_AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


def find_coordinator(cluster: Any, name: str, kind: int = TRANSACTION) -> int:
    """Wait for the coordinator, and return its broker id."""

    def look() -> int:
        able = cluster.able() if hasattr(cluster, "able") else cluster.brokers
        with Raw(cluster, able[0]) as raw:
            answer = raw.ask(FindCoordinatorRequest(key=name, key_type=kind), 2)
        return answer.node_id if answer is not None and answer.error_code == 0 else 0

    return eventually(look, getattr(cluster, "patience_s", LIMIT_S))


def ask_coordinator(
    cluster: Any, name: str, request: Any, version: int, kind: int = TRANSACTION
) -> Any:
    """Return the response of the coordinator, after a wait for a live one."""

    def attempt() -> Any:
        broker_id = find_coordinator(cluster, name, kind)
        try:
            with Raw(cluster, broker_id) as raw:
                answer = raw.ask(request, version)
        except ConnectionRefusedError:
            return None
        assert answer is not None or not cluster.is_running(broker_id), "the broker hung up"
        return answer

    return eventually(attempt, getattr(cluster, "patience_s", LIMIT_S))


def settled(ask: Callable[[], ErrorCode]) -> ErrorCode:
    """Repeat a request until its error is not retriable; return the response."""
    found = ErrorCode.NONE

    def look() -> bool:
        nonlocal found
        found = ask()
        return found not in COME_AGAIN

    eventually(look)
    return found


class RawProducer:
    """A producer under the control of a test."""

    def __init__(self, cluster: Any, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.id, self.epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}

    def _ask(self, request: Any, version: int, name: str = "", kind: int = TRANSACTION) -> Any:
        return ask_coordinator(self.cluster, name or self.transactional_id, request, version, kind)

    def init(self, version: int = 4, *, keeps: bool = False) -> ErrorCode:
        """InitProducerId; with `keeps` it sends its producer id and epoch (KIP-360)."""
        given = {"producer_id": self.id, "producer_epoch": self.epoch} if keeps else {}
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            **given,
        )

        def ask() -> ErrorCode:
            answer = self._ask(request, version)
            if answer.error_code == 0:
                self.id, self.epoch = answer.producer_id, answer.producer_epoch
                self._sequences.clear()
            return ErrorCode(answer.error_code)

        return settled(ask)

    def add(self, *partitions: tuple[str, int], version: int = 3) -> list[ErrorCode]:
        """AddPartitionsToTxn; return the error code of each partition."""
        topics = [AddPartitionsToTxnTopic(name=name, partitions=[at]) for name, at in partitions]
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=topics,
            )
        else:
            request = AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=self.transactional_id,
                        producer_id=self.id,
                        producer_epoch=self.epoch,
                        topics=topics,
                    )
                ]
            )
        codes: list[ErrorCode] = []

        def ask() -> ErrorCode:
            answer = self._ask(request, version)
            if version < 4:
                found = answer.results_by_topic_v3_and_below
            else:
                assert answer.error_code == 0, ErrorCode(answer.error_code)
                found = answer.results_by_transaction[0].topic_results
            codes[:] = [
                ErrorCode(result.partition_error_code)
                for topic in found
                for result in topic.results_by_partition
            ]
            return codes[0]

        settled(ask)
        return codes

    def write(
        self,
        topic: str,
        *values: bytes,
        index: int = 0,
        sequence: int | None = None,
        version: int = 9,
        key: bytes | None = None,
    ) -> Any:
        """Produce one batch of the transaction; return the partition's response."""
        where = (topic, index)
        first = self._sequences.get(where, 0) if sequence is None else sequence
        records = transactional_batch(self, *values, sequence=first, key=key)
        request = produce_request(
            topic, records, partition=index, acks=-1, transactional_id=self.transactional_id
        )
        leader = self.cluster.leader(topic, index)
        with Raw(self.cluster, leader) as raw:
            found = produced(raw.ask(request, version))
        if found.error_code == 0 and sequence is None:
            self._sequences[where] = first + len(values)
        return found

    def begin(self, topic: str, *values: bytes, index: int = 0) -> int:
        """Add the partition and write to it; return the first offset."""
        assert self.add((topic, index)) == [ErrorCode.NONE]
        found = self.write(topic, *values, index=index)
        assert found.error_code == 0, ErrorCode(found.error_code)
        return found.base_offset

    def end(self, *, commit: bool = True, version: int = 3, again: bool = True) -> ErrorCode:
        """EndTxn; once, or until the error is not retriable."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )

        def ask() -> ErrorCode:
            return ErrorCode(self._ask(request, version).error_code)

        return settled(ask) if again else ask()

    def add_offsets(self, group: str, version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return settled(lambda: ErrorCode(self._ask(request, version).error_code))

    def commit_offsets(
        self, group: str, positions: Mapping[tuple[str, int], int], version: int = 3, **member: Any
    ) -> list[ErrorCode]:
        """TxnOffsetCommit; return the error code of each partition."""
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=at, committed_metadata=""
                        )
                    ],
                )
                for (topic, index), at in positions.items()
            ],
            **member,
        )
        codes: list[ErrorCode] = []

        def ask() -> ErrorCode:
            answer = self._ask(request, version, group, GROUP)
            codes[:] = [
                ErrorCode(p.error_code) for topic in answer.topics for p in topic.partitions
            ]
            return codes[0]

        settled(ask)
        return codes


def transactional_batch(
    producer: Any, *values: bytes, sequence: int = 0, key: bytes | None = None
) -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    rows = [batch.Record(at, now_ms, key, value, ()) for at, value in enumerate(values)]
    return batch.build(
        rows,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=True,
    )


def mark(
    cluster: Any,
    topic: str,
    producer: Any,
    *,
    commit: bool = True,
    coordinator_epoch: int = 0,
    index: int = 0,
    version: int = 1,
    is_broker: bool = True,
) -> ErrorCode:
    """WriteTxnMarkers, as a coordinator would send it, or as a tool or a forged request."""
    marker = WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
        coordinator_epoch=coordinator_epoch,
    )
    try:
        leader = cluster.leader(topic, index)
    except Exception:
        leader = cluster.brokers[0]  # no broker knows it
    with Raw(cluster, leader) as raw:
        if is_broker:
            raw.prove(cluster, leader)
        answer = raw.ask(WriteTxnMarkersRequest(markers=[marker]), version)
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


def end_offset(cluster: Any, topic: str, isolation: int = COMMITTED, index: int = 0) -> int:
    """Return the end offset for readers of this isolation level."""
    wanted = ListOffsetsPartition(partition_index=index, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )
    with Raw(cluster, cluster.leader(topic, index)) as raw:
        found = raw.ask(request, 5).topics[0].partitions[0]
    assert found.error_code == 0, ErrorCode(found.error_code)
    return found.offset


def fetch_part(
    cluster: Any, topic: str, offset: int = 0, isolation: int = COMMITTED, index: int = 0
) -> Any:
    """Send one Fetch; return the partition's response."""
    wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=2**24)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        isolation_level=isolation,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    with Raw(cluster, cluster.leader(topic, index)) as raw:
        found = raw.ask(request, 11).responses[0].partitions[0]
    assert found.error_code == 0, ErrorCode(found.error_code)
    return found


def committed_values(cluster: Any, topic: str, index: int = 0) -> list[bytes | None]:
    """Return the values of all committed records, filtered as a consumer does."""
    found: list[bytes | None] = []
    offset, end = 0, end_offset(cluster, topic, COMMITTED, index)
    while offset < end:
        part = fetch_part(cluster, topic, offset, COMMITTED, index)
        data = bytes(part.records or b"")
        assert data, f"nothing at {offset} of {end}"
        aborted = sorted(
            (
                (transaction.first_offset, transaction.producer_id)
                for transaction in part.aborted_transactions or ()
            ),
            reverse=True,
        )
        skipped: set[int] = set()
        for at, header in batch.batches(data):
            while aborted and aborted[-1][0] <= header.last_offset:
                skipped.add(aborted.pop()[1])
            records = list(batch.records(data[at : at + header.size]))
            if header.is_control:
                if records and (records[0].key or b"")[2:4] == b"\x00\x00":  # an abort
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                found += [record.value for record in records if record.offset >= offset]
            offset = header.last_offset + 1
    return found


def positions(
    cluster: Any, group: str, topic: str, *indexes: int, stable: bool = False
) -> list[tuple[int, ErrorCode]]:
    """Return the committed offsets of a group, each with its error code."""
    wanted = OffsetFetchRequestTopic(name=topic, partition_indexes=list(indexes or (0,)))
    request = OffsetFetchRequest(group_id=group, topics=[wanted], require_stable=stable)

    def look() -> Any:
        answer = ask_coordinator(cluster, group, request, 7, GROUP)
        return None if answer.error_code in COME_AGAIN else answer

    answer = eventually(look, getattr(cluster, "patience_s", LIMIT_S))
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    return [
        (partition.committed_offset, ErrorCode(partition.error_code))
        for partition in answer.topics[0].partitions
    ]


def describe_transaction(cluster: Any, transactional_id: str) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return ask_coordinator(cluster, transactional_id, request, 0).transaction_states[0]


def list_transactions(
    cluster: Any, broker_id: int = 1, *, states: Any = (), producers: Any = (), **given: Any
) -> Any:
    version = 1 if given else 0
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producers), **given
    )
    with Raw(cluster, broker_id) as raw:
        return raw.ask(request, version)


def describe_producers(cluster: Any, topic: str, index: int = 0, broker_id: int = 0) -> Any:
    wanted = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[index])])
    with Raw(cluster, broker_id or cluster.leader(topic, index)) as raw:
        return raw.ask(wanted, 0).topics[0].partitions[0]
