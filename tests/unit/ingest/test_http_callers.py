"""`ingest http` and strangers: web pages, odd requests, and requests that take long."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
from typing import Any, cast

import pytest

from hightide.ingest import http_server
from hightide.ingest.http_server import Callers, IngestServer, Limits
from hightide.ingest.records import key_of
from tests.support.eventually import eventually_async
from tests.unit.ingest.test_http import (
    POST,
    AcknowledgingProducer,
    RecordingWriter,
    exchange,
    parse,
    statuses,
)

TURN_S = 0.1
LINES = b"Content-Type: text/plain\r\n"


def request(*headers, body=b"x", target=b"/"):
    head = b"POST " + target + b" HTTP/1.1\r\n"
    lines = [*headers, b"Content-Length: %d" % len(body), b"", b""]
    return head + b"\r\n".join(lines) + body


@pytest.mark.parametrize(
    "host", [b"localhost", b"LOCALHOST:8092", b"127.0.0.1:8092", b"[::1]:8092", b"10.1.2.3"]
)
def test_a_host_that_is_this_host_or_an_address_is_served(host) -> None:
    values, responses = exchange(request(b"Host: " + host))
    assert (values, statuses(responses)) == ([b"x"], [200])


@pytest.mark.parametrize("host", [b"evil.example", b"127.0.0.1.evil.example", b"", b"[", b"a@b"])
def test_a_name_that_is_pointed_here_is_refused(host) -> None:
    values, responses = exchange(request(b"Host: " + host))
    assert values == []
    assert statuses(responses) in ([403], [400])


def test_the_authority_of_a_target_counts_instead_of_host() -> None:
    values, responses = exchange(request(b"Host: localhost", target=b"http://evil.example/"))
    assert (values, statuses(responses)) == ([], [403])


@pytest.mark.parametrize(
    "header",
    [
        b"Origin: https://evil.example",
        b"Origin: null",
        b"Origin: http://localhost:8092",
        b"Sec-Fetch-Site: cross-site",
        b"Sec-Fetch-Site: same-site",
    ],
)
def test_a_web_page_may_not_send(header) -> None:
    values, responses = exchange(request(b"Host: localhost", header))
    assert (values, statuses(responses)) == ([], [403])
    assert "--allow-origin" in responses[0][1]["error"]


def served(data, **options):
    """Serve these bytes; the values, the responses and the longest turn of the loop in seconds."""
    producer, writer = AcknowledgingProducer(), RecordingWriter()
    turns = []
    run_handle = asyncio.events.Handle._run

    def timed(handle):
        before = time.thread_time()
        run_handle(handle)
        turns.append(time.thread_time() - before)

    async def run() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        asyncio.events.Handle._run = timed
        await IngestServer(producer, ["t"], **options).serve_connection(reader, cast(Any, writer))

    try:
        asyncio.run(run())
    finally:
        asyncio.events.Handle._run = run_handle
    return producer.values, parse(bytes(writer.data)), max(turns)


def test_a_named_origin_and_a_named_host_are_served() -> None:
    callers = Callers(frozenset({"in.example"}), frozenset({"https://good.example"}))
    data = request(b"Host: in.example", b"Origin: https://good.example")
    values, responses, _ = served(data, callers=callers)
    assert (values, statuses(responses)) == ([b"x"], [200])


def test_half_a_surrogate_pair_can_be_a_key() -> None:
    assert key_of("json:k", b'{"k": "\\ud800"}') == b"\\ud800"


def test_json_that_is_nested_too_deeply_has_no_key() -> None:
    assert key_of("json:k", b"[" * 200_000) is None


@pytest.mark.parametrize("line", [b"x\n", b"\n", b"\r\n"])
def test_ten_megabytes_of_tiny_lines_are_refused_without_a_long_turn(line) -> None:
    body = line * ((10 << 20) // len(line))
    values, responses, turn_s = served(request(b"Host: localhost", LINES[:-2], body=body))
    assert (values, statuses(responses)) == ([], [413])
    assert "--max-records" in responses[0][1]["error"]
    assert turn_s < TURN_S


def heavy_requests():
    host = b"Host: localhost"
    lines = b"x\n" * 20_000
    yield "the most records", request(host, LINES[:-2], body=lines), {}
    chunks = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    yield "a chunk for each byte", POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, {}
    packed = gzip.compress(bytes(10 << 20))
    yield "gzip", request(host, b"Content-Encoding: gzip", body=packed), {}
    members = gzip.compress(b"") * 10_000
    yield "gzip members", request(host, b"Content-Encoding: gzip", body=members), {}
    yield "pipelined", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 6_000, {}
    nested = b'{"k": ' + b"[1]," * 10
    # Numbers, because lists would bring garbage collections of all tests before.
    wide = b'{"k": "x", "a": [' + b"1," * 30_000 + b"1]}\n"
    body = wide * ((10 << 20) // len(wide))
    yield "keys of long lines", request(host, LINES[:-2], body=body), {"key": "json:k"}
    yield (
        "keys of many lines",
        request(host, LINES[:-2], body=(nested + b"\n") * 9_000),
        {"key": "json:k"},
    )


@pytest.mark.parametrize(
    ("data", "options"), [pytest.param(d, o, id=name) for name, d, o in heavy_requests()]
)
def test_no_request_keeps_the_loop_for_a_tenth_of_a_second(data, options) -> None:
    *_, turn_s = served(data, limits=Limits(), **options)
    assert turn_s < TURN_S


def test_a_client_that_reads_no_response_is_disconnected() -> None:
    """It pipelines requests, until the responses fill every buffer on the way."""
    data = request(b"Host: localhost", LINES[:-2], body=b"x\n" * 20_000) * 12

    async def run() -> None:
        limits = Limits(request_s=0.5)
        serving = IngestServer(AcknowledgingProducer(), ["t"], limits=limits)
        server = await asyncio.start_server(serving.serve_connection, "127.0.0.1", 0)
        async with server:
            with socket.create_connection(server.sockets[0].getsockname()) as client:
                client.setblocking(False)
                loop = asyncio.get_running_loop()
                sending = asyncio.ensure_future(loop.sock_sendall(client, data))
                await eventually_async(lambda: serving._connections)
                await eventually_async(lambda: not serving._connections)
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    asyncio.run(run())


def test_a_line_that_librdkafka_refuses_is_not_parsed_for_its_key(monkeypatch) -> None:
    """json.loads never releases the GIL, so a thread does not help."""
    parsed = []
    monkeypatch.setattr(http_server, "key_of", lambda _rule, value: parsed.append(value))
    limits = Limits(record_bytes=100)
    long, short = b'{"k": "%s"}' % (b"x" * 100), b'{"k": "x"}'
    served(request(b"Host: localhost", body=long), key="json:k", limits=limits)
    served(request(b"Host: localhost", body=short), key="json:k", limits=limits)
    assert parsed == [short]


def test_a_body_that_inflates_too_far_is_refused() -> None:
    data = request(
        b"Host: localhost", b"Content-Encoding: gzip", body=gzip.compress(bytes(11 << 20))
    )
    values, responses, turn_s = served(data)
    assert (values, statuses(responses)) == ([], [413])
    assert turn_s < TURN_S
