"""Record batches → brokers, under a producer's identity. This runs on executors.

Batches are encoded before the producer and their order within a partition are known. So the
producer id, epoch and base sequence are written into the headers here, and the checksum, which
covers them, is computed again at memory speed. All partitions of a task are written concurrently.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct

from hightide.spark.blocking_client import (
    BlockingClient,
    Fenced,
    Identity,
    PartitionWriter,
    TopicPartition,
)
from hightide.spark.sink.row_routing import EncodedBatch
from hightide.spark.sink.rows import Unwritable
from hightide.wire.batch import ATTRIBUTES_AT, CRC_AT
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode, KafkaError

PRODUCER_AT = 43
PRODUCER = Struct(">qhi")
CRC = Struct(">I")


@dataclass(frozen=True, slots=True)
class DeliveredPartition:
    """What a task has written to one partition."""

    topic: str
    partition: int
    records: int
    bytes: int


def stamped(batch: bytes, identity: Identity, base_sequence: int) -> bytes:
    """Return the batch with a producer id, epoch and base sequence."""
    copy = bytearray(batch)
    PRODUCER.pack_into(copy, PRODUCER_AT, identity.producer_id, identity.epoch, base_sequence)
    with memoryview(copy) as view:
        CRC.pack_into(copy, CRC_AT, crc32c(view[ATTRIBUTES_AT:]))
    return bytes(copy)


def deliver(
    brokers: BlockingClient,
    batches: Iterable[EncodedBatch],
    identity: Identity,
    *,
    transactional_id: str | None = None,
    acks: int = -1,
) -> list[DeliveredPartition]:
    """Write all batches and wait for the acknowledgements; `Unwritable` if a retry cannot help."""
    writers: dict[TopicPartition, PartitionWriter] = {}
    sizes: dict[TopicPartition, int] = {}
    try:
        for batch in batches:
            where = batch.topic, batch.partition
            if where not in writers:
                writers[where] = brokers.writer(
                    *where, identity=identity, transactional_id=transactional_id, acks=acks
                )
            writer = writers[where]
            writer.append(stamped(batch.batch, identity, writer.next_sequence), batch.records)
            sizes[where] = sizes.get(where, 0) + len(batch.batch)
        return [
            DeliveredPartition(*where, writer.flush(), sizes[where])
            for where, writer in writers.items()
        ]
    except KafkaError as error:
        if isinstance(error, Fenced) or error.code.retriable:
            raise
        raise Unwritable(_reason(error)) from None
    finally:
        for writer in writers.values():
            writer.close()


def _reason(error: KafkaError) -> str:
    advice = ""
    if error.code == ErrorCode.MESSAGE_TOO_LARGE:
        advice = " Lower kafka.max.request.size, or raise the topic's max.message.bytes."
    return f"The brokers rejected the records: {error}{advice}"
