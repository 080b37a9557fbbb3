"""The server of `ingest http` fed with bytes: framing, limits, keep-alive, pipelining."""

from __future__ import annotations

import asyncio
import gzip
import json
import types
from http import HTTPStatus
from typing import Any, cast

import pytest

from hightide.ingest.http_server import IngestServer, Limits

POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


class AcknowledgingProducer:
    """Acknowledges each record at once, at the next offset of partition 0."""

    def __init__(self) -> None:
        self.values = []

    def produce(self, topic, value, key, on_delivery) -> None:
        offset = len(self.values)
        self.values.append(value)
        message = types.SimpleNamespace(partition=lambda: 0, offset=lambda: offset)
        on_delivery(None, message)


class RecordingWriter:
    def __init__(self) -> None:
        self.data = bytearray()
        self.is_closed = False

    def write(self, data) -> None:
        self.data += data

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    async def wait_closed(self) -> None:
        pass


def exchange(*pieces, limits=None):
    """Send bytes and then end of file; the values produced and the responses."""
    producer, writer = serve(*pieces, limits=limits)
    return producer.values, parse(bytes(writer.data))


def serve(*pieces, limits=None):
    """Serve a connection on which these bytes come and then end of file."""
    producer = AcknowledgingProducer()
    writer = RecordingWriter()

    async def run() -> None:
        reader = asyncio.StreamReader(limit=32 << 10)
        server = IngestServer(producer, ["t"], limits=limits or Limits(body_bytes=100_000))
        serving = asyncio.ensure_future(server.serve_connection(reader, cast(Any, writer)))
        for piece in pieces:
            reader.feed_data(piece)
            await asyncio.sleep(0)
        reader.feed_eof()
        await serving

    asyncio.run(run())
    assert writer.is_closed
    return producer, writer


