"""Produce, hand-tuned: find the batches in a request, and encode a response.

Records are never copied: the decoder returns positions in the receive buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

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
    uvarint,
)

FLEXIBLE = 9
LOWEST, HIGHEST = 3, 12

_ACKS = Struct(">hi")
_RESULT = Struct(">ihq")  # partition, error code, base offset
_TIME = Struct(">q")  # log append time; log start offset from version 5
_FRAME = Struct(">ii")  # size, correlation id


class PartitionRecords(NamedTuple):
    """The records of one partition: the bytes of the request from `start` to `end`."""

    partition: int
    start: int
    end: int


class TopicRecords(NamedTuple):
    name: bytes
    partitions: list[PartitionRecords]


class Produce(NamedTuple):
    acks: int
    timeout_ms: int
    transactional_id: bytes | None
    topics: list[TopicRecords]


class ProducedPartition(NamedTuple):
    """One partition of a response."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    leader: tuple[int, int] | None = None  # leader id and leader epoch, sent from version 10 on


def decode(
    buf: bytearray,
    view: memoryview,
    at: int,
    end: int,
    version: int,
    room: int = MAX_PARTITIONS,
) -> Produce:
    """Decode the request body in buf[at:end]; `at` is the first byte after the request header.

    WireError before more than `room` topics or partitions are decoded.
    """
    try:
        request, at = _body(buf, view, at, end, version, room)
    except (StructError, IndexError):
        raise WireError(f"Produce v{version} ends too early") from None
    if at > end:
        raise WireError(f"Produce v{version} does not end where its frame ends")
    return request


def _body(
    buf: bytearray, view: memoryview, at: int, end: int, version: int, room: int
) -> tuple[Produce, int]:
    flexible = version >= FLEXIBLE
    text = compact_string if flexible else string
    transactional_id, at = text(buf, view, at, end)
    acks, timeout_ms = _ACKS.unpack_from(buf, at)
    topic_count, at = count_of(buf, at + 6, end, flexible, 2 if flexible else 6)
    if topic_count < 0:
        raise WireError("Produce has no array of topics")
    left = room
    room_after(room, topic_count)
    topics = []
    for _ in range(topic_count):
        name, at = text(buf, view, at, end)
        if name is None:
            raise WireError("Produce has a topic without a name")
        partitions, at = _partitions(buf, at, end, flexible, left)
        left -= len(partitions)
        if flexible:
            at = skip_tags(buf, at, end)
        topics.append(TopicRecords(name, partitions))
    if flexible:
        at = skip_tags(buf, at, end)
    return Produce(acks, timeout_ms, transactional_id, topics), at


def _partitions(
    buf: bytearray, at: int, end: int, flexible: bool, room: int
) -> tuple[list[PartitionRecords], int]:
    count, at = count_of(buf, at, end, flexible, 6 if flexible else 8)
    if count < 0:
        raise WireError("Produce has no array of partitions")
    room_after(room, count)
    partitions = []
    for _ in range(count):
        (index,) = INT32.unpack_from(buf, at)
        if flexible:
            length, at = uvarint(buf, at + 4)
            length -= 1
        else:
            (length,) = INT32.unpack_from(buf, at + 4)
            at += 8
        if length == -1:  # null records: an empty range, refused by the log
            length = 0
        if not 0 <= length <= end - at:
            raise WireError(f"the records have {length} bytes, but {max(end - at, 0)} are left")
        partitions.append(PartitionRecords(index, at, at + length))
        at += length
        if flexible:
            at = skip_tags(buf, at, end)
    return partitions, at


def encode(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[bytes, Sequence[ProducedPartition]]],
) -> bytes:
    """Encode a complete response, length prefix included."""
    flexible = version >= FLEXIBLE
    out = bytearray(8)
    if flexible:
        out += b"\0"
        out += put_uvarint(len(topics) + 1)
    else:
        out += INT32.pack(len(topics))
    for name, results in topics:
        if flexible:
            out += put_uvarint(len(name) + 1) + name + put_uvarint(len(results) + 1)
        else:
            out += INT16.pack(len(name)) + name + INT32.pack(len(results))
        for result in results:
            _put_result(out, result, version)
        if flexible:
            out += b"\0"
    out += b"\0\0\0\0"  # throttle time
    if flexible:
        out += b"\0"
    _FRAME.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def _put_result(out: bytearray, result: ProducedPartition, version: int) -> None:
    out += _RESULT.pack(result.partition, result.error_code, result.base_offset)
    out += _TIME.pack(result.log_append_time_ms)
    if version >= 5:
        out += _TIME.pack(result.log_start_offset)
    message = None if result.error_message is None else result.error_message.encode()
    if version >= FLEXIBLE:
        out += b"\1"  # no record errors
        out += b"\0" if message is None else put_uvarint(len(message) + 1) + message
        if result.leader is not None and version >= 10:
            # One tagged field, tag 0, nine bytes: the leader id, the leader epoch, no tags.
            out += b"\1\0\x09" + _FRAME.pack(*result.leader) + b"\0"
        else:
            out += b"\0"
    elif version >= 8:
        out += b"\0\0\0\0"
        out += b"\xff\xff" if message is None else INT16.pack(len(message)) + message


class ResponseTemplate:
    """The response to a successful Produce with one topic and one partition.

    Everything but three numbers is known in advance, so encoding takes one call to pack.
    """

    __slots__ = ("_head", "_pack", "_size", "_tail", "_with_log_start")

    def __init__(self, version: int, name: bytes, partition: int) -> None:
        sample = ProducedPartition(partition, 0, 0, 0, 0)
        whole = encode(0, version, [(name, [sample])])
        self._with_log_start = version >= 5
        numbers = 24 if self._with_log_start else 16
        # Frame, [tags], topic count, name, partition count, partition, error code.
        flexible = version >= FLEXIBLE
        at = 8 + (2 + len(put_uvarint(len(name) + 1)) + 1 if flexible else 4 + 2 + 4)
        at += len(name) + 6
        self._head, self._tail = whole[8:at], whole[at + numbers :]
        layout = Struct(
            f">ii{len(self._head)}s{'qqq' if self._with_log_start else 'qq'}{len(self._tail)}s"
        )
        self._pack: Callable[..., bytes] = layout.pack
        self._size = layout.size - 4

    def encode(self, correlation_id: int, base_offset: int, time_ms: int, log_start: int) -> bytes:
        if self._with_log_start:
            return self._pack(
                self._size, correlation_id, self._head, base_offset, time_ms, log_start, self._tail
            )
        return self._pack(self._size, correlation_id, self._head, base_offset, time_ms, self._tail)
