"""Verification of transactional batches in a Produce, before any of them is appended.

Before the first batch of a transaction is appended to a partition, the transaction coordinator must
confirm the transaction (`broker/transactions/partition_verifier.py`).  The whole request waits for
that, and is then served again from its beginning.  Later batches find the transaction open in the
partition and do not wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hightide.broker.network.connection import VERIFYING, Connection, NotYet
from hightide.broker.replication.replica import Replica
from hightide.broker.transactions.partition_verifier import Unverified
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import VerificationGuard, produce_error
from hightide.wire.batch import (
    ATTRIBUTES_AT,
    HEADER,
    HEADER_BYTES,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.hot import produce_codec as hot

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

FLAGS_AT = ATTRIBUTES_AT + 1
"""The low byte of a batch's attributes, which holds its flags."""
PRODUCER_ID_AT = 43

Verdicts = Mapping[Replica, VerificationGuard | KafkaError | None]

_TransactionalBatch = tuple[bytes, hot.PartitionRecords, BatchHeader]

_NONE: Verdicts = {}


def verify(
    broker: Broker, connection: Connection, request: hot.Produce, buf: bytearray, view: memoryview
) -> Verdicts:
    """Return the coordinator's verdicts on the request's batches; NotYet if it must be asked first.

    Raises TRANSACTIONAL_ID_AUTHORIZATION_FAILED or INVALID_PRODUCER_ID_MAPPING, for the whole
    request, if it does not say which transaction its batches belong to.
    """
    batches = [
        (name, records, BatchHeader._make(HEADER.unpack_from(buf, records.start)))
        for name, partitions in request.topics
        for records in partitions
        if records.end - records.start >= HEADER_BYTES
        and buf[records.start + FLAGS_AT] & TRANSACTIONAL_FLAG
    ]
    if not batches:
        return _NONE
    if request.transactional_id is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a batch belongs to a transaction, and the request names no transactional id",
        )
    if len({header.producer_id for _, _, header in batches}) > 1:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "one request has batches of several producers"
        )
    transactional_id = request.transactional_id.decode(errors="replace")
    known = dict(connection.verified)
    unverified = []
    for batch in _unverified(broker, batches, view):
        if batch.replica not in known:
            verdict = broker.verifier.verdict_now(transactional_id, batch)
            if verdict is None:
                unverified.append(batch)
            else:
                known[batch.replica] = verdict
    if unverified:
        connection.verified = known
        broker.verifier.ask(connection, transactional_id, unverified)
        raise NotYet(VERIFYING)
    connection.verified = _NONE
    return known


def _unverified(
    broker: Broker, batches: list[_TransactionalBatch], view: memoryview
) -> Iterator[Unverified]:
    """The batches that open a transaction in their partition."""
    for name, records, header in batches:
        replica = broker.replica_manager.get(name, records.partition)
        if replica is None or replica.leader is None or replica.is_internal:
            continue
        producer = Producer(header.producer_id, header.producer_epoch)
        sequence, count = header.base_sequence, header.record_count
        if not broker.verifier.is_needed(replica, producer, sequence, count):
            continue
        # The coordinator is not asked about a producer id that comes from damaged bytes.
        if crc32c(view[records.start + ATTRIBUTES_AT : records.end]) == header.crc:
            yield Unverified(replica, producer, sequence)


def guard_for(verdicts: Verdicts, replica: Replica, version: int) -> VerificationGuard | None:
    """The guard to append with; KafkaError, one that the client's version knows, if refused."""
    verdict = verdicts.get(replica)
    if isinstance(verdict, KafkaError):
        raise KafkaError(produce_error(verdict.code, version), verdict.detail)
    return verdict
