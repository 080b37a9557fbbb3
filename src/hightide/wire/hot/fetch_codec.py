"""Fetch, hand-tuned: decode a request, and encode a response around its records.

A response is a list of parts: bytes, and between them the file slices with the records. Only the
length of a slice matters here; the connection reads and sends the slices piece by piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, Protocol

from hightide.wire.errors import WireError
from hightide.wire.hot.read_cursor import (
    INT16,
    INT32,
    MAX_PARTITIONS,
    compact_string,
    count_of,
    put_uvarint,
    room_after,
    skip_tags,
    string,
    tags,
    uvarint,
)

FLEXIBLE = 12
TOPIC_IDS = 13
LOWEST, HIGHEST = 4, 17

_FRAME = Struct(">ii")
_HEAD_V4 = Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_HEAD_V7 = Struct(">iiibii")  # + session id, session epoch
_PARTITION_V4 = Struct(">iqi")  # partition, fetch offset, max bytes
_PARTITION_V5 = Struct(">iqqi")  # + log start offset
_PARTITION_V9 = Struct(">iiqqi")  # + current leader epoch
_PARTITION_V12 = Struct(">iiqiqi")  # + last fetched epoch
_PARTITION_AND_NO_TAGS = Struct(">iiqiqix")
_REPLICA_STATE = Struct(">iq")
_RESULT_HEAD = Struct(">ihqq")  # index, error code, high watermark, last stable offset
_START = Struct(">q")
_RESULT_V4 = Struct(">ihqqi")  # index, error code, high watermark, last stable offset, aborted
_RESULT_V5 = Struct(">ihqqqi")  # + log start offset
_RESULT_V11 = Struct(">ihqqqii")  # + preferred read replica
_RESULT_V12 = Struct(">ihqqqBi")
_ABORTED = Struct(">qq")  # producer id, first offset
_ABORTED_AND_NO_TAGS = Struct(">qqx")
_DIVERGING_EPOCH = Struct(">BBiqx")  # tag, size, epoch, end offset, no tags
_CURRENT_LEADER = Struct(">BBiix")  # tag, size, leader id, leader epoch, no tags


class RequestedPartition(NamedTuple):
    """One partition of a request, in wire order. Consumers send no log start offset."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class Fetch(NamedTuple):
    """A request. A topic is its name as bytes, or from version 13 on its id as 16 bytes.

    A consumer's replica id is -1; a follower sends its broker epoch from version 15 on.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[bytes, list[RequestedPartition]]]
    forgotten: list[tuple[bytes, list[int]]]
    rack_id: bytes | None
    replica_epoch: int = -1


class Sized(Protocol):
    """Records outside of the encoded bytes: a slice of a log file."""

    @property
    def length(self) -> int: ...


class FetchedPartition(NamedTuple):
    """One partition of a response. The last three fields exist from version 11, 12 and 12 on."""

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sized | None = None
    # Producer id and first offset of the aborted transactions; None for read_uncommitted.
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None  # epoch and its end offset
    leader: tuple[int, int] | None = None  # leader id and epoch, if this broker is not the leader


class Node(NamedTuple):
    """The address of a leader in a response."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


Part = bytes | Sized


def decode(
    buf: bytearray,
    view: memoryview,
    at: int,
    end: int,
    version: int,
    room: int = MAX_PARTITIONS,
) -> Fetch:
    """Decode the request body in buf[at:end]; `at` is the first byte after the request header.

    WireError before more than `room` topics or partitions are decoded.
    """
    try:
        request, at = _body(buf, view, at, end, version, room)
    except (StructError, IndexError):
        raise WireError(f"Fetch v{version} ends too early") from None
    if at > end:
        raise WireError(f"Fetch v{version} does not end where its frame ends")
    return request


def _body(
    buf: bytearray, view: memoryview, at: int, end: int, version: int, room: int
) -> tuple[Fetch, int]:
    flexible = version >= FLEXIBLE
    replica_id = replica_epoch = -1
    if version <= 14:
        (replica_id,) = INT32.unpack_from(buf, at)
        at += 4
    session_id, session_epoch = 0, -1
    if version >= 7:
        wait, least, most, isolation, session_id, session_epoch = _HEAD_V7.unpack_from(buf, at)
        at += 21
    else:
        wait, least, most, isolation = _HEAD_V4.unpack_from(buf, at)
        at += 13
    topics, at = _topics(buf, view, at, end, version, room)
    forgotten: list[tuple[bytes, list[int]]] = []
    if version >= 7:
        forgotten, at = _forgotten(buf, view, at, end, version, room)
    rack_id: bytes | None = None
    if version >= 11:
        rack_id, at = (compact_string if flexible else string)(buf, view, at, end)
        if rack_id is None:
            raise WireError("Fetch has a null rack id")
    if flexible:
        if buf[at] == 0:
            at += 1
        else:
            replica_id, replica_epoch, at = _tags(buf, at, end, version, replica_id)
    return Fetch(
        replica_id,
        wait,
        least,
        most,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        replica_epoch,
    ), at


