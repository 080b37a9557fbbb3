"""Produce (0), versions 3 to 12.

Errors per partition:
UNKNOWN_TOPIC_OR_PARTITION  no such partition
NOT_LEADER_OR_FOLLOWER      another broker leads it, or leads it now: the log may have the records
NOT_ENOUGH_REPLICAS         acks=all, and the ISR is smaller than min.insync.replicas
NOT_ENOUGH_REPLICAS_AFTER_APPEND  the same, found after the append
REQUEST_TIMED_OUT           acks=all, and the followers did not fetch the records in time
INVALID_TOPIC_EXCEPTION     an internal topic, which only the broker writes
INVALID_REQUIRED_ACKS       acks is none of 0, 1 and -1
INVALID_TXN_STATE           the batch is not part of a transaction that contains the partition
TRANSACTION_ABORTABLE       the same, for clients that know this error
KAFKA_STORAGE_ERROR         the disk refused the write
and every error of `Log.append`: CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD, …
Errors for all partitions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED for a transactional batch in a
request without a transactional id, INVALID_PRODUCER_ID_MAPPING for batches of several producers.

A producer sends the same request over and over, except for its correlation id and its records.  So
the bytes between the two, which name the client, the acks, the topic and the partition, are a key
under which the broker remembers what they mean (`Shape`): the usual request is served without being
decoded.  A transactional producer's request is too, once its transaction is open in the partition.

A request that cannot be answered yet is parked in the purgatory (`replication/purgatory.py`).

Before the first batch of a transaction is appended to a partition, the transaction coordinator must
confirm the transaction (`broker/transactions/partition_verifier.py`).  The whole request waits for
that, and is then served again from its beginning.  Later batches find the transaction open in the
partition and do not wait.

The records of every batch are checked before it is appended.  That is done at once for small
batches; a request with large ones waits for a thread (`broker/record_checks.py`) and is then served
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from hightide.broker.network.connection import CHECKING, VERIFYING, Connection, NotYet
from hightide.broker.network.turn import Turn
from hightide.broker.record_checks import UncheckedBatch
from hightide.broker.replication.purgatory import (
    DelayedBatch,
    DelayedProduce,
    ProduceContext,
    ProduceResults,
)
from hightide.broker.replication.replica import Replica
from hightide.broker.transactions.partition_verifier import Unverified
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import VerificationGuard, produce_error
from hightide.log.batch_validation import (
    INLINE_PLAIN_BYTES,
    PLAIN_ATTRIBUTES,
    CheckedBatch,
    NotInline,
    check_inline,
)
from hightide.log.disk import DiskFailed
from hightide.wire.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.hot import produce_codec as hot
from hightide.wire.hot.read_cursor import body_at

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_PRODUCE = 0
_HEAD = Struct(">hhi")  # api key, version, correlation id
_LENGTH = Struct(">i")
_PRODUCER_ID = Struct(">q")
_MOST_SHAPES = 10_000
_FEW_PARTITIONS = 64  # more may need several turns
_ALL = -1
_FLAGS_AT = ATTRIBUTES_AT + 1  # the low byte of a batch's attributes, which holds its flags
_PRODUCER_ID_AT = 43

Verdicts = Mapping[Replica, VerificationGuard | KafkaError | None]
"""For batches that open a transaction in their partition: the guard to append with, or an error."""

_TransactionalBatch = tuple[bytes, hot.PartitionRecords, BatchHeader]

_NO_VERDICTS: Verdicts = {}

Checks = dict[int, CheckedBatch | KafkaError]
"""Batches whose records have been checked, by their position in the request, or their errors."""

Waits = list[tuple[Replica, int, hot.ProducedPartition]]
"""The replicas that were written to, the end offset in each, and its part of the response."""

_MOST_INLINE = 4  # compressed batches of one request that are checked on the event loop

# After these errors a producer sends the batch again, in the same epoch.
_SENT_AGAIN = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


class Progress(NamedTuple):
    """What is known of a request that has been checked, and what of it has been appended."""

    whole_error: KafkaError | None
    checks: Checks
    verdicts: Verdicts
    waits: Waits
    appended: list[hot.ProducedPartition]


class Shape(NamedTuple):
    """What a request with certain bytes before its records means."""

    replica: Replica
    acks: int
    timeout_ms: int
    template: hot.ResponseTemplate
    is_transactional: bool


class Shapes:
    """The shapes of known requests by version; forgotten when a replica or a role changes."""

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


# hot path: a call per step would cost more than the step.
def produce(
    broker: Broker, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
) -> bytes | None:
    """Serve the Produce in buf[start:end]; None if it is parked, or has no response (acks=0)."""
    _, version, correlation_id = _HEAD.unpack_from(buf, start)
    at = start + connection.produce_prefix
    shape: Shape | None = broker.shapes.by_version[version].get(bytes(view[start + 8 : at]))
    if shape is not None and at + HEADER_BYTES < end and not connection.checked:
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
        if (
            usual
            and at < stop
            and (
                not buf[at + _FLAGS_AT] & TRANSACTIONAL_FLAG or _is_open(shape, connection, buf, at)
            )
        ):
            replica, acks, log_ = shape.replica, shape.acks, shape.replica.log
            now_ms = broker.now_ms()
            waits: Waits = []
            try:
                _check_writable(broker, replica, acks)
                base, end_offset, time_ms = replica.append(buf, view, at, stop, now_ms)
            except NotInline:
                return _produce(broker, connection, buf, view, start, end)
            except KafkaError as error:
                result = _refusal(broker, replica, replica.partition, error, buf, at, stop, now_ms)
            else:
                replica.traffic.produces += 1
                is_flushed = log_.end_offset < log_.flush_at
                if is_flushed and acks == 0:
                    return None
                if is_flushed and (acks == 1 or replica.high_watermark >= end_offset):
                    return shape.template.encode(correlation_id, base, time_ms, log_.start_offset)
                result = hot.ProducedPartition(
                    replica.partition, 0, base, time_ms, log_.start_offset
                )
                waits.append((replica, end_offset, result))
            context = ProduceContext(connection, correlation_id, version, acks, shape.timeout_ms)
            if waits and log_.end_offset < log_.flush_at:
                delayed = DelayedBatch(context, replica.topic, result, shape.template)
                replica.purgatory.when_committed(end_offset, delayed)
                return None
            return _respond(broker, context, [(replica.topic.encode(), [result])], waits)
    return _produce(broker, connection, buf, view, start, end)


def _is_open(shape: Shape, connection: Connection, buf: bytearray, at: int) -> bool:
    """Whether the transaction of the batch is open in its partition."""
    (producer_id,) = _PRODUCER_ID.unpack_from(buf, at + _PRODUCER_ID_AT)
    if not (shape.is_transactional and producer_id in shape.replica.log.transactions.opened):
        return False
    connection.verified = {}  # another request has opened it while the coordinator was asked
    return True


def _produce(
    broker: Broker, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
) -> bytes | None:
    """Serve any Produce, of any number of partitions."""
    _, version, correlation_id = _HEAD.unpack_from(buf, start)
    at = body_at(buf, start, end, version >= hot.FLEXIBLE)
    request = hot.decode(buf, view, at, end, version, broker.settings.request_max_names)
    progress: Progress | None = connection.produced
    connection.produced = None
    if progress is None:
        progress = _begin(broker, connection, request, buf, view, start)
    whole_error, checks, verdicts, waits, before = progress
    now_ms = broker.now_ms()
    done = len(before)
    is_large = sum(len(partitions) for _, partitions in request.topics) > _FEW_PARTITIONS
    turn = Turn(connection.turns, connection.usage) if is_large else None
    results: ProduceResults = []
    for name, partitions in request.topics:
        appended: list[hot.ProducedPartition] = []
        for records in partitions:
            if done:
                done -= 1
                appended.append(before[-done - 1])
                continue
            if turn is not None and turn.is_over:
                # The rest is appended when other connections have had a turn.
                appended_now = _flat([*results, (name, appended)])
                connection.produced = progress._replace(appended=appended_now)
                turn.count()
                raise NotYet(connection.rest())
            index = records.partition
            replica = broker.replica_manager.get(name, index)
            try:
                if whole_error is not None:
                    raise whole_error.copied()
                replica = _check_leads(broker, replica, name, index)
                _check_writable(broker, replica, request.acks)
                guard = _guard_for(verdicts, replica, version)
                checked = checks.get(records.start - start)
                if isinstance(checked, KafkaError):
                    raise checked.copied()
                base, end_offset, time_ms = replica.append(
                    buf, view, records.start, records.end, now_ms, guard, checked
                )
            except NotInline:
                # The role or the topic's settings changed since the records were checked.
                error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "send the batch again")
                at, stop = records.start, records.end
                result = _refusal(broker, replica, index, error, buf, at, stop, now_ms)
            except KafkaError as error:
                at, stop = records.start, records.end
                result = _refusal(broker, replica, index, error, buf, at, stop, now_ms)
            else:
                replica.traffic.produces += 1
                start_offset = replica.log.start_offset
                result = hot.ProducedPartition(index, 0, base, time_ms, start_offset)
                waits.append((replica, end_offset, result))
            appended.append(result)
        results.append((name, appended))
    if [[result.error_code for result in appended] for _, appended in results] == [[0]]:
        _learn(broker, connection, request, version, view, start)
    context = ProduceContext(connection, correlation_id, version, request.acks, request.timeout_ms)
    return _respond(broker, context, results, waits)


def _begin(
    broker: Broker,
    connection: Connection,
    request: hot.Produce,
    buf: bytearray,
    view: memoryview,
    start: int,
) -> Progress:
    """Check the request, its records and its transaction; NotYet if one of them takes time."""
    whole_error = _check_acks(request)
    verdicts = _NO_VERDICTS
    checks: Checks = {}
    if whole_error is None:
        checks = _check_records(broker, connection, request, buf, view, start)
        try:
            verdicts = _verify(broker, connection, request, buf, view)
        except KafkaError as error:
            whole_error = error.copied()
    connection.checked = {}
    return Progress(whole_error, checks, verdicts, [], [])


def _flat(results: ProduceResults) -> list[hot.ProducedPartition]:
    return [partition for _, partitions in results for partition in partitions]


def _check_leads(broker: Broker, replica: Replica | None, name: bytes, partition: int) -> Replica:
    """Return the replica if clients may write to it here, else raise the error."""
    if replica is None:
        topic = broker.metadata.get(name.decode(errors="replace"))
        raise KafkaError(broker.metadata.refusal(topic, partition))
    if replica.leader is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if replica.is_internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "only the broker writes here")
    return replica


def _check_writable(broker: Broker, replica: Replica, acks: int) -> None:
    """Raise NOT_ENOUGH_REPLICAS if the ISR is too small for acks=all, and NOT_LEADER_OR_FOLLOWER
    if another broker may lead."""
    if broker.replica_manager.in_doubt():
        replica.check_certain()
    leader = replica.leader
    if acks != _ALL:
        return
    if leader is not None and (verdict := leader.write_error()) is not ErrorCode.NONE:
        raise KafkaError(
            verdict,
            f"{len(leader.state.isr)} replicas are in sync, min.insync.replicas is"
            f" {replica.log.config.min_insync_replicas}",
        )


def _respond(
    broker: Broker, context: ProduceContext, results: ProduceResults, waits: Waits
) -> bytes | None:
    """Make the response; None if it has to wait, or if there is none (acks=0)."""
    if context.acks == 0:
        for replica, _, _ in waits:
            if replica.needs_flush:
                broker.flusher.flush(replica)
        for _, partitions in results:
            for result in partitions:
                if result.error_code:
                    # There is no response to put an error in: a closed connection is the sign.
                    why = f"a Produce with acks=0 failed: {result.error_message}"
                    context.connection.close(why)
        return None
    delayed: DelayedProduce | None = None
    for replica, end_offset, result in waits:
        if context.acks == _ALL:
            if replica.high_watermark >= end_offset:
                continue
            delayed = delayed or DelayedProduce(context, results)
            replica.purgatory.when_committed(end_offset, delayed.partition(result))
        elif replica.needs_flush:
            delayed = delayed or DelayedProduce(context, results)
            # A batch that was sent again may be an old one; waiting for the log end covers both.
            replica.purgatory.when_flushed(replica.log.end_offset, delayed.partition(result))
        else:
            continue
        if replica.needs_flush:
            broker.flusher.flush(replica)
    if delayed is None:
        return hot.encode(context.correlation_id, context.version, results)
    delayed.park(has_timeout=context.acks == _ALL)
    return None


def _check_acks(request: hot.Produce) -> KafkaError | None:
    if request.acks not in (-1, 0, 1):
        return KafkaError(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks is -1, 0 or 1, not {request.acks}"
        )
    return None


def _refusal(
    broker: Broker,
    replica: Replica | None,
    partition: int,
    error: KafkaError,
    buf: bytearray,
    start: int,
    end: int,
    now_ms: int,
) -> hot.ProducedPartition:
    """The result for the batch in buf[start:end], which was not appended."""
    broker.requests.of(_PRODUCE).failed(error.code)
    traffic = broker.replica_manager.traffic.elsewhere if replica is None else replica.traffic
    traffic.produces += 1
    traffic.failed_produces += 1
    if replica is not None:
        if isinstance(error, DiskFailed):
            replica.report(error, now_ms)
        if error.code in _SENT_AGAIN and end - start >= HEADER_BYTES:
            # The producer's batches behind it, in flight already, wait for this one.
            batch = BatchHeader._make(HEADER.unpack_from(buf, start))
            producer_id, sequence = batch.producer_id, batch.base_sequence
            if producer_id >= 0 and sequence >= 0:
                replica.log.producers.refused(
                    producer_id, batch.producer_epoch, sequence, error.code, now_ms
                )
    return hot.ProducedPartition(partition, error.code, error_message=error.detail or None)


def _learn(
    broker: Broker,
    connection: Connection,
    request: hot.Produce,
    version: int,
    view: memoryview,
    start: int,
) -> None:
    """Remember the shape of a successful request for one partition."""
    ((name, (only,)),) = request.topics
    replica = broker.replica_manager.get(name, only.partition)
    assert replica is not None
    length = only.end - only.start
    if version >= hot.FLEXIBLE:
        length_bytes = max(1, ((length + 1).bit_length() + 6) // 7)
    else:
        length_bytes = 4
    at = only.start - length_bytes
    connection.produce_prefix = at - start
    shape = Shape(
        replica,
        request.acks,
        request.timeout_ms,
        hot.ResponseTemplate(version, name, only.partition),
        request.transactional_id is not None,
    )
    broker.shapes.learn(version, bytes(view[start + 8 : at]), shape)


# -- checked records ---------------------------------------------------------------------------


def _check_records(
    broker: Broker,
    connection: Connection,
    request: hot.Produce,
    buf: bytearray,
    view: memoryview,
    start: int,
) -> Checks:
    """Return the batches of a request that `Log.append` need not check; NotYet if threads must
    check some first.  Nothing of the request has been appended yet."""
    checks = connection.checked
    plain_bytes, inline = INLINE_PLAIN_BYTES, _MOST_INLINE
    unchecked: list[UncheckedBatch] = []
    for name, partitions in request.topics:
        for records in partitions:
            replica = broker.replica_manager.get(name, records.partition)
            at, end = records.start, records.end
            if replica is None or replica.leader is None or end - at < HEADER_BYTES:
                continue
            rules = replica.log.rules
            codec = buf[at + _FLAGS_AT] & CODEC_MASK
            if codec > PLAIN_ATTRIBUTES or not rules.needs_walk(codec):
                continue
            known = checks.get(at - start)
            if known is not None:
                if isinstance(known, KafkaError) or known.rules == rules:
                    continue
                del checks[at - start]  # the topic's settings have changed meanwhile
            if codec == 0 and not rules.recompresses(codec) and end - at <= plain_bytes:
                plain_bytes -= end - at
                continue
            if replica.is_internal or not _is_intact(buf, view, at, end, rules.max_message_bytes):
                continue  # refused below
            if inline:
                inline -= 1
                try:
                    checks[at - start] = check_inline(buf, at, end, rules)
                    continue
                except KafkaError as error:
                    checks[at - start] = error.copied()
                    continue
                except NotInline:
                    pass
            unchecked.append(UncheckedBatch(at - start, buf[at:end], rules))
    if unchecked:
        connection.checked = checks
        broker.record_checks.start(connection, unchecked)
        raise NotYet(CHECKING)
    return checks


def _is_intact(buf: bytearray, view: memoryview, start: int, end: int, max_bytes: int) -> bool:
    """Whether a batch is worth looking into: `Log.append` will not refuse its header."""
    header = BatchHeader._make(HEADER.unpack_from(buf, start))
    return (
        header.size == end - start <= max_bytes
        and header.record_count == header.last_offset_delta + 1 > 0
        and crc32c(view[start + ATTRIBUTES_AT : end]) == header.crc
    )


# -- transactional batches ---------------------------------------------------------------------


def _verify(
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
        and buf[records.start + _FLAGS_AT] & TRANSACTIONAL_FLAG
    ]
    if not batches:
        return _NO_VERDICTS
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
    connection.verified = _NO_VERDICTS
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


def _guard_for(verdicts: Verdicts, replica: Replica, version: int) -> VerificationGuard | None:
    """The guard to append with; KafkaError, one that the client's version knows, if refused."""
    verdict = verdicts.get(replica)
    if isinstance(verdict, KafkaError):
        raise KafkaError(produce_error(verdict.code, version), verdict.detail)
    return verdict
