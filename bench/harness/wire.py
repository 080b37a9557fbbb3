"""The few Kafka requests the benchmarks need to set up and to check a broker.

Written by hand in the oldest versions that every broker serves, so that the harness depends
neither on the code that it measures nor on the extra work of a client library.
"""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

PRODUCE, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 2, 3, 18
CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_QUORUM = 19, 20, 55
LATEST = -1
ALL_REPLICAS = -1
TOPIC_ALREADY_EXISTS = 36
QUORUM_TOPIC = "__cluster_metadata"


class WireFailure(Exception):
    """The broker returned an error, or closed the connection."""


@dataclass(slots=True)
class Answer:
    """A cursor over the body of one response."""

    data: bytes
    at: int = 0

    def skip(self, length: int) -> int:
        """Skip bytes; return where they begin."""
        start = self.at
        if length < 0 or start + length > len(self.data):
            raise WireFailure("an answer that is cut short")
        self.at += length
        return start

    def _unpack(self, fmt: str) -> int:
        (value,) = struct.unpack_from(fmt, self.data, self.skip(struct.calcsize(fmt)))
        return int(value)

    def i8(self) -> int:
        return self._unpack(">b")

    def i16(self) -> int:
        return self._unpack(">h")

    def i32(self) -> int:
        return self._unpack(">i")

    def i64(self) -> int:
        return self._unpack(">q")

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def string(self) -> str | None:
        length = self.i16()
        if length < 0:
            return None
        start = self.skip(length)
        return self.data[start : self.at].decode()


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def _crc32c(data: bytes) -> int:
    """Compute a CRC bit by bit: slow, but short, and needed once per run."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def one_record(size: int = 50) -> bytes:
    """A batch (version 2) of one record without a key; its value has `size` bytes, at most 50."""
    assert size <= 50, "all lengths must fit into one byte"
    value = bytes([size * 2]) + b"x" * size
    # No attributes, both deltas 0, a key of length -1, the value, no headers.
    record = b"\0\0\0\1" + value + b"\0"
    now_ms = int(time.time() * 1000)
    counted = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1)
    counted += bytes([len(record) * 2]) + record
    rest = struct.pack(">ibI", -1, 2, _crc32c(counted)) + counted
    return struct.pack(">qi", 0, len(rest)) + rest


@dataclass(slots=True)
class Connection:
    """A blocking connection with one request at a time."""

    port: int
    timeout_s: float = 30.0
    _socket: socket.socket = field(init=False)
    _correlation_id: int = 0

    def __post_init__(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self.port), self.timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ask(self, api_key: int, version: int, body: bytes = b"") -> Answer:
        self._correlation_id += 1
        head = struct.pack(">hhi", api_key, version, self._correlation_id) + _string("bench")
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        (length,) = struct.unpack(">i", self._receive(4))
        answer = Answer(self._receive(length))
        if answer.i32() != self._correlation_id:
            raise WireFailure(f"answer to another request (api {api_key} v{version})")
        return answer

    def _receive(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            piece = self._socket.recv(length - len(data))
            if not piece:
                raise WireFailure("the broker closed the connection")
            data += piece
        return bytes(data)

    def api_versions(self) -> dict[int, tuple[int, int]]:
        answer = self.ask(API_VERSIONS, 0)
        _check(answer.i16(), "ApiVersions")
        return {answer.i16(): (answer.i16(), answer.i16()) for _ in range(answer.i32())}

    def create_topic(
        self,
        name: str,
        partitions: int,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] = (),
    ) -> None:
        """Create a topic, unless it exists."""
        counts = (-1, -1) if assignment else (partitions, replicas)
        topic = _string(name) + struct.pack(">ihi", *counts, len(assignment))
        for index, brokers in enumerate(assignment):
            topic += struct.pack(f">ii{len(brokers)}i", index, len(brokers), *brokers)
        topic += struct.pack(">i", len(settings or {}))
        for key, value in (settings or {}).items():
            topic += _string(key) + _string(value)
        body = struct.pack(">i", 1) + topic + struct.pack(">ib", 30_000, 0)
        answer = self.ask(CREATE_TOPICS, 4, body)
        answer.i32()
        for _ in range(answer.i32()):
            answer.string()
            code, message = answer.i16(), answer.string()
            if code != TOPIC_ALREADY_EXISTS:
                _check(code, f"CreateTopics {name}: {message}")

    def delete_topic(self, name: str) -> None:
        body = struct.pack(">i", 1) + _string(name) + struct.pack(">i", 30_000)
        answer = self.ask(DELETE_TOPICS, 1, body)
        answer.i32()
        for _ in range(answer.i32()):
            answer.string()
            _check(answer.i16(), f"DeleteTopics {name}")

    def produce(self, topic: str, partition: int, batch: bytes) -> None:
        """Write the batch with acks=all; returns when it is acknowledged."""
        body = struct.pack(">hhii", -1, ALL_REPLICAS, 30_000, 1) + _string(topic)
        body += struct.pack(">iii", 1, partition, len(batch)) + batch
        answer = self.ask(PRODUCE, 3, body)
        for _ in range(answer.i32()):
            answer.string()
            for _ in range(answer.i32()):
                answer.i32()
                _check(answer.i16(), f"Produce {topic}-{partition}")
                answer.skip(8 + 8)

    def brokers(self) -> dict[int, int]:
        """Return the port of each live broker."""
        answer = self.ask(METADATA, 4, struct.pack(">ib", 0, 0))
        answer.i32()
        return dict(_read_broker(answer) for _ in range(answer.i32()))

    def controller(self) -> int:
        """Return the address of the controller, which creates topics."""
        answer = self.ask(METADATA, 4, struct.pack(">ib", 0, 0))
        answer.i32()
        for _ in range(answer.i32()):
            _read_broker(answer)
        answer.string()
        return answer.i32()

    def quorum_leader(self) -> int:
        """Return the leader of a KRaft quorum; there, Metadata names any broker as the controller.

        No older version of this request exists: lengths are varints and one more than they are.
        """
        name = QUORUM_TOPIC.encode()
        topic = bytes([len(name) + 1]) + name + b"\2" + struct.pack(">i", 0) + b"\0\0"
        # The first zero ends the header, which `ask` writes in its older form.
        answer = self.ask(DESCRIBE_QUORUM, 0, b"\0\2" + topic + b"\0")
        answer.uvarint()
        _check(answer.i16(), "DescribeQuorum")
        answer.uvarint()
        answer.skip(answer.uvarint() - 1)
        answer.uvarint()
        answer.i32()
        _check(answer.i16(), "DescribeQuorum")
        return answer.i32()

    def led_partitions(self, topic: str) -> int:
        """Return how many partitions of the topic have a leader that serves."""
        return sum(leader >= 0 for leader in self.leaders(topic).values())

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition of the topic; -1 where there is none."""
        answer = self.ask(METADATA, 4, struct.pack(">i", 1) + _string(topic) + b"\0")
        answer.i32()
        for _ in range(answer.i32()):
            _read_broker(answer)
        answer.string(), answer.i32()
        leaders: dict[int, int] = {}
        head = struct.Struct(">hiii")
        for _ in range(answer.i32()):
            answer.i16(), answer.string(), answer.i8()
            for _ in range(answer.i32()):
                # Read at once: this runs often while a cluster is measured.
                code, index, leader, replicas = head.unpack_from(answer.data, answer.skip(14))
                leaders[index] = leader if code == 0 else -1
                answer.skip(4 * replicas)
                answer.skip(4 * answer.i32())
        return leaders

    def end_offsets(self, topic: str, partitions: int) -> list[int]:
        """Return the log end offset of each partition; raise WireFailure while one is unknown."""
        found = self.offsets_of(topic, range(partitions))
        return [found[index] for index in range(partitions)]

    def offsets_of(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the log end offsets of partitions that this broker leads."""
        asked = b"".join(struct.pack(">iq", partition, LATEST) for partition in partitions)
        head = struct.pack(">ii", -1, 1) + _string(topic)
        answer = self.ask(LIST_OFFSETS, 1, head + struct.pack(">i", len(partitions)) + asked)
        offsets = {}
        for _ in range(answer.i32()):
            answer.string()
            for _ in range(answer.i32()):
                index = answer.i32()
                _check(answer.i16(), f"ListOffsets {topic}-{index}")
                answer.i64()
                offsets[index] = answer.i64()
        return offsets


def _read_broker(answer: Answer) -> tuple[int, int]:
    """Return id and port of a broker in a Metadata response."""
    broker_id, _host, port = answer.i32(), answer.string(), answer.i32()
    answer.string()
    return broker_id, port


def _check(code: int, what: str) -> None:
    if code != 0:
        raise WireFailure(f"{what}: error code {code}")
