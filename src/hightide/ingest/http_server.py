"""The server of `ingest http`: it responds to a request when its records are acknowledged.

    POST /                  write to the first topic of --to
    POST /topics/TOPIC      write to one of the topics of --to
    GET  /health

A body of text or of JSON lines is one record per line, any other body is one record. The response
has the partition and offset of each record, so a client that gets it knows that the records are
written. A client that gets no response may send again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from hightide.client.librdkafka import library, sentence
from hightide.ingest.http_connection import HttpConnection, HttpError, Request
from hightide.ingest.records import key_of

LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines", "text/plain")
GRACE_S = 30
# How much one turn of the event loop does.
TURN_RECORDS = 500
TURN_BYTES = 64 << 10
LARGE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server accepts at most."""

    body_bytes: int = 10 << 20
    connections: int = 256
    # Records of one request.
    records: int = 20_000
    head_bytes: int = 32 << 10
    # What librdkafka takes. A larger record is refused, so its key is not looked for.
    record_bytes: int = 1_000_000
    # Until the head of the next request is read, and from there until its body is.
    request_s: float = 60
    # The bodies of all requests in progress.
    total_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class Callers:
    """Who may send requests: no web page, unless its origin is named.

    A browser sends the requests of any page, also to addresses that only this host reaches. It adds
    the page's Origin. A page whose name an attacker points to this host (DNS rebinding) has that
    name as its Host, so a name counts only if it is known; an address cannot be pointed elsewhere.
    """

    hosts: frozenset[str] = frozenset({"localhost"})
    origins: frozenset[str] = frozenset()

    def check(self, request: Request) -> None:
        """Raise HttpError if a web page may have sent the request."""
        try:
            host = urllib.parse.urlsplit(f"//{request.host}").hostname or ""
        except ValueError:
            host = ""
        if host not in self.hosts and not _is_address(host):
            raise _forbidden(f"Host is {host or 'empty'}; --allow-host {host or 'NAME'} accepts it")
        origin = request.headers.get("origin")
        if origin is not None and origin not in self.origins:
            raise _forbidden(f"web page {origin} may not send here; --allow-origin accepts one")
        site = request.headers.get("sec-fetch-site", "none")
        if origin is None and site not in ("none", "same-origin"):
            raise _forbidden("other web pages may not send here; --allow-origin accepts one")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _forbidden(reason: str) -> HttpError:
    return HttpError(HTTPStatus.FORBIDDEN, reason)


