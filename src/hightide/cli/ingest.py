"""`hightide ingest`: lines of files, of HTTP requests or of stdin into a topic."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    ClientSettings,
    Failed,
    ask,
    client_settings,
    wrong_usage,
)
from hightide.cli.render import say
from hightide.client.admin import Admin
from hightide.wire.errors import ErrorCode, KafkaError

app = typer.Typer(
    no_args_is_help=True, help="Collect lines of files, HTTP requests or stdin into a topic."
)

To = Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic.")]
Key = Annotated[
    str, typer.Option("--key", "-k", metavar="RULE", help="none, or json:FIELD of the line.")
]
LineBytes = Annotated[
    int, typer.Option("--max-line", min=100, help="Longer lines are cut, in bytes.")
]


class Format(StrEnum):
    RAW = "raw"
    JSON = "json"


@app.command()
def files(
    patterns: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files; * and ** are wildcards.")
    ],
    to: To,
    key: Annotated[
        str,
        typer.Option("--key", "-k", metavar="RULE", help="path, none, or json:FIELD of the line."),
    ] = "path",
    format: Annotated[
        Format, typer.Option("--format", "-f", help="The line itself, or JSON with its origin.")
    ] = Format.RAW,
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, and end.")] = False,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="Lines and positions in transactions.")
    ] = False,
    from_end: Annotated[
        bool, typer.Option("--from-end", help="At the first start, skip existing lines.")
    ] = False,
    begins: Annotated[
        str | None,
        typer.Option("--begins", metavar="REGEX", help="Pattern of the first line of an event."),
    ] = None,
    quiet_s: Annotated[
        float,
        typer.Option(
            "--quiet", min=0, help="Seconds without writes until a rotated file is closed."
        ),
    ] = 5.0,
    line_bytes: LineBytes = 900_000,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the collector. Default: the topic.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", help="Where positions are stored. Default: .hightide/ingest/NAME.json."
        ),
    ] = None,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Follow files into a topic, across rotation and restarts.

    Quote patterns, so that files that are created later are found too. A line is sent when it is
    complete. Positions are stored when the brokers have acknowledged the lines before them: after a
    crash some lines may be sent again; with --exactly-once none are, for consumers with
    read_committed.
    """
    from hightide.ingest.file_follower import FollowRules
    from hightide.ingest.records import RecordFormat, check_key

    try:
        check_key(key, "path", "none")
        pattern = None if begins is None else re.compile(begins.encode())
    except (ValueError, re.error) as error:
        wrong_usage(str(error))
    rules = FollowRules(tuple(patterns), from_end, quiet_s, pattern, line_bytes)
    shape = RecordFormat(socket.gethostname(), key, format.value)
    _ensure(bootstrap, to)
    chosen = name or to
    client = {**_for_lines(line_bytes), **client_settings(settings)}

    def collect() -> int:
        stopping = _until_signal()
        if exactly_once:
            made = _exactly_once(bootstrap, to, client, rules, shape, chosen, stopping)
        else:
            path = state or Path(".hightide") / "ingest" / f"{chosen}.json"
            made = _at_least_once(bootstrap, to, client, rules, shape, path, stopping)
        sent: int = made.run(once=once)
        return sent

    _run(collect, to)


def _at_least_once(
    bootstrap: str,
    to: str,
    client: dict[str, Any],
    rules: Any,
    shape: Any,
    path: Path,
    stopping: Callable[[], bool],
) -> Any:
    from hightide.ingest.collector import Collector
    from hightide.ingest.file_follower import FileFollower, existing
    from hightide.ingest.positions import StateFile
    from hightide.ingest.sender import Sender

    kept = StateFile(path)
    follower = FileFollower(rules, existing(kept.load()), say)
    sender = Sender(bootstrap, to, client, say=say, is_stopping=stopping)
    return Collector(follower, sender, shape, kept, is_stopping=stopping)


def _exactly_once(
    bootstrap: str,
    to: str,
    client: dict[str, Any],
    rules: Any,
    shape: Any,
    name: str,
    stopping: Callable[[], bool],
) -> Any:
    from hightide.ingest.collector import Collector
    from hightide.ingest.file_follower import FileFollower, existing
    from hightide.ingest.positions import POSITIONS_TOPIC, load_from_topic
    from hightide.ingest.sender import ExactlyOnceSender

    ask(bootstrap, _positions_topic)
    # The sender first: it aborts the transaction of a dead collector before positions are read.
    sender = ExactlyOnceSender(
        bootstrap,
        to,
        client,
        name=name,
        positions_topic=POSITIONS_TOPIC,
        say=say,
        is_stopping=stopping,
    )
    known = load_from_topic(bootstrap, POSITIONS_TOPIC, name, client)
    kept = existing(known)
    forgotten = [identity for identity in known if identity not in kept]
    follower = FileFollower(rules, kept, say)
    return Collector(follower, sender, shape, None, forgotten, is_stopping=stopping)


