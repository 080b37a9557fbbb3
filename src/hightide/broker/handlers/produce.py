"""Produce (0), versions 3 to 12.

Answers per partition:
UNKNOWN_TOPIC_OR_PARTITION  no such partition
NOT_LEADER_OR_FOLLOWER      another broker leads it
INVALID_TOPIC_EXCEPTION     an internal topic, which only the broker writes
INVALID_REQUIRED_ACKS       acks is none of 0, 1 and -1
INVALID_TXN_STATE           the producer is transactional
KAFKA_STORAGE_ERROR         the disk refused the write
and everything `Log.append` refuses: CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD, …

A producer sends the same request over and over but for its correlation id and its records.  So the
bytes between the two, which name the client, the acks, the topic and the partition, are a key under
which the broker remembers what they mean: the usual request is served without being decoded.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from hightide.broker.connection import Connection
from hightide.broker.replica import Replica
from hightide.log.disk import DiskFailed
from hightide.wire.batch import HEADER_BYTES
from hightide.wire.errors import ErrorCode, KafkaError, WireError
from hightide.wire.hot import produce as hot
from hightide.wire.hot.read import body_at

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_HEAD = Struct(">hhi")  # api key, version, correlation id
_LENGTH = Struct(">i")
_MOST_PARTITIONS = 10_000
_MOST_SHAPES = 10_000
_COMPLAIN_MS = 10_000  # a disk that is full refuses every batch: the log must not fill it too


class Shape(NamedTuple):
    """What a request with certain bytes before its records means."""

    replica: Replica
    acks: int
    answer: hot.Answer


class Shapes:
    """The shapes of requests seen, per version, until something changes."""

    __slots__ = ("by_version", "count")

    def __init__(self) -> None:
        self.by_version: list[dict[bytes, Shape]] = [{} for _ in range(hot.HIGHEST + 1)]
        self.count = 0

    def forget(self) -> None:
        for shapes in self.by_version:
            shapes.clear()
        self.count = 0

    def learn(self, version: int, key: bytes, shape: Shape) -> None:
        if self.count >= _MOST_SHAPES:
            self.forget()
        self.by_version[version][key] = shape
        self.count += 1


def produce(
    broker: Broker, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
) -> bytes | None:
    _, version, correlation_id = _HEAD.unpack_from(buf, start)
    at = start + connection.produce_prefix
    shape: Shape | None = broker.shapes.by_version[version].get(bytes(view[start + 8 : at]))
    if shape is not None and at + HEADER_BYTES < end:
        # The records' length, then the records, then nothing (three empty tag sections).
        if version >= hot.FLEXIBLE:
            length = buf[at]
            at += 1
            if length >= 0x80:
                length &= 0x7F
                shift = 7
                while shift <= 28:
                    byte = buf[at]
                    at += 1
                    length |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
            stop = at + length - 1
            usual = stop + 3 == end and not (buf[stop] or buf[stop + 1] or buf[stop + 2])
        else:
            (length,) = _LENGTH.unpack_from(buf, at)
            at += 4
            stop = at + length
            usual = stop == end
        if usual and at < stop:
            replica, acks = shape.replica, shape.acks
            log_ = replica.log
            now_ms = broker.now_ms()
            try:
                base, _, time_ms = replica.append(buf, view, at, stop, now_ms)
            except KafkaError as error:
                result = _refusal(replica, replica.partition, error, now_ms)
            else:
                if log_.end_offset < log_.flush_at:
                    if acks == 0:
                        return None
                    return shape.answer.encode(correlation_id, base, time_ms, log_.start_offset)
                result = hot.Appended(replica.partition, 0, base, time_ms, log_.start_offset)
            topics = [(replica.topic.encode(), [result])]
            return _answer(broker, connection, correlation_id, version, acks, topics)
    return _produce(broker, connection, buf, view, start, end)


def _produce(
    broker: Broker, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
) -> bytes | None:
    """Any Produce at all."""
    _, version, correlation_id = _HEAD.unpack_from(buf, start)
    at = body_at(buf, start, end, version >= hot.FLEXIBLE)
    request = hot.decode(buf, view, at, end, version)
    if sum(len(partitions) for _, partitions in request.topics) > _MOST_PARTITIONS:
        raise WireError(f"more than {_MOST_PARTITIONS} partitions in one Produce")
    whole_error = _refused(request)
    now_ms = broker.now_ms()
    topics: Results = [
        (
            name,
            [_append(broker, name, each, buf, view, now_ms, whole_error) for each in partitions],
        )
        for name, partitions in request.topics
    ]
    if [[result.error_code for result in results] for _, results in topics] == [[0]]:
        _learn(broker, connection, request, version, view, start)
    return _answer(broker, connection, correlation_id, version, request.acks, topics)


Results = list[tuple[bytes, list[hot.Appended]]]


def _answer(
    broker: Broker,
    connection: Connection,
    correlation_id: int,
    version: int,
    acks: int,
    topics: Results,
) -> bytes | None:
    """The answer, or None when there is none, or not before some logs are flushed."""
    unflushed: dict[Replica, int] = {}
    failed: hot.Appended | None = None
    for name, results in topics:
        for result in results:
            replica = broker.replicas.get(name, result.partition)
            if result.error_code:
                failed = result
            elif replica is not None and replica.needs_flush:
                # A batch sent again may be an old one; waiting for the end covers both.
                unflushed[replica] = replica.log.end_offset
    if acks == 0:
        for replica in unflushed:
            broker.flusher.flush(replica)
        if failed is not None:
            # There is no answer to put an error in: a closed connection is the producer's sign.
            connection.close(f"a Produce with acks=0 failed: {failed.error_message}")
        return None
    if not unflushed:
        return hot.encode(correlation_id, version, topics)

    def encode(failed: set[Replica]) -> bytes:
        lost = {(replica.topic.encode(), replica.partition) for replica in failed}
        told = [
            (
                name,
                [
                    _LOST._replace(partition=r.partition) if (name, r.partition) in lost else r
                    for r in results
                ],
            )
            for name, results in topics
        ]
        return hot.encode(correlation_id, version, told)

    broker.flusher.answer(connection, unflushed, encode)
    return None


_LOST = hot.Appended(
    -1, ErrorCode.KAFKA_STORAGE_ERROR, error_message="the disk did not keep the records"
)


def _refused(request: hot.Produce) -> KafkaError | None:
    if request.acks not in (-1, 0, 1):
        return KafkaError(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks is -1, 0 or 1, not {request.acks}"
        )
    if request.transactional_id is not None:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported")
    return None


def _append(
    broker: Broker,
    name: bytes,
    each: hot.PartitionRecords,
    buf: bytearray,
    view: memoryview,
    now_ms: int,
    refused: KafkaError | None,
) -> hot.Appended:
    replica = broker.replicas.get(name, each.partition)
    try:
        if refused is not None:
            raise refused
        if replica is None:
            topic = broker.metadata.get(name.decode(errors="replace"))
            raise KafkaError(broker.metadata.refusal(topic, each.partition))
        if replica.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "only the broker writes here")
        base, _, time_ms = replica.append(buf, view, each.start, each.end, now_ms)
    except KafkaError as error:
        return _refusal(replica, each.partition, error, now_ms)
    return hot.Appended(each.partition, 0, base, time_ms, replica.log.start_offset)


def _refusal(
    replica: Replica | None, partition: int, error: KafkaError, now_ms: int
) -> hot.Appended:
    """What a client is told of an append that failed; an operator is told too, now and then."""
    if (
        isinstance(error, DiskFailed)
        and replica is not None
        and now_ms - replica.complained_ms > _COMPLAIN_MS
    ):
        replica.complained_ms = now_ms
        log.error("cannot append to %s-%d: %s", replica.topic, partition, error)
    return hot.Appended(partition, error.code, error_message=error.detail or None)


def _learn(
    broker: Broker,
    connection: Connection,
    request: hot.Produce,
    version: int,
    view: memoryview,
    start: int,
) -> None:
    """Remember the shape of a request for one partition that went well."""
    ((name, (only,)),) = request.topics
    replica = broker.replicas.get(name, only.partition)
    assert replica is not None
    length = only.end - only.start
    if version >= hot.FLEXIBLE:
        length_bytes = max(1, ((length + 1).bit_length() + 6) // 7)
    else:
        length_bytes = 4
    at = only.start - length_bytes
    connection.produce_prefix = at - start
    shape = Shape(replica, request.acks, hot.Answer(version, name, only.partition))
    broker.shapes.learn(version, bytes(view[start + 8 : at]), shape)
