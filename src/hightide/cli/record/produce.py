"""`hightide produce`: write records from arguments, lines, files or JSON to a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hightide.cli import completion, librdkafka, render
from hightide.cli.names import METAVAR, one_topic
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    ClientSettings,
    Failed,
    ask,
    client_settings,
    wrong_usage,
)
from hightide.cli.record import lines
from hightide.cli.record.lines import Headers, Outgoing
from hightide.cli.record.waiting import Waiting, quiet
from hightide.cli.render import Output
from hightide.client.admin import Admin

ALL = frozenset({"all", "-1"})
FLUSH_S = 0.5


@dataclass(frozen=True, slots=True)
class ProducedRow:
    topic: str
    partition: int
    offset: int
    timestamp: int


def produce(
    topic: Annotated[str, typer.Argument(metavar=METAVAR, autocompletion=completion.partitions)],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE", help="One record each. Default: the lines of stdin."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="The text between key and value."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="For every record; repeatable."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="The same as TOPIC/PARTITION."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read lines from a file."),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="The whole input is one record.")] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help='Each line is JSON: {"key":…,"value":…,"headers":{…}}.'),
    ] = False,
    null: Annotated[
        bool, typer.Option("--null", "-Z", help="Send an empty value as null (a tombstone).")
    ] = False,
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: Annotated[
        Output | None,
        typer.Option("--output", "-o", help="Print the partition and offset of each record."),
    ] = None,
) -> None:
    """Write records to a topic.

    Values come from the command line, from --file, or from the lines of stdin. With
    --key-separator each line is KEY, separator, VALUE. --json reads what `hightide consume
    -o json` and `hightide dump-log --records -o json` print. Without a PARTITION the key of a
    record chooses one.
    """
    if values and file:
        wrong_usage("give either values or --file, not both")
    topic, indexes = one_topic(topic, None if partition is None else [partition])
    if len(indexes) > 1:
        wrong_usage("a record goes to one partition; give one")
    if json and (separator is not None or whole):
        wrong_usage("--json cannot be combined with --key-separator or --whole")
    try:
        headers = tuple(lines.parse_header(text) for text in header or ())
    except ValueError as error:
        wrong_usage(str(error))
    input_format = InputFormat(
        key=None if key is None else key.encode(),
        separator=None if separator is None else lines.unescape(separator).encode(),
        headers=headers,
        json=json,
        null_if_empty=null,
    )
    client = producer_settings(acks, compression, settings)
    with Waiting(bootstrap, topic, indexes, is_producer=True, waits_for_all=acks in ALL) as waiting:

        async def ensure(admin: Admin) -> None:
            await admin.topics.ensure(topic)
            waiting.learn(admin)

        waiting.begin()
        # Check the address and the topic before the input is read.
        ask(bootstrap, ensure)
        waiting.end()
        producer = librdkafka.producer(bootstrap, client, quiet)
        # A flush also serves deliveries that came while this command waits for its input.
        waiting.still = lambda: producer.flush(0) > 0
        rows = send(
            producer,
            topic,
            input_format.records(source(values, file, whole)),
            indexes[0] if indexes else None,
            waiting,
        )
    render.say(f"{len(rows)} record{'' if len(rows) == 1 else 's'} to {topic}")
    if output is not None:
        render.show(rows, output)


@dataclass(frozen=True, slots=True)
class InputFormat:
    """How a piece of the input becomes a record."""

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
                    yield from lines.parse_json(piece, key=self.key, headers=self.headers)
                except lines.Damaged as damage:
                    render.say(f"Line {number} is left out: {damage}.")
                except ValueError as error:
                    raise Failed(f"Line {number}: {error}.") from None


def source(values: list[str] | None, file: Path | None, whole: bool) -> Iterator[bytes]:
    """The pieces of the input, one per record."""
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
        wrong_usage(f"--acks {acks} should be 0, 1 or all")
    return {
        "acks": acks,
        "compression.type": compression,
        "linger.ms": 5,
        # Without idempotence, a retry after a lost response can write a record twice.
        "enable.idempotence": acks in ALL,
        **client_settings(settings),
    }


def send(
    producer: Any,
    topic: str,
    records: Iterable[Outgoing],
    partition: int | None,
    waiting: Waiting,
) -> list[ProducedRow]:
    """Send everything and wait for all responses; stop at the first error."""
    rows: list[ProducedRow] = []
    errors: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        waiting.end()
        if error is not None:
            errors.append(librdkafka.sentence(error))
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
        waiting.begin()
        if errors:
            break
    while producer.flush(FLUSH_S):
        waiting.begin()
    if errors:
        raise Failed(f"{len(rows)} records were written, then: {errors[0]}")
    return rows


def _produce(producer: Any, topic: str, arguments: dict[str, Any], delivered: Any) -> None:
    while True:
        try:
            producer.produce(topic, on_delivery=delivered, **arguments)
            return
        except BufferError:
            # The queue is full: wait until the broker has acknowledged some records.
            producer.poll(0.5)
        except Exception as error:
            inner = error.args[0] if error.args else error
            reason = inner.str() if hasattr(inner, "str") else str(inner)
            raise Failed(f"The client library refuses the record: {reason}.") from None