def parse(data):
    """The status and the JSON body of each response."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        if status == 100:
            found.append((status, None))
            continue
        headers = dict(line.lower().split(b": ") for line in head.split(b"\r\n")[1:])
        length = int(headers[b"content-length"])
        found.append((status, json.loads(data[:length])))
        data = data[length:]
    return found


def statuses(responses):
    return [status for status, _ in responses]


def chunked(body, header=b"Transfer-Encoding: chunked\r\n"):
    return POST + header + b"\r\n" + body


def test_bytes_between_a_chunk_and_its_line_end_are_refused() -> None:
    values, responses = exchange(chunked(b"3\r\nabcXY0\r\n\r\n"))
    assert (values, statuses(responses)) == ([], [400])


@pytest.mark.parametrize("size", [b"0x3", b"+3", b"-3", b"3_0", b" 3", b""])
def test_a_chunk_size_is_hexadecimal_digits_alone(size) -> None:
    values, responses = exchange(chunked(size + b"\r\nabc\r\n0\r\n\r\n"))
    assert (values, statuses(responses)) == ([], [400])


def test_two_lengths_that_differ_are_refused() -> None:
    values, responses = exchange(POST + b"Content-Length: 5\r\nContent-Length: 3\r\n\r\nabcde")
    assert (values, statuses(responses)) == ([], [400])


def test_a_transfer_coding_besides_chunked_is_refused() -> None:
    headers = b"Transfer-Encoding: gzip, chunked\r\nContent-Length: 3\r\n"
    values, responses = exchange(chunked(b"3\r\nabc\r\n0\r\n\r\n", headers))
    assert values == []
    assert statuses(responses) in ([400], [501])


def test_a_chunk_line_has_a_bound() -> None:
    values, responses = exchange(chunked(b"3;" + b"x" * 70_000), b"x" * 70_000)
    assert values == []
    assert len(responses) == 1
    assert 400 <= responses[0][0] < 500


def test_a_length_and_chunks_together_are_refused() -> None:
    values, responses = exchange(
        chunked(b"3\r\nabc\r\n0\r\n\r\n", b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n")
    )
    assert (values, statuses(responses)) == ([], [400])


def test_chunks_are_one_body_and_trailers_are_dropped() -> None:
    values, responses = exchange(chunked(b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n"))
    assert (values, statuses(responses)) == ([b"abcde"], [200])


def test_bytes_may_come_one_by_one() -> None:
    data = chunked(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") + POST + b"Content-Length: 1\r\n\r\nf"
    values, responses = exchange(*(bytes([byte]) for byte in data))
    assert (values, statuses(responses)) == ([b"abcde", b"f"], [200, 200])


def test_pipelined_requests_are_answered_in_order() -> None:
    requests = [POST + b"Content-Length: 1\r\n\r\n%d" % number for number in range(5)]
    values, responses = exchange(
        b"".join(requests) + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    assert values == [b"0", b"1", b"2", b"3", b"4"]
    assert statuses(responses) == [200] * 6
    assert [body["offsets"][0]["offset"] for _, body in responses[:5]] == [0, 1, 2, 3, 4]


def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    head = POST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    values, responses = exchange(head, b"abc")
    assert (values, statuses(responses)) == ([b"abc"], [100, 200])


def test_a_body_that_is_too_large_is_refused_before_100_continue() -> None:
    head = POST + b"Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n"
    assert exchange(head)[1] == [
        (413, {"error": f"413 {HTTPStatus(413).phrase}: the body has more than 100000 bytes"})
    ]
    head = chunked(b"%x\r\n" % 100_001 + b"x" * 100_001)
    assert statuses(exchange(head)[1]) == [413]


def test_a_body_without_a_length_is_refused() -> None:
    assert statuses(exchange(POST + b"\r\n")[1]) == [411]


def test_a_body_that_ends_too_early_is_refused() -> None:
    values, responses = exchange(POST + b"Content-Length: 5\r\n\r\nabc")
    assert (values, statuses(responses)) == ([], [400])


def test_a_head_has_a_bound() -> None:
    pieces = [b"x" * 10_000] * 8
    assert statuses(exchange(POST + b"X: ", *pieces)[1]) == [431]


def test_the_body_of_a_request_that_needs_none_is_no_request() -> None:
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(hidden)
    assert statuses(exchange(head + hidden)[1]) == [200]


def test_memory_counts_what_has_arrived_and_what_was_decompressed() -> None:
    limits = Limits(body_bytes=1000, total_bytes=500)
    announced = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    assert statuses(exchange(POST + announced, limits=limits)[1]) == [200]
    packed = gzip.compress(bytes(900))
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    assert statuses(exchange(POST + head + packed, limits=limits)[1]) == [503]


def test_a_request_without_room_is_to_be_sent_again() -> None:
    limits = Limits(body_bytes=100, total_bytes=10)
    assert exchange(POST + b"Content-Length: 50\r\n\r\n" + b"x" * 50, limits=limits)[1] == [
        (503, {"error": "503 Service Unavailable: queue full, retry later"})
    ]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"CONNECT / HTTP/1.1", 405),
        (b"PUT / HTTP/1.1", 405),
        (b"GET //[ HTTP/1.1", 400),
        (b"GET /topics/u HTTP/1.1", 404),
        (b"GET / HTTP/1.1 x", 400),
        (b"GET / HTTP/3.0", 400),
    ],
)
def test_a_request_that_is_not_served_gets_its_status(line, status) -> None:
    assert statuses(exchange(line + b"\r\nHost: localhost\r\n\r\n")[1]) == [status]


def test_a_response_to_head_has_no_body() -> None:
    writer = serve(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")[1]
    assert writer.data.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert writer.data.endswith(b"\r\n\r\n")


def gzipped(body):
    headers = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    return POST + headers + body


def test_all_members_of_a_gzip_body_are_read() -> None:
    body = gzip.compress(b"one ") + gzip.compress(b"two")
    values, responses = exchange(gzipped(body))
    assert (values, statuses(responses)) == ([b"one two"], [200])
    assert statuses(exchange(gzipped(body + b"rest"))[1]) == [400]
    assert statuses(exchange(gzipped(body[:-4]))[1]) == [400]
    large = gzip.compress(b"x" * 60_000)
    assert statuses(exchange(gzipped(large + large))[1]) == [413]


def test_close_is_heeded() -> None:
    first = POST + b"Connection: close\r\nContent-Length: 1\r\n\r\na"
    values, responses = exchange(first + POST + b"Content-Length: 1\r\n\r\nb")
    assert (values, statuses(responses)) == ([b"a"], [200])
