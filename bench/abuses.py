"""Legal requests that cost a broker much more than they cost the client that sends them.

`ABUSES` names each one, builds its bytes and says how a client sends them. The bytes are built
before the measured time. Every version is one that both Hightide and Apache Kafka 4 serve.
"""

import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from bench.harness.broker import BrokerFailure
from hightide.wire import batch
from hightide.wire.compression import Codec
from hightide.wire.frame import decode_response, encode_request
from hightide.wire.messages.api_versions import ApiVersionsRequest
from hightide.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from hightide.wire.messages.groups import DescribeGroupsRequest
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from hightide.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    TopicRequest,
)

TINY, KNOWN, COMPACTED = "tiny", "known", "compacted"
GZIPPED, GZIPPED_TOO_LARGE = "gzipped", "gzipped-too-large"
TINY_PARTITIONS, KNOWN_PARTITIONS = 10, 500
BROKER = 4  # the resource type of DescribeConfigs
BROKER_ID = "1"
NAMES = 10_000
FIRST_MS = int(time.time() * 1000)
PATIENCE_S = 60.0
PIPELINED_BYTES = 168_000
HALF_FRAMES, WHOLE_FRAME_BYTES = 300, 512 * 1024
PIECE_BYTES, PAUSE_S, HOLD_S = 16 * 1024, 0.01, 1.0

Counts = dict[str, float]
Send = Callable[[int, bytes, float], Counts]


@dataclass(frozen=True, slots=True)
class Abuse:
    """Bytes, and how a client sends them to a port for some seconds."""

    name: str
    title: str
    build: Callable[[], bytes]
    send: Send


def encode(request: object, version: int) -> bytes:
    return encode_request(request, version, 1, None)


# ---- the bytes ----------------------------------------------------------------------------------


def describe_configs(times: int = 6_000) -> bytes:
    broker = DescribeConfigsResource(
        resource_type=BROKER, resource_name=BROKER_ID, configuration_keys=None
    )
    return encode(DescribeConfigsRequest(resources=[broker] * times), 1)


def tiny_records(count: int = 1_200_000) -> bytes:
    """Build a batch of empty records. Only the last one has the largest timestamp."""
    rows = ((at, FIRST_MS + (at == count - 1), None, None, ()) for at in range(count))
    return bytes(batch.build(rows, codec=Codec.ZSTD))


def list_offsets(partitions: Iterable[int]) -> bytes:
    """Request the offset of the largest timestamp, so that the broker reads the whole batch."""
    asked = [ListOffsetsPartition(partition_index=at, timestamp=FIRST_MS + 1) for at in partitions]
    topic = ListOffsetsTopic(name=TINY, partitions=asked)
    return encode(ListOffsetsRequest(replica_id=-1, topics=[topic]), 1)


