"""The client's connection against a broker that is slow, broken or hostile.

The other side is a real socket on which a test sends exactly what it wants.
"""

import asyncio
import struct
from contextlib import asynccontextmanager

import pytest

from hightide.client import replica_fetch
from hightide.client.broker_connection import RECEIVE_BYTES, Connection, ConnectionFailed
from hightide.client.routing import addresses
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.frame import decode_request_header, encode_response
from hightide.wire.hot import fetch_codec as hot
from hightide.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from hightide.wire.messages.metadata import MetadataRequest, MetadataResponse

FETCH = 1
METADATA = 3
API_VERSIONS = 18


class Peer:
    """The broker's side of one connection."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    async def request(self):
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        header, _ = decode_request_header(memoryview(await self._reader.readexactly(size)))
        return header

    def send(self, data):
        self._writer.write(data)

    async def greet(self, *versions):
        """Answer ApiVersions with the versions that this broker claims to know."""
        header = await self.request()
        assert header.api_key == API_VERSIONS
        offered = versions or ((METADATA, 0, 12), (API_VERSIONS, 0, 4))
        answer = ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, low, high in offered
            ]
        )
        self.send(encode_response(answer, header.api_version, header.correlation_id))

    def answer(self, header, cluster_id):
        answer = MetadataResponse(brokers=[], cluster_id=cluster_id, topics=[])
        self.send(encode_response(answer, header.api_version, header.correlation_id))

    def hang_up(self):
        self._writer.close()


@asynccontextmanager
async def broker(script):
    """Listen, and run `script(peer)` for every connection; its failures fail the test."""
    failures = []

    async def serve(reader, writer):
        try:
            await script(Peer(reader, writer))
            await reader.read()
        except Exception as error:
            failures.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
    if failures:
        raise failures[0]


def run(script, client):
    async def both():
        async with broker(script) as port:
            await client(port)

    asyncio.run(asyncio.wait_for(both(), 30))


def ask(connection, **options):
    return connection.send(MetadataRequest(topics=[]), **options)


def test_the_highest_version_that_both_know_is_used():
    async def script(peer):
        await peer.greet((METADATA, 2, 7), (API_VERSIONS, 0, 4))
        header = await peer.request()
        assert header.api_version == 7
        peer.answer(header, "c")

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        assert (await ask(connection)).cluster_id == "c"
        connection.close()

    run(script, client)


def test_answers_find_their_callers_in_whatever_order_they_come():
    async def script(peer):
        await peer.greet()
        headers = [await peer.request() for _ in range(3)]
        for name, header in zip("cab", (headers[2], headers[0], headers[1]), strict=True):
            peer.answer(header, name)

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        found = await asyncio.gather(*(ask(connection) for _ in range(3)))
        assert [answer.cluster_id for answer in found] == ["a", "b", "c"]
        connection.close()

    run(script, client)


def test_an_answer_may_come_byte_by_byte():
    async def script(peer):
        await peer.greet()
        header = await peer.request()
        whole = encode_response(
            MetadataResponse(brokers=[], cluster_id="slow", topics=[]),
            header.api_version,
            header.correlation_id,
        )
        for at in range(len(whole)):
            peer.send(whole[at : at + 1])
            await asyncio.sleep(0)

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        assert (await ask(connection)).cluster_id == "slow"
        connection.close()

    run(script, client)


@pytest.mark.parametrize(
    "known", [[ApiVersion(api_key=API_VERSIONS, min_version=0, max_version=2)], []]
)
def test_a_broker_that_refuses_our_api_versions_is_asked_again_in_one_it_knows(known):
    async def script(peer):
        first = await peer.request()
        refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=known)
        peer.send(encode_response(refusal, 0, first.correlation_id))
        second = await peer.request()
        assert second.api_version == (2 if known else 0) < first.api_version
        answer = ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=METADATA, min_version=0, max_version=1)]
        )
        peer.send(encode_response(answer, second.api_version, second.correlation_id))

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        assert connection.versions == {METADATA: (0, 1)}
        connection.close()

    run(script, client)


def test_an_api_that_the_broker_lacks_is_refused_before_anything_is_sent():
    async def script(peer):
        await peer.greet((API_VERSIONS, 0, 4))

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(KafkaError, match="does not offer Metadata"):
            await ask(connection)
        connection.close()

    run(script, client)


def test_versions_that_do_not_meet_are_refused_with_both_ranges():
    async def script(peer):
        await peer.greet((METADATA, 90, 99))

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(KafkaError, match=r"versions 90 to 99, and this client knows 0 to 13"):
            await ask(connection)
        connection.close()

    run(script, client)


@pytest.mark.parametrize("size", [-1, 0, 3, 2**31 - 1])
def test_an_impossible_length_ends_the_connection(size):
    async def script(peer):
        await peer.greet()
        await peer.request()
        peer.send(struct.pack(">i", size))

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(ConnectionFailed, match=f"announced a response of {size} bytes"):
            await ask(connection)
        assert not connection.is_open()
        with pytest.raises(ConnectionFailed):
            await ask(connection)

    run(script, client)


def test_an_answer_that_is_no_message_ends_the_connection():
    async def script(peer):
        await peer.greet()
        header = await peer.request()
        peer.send(struct.pack(">ii", 20, header.correlation_id) + b"\xff" * 16)

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(ConnectionFailed, match="a response that cannot be decoded"):
            await ask(connection)
        assert not connection.is_open()

    run(script, client)


def test_a_response_without_a_request_ends_the_connection():
    async def script(peer):
        await peer.greet()
        await peer.request()
        peer.send(struct.pack(">ii", 4, 12345))

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(ConnectionFailed, match="to a request that was not sent"):
            await ask(connection)

    run(script, client)


def test_a_connection_that_breaks_fails_all_pending_requests():
    async def script(peer):
        await peer.greet()
        for _ in range(2):
            await peer.request()
        peer.hang_up()

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        found = await asyncio.gather(ask(connection), ask(connection), return_exceptions=True)
        assert [type(error) for error in found] == [ConnectionFailed, ConnectionFailed]

    run(script, client)


def test_a_late_answer_to_a_caller_that_gave_up_does_no_harm():
    async def script(peer):
        await peer.greet()
        first, second = await peer.request(), await peer.request()
        peer.answer(first, "late")
        peer.answer(second, "in time")

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(ConnectionFailed, match="did not answer Metadata within 1 ms"):
            await ask(connection, timeout_ms=1)
        assert (await ask(connection)).cluster_id == "in time"
        connection.close()

    run(script, client)


TOPIC = bytes(range(16))
ASKED = hot.Fetch(
    1,
    500,
    1,
    2**20,
    0,
    0,
    -1,
    [(TOPIC, [hot.RequestedPartition(3, 1, 7, 1, 0, 2**20)])],
    [],
    None,
    9,
)


class Records:
    def __init__(self, length):
        self.length = length


def fetch_answer(correlation_id, length):
    """A response with `size` bytes of records, in which each byte depends on its position."""
    parts = hot.encode(
        correlation_id, 17, [(TOPIC, [hot.FetchedPartition(3, 0, 8, 8, 0, Records(length))])]
    )
    data = (bytes(range(251)) * (length // 251 + 1))[:length]
    return b"".join(part if isinstance(part, bytes) else data for part in parts), data


OVERHEAD = len(fetch_answer(0, RECEIVE_BYTES - 200)[0]) - (RECEIVE_BYTES - 200)
SIZES = [RECEIVE_BYTES - OVERHEAD + around for around in (-1, 0, 1, 5)]


@pytest.mark.parametrize("chunk", [1_000, 65_536, 10**9])
def test_answers_of_any_size_come_whole_in_pieces_of_any_size(chunk):
    sizes = [10, *SIZES, 3_000_000, 10, 200_000, *SIZES]

    async def script(peer):
        await peer.greet((FETCH, 4, 17), (API_VERSIONS, 0, 4))
        headers = [await peer.request() for _ in sizes]
        answers = [
            fetch_answer(header.correlation_id, size)[0]
            for header, size in zip(headers, sizes, strict=True)
        ]
        stream = b"".join(answers)
        for at in range(0, len(stream), chunk):
            peer.send(stream[at : at + chunk])
            await asyncio.sleep(0)

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        found = await asyncio.gather(*(replica_fetch.fetch(connection, ASKED) for _ in sizes))
        connection.close()
        for answer, size in zip(found, sizes, strict=True):
            ((topic, (partition,)),) = answer.topics
            assert (topic, partition.partition, partition.high_watermark) == (TOPIC, 3, 8)
            assert partition.records == fetch_answer(0, size)[1]

    run(script, client)


def test_a_buffer_that_is_given_back_is_used_again():
    sizes = [1_000_000, 900_000, 10, 500_000, 1_000_000, 20_000_000, 30_000]

    async def script(peer):
        await peer.greet((FETCH, 4, 17), (API_VERSIONS, 0, 4))
        for size in sizes:
            peer.send(fetch_answer((await peer.request()).correlation_id, size)[0])

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        buffers = []
        for size in sizes:
            answer = await replica_fetch.fetch(connection, ASKED)
            ((_, (partition,)),) = answer.topics
            assert partition.records == fetch_answer(0, size)[1]
            buffers.append(partition.records.obj)
            connection.recycle(partition.records)
        connection.close()
        first = buffers[0]
        is_first = [buffer is first for buffer in buffers]
        assert is_first == [True, True, False, True, True, False, False]
        assert isinstance(buffers[2], bytes), "a small one is copied"
        assert buffers[-1] is not buffers[-2], "one of 20 MB is not kept"

    run(script, client)


def test_a_fetch_answer_that_is_none_ends_the_connection():
    async def script(peer):
        await peer.greet((FETCH, 4, 17), (API_VERSIONS, 0, 4))
        header = await peer.request()
        assert (header.api_key, header.api_version) == (FETCH, 17)
        peer.send(struct.pack(">ii", 20, header.correlation_id) + b"\xff" * 16)

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(ConnectionFailed, match="a response that cannot be decoded"):
            await replica_fetch.fetch(connection, ASKED)
        assert not connection.is_open()

    run(script, client)


def test_a_leader_that_cannot_be_fetched_from_is_told_of():
    async def script(peer):
        await peer.greet((FETCH, 4, 12), (API_VERSIONS, 0, 4))

    async def client(port):
        connection = await Connection.open("127.0.0.1", port)
        with pytest.raises(KafkaError, match="Fetch in version 17") as refused:
            await replica_fetch.fetch(connection, ASKED)
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
        connection.close()

    run(script, client)


def test_bootstrap_addresses_are_read_and_checked():
    assert addresses("a:1, b:2") == [("a", 1), ("b", 2)]
    assert addresses("[::1]:9092") == [("::1", 9092)]
    for wrong in ("", "a", "a:", ":1", "a:x", "a:70000", ","):
        with pytest.raises(ValueError, match="host:port"):
            addresses(wrong)
