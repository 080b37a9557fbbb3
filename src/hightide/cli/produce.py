"""`hightide produce`: records from arguments, lines, files or JSON into a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hightide.cli import librdkafka, lines, render
from hightide.cli.lines import Headers, Outgoing
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    ClientSettings,
    Failed,
    ask,
    misused,
    pairs,
)
from hightide.cli.render import Output


@dataclass(frozen=True, slots=True)
class ProducedRow:
    topic: str
    partition: int
    offset: int
    timestamp: int


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE]...", help="One record each; none: lines of stdin."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="What parts key from value."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="For every record; repeatable."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Default: by key.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Lines of a file."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="All of the input is one record, not one per line.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help='Each line is JSON: {"key":…,"value":…,"headers":{…}}.'),
    ] = False,
    null: Annotated[
        bool, typer.Option("--null", "-Z", help="An empty value is sent as null (a tombstone).")
    ] = False,
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: Annotated[
        Output | None,
        typer.Option("--output", "-o", help="Print where each record went. Default: nothing."),
    ] = None,
) -> None:
    """Write records to a topic.

    Values come from the command line, from --file, or from the lines of stdin. With
    --key-separator each line is KEY, separator, VALUE. What `hightide consume -o json` prints
    can be read back with --json.
    """
    if values and file:
        misused("give either values or --file, not both")
    if json and (separator is not None or whole):
        misused("--json goes with neither --key-separator nor --whole")
    try:
        headers = tuple(lines.parse_header(each) for each in header or ())
    except ValueError as error:
        misused(str(error))
    reading = Reading(
        key=None if key is None else key.encode(),
        separator=None if separator is None else lines.unescape(separator).encode(),
        headers=headers,
        json=json,
        null_if_empty=null,
    )
    # Before anything is read: a wrong address or topic should be said at once.
    ask(bootstrap, lambda admin: admin.topics.ensure(topic))
    rows = send(
        librdkafka.producer(bootstrap, producer_settings(acks, compression, settings)),
        topic,
        reading.records(source(values, file, whole)),
        partition,
    )
    render.say(f"{len(rows)} record{'' if len(rows) == 1 else 's'} to {topic}")
    if output is not None:
        render.show(rows, output)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a piece of input becomes a record."""

    key: bytes | None
    separator: bytes | None
    headers: Headers
    json: bool
    null_if_empty: bool

    def records(self, pieces: Iterable[bytes]) -> Iterator[Outgoing]:
        for number, piece in enumerate(pieces, 1):
            if not self.json:
                yield lines.parse_line(
                    piece,
                    key=self.key,
                    separator=self.separator,
                    headers=self.headers,
                    null_if_empty=self.null_if_empty,
                )
            elif piece.strip():
                try:
                    yield lines.parse_json(piece, key=self.key, headers=self.headers)
                except ValueError as error:
                    raise Failed(f"Line {number}: {error}.") from None


def source(values: list[str] | None, file: Path | None, whole: bool) -> Iterator[bytes]:
    """The pieces of input, one per record."""
    if values:
        yield from (value.encode() for value in values)
        return
    with file.open("rb") if file else open(sys.stdin.fileno(), "rb", closefd=False) as stream:
        if whole:
            yield stream.read()
        else:
            yield from (line.rstrip(b"\n").removesuffix(b"\r") for line in stream)


def producer_settings(acks: str, compression: str, settings: list[str] | None) -> dict[str, Any]:
    if acks not in {"0", "1", "all", "-1"}:
        misused(f"--acks {acks} should be 0, 1 or all")
    return {
        "acks": acks,
        "compression.type": compression,
        "linger.ms": 5,
        # Without it a retry after a lost answer can write a record twice.
        "enable.idempotence": acks in {"all", "-1"},
        **pairs(settings, "client setting"),
    }


def send(
    producer: Any, topic: str, records: Iterable[Outgoing], partition: int | None
) -> list[ProducedRow]:
    """Send everything and wait for every answer; the first refusal stops it."""
    rows: list[ProducedRow] = []
    refusals: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            refusals.append(librdkafka.sentence(error))
        else:
            rows.append(
                ProducedRow(topic, message.partition(), message.offset(), message.timestamp()[1])
            )

    for record in records:
        chosen = record.partition if partition is None else partition
        arguments: dict[str, Any] = {"value": record.value, "key": record.key}
        if record.headers:
            arguments["headers"] = list(record.headers)
        if chosen is not None:
            arguments["partition"] = chosen
        if record.timestamp_ms is not None:
            arguments["timestamp"] = record.timestamp_ms
        _produce(producer, topic, arguments, delivered)
        producer.poll(0)
        if refusals:
            break
    producer.flush()
    if refusals:
        raise Failed(f"{len(rows)} records were written, then: {refusals[0]}")
    return rows


def _produce(producer: Any, topic: str, arguments: dict[str, Any], delivered: Any) -> None:
    while True:
        try:
            producer.produce(topic, on_delivery=delivered, **arguments)
            return
        except BufferError:
            # The queue is full: wait until the broker has taken some of it.
            producer.poll(0.5)
        except Exception as error:
            inner = error.args[0] if error.args else error
            reason = inner.str() if hasattr(inner, "str") else str(inner)
            raise Failed(f"The client library refuses the record: {reason}.") from None