class Delivery:
    """The records of one request that are produced and not yet acknowledged."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.offsets: list[dict[str, int]] = [{}] * count
        self.error: Any = None
        self.done = asyncio.Event()
        self._waiting = count
        self._lock = threading.Lock()
        self._loop = loop

    def delivered(self, at: int, error: Any, message: Any) -> None:
        """Delivery callback of one record; runs in the polling thread."""
        if error is None:
            self.offsets[at] = {"partition": message.partition(), "offset": message.offset()}
        else:
            self.error = self.error or error
        self.settle(1)

    def settle(self, count: int) -> None:
        with self._lock:
            self._waiting -= count
            is_done = self._waiting == 0
        if is_done:
            self._loop.call_soon_threadsafe(self.done.set)


class IngestServer:
    """An HTTP server that produces what it receives."""

    def __init__(
        self,
        producer: Any,
        topics: list[str],
        *,
        key: str = "none",
        limits: Limits | None = None,
        callers: Callers | None = None,
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._key = key
        self._limits = limits or Limits()
        self._callers = callers or Callers()
        self._connections: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._is_stopping = False
        self._polls = True
        self.records = 0

    async def serve(self, host: str, port: int, stop: asyncio.Event, ready: Any = None) -> None:
        """Serve until `stop` is set, then finish the requests in progress."""
        polling = threading.Thread(target=self._poll, name="polling", daemon=True)
        polling.start()
        server = await asyncio.start_server(self.serve_connection, host, port)
        if ready is not None:
            ready(server.sockets[0].getsockname()[1])
        try:
            await stop.wait()
        finally:
            server.close()
            self._is_stopping = True
            if self._connections:
                await asyncio.wait(self._connections, timeout=GRACE_S)
            for task in self._connections:
                task.cancel()
            await server.wait_closed()
            self._polls = False
            polling.join()

    def _poll(self) -> None:
        while self._polls:
            self._producer.poll(0.2)

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection, in order."""
        task = asyncio.current_task()
        assert task is not None
        connection = HttpConnection(reader, writer, self._limits.head_bytes)
        if len(self._connections) >= self._limits.connections:
            refused = HttpError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._limits.connections} connections are open, retry later",
            )
            with contextlib.suppress(OSError):
                await self._respond(connection, refused.status, refused.body, keeps_alive=False)
            await self._close(writer)
            return
        self._connections.add(task)
        try:
            await self._serve_requests(connection)
        except OSError:
            pass  # The client has disconnected, or is idle for too long.
        finally:
            await self._close(writer)
            self._connections.discard(task)

    async def _serve_requests(self, connection: HttpConnection) -> None:
        takes_more = True
        while takes_more and not self._is_stopping:
            takes_more = await self._serve_request(connection)
            # Pipelined requests must not keep the loop.
            await asyncio.sleep(0)

    async def _serve_request(self, connection: HttpConnection) -> bool:
        """Read a request and respond; return whether another request may follow."""
        keeps_alive = True
        try:
            async with asyncio.timeout(self._limits.request_s):
                request = await connection.read_request()
            if request is None:
                return False
            status, body = await self._handle(request, connection)
        except HttpError as error:
            status, body = error.status, error.body
            keeps_alive = error.keeps_alive
        return await self._respond(
            connection, status, body, keeps_alive=keeps_alive and not self._is_stopping
        )

    async def _respond(
        self,
        connection: HttpConnection,
        status: HTTPStatus,
        body: dict[str, Any],
        *,
        keeps_alive: bool,
    ) -> bool:
        async with asyncio.timeout(self._limits.request_s):  # A client may read nothing.
            return await connection.respond(status, body, keeps_alive=keeps_alive)

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        """Close a connection; drop what a client has not read in time."""
        writer.close()
        try:
            async with asyncio.timeout(self._limits.request_s):
                await writer.wait_closed()
        except OSError:
            writer.transport.abort()

    async def _handle(
        self, request: Request, connection: HttpConnection
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        self._callers.check(request)
        if request.method == "GET" and request.path == "/health":
            return HTTPStatus.OK, {"topics": self._topics, "records": self.records}
        topic = self._topic(request)
        if request.method != "POST":
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "send records with POST")
        with self._memory() as hold:
            async with asyncio.timeout(self._limits.request_s):
                body = await connection.read_body(request, self._limits.body_bytes, hold)
            values = _values(request, body, self._limits.records)
            if not values:
                raise HttpError(HTTPStatus.BAD_REQUEST, "the body is empty", keeps_alive=True)
            return await self._produce(topic, values, request.query.get("key"))

    def _topic(self, request: Request) -> str:
        if request.path == "/":
            return self._topics[0]
        name = request.path.removeprefix("/topics/").removesuffix("/")
        if not request.path.startswith("/topics/") or name not in self._topics:
            known = ", ".join(f"/topics/{topic}" for topic in self._topics)
            raise HttpError(
                HTTPStatus.NOT_FOUND, f"there is no {request.path} here; there are {known}"
            )
        return name

    @contextlib.contextmanager
    def _memory(self) -> Iterator[Callable[[int], None]]:
        """Return a function that takes a part of the memory that all requests share.

        A body counts when it arrives, and when it is decompressed: what a client announces is free.
        """
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            if self._bytes + count > self._limits.total_bytes:
                raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "queue full, retry later")
            held += count
            self._bytes += count

        try:
            yield hold
        finally:
            self._bytes -= held

    async def _produce(
        self, topic: str, values: list[bytes], key: str | None
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        delivery = Delivery(len(values), asyncio.get_running_loop())
        bytes_left = TURN_BYTES
        for at, value in enumerate(values):
            bytes_left -= len(value)
            if at % TURN_RECORDS == TURN_RECORDS - 1 or bytes_left < 0:
                bytes_left = TURN_BYTES
                await asyncio.sleep(0)
            chosen = await self._key_of(value) if key is None else key.encode()
            try:
                await self._queue(topic, value, chosen, delivery, at)
            except library().KafkaException as error:
                delivery.error = error.args[0]
                # librdkafka refuses this record at once; the rest is not tried.
                delivery.settle(len(values) - at)
                break
        await delivery.done.wait()
        written = sum(1 for offset in delivery.offsets if offset)
        self.records += written
        if delivery.error is not None:
            raise HttpError(
                _status(delivery.error), sentence(delivery.error), keeps_alive=True, written=written
            )
        return HTTPStatus.OK, {"topic": topic, "records": written, "offsets": delivery.offsets}

    async def _key_of(self, value: bytes) -> bytes | None:
        if len(value) > self._limits.record_bytes:
            return None
        if self._key != "none" and len(value) > LARGE_BYTES:
            return await asyncio.to_thread(key_of, self._key, value)
        return key_of(self._key, value)

    async def _queue(
        self, topic: str, value: bytes, key: bytes | None, delivery: Delivery, at: int
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    on_delivery=lambda error, message: delivery.delivered(at, error, message),
                )
                return
            except BufferError:
                # librdkafka's queue is full; the polling thread empties it.
                await asyncio.sleep(0.02)


def _values(request: Request, body: bytes, limit: int) -> list[bytes]:
    if request.media_type in LINES:
        # Counted before the lines are split: bytes are cheap, and records are not.
        if body.count(b"\n") > limit:
            raise HttpError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has more than {limit} lines; send less at a time, or set --max-records",
                keeps_alive=True,
            )
        lines = (line.removesuffix(b"\r") for line in body.split(b"\n"))
        return [line for line in lines if line]
    return [body] if body else []


def _status(error: Any) -> HTTPStatus:
    kafka = library().KafkaError
    if error.code() in (kafka.MSG_SIZE_TOO_LARGE, kafka.INVALID_MSG_SIZE):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if error.code() in (
        kafka.UNKNOWN_TOPIC_OR_PART, kafka._UNKNOWN_TOPIC, kafka._UNKNOWN_PARTITION,
    ):  # fmt: skip
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.SERVICE_UNAVAILABLE
