"""Each batch is in a table once, wherever its driver died, and for every reader.

A query reads files, one in each batch, and is killed at every step of writing one: an exception is
raised there, the query fails, and another with fresh objects continues from the checkpoint. DuckDB
and Spark read Delta and Iceberg through `deltalake` and `pyiceberg`: DuckDB's own extensions and
Spark's jars would have to be downloaded.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import Transaction
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from hightide.spark.tables import read, writer
from hightide.spark.tables.delta import DeltaStore
from hightide.spark.tables.iceberg import IcebergStore
from hightide.spark.tables.parquet import ParquetStore
from hightide.spark.tables.staged_files import StagedFiles

STORES = {"parquet": ParquetStore, "delta": DeltaStore, "iceberg": IcebergStore}
ROWS = 40
SCHEMA = "id LONG, day_of INT, _timestamp TIMESTAMP"


class Died(Exception):
    """The error of a killed driver."""


class Death:
    """Kills the driver once, at one step."""

    def __init__(self, monkeypatch, kind: str, table: Path):
        self.armed = None
        self.happened = []
        store = STORES[kind]
        self._at(
            monkeypatch, StagedFiles, "write", before="nothing is written", after="files are staged"
        )
        self._at(monkeypatch, store, "commit", before="the commit begins", after="it is committed")
        self._at(
            monkeypatch,
            Path,
            "rename",
            after="a file is moved",
            when=lambda path, *_: path.suffix == ".parquet",
        )
        if kind == "parquet":
            self._at(
                monkeypatch,
                Path,
                "rename",
                before="the link is swapped",
                when=lambda _, goal: goal == table,
            )
        if kind == "delta":
            self._at(
                monkeypatch, DeltaTable, "create_write_transaction", before="the log is written"
            )
        if kind == "iceberg":
            self._at(monkeypatch, Transaction, "commit_transaction", before="the pointer moves")

    def _at(self, monkeypatch, owner, name, before=None, after=None, when=lambda *_: True):
        real = getattr(owner, name)

        def dying(*arguments, **named):
            self._die_at(before, when(*arguments))
            found = real(*arguments, **named)
            self._die_at(after, when(*arguments))
            return found

        monkeypatch.setattr(owner, name, dying)
        self.steps = [*getattr(self, "steps", []), *filter(None, (before, after))]

    def _die_at(self, step, applies):
        if step is not None and step == self.armed and applies:
            self.armed = None
            self.happened.append(step)
            raise Died(step)


def feed(spark, folder: Path, batch: int) -> None:
    """Write one file of the stream: unique ids, over two days."""
    rows = [(batch * ROWS + at, at % 2, None) for at in range(ROWS)]
    day = F.timestamp_seconds(F.lit(1_794_787_200) + F.col("day_of") * 86_400)
    frame = spark.createDataFrame(rows, SCHEMA).withColumn("_timestamp", day)
    frame.coalesce(1).write.mode("append").parquet(str(folder))


def run(spark, source: Path, checkpoint: str, write) -> None:
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def ids_by_reader(spark, kind: str, table: Path) -> dict[str, Counter]:
    """Return the ids of a table as each reader sees them."""
    target = f"{kind}:{table}"
    found = {"spark": [row.id for row in read(spark, target).select("id").collect()]}
    if kind == "parquet":
        plain = spark.read.parquet(str(table))
        found["spark by path"] = [row.id for row in plain.select("id").collect()]
        found["pandas"] = list(pd.read_parquet(table)["id"])
        rows = duckdb.sql(f"select id from '{table}/**/*.parquet'").fetchall()
        found["duckdb"] = [row for (row,) in rows]
        return {name: Counter(ids) for name, ids in found.items()}
    rows = arrow_of(kind, table)
    found["pandas"] = list(rows.to_pandas()["id"])
    found["duckdb"] = [number for (number,) in duckdb.sql("select id from rows").fetchall()]
    return {name: Counter(ids) for name, ids in found.items()}


def arrow_of(kind: str, table: Path) -> pa.Table:
    if kind == "delta":
        return DeltaTable(str(table)).to_pyarrow_table()
    return IcebergStore(table).table().scan().to_arrow()


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind", ["parquet", "delta", pytest.param("iceberg", marks=pytest.mark.extended)]
)
def test_nothing_is_missing_or_twice_wherever_the_driver_dies(
    spark, tmp_path, checkpoint, monkeypatch, kind
):
    source, table = tmp_path / "source", tmp_path / "tables" / "events"
    death = Death(monkeypatch, kind, table)
    for batch, step in enumerate(death.steps):
        feed(spark, source, batch)
        death.armed = step
        write = writer(f"{kind}:{table}", partition_by="day", name="events", compact_at=3)
        with suppress(StreamingQueryException):
            run(spark, source, checkpoint, write)
        write.wait()
    write = writer(f"{kind}:{table}", partition_by="day", name="events", compact_at=3)
    run(spark, source, checkpoint, write)
    write.wait()

    assert death.happened == death.steps
    everything = Counter(range(ROWS * len(death.steps)))
    for reader, ids in ids_by_reader(spark, kind, table).items():
        assert ids == everything, reader