def pipelined(size: int = PIPELINED_BYTES) -> bytes:
    """Alternate ApiVersions with Metadata of all topics; end with a whole frame."""
    pair = encode(ApiVersionsRequest(), 0) + encode(MetadataRequest(topics=None), 1)
    return pair * (size // len(pair))


def fetch(count: int) -> bytes:
    """Name every known partition in turn for the first half, and unknown ones for the second."""
    known = [_fetched(at % KNOWN_PARTITIONS) for at in range(count // 2)]
    unknown = [_fetched(KNOWN_PARTITIONS + at) for at in range(count - count // 2)]
    topics = [
        FetchTopic(topic=KNOWN, partitions=known),
        FetchTopic(topic="unknown", partitions=unknown),
    ]
    return encode(FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics), 4)


def _fetched(partition: int) -> FetchPartition:
    return FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1024)


def inflating_records(count: int = 40_000) -> bytes:
    """Build a batch with 1 KB values. Most of a value is zeros, and 17 bytes are random."""
    chance = random.Random(7)
    rows = (
        (at, FIRST_MS, b"%d" % (at % 1000), chance.randbytes(17) + bytes(1007), ())
        for at in range(count)
    )
    return bytes(batch.build(rows, codec=Codec.ZSTD))


def produce(topic: str, records: bytes, partitions: Iterable[int] = (0,)) -> bytes:
    """Encode version 7, the oldest in which Kafka accepts zstd."""
    data = [PartitionProduceData(index=one, records=records) for one in partitions]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return encode(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), 7)


def metadata_many(count: int = NAMES) -> bytes:
    topics = [MetadataRequestTopic(name=name) for name in names(count)]
    return encode(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 4)


def describe_groups(count: int = NAMES) -> bytes:
    return encode(DescribeGroupsRequest(groups=names(count)), 0)


def offset_fetch(count: int = NAMES) -> bytes:
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names(count)]
    return encode(OffsetFetchRequest(groups=groups), 8)


def describe_transactions(count: int = NAMES) -> bytes:
    return encode(DescribeTransactionsRequest(transactional_ids=names(count)), 0)


def describe_producers(count: int) -> bytes:
    topics = [TopicRequest(name=name, partition_indexes=[0]) for name in names(count)]
    return encode(DescribeProducersRequest(topics=topics), 0)


def half_frame(size: int = WHOLE_FRAME_BYTES) -> bytes:
    """Return the first half of a Produce frame of `size` bytes."""
    whole = produce(KNOWN, bytes(size - len(produce(KNOWN, b""))))
    return whole[: len(whole) // 2]


def names(count: int) -> list[str]:
    return [f"name-{at}" for at in range(count)]


# ---- sending ------------------------------------------------------------------------------------


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as made:
        yield made


def read_response(connection: socket.socket) -> bytearray:
    head = connection.recv(4, socket.MSG_WAITALL)
    response = bytearray(*struct.unpack(">i", head.ljust(4, b"\0")))
    space = memoryview(response)
    while len(head) == 4 and space:
        count = connection.recv_into(space)
        if not count:
            break
        space = space[count:]
    if space or not response:
        raise ConnectionResetError("the broker closed the connection")
    return response


def store(port: int, topic: str, records: bytes, partitions: Iterable[int]) -> None:
    """Write the same batch to some partitions; raise BrokerFailure for an error."""
    with connected(port) as connection:
        connection.sendall(produce(topic, records, partitions))
        _, response = decode_response(ProduceResponse, read_response(connection), 7)
    for partition in response.responses[0].partition_responses:
        if partition.error_code:
            raise BrokerFailure(f"Produce {topic}: error code {partition.error_code}")


def send_again_and_again(port: int, frame: bytes, seconds: float) -> Counts:
    """Send a frame, wait for the response, and repeat it while time is left.

    A frame that is sent in time is awaited, also when the time is over.
    """
    counts = {"answered": 0.0, "refused": 0.0, "response_mb": 0.0}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        try:
            with connected(port) as connection:
                while time.perf_counter() < until:
                    connection.sendall(frame)
                    counts["response_mb"] += len(read_response(connection)) / 1e6
                    counts["answered"] += 1
        except (ConnectionResetError, BrokenPipeError):
            counts["refused"] += 1
        except TimeoutError:
            counts["unanswered"] = 1.0
    return counts


def send_and_hold(
    port: int, data: bytes, seconds: float, *, connections: int, reads: bool = False
) -> Counts:
    """Send the same bytes on some connections and keep all open; read slowly or not at all.

    Close the connections after `HOLD_S` and open others while time is left.
    """
    counts = {"refused": 0.0, "sent_mb": 0.0, "response_mb": 0.0}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        with ExitStack() as stack:
            held = [stack.enter_context(connected(port)) for _ in range(connections)]
            unsent = {one: memoryview(data) for one in held}
            for one in held:
                one.setblocking(False)
            stop_at = min(until, time.perf_counter() + HOLD_S)
            while time.perf_counter() < stop_at:
                for one in list(unsent):
                    try:
                        sent = _send_some(one, unsent[one])
                        unsent[one] = unsent[one][sent:]
                        counts["sent_mb"] += sent / 1e6
                        counts["response_mb"] += _read_some(one) / 1e6 if reads else 0
                    except (ConnectionResetError, BrokenPipeError):
                        counts["refused"] += 1
                        del unsent[one]
                time.sleep(PAUSE_S)
    return counts


def _send_some(connection: socket.socket, data: memoryview) -> int:
    with suppress(BlockingIOError):
        return connection.send(data)
    return 0


def _read_some(connection: socket.socket) -> int:
    with suppress(BlockingIOError):
        return len(connection.recv(PIECE_BYTES))
    return 0


def wait_only(port: int, data: bytes, seconds: float) -> Counts:
    time.sleep(seconds)
    return {}


# ---- all of them --------------------------------------------------------------------------------

# Kafka refuses a ListOffsets request that names a partition twice, so there is one of each kind.
SAME_PARTITION, EACH_PARTITION = [0] * TINY_PARTITIONS, range(TINY_PARTITIONS)

BASELINE = Abuse("none", "no abuse", bytes, wait_only)
_SENDING: dict[str, Send] = {
    "pipelined-slow": partial(send_and_hold, connections=1, reads=True),
    "pipelined-unread": partial(send_and_hold, connections=1),
    "pipelined-unread-10": partial(send_and_hold, connections=10),
    "half-frames": partial(send_and_hold, connections=HALF_FRAMES),
}
_BUILT: dict[str, tuple[str, Callable[[], bytes]]] = {
    "describe-configs": ("DescribeConfigs of one broker 6,000 times", describe_configs),
    "list-offsets": (
        "ListOffsets by timestamp, one partition ten times, 1.2 million records in a batch",
        lambda: list_offsets(SAME_PARTITION),
    ),
    "list-offsets-10": (
        "the same of ten partitions, each with such a batch",
        lambda: list_offsets(EACH_PARTITION),
    ),
    "pipelined-slow": ("168 KB of pipelined requests, read slowly", pipelined),
    "pipelined-unread": ("168 KB of pipelined requests, not read", pipelined),
    "pipelined-unread-10": ("the same on ten connections", pipelined),
    # With its two topics it has 10,000 names, the most that Hightide accepts.
    "fetch-9998": ("Fetch of 9,998 partitions, half of them unknown", lambda: fetch(9_998)),
    "fetch-10k": ("Fetch of 10,000 partitions, half of them unknown", lambda: fetch(10_000)),
    "fetch-1m": ("Fetch of 1,000,000 partitions", lambda: fetch(1_000_000)),
    "produce-compacted": (
        "Produce of 0.9 MB of zstd that inflates to 41 MB, to a compacted topic",
        lambda: produce(COMPACTED, inflating_records()),
    ),
    "produce-gzip": (
        "the same to a topic with compression.type=gzip",
        lambda: produce(GZIPPED, inflating_records()),
    ),
    "produce-gzip-too-large": (
        "the same, and the batch exceeds max.message.bytes with gzip",
        lambda: produce(GZIPPED_TOO_LARGE, inflating_records()),
    ),
    "metadata-many": ("Metadata of 10,000 unknown topics", metadata_many),
    "describe-groups": ("DescribeGroups of 10,000 unknown groups", describe_groups),
    "offset-fetch": ("OffsetFetch of 10,000 unknown groups", offset_fetch),
    "describe-transactions": ("DescribeTransactions of 10,000 unknown ids", describe_transactions),
    "describe-producers-5k": (
        "DescribeProducers of 5,000 unknown topics",
        lambda: describe_producers(NAMES // 2),
    ),
    "describe-producers": (
        "DescribeProducers of 10,000 unknown topics",
        lambda: describe_producers(NAMES),
    ),
    "half-frames": ("300 connections, each with half a frame of 512 KB", half_frame),
}
ABUSES = tuple(
    Abuse(name, title, build, _SENDING.get(name, send_again_and_again))
    for name, (title, build) in _BUILT.items()
)