def _topic(buf: bytearray, view: memoryview, at: int, end: int, version: int) -> tuple[bytes, int]:
    if version >= TOPIC_IDS:
        if end - at < 16:
            raise WireError("Fetch ends inside a topic id")
        return bytes(view[at : at + 16]), at + 16
    name, at = (compact_string if version >= FLEXIBLE else string)(buf, view, at, end)
    if name is None:
        raise WireError("Fetch has a topic without a name")
    return name, at


def _topics(
    buf: bytearray, view: memoryview, at: int, end: int, version: int, room: int
) -> tuple[list[tuple[bytes, list[RequestedPartition]]], int]:
    flexible = version >= FLEXIBLE
    count, at = count_of(buf, at, end, flexible, 3 if flexible else 6)
    if count < 0:
        raise WireError("Fetch has no array of topics")
    left = room
    room_after(room, count)
    topics = []
    for _ in range(count):
        topic, at = _topic(buf, view, at, end, version)
        partitions, at = _partitions(buf, view, at, end, version, left)
        left -= len(partitions)
        if flexible:
            at = skip_tags(buf, at, end)
        topics.append((topic, partitions))
    return topics, at


def _partitions(
    buf: bytearray, view: memoryview, at: int, end: int, version: int, room: int
) -> tuple[list[RequestedPartition], int]:
    flexible = version >= FLEXIBLE
    count, at = count_of(buf, at, end, flexible, 16)
    if count < 0:
        raise WireError("Fetch has no array of partitions")
    room_after(room, count)
    if flexible and count > 1:
        # Only Kafka's own followers send tags here, so usually all partitions have one size.
        size = _PARTITION_AND_NO_TAGS.size
        stop = at + size * count
        if stop <= end and not any(view[at + size - 1 : stop : size]):
            fields = _PARTITION_AND_NO_TAGS.iter_unpack(view[at:stop])
            return list(map(RequestedPartition._make, fields)), stop
    partitions = []
    epoch = last_epoch = start = -1
    for _ in range(count):
        if flexible:
            index, epoch, offset, last_epoch, start, most = _PARTITION_V12.unpack_from(buf, at)
            at += 32
            at = at + 1 if buf[at] == 0 else skip_tags(buf, at, end)
        elif version >= 9:
            index, epoch, offset, start, most = _PARTITION_V9.unpack_from(buf, at)
            at += 28
        elif version >= 5:
            index, offset, start, most = _PARTITION_V5.unpack_from(buf, at)
            at += 24
        else:
            index, offset, most = _PARTITION_V4.unpack_from(buf, at)
            at += 16
        if at > end:
            raise WireError("Fetch ends inside a partition")
        partitions.append(RequestedPartition(index, epoch, offset, last_epoch, start, most))
    return partitions, at


def _forgotten(
    buf: bytearray, view: memoryview, at: int, end: int, version: int, room: int
) -> tuple[list[tuple[bytes, list[int]]], int]:
    flexible = version >= FLEXIBLE
    count, at = count_of(buf, at, end, flexible, 3 if flexible else 6)
    if count < 0:
        raise WireError("Fetch has no array of forgotten topics")
    left = room
    room_after(room, count)
    forgotten = []
    for _ in range(count):
        topic, at = _topic(buf, view, at, end, version)
        partition_count, at = count_of(buf, at, end, flexible, 4)
        if partition_count < 0:
            raise WireError("Fetch has no array of forgotten partitions")
        left = room_after(left, partition_count)
        partitions = list(Struct(f">{partition_count}i").unpack_from(buf, at))
        at += 4 * partition_count
        if flexible:
            at = skip_tags(buf, at, end)
        forgotten.append((topic, partitions))
    return forgotten, at


