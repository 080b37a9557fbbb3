"""Rows in a table: added, replaced by key, deleted, and with new columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from hightide.spark.tables import TableError, read, writer
from hightide.spark.tables.compaction import compact
from hightide.spark.tables.table_access import open_table

pytestmark = pytest.mark.extended

KINDS = ("parquet", "delta", "iceberg")


@pytest.fixture(params=KINDS)
def target(request, tmp_path) -> str:
    return f"{request.param}:{tmp_path / 'tables' / 'rows'}"


def rows_of(spark, target: str) -> list[tuple]:
    return sorted(tuple(row) for row in read(spark, target).collect())


def test_a_key_has_one_row_the_newest_and_is_deleted(spark, target):
    write = writer(target, key="id", deletes="gone", order=("at",), buckets=4)
    schema = "id LONG, name STRING, at INT, gone BOOLEAN"
    write(spark.createDataFrame([(n, "first", 0, False) for n in range(20)], schema), 0)
    changes: list[Any] = [
        (3, "old", 1, False),
        (3, "new", 2, False),
        (4, None, 1, True),
        (5, "x", 1, True),
    ]
    changes += [(5, "again", 2, False), (99, None, 1, True), (20, "more", 1, None)]
    write(spark.createDataFrame(changes, schema), 1)

    expected = dict.fromkeys(range(20), "first") | {3: "new", 5: "again", 20: "more"}
    del expected[4]
    found = rows_of(spark, target)
    assert {number: name for number, name, _ in found} == expected
    assert len(found) == len(expected)

    files = len(open_table(target).snapshot().files)
    assert files <= 4
    write(spark.createDataFrame([(3, None, 3, True)], schema), 2)
    assert 3 not in {number for number, *_ in rows_of(spark, target)}
    write(spark.createDataFrame([], schema), 3)
    assert len(rows_of(spark, target)) == len(expected) - 1


def test_the_columns_of_a_table_grow_and_its_types_widen(spark, target):
    write = writer(target)
    write(spark.createDataFrame([(1, "a")], "n INT, s STRING"), 0)
    write(spark.createDataFrame([(2**40, 1.5, (1,))], "n LONG, f DOUBLE, x STRUCT<a: INT>"), 1)
    write(spark.createDataFrame([(3, (2, "deep"))], "n INT, x STRUCT<a: INT, b: STRING>"), 2)

    found = rows_of(spark, target)
    assert found == [
        (1, "a", None, None),
        (3, None, None, (2, "deep")),
        (2**40, None, 1.5, (1, None)),
    ]
    with pytest.raises(TableError, match="Column s is string in the table and bigint"):
        write(spark.createDataFrame([(7,)], "s LONG"), 3)
    assert rows_of(spark, target) == found


def test_a_complete_result_replaces_the_one_before(spark, target):
    write = writer(target, mode="complete")
    for batch, count in enumerate((3, 5, 0, 2)):
        write(spark.range(count), batch)
        assert rows_of(spark, target) == [(n,) for n in range(count)]


def test_small_files_are_joined_and_hold_the_same_rows(spark, target):
    write = writer(target, partition_by="day", compact_at=100)
    for batch in range(4):
        at = datetime(2026, 11, 16 + batch % 2, 12, tzinfo=UTC)
        write(spark.createDataFrame([(batch, at)], "n INT, _timestamp TIMESTAMP"), batch)
    before = rows_of(spark, target)
    store = open_table(target)
    assert len(store.snapshot().files) == 4

    assert compact(store) == 2
    store.clean()

    assert len(store.snapshot().files) == 2
    assert rows_of(spark, target) == before
    write(spark.createDataFrame([(9, at)], "n INT, _timestamp TIMESTAMP"), 4)
    assert len(rows_of(spark, target)) == 5


def test_plain_parquet_has_days_as_folders_that_every_reader_knows(spark, tmp_path):
    table = tmp_path / "events"
    write = writer(f"parquet:{table}", partition_by="day", time="at")
    for batch in range(2):
        at = datetime(2026, 11, 16 + batch, 23, 30, tzinfo=UTC)
        write(spark.createDataFrame([(batch, at)], "n INT, at TIMESTAMP"), batch)
    write(spark.createDataFrame([(2, at, "new")], "n INT, at TIMESTAMP, more STRING"), 2)

    assert [folder.name for folder in sorted(table.glob("day=*"))] == [
        "day=2026-11-16",
        "day=2026-11-17",
    ]
    sql = f"select n, day, more from '{table}/**/*.parquet' order by n"
    assert duckdb.sql(sql).fetchall() == [
        (0, date(2026, 11, 16), None),
        (1, date(2026, 11, 17), None),
        (2, date(2026, 11, 17), "new"),
    ]
    frame = pd.read_parquet(table).sort_values("n")
    assert list(frame["more"]) == [None, None, "new"]
    assert list(frame["day"].astype(str)) == ["2026-11-16", "2026-11-17", "2026-11-17"]
    days = spark.read.parquet(str(table)).where("day = DATE'2026-11-17'")
    assert sorted(row.n for row in days.collect()) == [1, 2]


def test_a_table_made_otherwise_or_by_others_is_not_written(spark, target, tmp_path):
    write = writer(target)
    write(spark.range(1), 0)
    with pytest.raises(TableError, match="cannot be written with"):
        writer(target, key="id")(spark.range(1), 1)
    with pytest.raises(TableError, match="no column _timestamp"):
        writer(f"{target}2", partition_by="day")(spark.range(1), 0)
    with pytest.raises(TableError, match="needs a key"):
        writer(target, mode="update")
    (tmp_path / "mine").mkdir()
    with pytest.raises(TableError, match="not a table of Hightide"):
        writer(f"parquet:{tmp_path / 'mine'}")(spark.range(1), 0)


def test_a_dropped_table_is_gone(spark, target):
    writer(target)(spark.range(3), 0)
    open_table(target).drop()
    assert open_table(target).snapshot() is None
    with pytest.raises(TableError, match="no table"):
        read(spark, target)
    writer(target)(spark.range(2), 0)
    assert len(rows_of(spark, target)) == 2
    assert not list(Path(target.partition(":")[2]).parent.glob("*lock*"))
