"""`hightide table …`: keep topics as Parquet, Delta or Iceberg tables, and maintain them.

Only `create` starts Spark; the others read the stored definition and the tables themselves.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hightide.cli import completion, render
from hightide.cli.extra import require_spark
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    Failed,
    OutputOption,
    Yes,
    confirm,
    pairs,
    wrong_usage,
)
from hightide.cli.render import Output

if TYPE_CHECKING:
    from hightide.spark.pipelines.status import AppStatus
    from hightide.spark.tables.table_app import Definition, TableApp

app = typer.Typer(no_args_is_help=True, help="Keep topics as Parquet, Delta or Iceberg tables.")

Which = Annotated[str, typer.Argument(metavar="NAME|KIND:PATH", help="The table.")]
StateOption = Annotated[
    Path,
    typer.Option("--state", envvar="HIGHTIDE_STATE", metavar="DIR", help="Where progress is kept."),
]
STATE = Path(".hightide") / "tables"


@dataclass(frozen=True, slots=True)
class ColumnRow:
    column: str
    type: str


@dataclass(frozen=True, slots=True)
class TableRow:
    """One table, and the app that fills it."""

    table: str
    topic: str | None
    state: str
    batch: int | None
    lag: int | None
    rows: int | None
    files: int | None
    size_bytes: int | None
    to: str
    error: str | None
    columns: list[ColumnRow]


@app.command()
def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)],
    to: Annotated[
        str, typer.Option("--to", metavar="KIND:PATH", help="parquet:, delta: or iceberg:PATH.")
    ],
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="COLUMN,…",
            help="Keep the newest row of each key; _key is the record's. Tombstones delete.",
        ),
    ] = "",
    partition_by: Annotated[
        str, typer.Option("--partition-by", metavar="day|COLUMN,…", help="Folders of the table.")
    ] = "",
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="COLUMN", help="The event time. Default: the record's."),
    ] = None,
    format: Annotated[
        str, typer.Option("--format", help="json, text, raw, avro or protobuf.")
    ] = "json",
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="DDL|FILE",
            help="Columns ('user STRING, n BIGINT'), or the file of Avro or Protobuf "
            "(FILE#MESSAGE). Default: inferred from JSON, batch by batch.",
        ),
    ] = None,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar="fail|skip|dlq:TOPIC", help="For bad records.")
    ] = "fail",
    start: Annotated[
        str, typer.Option("--from", metavar="earliest|latest", help="Where to start, if new.")
    ] = "earliest",
    once: Annotated[
        bool, typer.Option("--once", help="Process what is there now, and end.")
    ] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="How often rows are added.")
    ] = "10 seconds",
    buckets: Annotated[
        int, typer.Option("--buckets", min=1, max=9999, help="With --key: files to keep keys in.")
    ] = 16,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the app that fills it. Default: the folder's."),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", envvar="HIGHTIDE_MASTER", metavar="URL")
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; repeatable."),
    ] = None,
    state: StateOption = STATE,
    bootstrap: Bootstrap = LOCALHOST,
) -> None:
    """Create a table from a topic, and fill it until Ctrl-C.

    Every record is in the table exactly once, whatever fails. The same command continues where it
    stopped.
    """
    require_spark()
    with _explained():
        from hightide.spark.tables.table_app import Definition, TableApp

        definition = Definition(
            topic=topic,
            to=to,
            key=_listed(key),
            partition_by=_listed(partition_by),
            time=time,
            format=format,
            schema=schema,
            on_error=on_error,
            start=start,
            every=every,
            buckets=buckets,
        )
        made = TableApp(definition, name=name, brokers=bootstrap, master=master, state=str(state))
        made.configure(settings=pairs(conf, "setting of Spark"))
        made.check()
        _run(made, once=once)


def _run(made: TableApp, *, once: bool) -> None:
    from hightide.spark.pipelines import app_runner, display

    with contextlib.ExitStack() as stack:
        show: Callable[[AppStatus], None] = display.lines(render.say)
        if sys.stderr.isatty():
            show = stack.enter_context(display.live())
        file = app_runner.folder_of(made) / "table.json"
        app_runner.run(made, file, once=once, show=show, say=render.say)


@app.command("list")
def list_(state: StateOption = STATE, output: OutputOption = Output.TABLE) -> None:
    """List the tables of a state folder."""
    require_spark()
    with _explained():
        rows = [_row(folder, _known(folder)) for folder in _folders(state)]
    if not rows:
        render.say(f"There is no table with its state in {state}.")
    render.show(rows, output, ("table", "topic", "state", "batch", "lag", "rows", "files", "to"))


@app.command()
def status(which: Which, state: StateOption = STATE, output: OutputOption = Output.TABLE) -> None:
    """Show a table: its progress, size and columns."""
    require_spark()
    with _explained():
        folder, to = _found(which, state)
        render.show_one(_row(folder, to), output)


@app.command()
def compact(which: Which, state: StateOption = STATE) -> None:
    """Merge small files now, and delete what is kept of earlier versions if it is old enough.

    A table that is being filled does that by itself.
    """
    require_spark()
    with _explained():
        from hightide.spark.tables.compaction import compact as merge_files
        from hightide.spark.tables.table_access import open_table

        _, to = _found(which, state)
        store = open_table(to)
        fewer = merge_files(store)
        store.clean()
    render.say(f"{to} has {fewer} fewer files." if fewer else f"{to} has no small files to merge.")


@app.command()
def drop(which: Which, state: StateOption = STATE, yes: Yes = False) -> None:
    """Delete a table and the progress of the app that fills it. The topic stays."""
    require_spark()
    with _explained():
        from hightide.spark.pipelines.status import app_lock
        from hightide.spark.tables.table_access import open_table

        folder, to = _found(which, state)
        confirm(f"Delete {to} and all of its rows?", yes=yes)
        with app_lock(folder, folder.name) if folder else contextlib.nullcontext():
            open_table(to).drop()
            if folder:
                _delete_groups(folder, state)
                shutil.rmtree(folder)
    render.say(f"Deleted {to}.")


def _delete_groups(folder: Path, state: Path) -> None:
    """Delete the groups that show its progress; without brokers they stay, which does no harm."""
    from hightide.spark.pipelines import checkpoint_reset
    from hightide.spark.pipelines.status import read

    definition, found = _definition(folder), read(folder)
    if definition is None or found is None:
        return
    from hightide.spark.tables.table_app import TableApp

    made = TableApp(definition, name=folder.name, brokers=found.brokers, state=str(state))
    try:
        checkpoint_reset.delete(made, checkpoint_reset.stored_progress(made))
    except checkpoint_reset.ResetFailed as error:
        render.say(str(error))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn errors into one sentence."""
    from hightide.spark.pipelines.app_runner import RunFailed
    from hightide.spark.pipelines.status import AlreadyRunning
    from hightide.spark.session import NoJava
    from hightide.spark.streams import StreamsError
    from hightide.spark.tables.table_target import TableError

    try:
        yield
    except RunFailed as error:
        raise Failed(f"{error}\nThe whole trace is in {error.log}.") from None
    except (AlreadyRunning, NoJava, StreamsError, TableError) as error:
        raise Failed(str(error)) from None