def _tags(buf: bytearray, at: int, end: int, version: int, replica_id: int) -> tuple[int, int, int]:
    replica_epoch = -1
    found, at = tags(buf, at, end)
    for tag, start, stop in found:
        if tag == 0:
            length, start = uvarint(buf, start)
            if start + max(length - 1, 0) != stop:
                raise WireError("Fetch has a cluster id of the wrong size")
        elif tag == 1 and version >= 15:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(buf, start)
            if skip_tags(buf, start + 12, stop) != stop:
                raise WireError("Fetch has a replica state of the wrong size")
    return replica_id, replica_epoch, at


def encode(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[bytes, Sequence[FetchedPartition]]],
    session_id: int = 0,
    error_code: int = 0,
    nodes: Sequence[Node] = (),
) -> list[Part]:
    """Encode a complete response, length prefix included, as parts to send in order.

    `nodes` are the addresses of the leaders in the partitions; sent from version 16 on.
    """
    flexible = version >= FLEXIBLE
    parts: list[Part] = []
    out = bytearray(9 if flexible else 8)  # size, correlation id, header tags
    out += b"\0\0\0\0"  # throttle time
    if version >= 7:
        out += INT16.pack(error_code) + INT32.pack(session_id)
    out += put_uvarint(len(topics) + 1) if flexible else INT32.pack(len(topics))
    size = 0
    for topic, results in topics:
        if version >= TOPIC_IDS:
            out += topic
        elif flexible:
            out += put_uvarint(len(topic) + 1) + topic
        else:
            out += INT16.pack(len(topic)) + topic
        out += put_uvarint(len(results) + 1) if flexible else INT32.pack(len(results))
        for result in results:
            _put_result(out, result, version)
            records = result.records
            length = 0 if records is None else records.length
            out += put_uvarint(length + 1) if flexible else INT32.pack(length)
            if records is not None:
                size += len(out) + length
                parts += (bytes(out), records)
                out = bytearray()
            if flexible:
                is_plain = result.diverging_epoch is None and result.leader is None
                out += b"\0" if is_plain else _result_tags(result)
        if flexible:
            out += b"\0"
    if flexible:
        out += _nodes(nodes) if nodes and version >= 16 else b"\0"
    size += len(out)
    if out:
        parts.append(bytes(out))
    first = parts[0]
    assert isinstance(first, bytes)
    parts[0] = _FRAME.pack(size - 4, correlation_id) + first[8:]
    return parts


def _put_result(out: bytearray, result: FetchedPartition, version: int) -> None:
    index, code, high, stable, start, _, aborted, preferred, _, _ = result
    if aborted:
        _put_aborted(out, result, aborted, version)
        return
    count = -1 if aborted is None else 0
    if version >= FLEXIBLE:
        out += _RESULT_V12.pack(index, code, high, stable, start, count + 1, preferred)
    elif version >= 11:
        out += _RESULT_V11.pack(index, code, high, stable, start, count, preferred)
    elif version >= 5:
        out += _RESULT_V5.pack(index, code, high, stable, start, count)
    else:
        out += _RESULT_V4.pack(index, code, high, stable, count)


def _put_aborted(
    out: bytearray, result: FetchedPartition, aborted: Sequence[tuple[int, int]], version: int
) -> None:
    """Append a partition with aborted transactions, which few responses have."""
    flexible = version >= FLEXIBLE
    out += _RESULT_HEAD.pack(*result[:4])
    if version >= 5:
        out += _START.pack(result.log_start_offset)
    out += put_uvarint(len(aborted) + 1) if flexible else INT32.pack(len(aborted))
    entry = _ABORTED_AND_NO_TAGS if flexible else _ABORTED
    for producer_id, first_offset in aborted:
        out += entry.pack(producer_id, first_offset)
    if version >= 11:
        out += INT32.pack(result.preferred_read_replica)


def _result_tags(result: FetchedPartition) -> bytes:
    diverging, leader = result.diverging_epoch, result.leader
    tags = b""
    if diverging is not None:
        tags += _DIVERGING_EPOCH.pack(0, 13, *diverging)
    if leader is not None:
        tags += _CURRENT_LEADER.pack(1, 9, *leader)
    return put_uvarint((diverging is not None) + (leader is not None)) + tags


def _nodes(nodes: Sequence[Node]) -> bytes:
    """Encode the only tagged field of a response."""
    out = put_uvarint(len(nodes) + 1)
    for node in nodes:
        host = node.host.encode()
        out += INT32.pack(node.node_id) + put_uvarint(len(host) + 1) + host + INT32.pack(node.port)
        if node.rack is None:
            out += b"\0"
        else:
            rack = node.rack.encode()
            out += put_uvarint(len(rack) + 1) + rack
        out += b"\0"
    return b"\1\0" + put_uvarint(len(out)) + out
