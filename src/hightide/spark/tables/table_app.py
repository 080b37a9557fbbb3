"""A topic that is kept as a table: an app with one query, run and watched like any other.

Records come in as they are, and what they mean is decided batch by batch, because a schema that is
inferred can grow with each.  The name stands for the work: its checkpoint, the group in which its
lag shows, and its mark in the table.  What the table is made from is written down beside the
checkpoint, so that the same name is not used for two things.
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
DEAD = "dlq:"


@dataclass(frozen=True, slots=True)
class Definition:
    """What a table is made from, as `hightide table create` was told."""

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
    """What was written down in the folder of one name."""
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
        """That what was asked for can be done, as far as it can be said before Spark runs."""
        TableBatches(self)
        told, before = self.definition, definition_in(self.folder)
        if before is not None and (before.topic, before.to) != (told.topic, told.to):
            raise TableError(
                f"{self.name} is the name of topic {before.topic} in {before.to}; choose another"
                " with --name."
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
        say(f"Topic {self.definition.topic} goes to {self.definition.to}.")
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
        """The topic as it is; headers are wanted only for dead letters."""
        options = self.source_options(self.topics[self.definition.topic])
        options["startingOffsets"] = self.definition.start
        if self.definition.on_error.startswith(DEAD):
            options["includeHeaders"] = "true"
        return self.spark.readStream.format("hightide").options(**options).load()


class TableBatches:
    """Called with each micro-batch of records."""

    def __init__(self, app: TableApp) -> None:
        told = app.definition
        self._records = Records(
            schema_for(told.format, told.schema), told.key, told.time, told.on_error
        )
        self._app = app
        self._write = writer(
            told.to,
            name=app.group(QUERY),
            key=told.key,
            partition_by=told.partition_by,
            time=told.time,
            deletes=DELETED if told.key else None,
            buckets=told.buckets,
        )
        self._dead = None
        if told.on_error.startswith(DEAD):
            # The marker of what was written there is its own, and so is its name.
            self._dead = topic_writer(app, told.on_error.removeprefix(DEAD), f"{QUERY}-dead")

    def read_schema(self) -> None:
        """Read a DDL while there is a session to read it: threads that Spark calls have none."""
        found = self._records.schema
        if found is not None and found.format == "json":
            self._records = replace(self._records, schema=json_schema(found.type))

    @property
    def store(self) -> TableStore:
        return self._write.store

    def __call__(self, raw: DataFrame, batch: int) -> None:
        # Looked at more than once where the schema, deletions or dead letters are in question.
        is_kept = self._records.schema is None or bool(self._records.key) or self._dead is not None
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
        if self._dead is not None:
            to = self._app.definition.on_error.removeprefix(DEAD)
            dead = bad_rows(raw, schema, to=to, app=self._app.name, query=QUERY)
            self._dead(dead.drop("topic"), batch)
        self._write(self._records.rows(raw, schema), batch)
