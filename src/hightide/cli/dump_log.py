"""`hightide dump-log`: print a segment file, without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hightide.cli import render
from hightide.cli.options import Failed, OutputOption
from hightide.cli.render import Output
from hightide.log.dump import Damage, DumpedBatch, Entry, describe, dump, plain


def dump_log(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False)],
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Print the records of each batch too.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print the contents of a log segment, and any damage in it.

    FILE is a .log file, or an .index, .timeindex, .txnindex, .snapshot or leader-epoch-checkpoint
    beside it, written by this broker or by Kafka. -o json prints one JSON object per line. Damage
    is printed where it is found, and makes the exit code 1.
    """
    damaged = 0
    for item in dump(file):
        shown = plain(item, with_records=records)
        match item:
            case Damage():
                damaged += 1
            case DumpedBatch() | Entry():
                damaged += bool(shown["problems"])
        if output is Output.JSON:
            render.write_bytes(render.json_line(shown).encode())
        else:
            for line in describe(item, with_records=records):
                render.write_bytes(line.encode("utf-8", "backslashreplace") + b"\n")
    render.push()
    if damaged:
        raise Failed(f"{damaged} {'place is' if damaged == 1 else 'places are'} damaged in {file}.")
