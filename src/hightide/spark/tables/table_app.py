"""A topic that is kept as a table: an app with one query, run and watched like any other.

Records are read raw and decoded batch by batch, because an inferred schema can grow with each. The
name identifies the work: its checkpoint, the group that shows its lag, and its mark in the table.
The definition of the table is stored beside the checkpoint, so that a name is not used twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hightide.spark.formats import bad_rows
from hightide.spark.formats import json as json_schema
from hightide.spark.streams import App, RunningQueries
from hightide.spark.streams.output import topic_writer
from hightide.spark.streams.query_runner import Gate
from hightide.spark.tables.record_rows import DELETED, Records, schema_for
from hightide.spark.tables.table_store import TableStore
from hightide.spark.tables.table_target import TableError, parse
from hightide.spark.tables.table_writer import writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY = "table"
STATE = "./.hightide/tables"
DEFINITION = "table.json"
DEAD_LETTERS = "dlq:"


@dataclass(frozen=True, slots=True)
class Definition:
    """What a table is made from: the options of `hightide table create`."""

    topic: str
    to: str
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    time: str | None = None
    format: str = "json"
    schema: str | None = None
    on_error: str = "fail"
    start: str = "earliest"
    every: str = "10 seconds"
    buckets: int = 16


def definition_in(folder: Path) -> Definition | None:
    """Return the definition that is stored in the folder of a name."""
    try:
        found = json.loads((folder / DEFINITION).read_text("utf-8"))
    except FileNotFoundError:
        return None
    lists = {name: tuple(found[name]) for name in ("key", "partition_by")}
    return Definition(**found | lists)


class TableApp(App):
    """The app that keeps one topic as a table."""

    def __init__(
        self,
        definition: Definition,
        *,
        name: str | None = None,
        brokers: str | None = None,
        master: str | None = None,
        state: str | None = None,
    ) -> None:
        target = parse(definition.to)
        place = state or os.environ.get("HIGHTIDE_STATE") or STATE
        super().__init__(name or target.path.name, brokers=brokers, master=master, state=place)
        self.definition = replace(definition, to=str(target))
        self.topic(definition.topic, "raw")
        self.query(to=str(target), name=QUERY, every=definition.every)(self._records)

    @property
    def folder(self) -> Path:
        return Path(self.state) / self.name

    def check(self) -> None:
        """Check the definition, as far as that is possible before Spark runs."""
        TableBatches(self)
        definition, before = self.definition, definition_in(self.folder)
        if before is not None and (before.topic, before.to) != (definition.topic, definition.to):
            raise TableError(
                f"{self.name} is already the name of topic {before.topic} in {before.to};"
                " choose another with --name."
            )

    def start(
        self,
        *,
        once: bool = False,
        only: Sequence[str] = (),  # noqa: ARG002
        say: Callable[[str], None] = print,
    ) -> RunningQueries:
        """Start filling the table, and return while it is filled."""
        running = RunningQueries(self.spark)
        batches = TableBatches(self)
        batches.read_schema()
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self.definition), indent=1)
        (self.folder / DEFINITION).write_text(text + "\n", "utf-8")
        say(f"Writing topic {self.definition.topic} to {self.definition.to}.")
        gate = running.gates[QUERY] = Gate()
        stream = (
            self._records()
            .writeStream.queryName(self.group(QUERY))
            .option("checkpointLocation", f"{self.place(QUERY)}/checkpoint")
            .foreachBatch(gate.guard(batches))
        )
        every = self.queries[QUERY].every
        timed = stream.trigger(availableNow=True) if once else stream.trigger(processingTime=every)
        running.add(QUERY, timed.start(), self.client_options(), self.group(QUERY))
        gate.open()
        return running

    def _records(self) -> DataFrame:
        """Return the raw records; headers are included only for dead letters."""
        options = self.source_options(self.topics[self.definition.topic])
        options["startingOffsets"] = self.definition.start
        if self.definition.on_error.startswith(DEAD_LETTERS):
            options["includeHeaders"] = "true"
        return self.spark.readStream.format("hightide").options(**options).load()


class TableBatches:
    """Called with each micro-batch of records."""

    def __init__(self, app: TableApp) -> None:
        definition = app.definition
        self._records = Records(
            schema_for(definition.format, definition.schema),
            definition.key,
            definition.time,
            definition.on_error,
        )
        self._app = app
        self._write = writer(
            definition.to,
            name=app.group(QUERY),
            key=definition.key,
            partition_by=definition.partition_by,
            time=definition.time,
            deletes=DELETED if definition.key else None,
            buckets=definition.buckets,
        )
        self._dead_letters = None
        if definition.on_error.startswith(DEAD_LETTERS):
            # Dead letters have their own marker, and so their own name.
            self._dead_letters = topic_writer(
                app, definition.on_error.removeprefix(DEAD_LETTERS), f"{QUERY}-dead"
            )

    def read_schema(self) -> None:
        """Parse a DDL while there is a session: threads that Spark calls have none."""
        found = self._records.schema
        if found is not None and found.format == "json":
            self._records = replace(self._records, schema=json_schema(found.type))

    @property
    def store(self) -> TableStore:
        return self._write.store

    def __call__(self, raw: DataFrame, batch: int) -> None:
        # Inferring the schema, deletions and dead letters each read the batch once more.
        is_kept = (
            self._records.schema is None
            or bool(self._records.key)
            or self._dead_letters is not None
        )
        kept = raw.persist() if is_kept else raw
        try:
            self._do(kept, batch)
        finally:
            if is_kept:
                kept.unpersist()

    def _do(self, raw: DataFrame, batch: int) -> None:
        now = self.store.snapshot()
        schema = self._records.schema_of(raw, now.schema if now else None)
        if schema is None:
            return
        if self._dead_letters is not None:
            to = self._app.definition.on_error.removeprefix(DEAD_LETTERS)
            dead = bad_rows(raw, schema, to=to, app=self._app.name, query=QUERY)
            self._dead_letters(dead.drop("topic"), batch)
        self._write(self._records.rows(raw, schema), batch)