async def _positions_topic(admin: Admin) -> None:
    from hightide.ingest.positions import POSITIONS_TOPIC

    try:
        await admin.topics.create(
            POSITIONS_TOPIC, partitions=1, config={"cleanup.policy": "compact"}
        )
    except KafkaError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


@app.command()
def stdin(
    to: To,
    key: Key = "none",
    line_bytes: LineBytes = 900_000,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Send the lines of stdin as they come, until its end.

    The exit code is 1 if a line was not acknowledged.
    """
    from hightide.ingest.collector import collect_stdin
    from hightide.ingest.records import check_key
    from hightide.ingest.sender import Sender

    try:
        check_key(key, "none")
    except ValueError as error:
        wrong_usage(str(error))
    client = {**_for_lines(line_bytes), "message.timeout.ms": 60_000}
    client |= client_settings(settings)
    _ensure(bootstrap, to)

    def collect() -> int:
        stopping = _until_signal()
        sender = Sender(bootstrap, to, client, say=say)
        return collect_stdin(sender, key, line_bytes, stopping)

    _run(collect, to)


@app.command()
def http(
    to: Annotated[
        list[str], typer.Option("--to", metavar="TOPIC", help="A topic to write to; repeatable.")
    ],
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535)] = 8092,
    key: Key = "none",
    body_bytes: Annotated[
        int, typer.Option("--max-body", min=1, help="Largest body of a request, in bytes.")
    ] = 10 << 20,
    connections: Annotated[int, typer.Option("--max-connections", min=1)] = 256,
    records: Annotated[
        int, typer.Option("--max-records", min=1, help="Most lines in a request.")
    ] = 20_000,
    head_bytes: Annotated[
        int,
        typer.Option("--max-head", min=1024, help="Largest request line and headers, in bytes."),
    ] = 32 << 10,
    request_s: Annotated[
        float,
        typer.Option(
            "--request-timeout", min=0.1, help="Seconds for a head, a body or a response."
        ),
    ] = 60,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name of this server; repeatable."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin", metavar="ORIGIN", help="Web pages that may send; repeatable."
        ),
    ] = None,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Receive records by HTTP: POST to / or /topics/TOPIC.

    Bodies of text/plain or application/x-ndjson are one record per line, all others one record. The
    response comes when the brokers have acknowledged the records, and has their offsets. Web pages
    may not send, and Host must be an address, localhost, --host or --allow-host.
    """
    from hightide.ingest.http_server import Callers, IngestServer, Limits
    from hightide.ingest.records import check_key
    from hightide.ingest.sender import producer

    try:
        check_key(key, "none")
    except ValueError as error:
        wrong_usage(str(error))
    client: dict[str, Any] = {
        "message.max.bytes": 1_000_000,
        "message.timeout.ms": 30_000,
        "topic.metadata.propagation.max.ms": 5_000,
        **client_settings(settings),
    }

    try:
        record_bytes = int(client["message.max.bytes"])
    except ValueError as error:
        wrong_usage(f"-X message.max.bytes: {error}")
    for topic in to:
        _ensure(bootstrap, topic)

    async def serve() -> int:
        server = IngestServer(
            producer(bootstrap, client, say),
            to,
            key=key,
            limits=Limits(
                body_bytes,
                connections,
                records,
                head_bytes=head_bytes,
                record_bytes=record_bytes,
                request_s=request_s,
            ),
            callers=Callers(
                frozenset({"localhost", host.lower(), *map(str.lower, allow_host or ())}),
                frozenset(allow_origin or ()),
            ),
        )
        stop = asyncio.Event()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
        await server.serve(
            host,
            port,
            stop,
            lambda at: say(f"Listening on http://{host}:{at} for {', '.join(to)}."),
        )
        return server.records

    _run(lambda: asyncio.run(serve()), ", ".join(to))


def _ensure(bootstrap: str, topic: str) -> None:
    """Check the topic first, to report a wrong address or topic at once."""
    ask(bootstrap, lambda admin: admin.topics.ensure(topic))


def _run(collect: Callable[[], int], to: str) -> None:
    from hightide.ingest.sender import IngestError

    try:
        count = collect()
    except IngestError as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"{error.strerror or error}.") from None
    say(f"{count} record{'' if count == 1 else 's'} to {to}")


def _for_lines(line_bytes: int) -> dict[str, Any]:
    """Return the setting that lets librdkafka produce lines of this size."""
    return {"message.max.bytes": max(1_000_000, line_bytes + (64 << 10))}


def _until_signal() -> Callable[[], bool]:
    """Return whether a signal has come; the second signal ends the process."""
    received: list[int] = []

    def on_signal(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, on_signal)
    return lambda: bool(received)
