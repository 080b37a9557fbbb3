"""Fetch of a follower, hand-tuned: encode its request, and decode the leader's response.

`fetch_codec` is the leader's side and has the type of a request; `decode_request` is a shortcut for
the requests that followers send most of the time. Brokers use one version, the newest, with topic
ids and the broker epoch of the follower. Records are not copied: they are views of the response
frame. Fields that only consumers need are skipped.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from hightide.wire.errors import WireError
from hightide.wire.hot.fetch_codec import HIGHEST, Fetch, RequestedPartition
from hightide.wire.hot.read_cursor import INT32, count_of, put_uvarint, skip_tags, tags, uvarint

FETCH = 1
VERSION = HIGHEST

_HEADER = Struct(">ihhih")  # size, api key, version, correlation id, length of the client id
_HEAD = Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id and epoch
_PARTITION = Struct(">iiqiqix")  # as RequestedPartition, no tags
_REPLICA_STATE = Struct(">BBBiqx")  # one tag: its number, size, replica id and epoch, no tags
_TOPIC = Struct(">B16sB")  # number of topics + 1, a topic id, number of partitions + 1
# No topic tags, no forgotten topics, no rack, and the replica state.
_TAIL = Struct(">BBBBBBiqB")
_PLAIN_TAIL = (0, 1, 1, 1, 1, 13, 0)

_RESPONSE = Struct(">ihi")  # throttle time, error code, session id
_RESULT = Struct(">ihqqqBiB")  # … aborted transactions, preferred read replica, length of records
_RESULT_LEAST = _RESULT.size + 1
_ABORTED_AT = 30
_ABORTED_LEAST = 17
_DIVERGING_EPOCH = Struct(">iq")
_CURRENT_LEADER = Struct(">ii")

_NO_RECORDS = memoryview(b"")


class ReceivedPartition(NamedTuple):
    """One partition of a response."""

    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    records: memoryview
    diverging_epoch: tuple[int, int] | None  # epoch and its end offset
    leader: tuple[int, int] | None  # leader id and epoch, if the broker is not the leader


class ReplicaFetchResponse(NamedTuple):
    """A response, with topics by id; with an error code it has none."""

    error_code: int
    session_id: int
    topics: list[tuple[bytes, list[ReceivedPartition]]]


def encode(request: Fetch, correlation_id: int, client_id: bytes) -> bytes:
    """Encode a complete request, length prefix included; a topic is its id of 16 bytes."""
    pack = _PARTITION.pack
    body = [
        client_id,
        b"\0",
        _HEAD.pack(*request[1:7]),
        put_uvarint(len(request.topics) + 1),
    ]
    for topic, partitions in request.topics:
        body += (topic, put_uvarint(len(partitions) + 1))
        body += [pack(*partition) for partition in partitions]
        body.append(b"\0")
    body.append(put_uvarint(len(request.forgotten) + 1))
    for topic, indexes in request.forgotten:
        body += (topic, put_uvarint(len(indexes) + 1))
        body.append(Struct(f">{len(indexes)}ix").pack(*indexes))
    rack = request.rack_id or b""
    body += (
        put_uvarint(len(rack) + 1),
        rack,
        _REPLICA_STATE.pack(1, 1, 13, request.replica_id, request.replica_epoch),
    )
    data = b"".join(body)
    size = _HEADER.size - 4 + len(data)
    return _HEADER.pack(size, FETCH, VERSION, correlation_id, len(client_id)) + data


def decode_request(buf: bytearray, view: memoryview, at: int, end: int) -> Fetch | None:
    """Decode the body in buf[at:end] if it has partitions of one topic and is otherwise plain.

    A follower that copies records sends this form. For any other form return None; then use
    `fetch_codec.decode`.
    """
    first = at + _HEAD.size + _TOPIC.size
    tail = end - _TAIL.size
    if tail < first:
        return None
    count, topic, partitions = _TOPIC.unpack_from(buf, at + _HEAD.size)
    *constants, replica_id, replica_epoch, last = _TAIL.unpack_from(buf, tail)
    size = _PARTITION.size
    if (
        count != 2
        or not 2 <= partitions < 0x80
        or tail - first != (partitions - 1) * size
        or (*constants, last) != _PLAIN_TAIL
        or any(view[first + size - 1 : tail : size])
    ):
        return None
    wait, least, most, isolation, session_id, session_epoch = _HEAD.unpack_from(buf, at)
    requested = list(map(RequestedPartition._make, _PARTITION.iter_unpack(view[first:tail])))
    return Fetch(
        replica_id,
        wait,
        least,
        most,
        isolation,
        session_id,
        session_epoch,
        [(topic, requested)],
        [],
        b"",
        replica_epoch,
    )


def decode(frame: memoryview) -> ReplicaFetchResponse:
    """Decode the response in a frame without its length prefix. Any other bytes raise WireError."""
    try:
        response, at = _response(frame)
    except (StructError, IndexError):
        raise WireError("the Fetch response ends too early") from None
    if at != len(frame):
        raise WireError("the Fetch response does not end where its frame ends")
    return response


def _response(frame: memoryview) -> tuple[ReplicaFetchResponse, int]:
    end = len(frame)
    at = skip_tags(frame, 4, end)
    _, error_code, session_id = _RESPONSE.unpack_from(frame, at)
    count, at = count_of(frame, at + _RESPONSE.size, end, True, 18)
    if count < 0:
        raise WireError("the Fetch response has no array of topics")
    topics = []
    for _ in range(count):
        topic = bytes(frame[at : at + 16])
        partitions, at = _partitions(frame, at + 16, end)
        at = skip_tags(frame, at, end)
        topics.append((topic, partitions))
    return ReplicaFetchResponse(error_code, session_id, topics), skip_tags(frame, at, end)


def _partitions(frame: memoryview, at: int, end: int) -> tuple[list[ReceivedPartition], int]:
    count, at = count_of(frame, at, end, True, _RESULT_LEAST)
    if count < 0:
        raise WireError("the Fetch response has no array of partitions")
    received = []
    unpack, width = _RESULT.unpack_from, _RESULT.size
    for _ in range(count):
        index, code, high, _, start, aborted, _, length = unpack(frame, at)
        if aborted > 1:
            length, at = _records_after_aborted(frame, at, end)
        elif length > 0x7F:
            length, at = uvarint(frame, at + width - 1)
        else:
            at += width
        records = _NO_RECORDS
        if length > 1:
            stop = at + length - 1
            if stop > end:
                raise WireError(f"the records have {length - 1} bytes, but {end - at} are left")
            records = frame[at:stop]
            at = stop
        if frame[at] == 0:
            at += 1
            received.append(ReceivedPartition(index, code, high, start, records, None, None))
        else:
            diverging, leader, at = _hints(frame, at, end)
            received.append(ReceivedPartition(index, code, high, start, records, diverging, leader))
    return received, at


def _records_after_aborted(frame: memoryview, at: int, end: int) -> tuple[int, int]:
    """Skip the aborted transactions, which only consumers request."""
    count, at = count_of(frame, at + _ABORTED_AT, end, True, _ABORTED_LEAST)
    for _ in range(count):
        at = skip_tags(frame, at + _ABORTED_LEAST - 1, end)
    return uvarint(frame, at + INT32.size)


def _hints(
    frame: memoryview, at: int, end: int
) -> tuple[tuple[int, int] | None, tuple[int, int] | None, int]:
    diverging = leader = None
    found, at = tags(frame, at, end)
    for tag, start, stop in found:
        if tag == 0:
            diverging = _DIVERGING_EPOCH.unpack_from(frame, start)
            start = skip_tags(frame, start + _DIVERGING_EPOCH.size, end)
        elif tag == 1:
            leader = _CURRENT_LEADER.unpack_from(frame, start)
            start = skip_tags(frame, start + _CURRENT_LEADER.size, end)
        else:
            start = stop
        if start != stop:
            raise WireError(f"tag {tag} of a partition has the wrong size")
    return diverging, leader, at
