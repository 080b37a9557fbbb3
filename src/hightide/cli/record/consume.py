"""`hightide consume`: print a topic's records as lines, as JSON, or with a template."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hightide.cli import completion, librdkafka, position, render
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
from hightide.cli.position import Position
from hightide.cli.record import group_member, lines
from hightide.cli.record.lines import Incoming
from hightide.cli.record.waiting import Waiting, quiet
from hightide.client.admin import Admin
from hightide.client.model.cluster import Timestamp
from hightide.wire.errors import ErrorCode, KafkaError

FORMS = ("raw", "json", "table")
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets to read of one partition."""

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
    topic: Annotated[str, typer.Argument(metavar=METAVAR, autocompletion=completion.partitions)],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="beginning (default), end, an offset, -N (the last N), 15m (ago), or a time.",
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="raw|json|table",
            help="The output format; or a POSITION, as in kcat.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for new records instead of stopping at the end.")
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-G",
            autocompletion=completion.groups,
            help="Read as a member of this group, and commit.",
        ),
    ] = None,
    keys: Annotated[bool, typer.Option("--key", "-k", help="Print the key first.")] = False,
    headers: Annotated[bool, typer.Option("--headers", "-H", help="Print the headers.")] = False,
    timestamps: Annotated[
        bool, typer.Option("--timestamp", "-t", help="Print the timestamp.")
    ] = False,
    offsets: Annotated[
        bool, typer.Option("--offset", help="Print the partition and the offset.")
    ] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help=r"Letters as in kcat, e.g. '%p %o %k %s\n': %t topic, %p partition, %o offset,"
            " %k key, %s value, %K and %S their lengths, %T timestamp, %h headers, %% a percent"
            " sign.",
        ),
    ] = None,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Read records from a topic.

    Prints one value per line and stops at the current end of the topic. The flags -k, -H, -t and
    --offset add columns with tabs between them; -o json prints one JSON object per line with all
    fields. `--from end` follows, because there is nothing else to print.

    With --group the members of the group share the partitions, printed records are committed, and
    the next member continues from there. The command stops at the end of its partitions too.
    """
    form, where = read_output(output or [], start)
    try:
        wanted = position.parse(where, time.time_ns() // 1_000_000)
    except ValueError as error:
        wrong_usage(str(error))
    if template is not None:
        if form != "raw":
            wrong_usage("--format needs the raw output")
        try:
            lines.check_template(template)
        except ValueError as error:
            wrong_usage(str(error))
    follow = follow or (isinstance(wanted, position.End) and group is None)
    if follow and form == "table":
        wrong_usage("a table is printed at the end, but --follow has no end; use raw or json")
    topic, partition = one_topic(topic, partition)
    if group is not None and partition:
        wrong_usage(
            "the members of a group share the partitions out: --partition goes without --group"
        )
    client_config = client_settings(settings)
    if group is not None:
        client_config = {**group_member.settings(group, wanted), **client_config}
    columns = template and lines.unescape(template)
    columns = columns or line_template(keys, headers, timestamps, offsets)
    with Waiting(bootstrap, topic, partition, group=group) as waiting:

        async def begin(admin: Admin) -> list[Span]:
            found = await plan(admin, topic, wanted, partition)
            waiting.learn(admin)
            return found

        waiting.begin()
        spans = ask(bootstrap, begin)
        waiting.end()
        waiting.skips_old = isinstance(wanted, position.End) and group is None
        consumer = librdkafka.consumer(bootstrap, client_config, quiet)
        found: Iterator[Incoming]
        if group is not None:
            found = map(incoming, group_member.read(consumer, topic, count, follow, waiting))
        else:
            found = read(consumer, topic, spans, count, follow, waiting)
        try:
            print_records(found, form, columns)
        except KeyboardInterrupt:
            if not follow:
                raise
        finally:
            waiting.close()  # before its client library
            consumer.close()


def read_output(output: list[str], start: str | None) -> tuple[str, str]:
    """Separate the two meanings of -o: an output format, or, as in kcat, a position."""
    forms = [text for text in output if text in FORMS]
    positions = [text for text in output if text not in FORMS]
    if start is not None:
        positions.append(start)
    if len(forms) > 1 or len(positions) > 1:
        wrong_usage("give at most one output format and one position")
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
    """Turn a position into offsets of each partition."""
    (found,) = await admin.topics.describe([topic])
    known = [partition.partition for partition in found.partitions]
    for index in partitions or ():
        if index not in known:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic!r} has no partition {index}."
            )
    asked = [(topic, index) for index in partitions or known]
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
    consumer: Any,
    topic: str,
    spans: list[Span],
    count: int | None,
    follow: bool,
    waiting: Waiting,
) -> Iterator[Incoming]:
    """Records as they arrive, until every span is read, or for ever with `follow`.

    The output is flushed before each wait.
    """
    if not follow:
        spans = [span for span in spans if span.first_offset < span.end_offset]
    open_until = {span.partition: span.end_offset for span in spans}
    if not open_until:
        return
    librdkafka.assign(consumer, topic, {span.partition: span.first_offset for span in spans})
    printed, at_end = 0, set()
    while open_until:
        message = consumer.poll(0)
        if message is None:
            render.push()
            waiting.begin()
            message = consumer.poll(POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            waiting.end()
            ended = message.offset() + 1 >= open_until.get(message.partition(), 0)
            # Skip records past the end of this partition while others are still open.
            if follow or message.partition() in open_until:
                yield incoming(message)
                printed += 1
                if printed == count:
                    return
        else:
            # The last offsets of a log may have no records: transaction markers, or records that
            # compaction removed. Then only the end of the partition is reported.
            ended = librdkafka.is_end_of_partition(error)
            if not ended and librdkafka.is_fatal(error):
                raise Failed(librdkafka.sentence(error))
            if ended:
                at_end.add(message.partition())
        waiting.is_at_end = not printed and len(at_end) == len(open_until)
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


def print_records(records: Iterator[Incoming], form: str, template: str) -> None:
    """Print each record as it arrives; values are printed as the bytes they are.

    A table is printed at the end, since its columns are as wide as their widest cell.
    """
    if form == "table":
        render.show([row(record) for record in records], render.Output.TABLE)
        return
    for record in records:
        if form == "json":
            render.write_bytes(render.json_line(lines.as_json(record)).encode())
        else:
            render.write_bytes(lines.fill(template, record))
    render.push()
