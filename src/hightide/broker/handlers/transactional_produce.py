"""What Produce does about batches that belong to transactions, before it appends any.

The first batch of a transaction in a partition waits for the coordinator's word
(`broker/transactions/partition_verifier.py`): the whole request does, and is then served once
more from its beginning.
Later batches of the transaction find it open and wait for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hightide.broker.network.connection import VERIFYING, Connection, NotYet
from hightide.broker.replication.replica import Replica
from hightide.broker.transactions.partition_verifier import Unverified
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import Guard, produce_error
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
"""The low byte of a batch's attributes, in which its flags are."""
PRODUCER_ID_AT = 43

Verdicts = Mapping[Replica, Guard | KafkaError | None]

_Found = tuple[bytes, hot.PartitionRecords, BatchHeader]

_NONE: Verdicts = {}


def look(
    broker: Broker, connection: Connection, request: hot.Produce, buf: bytearray, view: memoryview
) -> Verdicts:
    """What the coordinator says of the request's batches.  NotYet if it must be asked first.

    TRANSACTIONAL_ID_AUTHORIZATION_FAILED or INVALID_PRODUCER_ID_MAPPING for the whole request if
    nobody can say whose transaction it is.
    """
    found = [
        (name, each, BatchHeader._make(HEADER.unpack_from(buf, each.start)))
        for name, partitions in request.topics
        for each in partitions
        if each.end - each.start >= HEADER_BYTES and buf[each.start + FLAGS_AT] & TRANSACTIONAL_FLAG
    ]
    if not found:
        return _NONE
    if request.transactional_id is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a batch belongs to a transaction, and the request names no transactional id",
        )
    if len({header.producer_id for _, _, header in found}) > 1:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "one request has batches of several producers"
        )
    transactional_id = request.transactional_id.decode(errors="replace")
    known = dict(connection.verified)
    unverified = []
    for batch in _unverified(broker, found, view):
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


def _unverified(broker: Broker, found: list[_Found], view: memoryview) -> Iterator[Unverified]:
    """The batches that open a transaction in their partition."""
    for name, each, header in found:
        replica = broker.replicas.get(name, each.partition)
        if replica is None or replica.leader is None or replica.is_internal:
            continue
        producer = Producer(header.producer_id, header.producer_epoch)
        sequence, count = header.base_sequence, header.record_count
        if not broker.verifier.is_needed(replica, producer, sequence, count):
            continue
        # Nobody is asked in the name of a producer that damaged bytes have made up.
        if crc32c(view[each.start + ATTRIBUTES_AT : each.end]) == header.crc:
            yield Unverified(replica, producer, sequence)


def guard_for(verdicts: Verdicts, replica: Replica, version: int) -> Guard | None:
    """What to append with; KafkaError, in the words of the client's version, if it may not be."""
    verdict = verdicts.get(replica)
    if isinstance(verdict, KafkaError):
        raise KafkaError(produce_error(verdict.code, version), verdict.detail)
    return verdict
