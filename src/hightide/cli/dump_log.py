"""`hightide dump-log`: print segment files, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from hightide.cli import render
from hightide.cli.options import Failed, OutputOption, wrong_usage
from hightide.cli.record import lines
from hightide.cli.render import Output, counted
from hightide.log.dump import Damage, Dumped, DumpedBatch, Entry, describe, dump, plain
from hightide.wire.errors import Corrupt


def dump_log(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|DIR", exists=True)],
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Print the records of each batch too.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the contents of log segments, and any damage in them.

    FILE is a .log file, or an .index, .timeindex, .txnindex, .snapshot or leader-epoch-checkpoint
    beside it, written by this broker or by Kafka. DIR is the folder of a partition and stands for
    its .log files. Damage is printed where it is found, and makes the exit code 1.

    -o json prints one JSON object per line. With --records `hightide produce --json` reads these
    lines, and writes the records to a topic.
    """
    files = [file for path in paths for file in segments(path)]
    damaged: dict[Path, int] = {}
    for file in files:
        if len(files) > 1 and output is Output.TABLE:
            render.write(f"{file}\n")
        for item in dump(file):
            damaged[file] = damaged.get(file, 0) + print_item(item, records, output)
        render.push()
    found = {file: count for file, count in damaged.items() if count}
    if found:
        count = sum(found.values())
        names = ", ".join(map(str, found))
        raise Failed(
            f"{counted(count, 'place')} {'is' if count == 1 else 'are'} damaged in {names}."
        )


def segments(path: Path) -> list[Path]:
    """A file, or the segments of a partition in the order of their offsets."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.log"))
    if not found:
        wrong_usage(f"{path} has no .log files; give the folder of a partition, like orders-0")
    return found


def print_item(item: Dumped, records: bool, output: Output) -> bool:
    """Print one item; return whether it is damaged."""
    shown = plain(item)
    if records and isinstance(item, DumpedBatch):
        shown |= _records(item)
    if output is Output.JSON:
        render.write_bytes(render.json_line(shown).encode())
    else:
        for line in describe(item, with_records=records):
            render.write_bytes(line.encode("utf-8", "backslashreplace") + b"\n")
    return isinstance(item, Damage) or (
        isinstance(item, DumpedBatch | Entry) and bool(shown["problems"])
    )


def _records(batch: DumpedBatch) -> dict[str, Any]:
    """The records of a batch in the form that `consume` prints and `produce` reads."""
    shown: list[dict[str, Any]] = []
    problems = [*batch.problems]
    try:
        shown.extend(_each(batch))
    except Corrupt as damage:
        problems.append(str(damage))
    return {"problems": problems, "records": shown}


def _each(batch: DumpedBatch) -> Iterator[dict[str, Any]]:
    for record in batch.records():
        fields = lines.fields_of(record.key, record.value, record.headers)
        yield {"offset": record.offset, "timestamp": record.timestamp, **fields}