def _folders(state: Path) -> list[Path]:
    found = sorted(entry for entry in state.iterdir() if entry.is_dir()) if state.is_dir() else []
    return [folder for folder in found if _definition(folder) is not None]


def _definition(folder: Path) -> Definition | None:
    from hightide.spark.tables.table_app import definition_in

    return definition_in(folder)


def _known(folder: Path) -> str:
    definition = _definition(folder)
    assert definition is not None
    return definition.to


def _found(which: str, state: Path) -> tuple[Path | None, str]:
    """Return the folder and the target of a table, by its name or its path."""
    from hightide.spark.tables.table_target import is_table, parse

    for folder in _folders(state):
        to = _known(folder)
        if folder.name == which or (is_table(which) and to == str(parse(which))):
            return folder, to
    if not is_table(which):
        known = ", ".join(folder.name for folder in _folders(state)) or "none"
        wrong_usage(
            f"there is no table {which!r} with its state in {state}; expected one of {known}"
        )
    return None, str(parse(which))


def _row(folder: Path | None, to: str) -> TableRow:
    from hightide.spark.pipelines.status import read
    from hightide.spark.tables.table_access import open_table

    work = read(folder) if folder else None
    query = work.queries[0] if work and work.queries else None
    definition = _definition(folder) if folder else None
    found = open_table(to).snapshot()
    return TableRow(
        table=folder.name if folder else Path(to).name,
        topic=definition.topic if definition else None,
        state=str(work.state) if work else "-",
        batch=query.batch if query else None,
        lag=query.lag if query else None,
        rows=sum(file.rows for file in found.files) if found else None,
        files=len(found.files) if found else None,
        size_bytes=sum(file.size_bytes for file in found.files) if found else None,
        to=to,
        error=work.error if work else None,
        columns=[
            ColumnRow(field.name, field.dataType.simpleString())
            for field in (found.schema.fields if found else ())
        ],
    )
