"""`hightide consume`: a topic's records as lines, as JSON, or in a form of one's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hightide.cli import librdkafka, lines, membership, position, render
from hightide.cli.lines import Incoming
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    ClientSettings,
    Failed,
    ask,
    misused,
    pairs,
)
from hightide.cli.position import Position
from hightide.client.admin import Admin
from hightide.client.model.cluster import Timestamp
from hightide.wire.errors import ErrorCode, KafkaError

FORMS = ("raw", "json", "table")
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    """What to read of one partition: from one offset until another."""

    partition: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RecordRow:
    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: list[str]


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="beginning (default), end, an offset, -N (the last N), 15m, or a time.",
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="raw|json|table",
            help="How to print; a POSITION is taken too, as in kcat.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after so many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for new records instead of stopping at the end.")
    ] = False,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this; repeatable.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-G", help="Read as a member of this group, which goes on later."),
    ] = None,
    keys: Annotated[bool, typer.Option("--key", "-k", help="Print the key first.")] = False,
    headers: Annotated[bool, typer.Option("--headers", "-H", help="Print the headers.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamp", "-t", help="Print the time.")] = False,
    offsets: Annotated[
        bool, typer.Option("--offset", help="Print the partition and the offset.")
    ] = False,
    template: Annotated[
        str | None,
        typer.Option("--format", "-f", help=r"Letters as in kcat, e.g. '%p %o %k %s\n'."),
    ] = None,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Read records from a topic.

    Prints one value per line and stops at the end of what is there now. The flags -k, -H, -t
    and --offset add columns, parted by tabs; -o json prints one JSON object per line, with
    everything. Reading `--from end` follows, since there is nothing else it could print.

    With --group the partitions are shared with the other members of the group, what is printed is
    committed, and the next member goes on from there. It stops at the end of its partitions too.
    """
    form, where = read_output(output or [], start)
    try:
        wanted = position.parse(where, time.time_ns() // 1_000_000)
    except ValueError as error:
        misused(str(error))
    if template is not None and form != "raw":
        misused("--format goes with the raw output only")
    follow = follow or (isinstance(wanted, position.End) and group is None)
    if follow and form == "table":
        misused("a table is printed at the end, and following has none; use raw or json")
    if group is not None and partition:
        misused("the members of a group share the partitions out: --partition goes without --group")
    given = pairs(settings, "client setting")
    if group is not None:
        given = {**membership.settings(group, wanted), **given}
    spans = ask(bootstrap, lambda admin: plan(admin, topic, wanted, partition))
    consumer = librdkafka.consumer(bootstrap, given)
    columns = template and lines.unescape(template)
    columns = columns or line_template(keys, headers, timestamps, offsets)
    found: Iterator[Incoming]
    if group is not None:
        found = map(incoming, membership.read(consumer, topic, count=count, follow=follow))
    else:
        found = read(consumer, topic, spans, count=count, follow=follow)
    try:
        if form == "table":
            render.show([row(each) for each in found], render.Output.TABLE)
        else:
            print_stream(found, form, columns)
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        consumer.close()


def read_output(output: list[str], start: str | None) -> tuple[str, str]:
    """Part the two meanings of -o: a form of output, or, as in kcat, a position."""
    forms = [each for each in output if each in FORMS]
    positions = [each for each in output if each not in FORMS]
    if start is not None:
        positions.append(start)
    if len(forms) > 1 or len(positions) > 1:
        misused("give one form of output and one position")
    return (forms or ["raw"])[0], (positions or ["beginning"])[0]


def line_template(keys: bool, headers: bool, timestamps: bool, offsets: bool) -> str:
    columns = [
        *(["%p", "%o"] if offsets else []),
        *(["%T"] if timestamps else []),
        *(["%h"] if headers else []),
        *(["%k"] if keys else []),
        "%s",
    ]
    return "\t".join(columns) + "\n"


async def plan(
    admin: Admin, topic: str, wanted: Position, partitions: list[int] | None
) -> list[Span]:
    """Turn the position into offsets of each partition."""
    (found,) = await admin.topics.describe([topic])
    known = [each.partition for each in found.partitions]
    for each in partitions or ():
        if each not in known:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic!r} has no partition {each}."
            )
    asked = [(topic, each) for each in partitions or known]
    starts = await admin.records.offsets(dict.fromkeys(asked, Timestamp.EARLIEST))
    ends = await admin.records.offsets(dict.fromkeys(asked, Timestamp.LATEST))
    times: dict[tuple[str, int], int | None] = {}
    if isinstance(wanted, position.Time):
        answers = await admin.records.offsets(dict.fromkeys(asked, wanted.timestamp_ms))
        times = {key: at.offset if at.offset >= 0 else None for key, at in answers.items()}
    return [
        Span(
            partition=key[1],
            first_offset=position.first_offset(
                wanted, starts[key].offset, ends[key].offset, times.get(key)
            ),
            end_offset=ends[key].offset,
        )
        for key in asked
    ]


def read(
    consumer: Any, topic: str, spans: list[Span], *, count: int | None, follow: bool
) -> Iterator[Incoming]:
    """Records as they come, until every span is read, or for ever when following.

    Before it waits, what was printed so far is pushed out.
    """
    if not follow:
        spans = [span for span in spans if span.first_offset < span.end_offset]
    open_until = {span.partition: span.end_offset for span in spans}
    if not open_until:
        return
    librdkafka.assign(consumer, topic, {span.partition: span.first_offset for span in spans})
    printed = 0
    while open_until:
        message = consumer.poll(0)
        if message is None:
            render.push()
            message = consumer.poll(POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            ended = message.offset() + 1 >= open_until.get(message.partition(), 0)
            # Another partition may still be open when records come past the end of this one.
            if follow or message.partition() in open_until:
                yield incoming(message)
                printed += 1
                if printed == count:
                    return
        else:
            # The last offsets of a log may hold nothing to deliver: transaction markers, or
            # records that compaction removed. Then the end itself is the only sign.
            ended = librdkafka.is_end_of_partition(error)
            if not ended and librdkafka.is_fatal(error):
                raise Failed(librdkafka.sentence(error))
        if ended and not follow:
            open_until.pop(message.partition(), None)


def incoming(message: Any) -> Incoming:
    return Incoming(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )


def row(record: Incoming) -> RecordRow:
    def text(data: bytes | None) -> str | None:
        return None if data is None else data.decode(errors="backslashreplace")

    return RecordRow(
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=text(record.key),
        value=text(record.value),
        headers=[f"{key}={text(value) or ''}" for key, value in record.headers],
    )


def print_stream(records: Iterator[Incoming], form: str, template: str) -> None:
    """Each record as it comes; values are bytes and stay the bytes they are."""
    for record in records:
        if form == "json":
            render.write_bytes(render.json_line(lines.as_json(record)).encode())
        else:
            render.write_bytes(lines.fill(template, record))
    render.push()
