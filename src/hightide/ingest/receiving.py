"""The server of `ingest http`: a request is answered when its records are acknowledged.

    POST /                  to the first topic of --to
    POST /topics/TOPIC      to one of them
    GET  /health

A body of text or of lines of JSON is one record per line, any other is one record.  The answer has
the partition and offset of each record, so a client that gets it knows that the records are safe,
and one that gets none may send again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from hightide.client.librdkafka import library, sentence
from hightide.ingest import http_request
from hightide.ingest.http_request import Head, Refused
from hightide.ingest.records import key_of

LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines", "text/plain")
IDLE_S = 60
BODY_S = 60
GRACE_S = 30


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server takes, at most."""

    body_bytes: int = 10 << 20
    connections: int = 256
    # Of all requests that are being answered.
    total_bytes: int = 256 << 20


class Delivery:
    """The records of one request on their way."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.offsets: list[dict[str, int]] = [{}] * count
        self.error: Any = None
        self.done = asyncio.Event()
        self._waiting = count
        self._lock = threading.Lock()
        self._loop = loop

    def delivered(self, at: int, error: Any, message: Any) -> None:
        """Called for each record, in the thread that polls."""
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


class Receiver:
    """An HTTP server before a producer."""

    def __init__(
        self, producer: Any, topics: list[str], *, key: str = "none", limits: Limits | None = None
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._key = key
        self._limits = limits or Limits()
        self._connections: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._is_stopping = False
        self._polls = True
        self.records = 0

    async def serve(self, host: str, port: int, stop: asyncio.Event, ready: Any = None) -> None:
        """Answer until `stop` is set, then finish what has begun."""
        polling = threading.Thread(target=self._poll, name="polling", daemon=True)
        polling.start()
        server = await asyncio.start_server(
            self._connected, host, port, limit=http_request.HEAD_BYTES
        )
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

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self._limits.connections:
            words = {"error": f"There are {self._limits.connections} connections already."}
            writer.write(
                http_request.answer(HTTPStatus.SERVICE_UNAVAILABLE, words, keeps_alive=False)
            )
            await _close(writer)
            return
        self._connections.add(task)
        try:
            while not self._is_stopping and await self._answered(reader, writer):
                pass
        except (ConnectionError, TimeoutError):
            pass  # The client is gone, or says nothing.
        finally:
            self._connections.discard(task)
            await _close(writer)

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether another request may follow."""
        keeps_alive = False
        try:
            async with asyncio.timeout(IDLE_S):
                head = await http_request.read_head(reader)
            if head is None:
                return False
            keeps_alive = head.keeps_alive and not self._is_stopping
            status, body = await self._handled(head, reader, writer)
        except Refused as refused:
            status, body = refused.status, refused.body
            keeps_alive = keeps_alive and refused.keeps
        writer.write(http_request.answer(status, body, keeps_alive=keeps_alive))
        await writer.drain()
        return keeps_alive

    async def _handled(
        self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        if head.method == "GET" and head.path == "/health":
            return HTTPStatus.OK, {"topics": self._topics, "records": self.records}
        topic = self._topic(head)
        if head.method != "POST":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "Records are sent with POST.")
        with self._room(head):
            async with asyncio.timeout(BODY_S):
                body = await http_request.read_body(head, reader, writer, self._limits.body_bytes)
            values = _values(head, body)
            if not values:
                raise Refused(HTTPStatus.BAD_REQUEST, "The body is empty.", keeps=True)
            return await self._produced(topic, values, head.query.get("key"))

    def _topic(self, head: Head) -> str:
        if head.path == "/":
            return self._topics[0]
        name = head.path.removeprefix("/topics/").removesuffix("/")
        if not head.path.startswith("/topics/") or name not in self._topics:
            known = ", ".join(f"/topics/{each}" for each in self._topics)
            raise Refused(HTTPStatus.NOT_FOUND, f"There is no {head.path} here; there are {known}.")
        return name

    @contextlib.contextmanager
    def _room(self, head: Head) -> Iterator[None]:
        """Take part of the memory that all requests share."""
        length = head.headers.get("content-length", "")
        wanted = int(length) if length.isdecimal() else self._limits.body_bytes
        wanted = min(wanted, self._limits.body_bytes)
        if self._bytes + wanted > self._limits.total_bytes:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "There is too much to do; try again.")
        self._bytes += wanted
        try:
            yield
        finally:
            self._bytes -= wanted

    async def _produced(
        self, topic: str, values: list[bytes], key: str | None
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        delivery = Delivery(len(values), asyncio.get_running_loop())
        for at, value in enumerate(values):
            chosen = key_of(self._key, value) if key is None else key.encode()
            try:
                await self._queue(topic, value, chosen, delivery, at)
            except library().KafkaException as error:
                delivery.error = error.args[0]
                # The library refuses this one at once; the rest is not tried.
                delivery.settle(len(values) - at)
                break
        await delivery.done.wait()
        written = sum(1 for each in delivery.offsets if each)
        self.records += written
        if delivery.error is not None:
            raise Refused(
                _status(delivery.error), sentence(delivery.error), keeps=True, written=written
            )
        return HTTPStatus.OK, {"topic": topic, "records": written, "offsets": delivery.offsets}

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
                # The queue is full; the thread that polls makes room.
                await asyncio.sleep(0.02)


def _values(head: Head, body: bytes) -> list[bytes]:
    if head.media_type in LINES:
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


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
