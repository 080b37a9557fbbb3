"""The three table stores change whole or not at all; this needs no Spark."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from hightide.spark.tables.compaction import Background, compact
from hightide.spark.tables.delta import DeltaStore
from hightide.spark.tables.iceberg import IcebergStore
from hightide.spark.tables.parquet import ParquetStore
from hightide.spark.tables.table_store import Change, Conflict, Layout, Mark, NewFile

SCHEMA = StructType([StructField("id", LongType())])
LEDGERS = (ParquetStore, DeltaStore, IcebergStore)
numbers = itertools.count()


@pytest.fixture(params=LEDGERS)
def store(request, tmp_path):
    made = request.param(tmp_path / "tables" / "rows")
    made.create(SCHEMA, Layout())
    return made


def staged(store, ids, schema=None) -> NewFile:
    """Return a file as executors leave it."""
    store.workspace.mkdir(parents=True, exist_ok=True)
    name = f"w-{next(numbers)}.parquet"
    table = pa.table({"id": list(ids)}, schema=schema or pa.schema([("id", pa.int64())]))
    pq.write_table(table, store.workspace / name)
    return NewFile(
        store.workspace / name, name, (store.workspace / name).stat().st_size, len(table)
    )


def ids_in(store) -> list[int]:
    found = store.snapshot()
    return sorted(
        n for file in found.files for n in pq.read_table(store.locate(file))["id"].to_pylist()
    )


def test_rows_and_marks_change_together(store):
    store.commit(Change((staged(store, [1, 2]),), writer="a", mark=Mark("run", 0)))
    store.commit(Change((staged(store, [3]),), writer="b", mark=Mark("other", 7)))
    first = store.snapshot().files[0].path
    before = ids_in(store)
    gone = frozenset(file.path for file in store.snapshot().files if file.rows == 2)
    store.commit(Change((staged(store, [9]),), gone, writer="a", mark=Mark("run", 1)))

    assert first
    assert before == [1, 2, 3]
    assert ids_in(store) == [3, 9]
    assert store.snapshot().marks == {"a": Mark("run", 1), "b": Mark("other", 7)}
    assert [file.rows for file in store.snapshot().files] == [1, 1]


def test_files_that_are_no_longer_there_cannot_be_replaced(store):
    store.commit(Change((staged(store, [1]),)))
    gone = frozenset(file.path for file in store.snapshot().files)
    store.commit(Change((staged(store, [2]),), gone))
    with pytest.raises(Conflict):
        store.commit(Change((staged(store, [3]),), gone))
    assert ids_in(store) == [2]


def test_a_column_is_added_and_a_whole_table_can_change_its_types(store):
    store.commit(Change((staged(store, [1]),)))
    wider = StructType([*SCHEMA.fields, StructField("more", DoubleType())])
    arrow = pa.schema([("id", pa.int64())])
    store.commit(Change((staged(store, [2], arrow),), schema=wider))
    assert store.snapshot().schema == wider
    assert ids_in(store) == [1, 2]
    if isinstance(store, DeltaStore):
        everything = frozenset(file.path for file in store.snapshot().files)
        double = StructType([StructField("id", DoubleType()), wider["more"]])
        file = staged(store, [1.0, 2.0], pa.schema([("id", pa.float64())]))
        store.commit(Change((file,), everything, double))
        assert DeltaTable(str(store.path)).to_pyarrow_table()["id"].to_pylist() == [1.0, 2.0]


def test_what_a_crash_left_behind_is_removed_and_nothing_else(store):
    store.commit(Change((staged(store, [1]),)))
    new = staged(store, [2])
    if not isinstance(store, ParquetStore):
        store.base().mkdir(parents=True, exist_ok=True)
        new.staged.rename(store.base() / f"events-0000000003-{new.name}")
        store.forget("events-0000000002")
        assert list(store.base().rglob("events-0000000003-*"))
    store.forget("events-0000000003")
    assert not list(store.base().rglob("events-0000000003-*"))
    assert ids_in(store) == [1]


def test_small_files_are_joined_in_the_background(store):
    background = Background(store, min_files=4)
    for n in range(6):
        store.commit(Change((staged(store, [n]),)))
    background.consider(store.snapshot().files)
    background.wait()
    assert len(store.snapshot().files) == 1
    assert ids_in(store) == list(range(6))
    assert compact(store) == 0


def test_a_failure_to_join_costs_nothing(store, monkeypatch, caplog):
    for n in range(2):
        store.commit(Change((staged(store, [n]),)))
    background = Background(store, min_files=2)
    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetWriter", None)
        background.consider(store.snapshot().files)
        background.wait()
    assert "could not be merged" in caplog.text
    assert ids_in(store) == [0, 1]


def test_a_change_that_dies_anywhere_has_happened_or_not(store, monkeypatch):
    """Killed at each rename in turn, and once after the last."""
    real = Path.rename
    expected: list[int] = []
    for fatal in range(1, 9):
        calls = itertools.count(1)

        def dying(path, goal, fatal=fatal, calls=calls):
            if next(calls) == fatal:
                raise KeyboardInterrupt
            return real(path, goal)

        files = tuple(staged(store, [fatal * 10 + n]) for n in range(3))
        mark = Mark("run", fatal)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", dying)
            with suppress(KeyboardInterrupt):
                store.commit(Change(files, writer="a", mark=mark))
        store = type(store)(store.path)
        if store.snapshot().marks.get("a") == mark:
            expected += [fatal * 10 + n for n in range(3)]
        assert ids_in(store) == expected
    assert len(expected) >= 3


def test_readers_of_parquet_see_whole_batches_while_it_is_written_and_joined(tmp_path):
    """DuckDB and pandas read continuously: each batch has ten rows, so they count in tens."""
    store = ParquetStore(tmp_path / "rows")
    store.create(SCHEMA, Layout())
    store.commit(Change((staged(store, range(10)),)))
    seen: list[tuple[int, int]] = []
    wrong: list[BaseException] = []
    done = threading.Event()

    def look() -> None:
        try:
            while not done.is_set():
                version = store.path.resolve()
                found = duckdb.connect().sql(
                    f"select count(id), count(distinct id) from '{version}/*.parquet'"
                )
                seen.append(found.fetchall()[0])
                frame = pd.read_parquet(version)
                seen.append((len(frame), frame["id"].nunique()))
        except BaseException as error:
            wrong.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    for batch in range(1, 40):
        halves = [range(batch * 10, batch * 10 + 5), range(batch * 10 + 5, batch * 10 + 10)]
        store.commit(Change(tuple(staged(store, half) for half in halves)))
        if batch % 5 == 0:
            compact(store)
    done.set()
    reader.join()

    assert not wrong
    assert len(seen) > 1
    assert {count % 10 for count, _ in seen} == {0}
    assert all(count == distinct for count, distinct in seen)
    assert ids_in(store) == list(range(400))


def test_versions_of_parquet_are_deleted_when_no_reader_can_use_them(tmp_path):
    store = ParquetStore(tmp_path / "rows", keep_s=3600)
    store.create(SCHEMA, Layout())
    for n in range(3):
        store.commit(Change((staged(store, [n]),)))
    assert len(list(store.versions.glob("0*"))) == 4
    again = ParquetStore(tmp_path / "rows", keep_s=0)
    again.clean()
    assert [path.name for path in store.versions.glob("0*")] == ["0000000003"]
    assert ids_in(again) == [0, 1, 2]
    again.drop()
    assert list(tmp_path.iterdir()) == []


def test_delta_can_skip_files_by_what_their_footers_say(tmp_path):
    store = DeltaStore(tmp_path / "rows")
    store.create(SCHEMA, Layout())
    for n in range(3):
        store.commit(Change((staged(store, range(n * 10, n * 10 + 10)),)))
    table = DeltaTable(str(store.path))
    found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted((file["min.id"], file["max.id"], file["null_count.id"]) for file in found) == [
        (0, 9, 0),
        (10, 19, 0),
        (20, 29, 0),
    ]
    assert table.to_pyarrow_table(filters=[("id", ">=", 25)])["id"].to_pylist() == list(
        range(25, 30)
    )


def test_iceberg_is_found_without_its_catalog(tmp_path):
    from pyiceberg.table import StaticTable

    store = IcebergStore(tmp_path / "rows")
    store.create(SCHEMA, Layout())
    store.commit(Change((staged(store, [1, 2]),), writer="a", mark=Mark("run", 4)))
    found = StaticTable.from_metadata(str(store.path))
    assert found.scan().to_arrow()["id"].to_pylist() == [1, 2]
    snapshot: Any = found.current_snapshot()
    assert snapshot.summary["hightide.batch"] == "4"
