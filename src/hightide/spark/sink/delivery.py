"""Record batches → brokers, under a producer's identity.  This runs on executors.

Batches are made before it is known who writes them and in which order they come to a partition.  So
the producer's id, epoch and sequence are stamped on them here; the checksum, which covers them, is
computed anew, at memory speed.  All partitions of a task are written at the same time.
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
from hightide.spark.sink.routing import EncodedBatch
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
    """The same batch, written by somebody."""
    made = bytearray(batch)
    PRODUCER.pack_into(made, PRODUCER_AT, identity.producer_id, identity.epoch, base_sequence)
    with memoryview(made) as view:
        CRC.pack_into(made, CRC_AT, crc32c(view[ATTRIBUTES_AT:]))
    return bytes(made)


def deliver(
    brokers: BlockingClient,
    batches: Iterable[EncodedBatch],
    identity: Identity,
    *,
    transactional_id: str | None = None,
    acks: int = -1,
) -> list[DeliveredPartition]:
    """Write all of it; returns when it is acknowledged.  `Unwritable` if trying again is no use."""
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
        raise Unwritable(_words(error)) from None
    finally:
        for writer in writers.values():
            writer.close()


def _words(error: KafkaError) -> str:
    advice = ""
    if error.code == ErrorCode.MESSAGE_TOO_LARGE:
        advice = " Lower kafka.max.request.size, or raise the topic's max.message.bytes."
    return f"The brokers refuse the records: {error}{advice}"
