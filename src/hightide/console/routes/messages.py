"""Messages: read, follow, show whole, write, replay.

    GET  /api/v1/topics/{topic}/messages/stream        a scan or a tail, as server-sent events
    GET  /api/v1/topics/{topic}/messages/code          the same reading as a command and as Python
    GET  /api/v1/topics/{topic}/messages/{partition}/{offset}      one record, whole
    POST /api/v1/topics/{topic}/messages               key, value, headers, partition
    POST /api/v1/topics/{topic}/replay                 target, records, placement
    GET  /api/v1/message-formats                       which decoders are there

Parameters of a reading: from, count, time, offset, at, partitions; text, places, match_case, key;
limit, look; isolation; key_as, value_as, schema, message; follow.  The stream sends

    {"type":"begin", …}  {"type":"records", …}  {"type":"progress", …}  {"type":"done"|"failed", …}

A reading has connections of its own and ends when the page closes the stream.  What it looks at and
what it sends is bounded; decompression, decoding and filtering happen in threads.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.leader_cache import LeaderCache
from hightide.console.context import Console
from hightide.console.json_body import flag, json_body, number
from hightide.console.messages import copy_as, decoders, writing
from hightide.console.messages.copy_as import Reading
from hightide.console.messages.filter import PLACES, Filter
from hightide.console.messages.plan import Plan, make_plan
from hightide.console.messages.positions import (
    STARTS,
    Position,
    Span,
    parse_at,
    parse_partitions,
)
from hightide.console.messages.record_view import (
    FORMATS,
    WHOLE_BYTES,
    WHOLE_HEADERS,
    Shown,
    record_view,
)
from hightide.console.messages.scan import FoundIn, Limits, Scan
from hightide.console.messages.tail import follow
from hightide.console.replies import as_json, failed, of_failure, ok
from hightide.wire.errors import KafkaError

CLIENT_ID = "hightide-console"
TIMEOUT_MS = 10_000
RETRY_MS = 10_000
MOST_FOUND = 10_000
MOST_LOOKED = 100_000_000
MOST_STREAMS = 12
MOST_SENT_BYTES = 48 * 1024 * 1024
MOST_SCHEMA_CHARACTERS = 48_000
PROGRESS_S = 0.3
FAILURES = (KafkaError, ConnectionFailed, ValueError, TimeoutError, OSError)
MAX_TIME_MS = 2**62


@dataclass(frozen=True, slots=True)
class Query:
    """What a page asks to read."""

    reading: Reading
    wanted: Filter
    limits: Limits
    shown: Shown


def routes(console: Console) -> list[Route]:
    api = MessageRoutes(console)
    messages = "/api/v1/topics/{topic}/messages"
    return [
        Route("/api/v1/message-formats", api.formats, methods=["GET"]),
        Route(f"{messages}/stream", api.stream, methods=["GET"]),
        Route(f"{messages}/code", api.code, methods=["GET"]),
        Route(messages + "/{partition:int}/{offset:int}", api.whole, methods=["GET"]),
        Route(messages, api.produce, methods=["POST"]),
        Route("/api/v1/topics/{topic}/replay", api.replay, methods=["POST"]),
    ]


class MessageRoutes:
    """The handlers, the schema registry and how many readings are open."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = 0
        url = console.options.schema_registry
        self._registry = decoders.Registry(url) if url else None

    @property
    def _bootstrap(self) -> str:
        return self._console.options.bootstrap

    def _connect(self) -> tuple[Admin, LeaderCache]:
        """A client of its own: a large response must not delay the observer."""
        admin = Admin(self._bootstrap, client_id=CLIENT_ID, timeout_ms=TIMEOUT_MS)
        return admin, LeaderCache(admin.router, retry_ms=RETRY_MS)

    async def formats(self, _request: Request) -> Response:
        return ok(
            {
                "formats": FORMATS,
                "avro": decoders.has_avro(),
                "avro_note": "" if decoders.has_avro() else decoders.NO_FASTAVRO,
                "protobuf": decoders.has_protobuf(),
                "protobuf_note": "" if decoders.has_protobuf() else decoders.NO_PROTOBUF,
                "registry": None if self._registry is None else self._registry.address,
            }
        )

    # -- read ------------------------------------------------------------------------------

    async def stream(self, request: Request) -> Response:
        return StreamingResponse(
            self._messages(request),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _messages(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Server-sent events.  A failure is an event too: the page should not connect again."""
        if self._open >= MOST_STREAMS:
            yield _event({"type": "failed", "error": "Too many pages read messages now."})
            return
        self._open += 1
        admin, leaders = self._connect()
        try:
            query = await asyncio.to_thread(self._query, request)
            async with aclosing(self._read(admin, leaders, query)) as events:
                async for event in events:
                    if self._console.closing.is_set():
                        return
                    yield event
        except FAILURES as error:
            sentence = error.detail if isinstance(error, KafkaError) else str(error)
            yield _event({"type": "failed", "error": sentence})
        finally:
            self._open -= 1
            admin.close()

    async def _read(
        self, admin: Admin, leaders: LeaderCache, query: Query
    ) -> AsyncGenerator[bytes, None]:
        reading = query.reading
        plan = await make_plan(
            admin,
            leaders,
            reading.topic,
            reading.position,
            reading.partitions,
            read_committed=reading.read_committed,
        )
        yield _event({"type": "begin", **self._begin(query, plan)})
        if reading.follow:
            source = self._tail(leaders, query, plan)
        else:
            source = self._scan(leaders, query, plan)
        async with aclosing(source):
            async for event in source:
                yield event

    def _begin(self, query: Query, plan: Plan) -> dict[str, Any]:
        return {
            **self._code(query.reading),
            "following": query.reading.follow,
            "partitions": [
                {
                    "partition": span.partition,
                    "start_offset": plan.starts[span.partition],
                    "from_offset": span.begin,
                    "end_offset": span.end,
                }
                for span in plan.spans
            ],
            "held": dict(plan.held),
        }

    async def _scan(
        self, leaders: LeaderCache, query: Query, plan: Plan
    ) -> AsyncGenerator[bytes, None]:
        scan = Scan(
            leaders,
            query.reading.topic,
            plan.spans,
            query.wanted,
            query.limits,
            read_committed=query.reading.read_committed,
        )
        sent, told_s = 0, 0.0
        async with aclosing(scan.run()) as turns:
            async for found in turns:
                now_s = time.monotonic()
                if found:
                    event = await asyncio.to_thread(_records_event, found, query.shown)
                    sent += len(event)
                    yield event
                if found or now_s - told_s >= PROGRESS_S:
                    told_s = now_s
                    yield _event({"type": "progress", **_progress(scan)})
                if sent > MOST_SENT_BYTES:
                    scan.progress.stopped = "bytes"
                    break
        positions = scan.positions()
        ends = {span.partition: span.end for span in plan.spans}
        more = any(offset < ends[partition] for partition, offset in positions.items())
        yield _event(
            {
                "type": "done",
                **_progress(scan),
                "stopped": scan.progress.stopped or "end",
                "more": more,
                "at": ",".join(f"{index}:{offset}" for index, offset in positions.items()),
                "damaged": scan.progress.damaged[:20],
            }
        )

    async def _tail(
        self, leaders: LeaderCache, query: Query, plan: Plan
    ) -> AsyncGenerator[bytes, None]:
        reading = query.reading
        looked = skipped = 0
        looks = follow(
            leaders,
            reading.topic,
            plan.spans,
            query.wanted,
            read_committed=reading.read_committed,
        )
        async with aclosing(looks):
            async for look in looks:
                looked, skipped = looked + look.looked, skipped + look.skipped
                if look.found:
                    yield await asyncio.to_thread(_records_event, look.found, query.shown)
                # Also when nothing is new: so a page that has gone is noticed.
                yield _event(
                    {
                        "type": "progress",
                        "looked": looked,
                        "skipped": skipped,
                        "damaged": look.damaged[:20],
                    }
                )

    async def whole(self, request: Request) -> Response:
        """One record with all its bytes, up to 4 MiB of each text."""
        topic = request.path_params["topic"]
        partition, offset = request.path_params["partition"], request.path_params["offset"]
        query = await asyncio.to_thread(self._query, request)
        shown = Shown(
            query.shown.key,
            query.shown.value,
            WHOLE_BYTES,
            WHOLE_HEADERS,
            WHOLE_BYTES,
            query.shown.decoders,
        )
        admin, leaders = self._connect()
        try:
            plan = await make_plan(
                admin,
                leaders,
                topic,
                Position("at", at={partition: offset}),
                [partition],
                read_committed=query.reading.read_committed,
            )
            span = plan.spans[0]
            if not plan.starts[partition] <= offset < span.end:
                return failed(
                    404,
                    f"{topic}/{partition} has no record at offset {offset} now: it begins at"
                    f" {plan.starts[partition]} and ends at {span.end}.",
                )
            scan = Scan(
                leaders,
                topic,
                [Span(partition, offset, offset + 1)],
                Filter(),
                Limits(found=1, seconds=20.0),
                read_committed=query.reading.read_committed,
            )
            async with aclosing(scan.run()) as turns:
                async for found in turns:
                    if found:
                        view = await asyncio.to_thread(
                            record_view, partition, found[0].found, shown
                        )
                        text = await asyncio.to_thread(as_json, {"record": view})
                        return Response(text, media_type="application/json")
        finally:
            admin.close()
        why = " ".join(scan.progress.damaged) or (
            "It was compacted away, or belongs to an aborted transaction or a marker."
        )
        return failed(404, f"{topic}/{partition} has no record at offset {offset}. {why}")

    async def code(self, request: Request) -> Response:
        return ok(self._code((await asyncio.to_thread(self._query, request)).reading))

    def _code(self, reading: Reading) -> dict[str, str]:
        return {
            "command": copy_as.as_command(self._bootstrap, reading),
            "python": copy_as.as_python(self._bootstrap, reading),
            "kafka_python": copy_as.as_kafka_python(self._bootstrap, reading),
        }

    def _query(self, request: Request) -> Query:
        """The parameters of a request; schemas are parsed and read from the registry."""
        given = request.query_params
        start = given.get("from", "last")
        if start not in STARTS:
            raise ValueError(f"from should be one of {', '.join(STARTS)}, not {start!r}.")
        follows = flag(request, "follow")
        isolation = given.get("isolation", "read_committed")
        if isolation not in ("read_committed", "read_uncommitted"):
            raise ValueError(f"isolation is read_committed or read_uncommitted, not {isolation!r}.")
        limit = number(request, "limit", 500, 1, MOST_FOUND)
        position = Position(
            start,
            count=number(request, "count", 100, 1, MOST_FOUND),
            time_ms=number(request, "time", 0, 0, MAX_TIME_MS),
            offset=number(request, "offset", 0, 0, 2**62),
            at=parse_at(given.get("at", "")),
        )
        key = given.get("key")
        places = tuple(given.get("places", ",".join(PLACES)).split(","))
        if not set(places) <= set(PLACES):
            raise ValueError(f"places should be of {', '.join(PLACES)}.")
        wanted = Filter(
            given.get("text", ""),
            places,
            flag(request, "match_case"),
            None if not key else key.encode(),
        )
        reading = Reading(
            request.path_params["topic"],
            position,
            tuple(parse_partitions(given.get("partitions", ""))),
            None if follows or start == "last" or not wanted.is_empty else limit,
            follows,
            isolation == "read_committed",
        )
        limits = Limits(found=limit, looked=number(request, "look", 1_000_000, 1, MOST_LOOKED))
        return Query(reading, wanted, limits, self._shown(given))

    def _shown(self, given: Mapping[str, str]) -> Shown:
        key_as, value_as = given.get("key_as", "auto"), given.get("value_as", "auto")
        for form in (key_as, value_as):
            if form not in FORMATS:
                raise ValueError(f"{form!r} is not one of {', '.join(FORMATS)}.")
        schema = given.get("schema", "")
        if len(schema) > MOST_SCHEMA_CHARACTERS:
            raise ValueError(f"The schema is longer than {MOST_SCHEMA_CHARACTERS} characters.")
        made: dict[str, decoders.Decode] = {}
        if "avro" in (key_as, value_as):
            if self._registry is not None:
                self._registry.forget_failures()
            made["avro"] = decoders.avro_decoder(schema or None, self._registry)
        if "protobuf" in (key_as, value_as):
            try:
                descriptors = base64.b64decode(schema, validate=True)
            except binascii.Error:
                raise ValueError("The descriptors of Protobuf should be base64.") from None
            if not descriptors:
                raise ValueError("Protobuf needs a file of descriptors: choose one.")
            made["protobuf"] = decoders.protobuf_decoder(descriptors, given.get("message", ""))
        return Shown(key_as, value_as, decoders=made)

    # -- write -----------------------------------------------------------------------------

    async def produce(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        record = writing.parse_record(await json_body(request))
        line = writing.produce_command(self._bootstrap, topic, record)
        if flag(request, "dry_run"):
            return ok({"command": line, "dry_run": True})
        admin, leaders = self._connect()
        try:
            now_ms = time.time_ns() // 1_000_000
            written = await writing.produce(admin, leaders, topic, record, now_ms)
        finally:
            admin.close()
        return ok({"command": line, "dry_run": False, **asdict(written), "time_ms": now_ms})

    async def replay(self, request: Request) -> Response:
        given = await json_body(request)
        target, placement = given.get("target"), given.get("placement", "same")
        if not isinstance(target, str) or not target:
            return failed(400, "Choose the topic to write to.")
        if placement not in ("same", "key"):
            return failed(400, "placement should be same or key.")
        replay = writing.Replay(
            request.path_params["topic"],
            target,
            writing.parse_selection(given.get("records")),
            placement,
            flag(request, "dry_run"),
        )
        admin, leaders = self._connect()
        failure: Exception | None = None
        try:
            async with aclosing(writing.run_replay(admin, leaders, replay)) as parts:
                async for _ in parts:
                    if await request.is_disconnected():
                        break
        except FAILURES as error:
            if not replay.written:
                return of_failure(error)
            failure = error
        finally:
            admin.close()
        lines = writing.replay_commands(self._bootstrap, replay)
        report = {
            "command": "\n".join(lines[: writing.COMMANDS_SHOWN]),
            "commands": len(lines),
            "dry_run": replay.is_dry,
            "wanted": replay.wanted,
            "read": replay.read,
            "written": replay.written,
            "bytes": replay.bytes,
            "missing": [list(place) for place in replay.missing[:100]],
            "missing_count": len(replay.missing),
            "by_partition": replay.by_partition,
        }
        if failure is not None:
            sentence = f"Only {replay.written} of {replay.wanted} records are written: {failure}"
            return failed(409, sentence, **report)
        return ok(report)


def _progress(scan: Scan) -> dict[str, Any]:
    progress = scan.progress
    return {
        "looked": progress.looked,
        "found": progress.found,
        "bytes": progress.bytes,
        "offsets": progress.offsets,
        "of_offsets": progress.of_offsets,
    }


def _records_event(found: list[FoundIn], shown: Shown) -> bytes:
    records = [record_view(one.partition, one.found, shown) for one in found]
    return _event({"type": "records", "records": records})


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + as_json(data).encode() + b"\n\n"
