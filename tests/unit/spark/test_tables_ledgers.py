"""The three ledgers change as a whole or not at all; no Spark is needed to see that."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from hightide.spark.tables.compaction import Background, compact
from hightide.spark.tables.delta import DeltaLedger
from hightide.spark.tables.iceberg import IcebergLedger
from hightide.spark.tables.ledger import Change, Conflict, Layout, Mark, NewFile
from hightide.spark.tables.parquet import ParquetLedger

SCHEMA = StructType([StructField("id", LongType())])
LEDGERS = (ParquetLedger, DeltaLedger, IcebergLedger)
numbers = itertools.count()


@pytest.fixture(params=LEDGERS)
def ledger(request, tmp_path):
    made = request.param(tmp_path / "tables" / "rows")
    made.create(SCHEMA, Layout())
    return made


def staged(ledger, ids, schema=None) -> NewFile:
    """A file as executors leave it."""
    ledger.workspace.mkdir(parents=True, exist_ok=True)
    name = f"w-{next(numbers)}.parquet"
    table = pa.table({"id": list(ids)}, schema=schema or pa.schema([("id", pa.int64())]))
    pq.write_table(table, ledger.workspace / name)
    return NewFile(
        ledger.workspace / name, name, (ledger.workspace / name).stat().st_size, len(table)
    )


def ids_in(ledger) -> list[int]:
    found = ledger.snapshot()
    return sorted(
        n for each in found.files for n in pq.read_table(ledger.locate(each))["id"].to_pylist()
    )


def test_rows_and_marks_change_together(ledger):
    ledger.commit(Change((staged(ledger, [1, 2]),), writer="a", mark=Mark("run", 0)))
    ledger.commit(Change((staged(ledger, [3]),), writer="b", mark=Mark("other", 7)))
    first = ledger.snapshot().files[0].path
    before = ids_in(ledger)
    gone = frozenset(each.path for each in ledger.snapshot().files if each.rows == 2)
    ledger.commit(Change((staged(ledger, [9]),), gone, writer="a", mark=Mark("run", 1)))

    assert first
    assert before == [1, 2, 3]
    assert ids_in(ledger) == [3, 9]
    assert ledger.snapshot().marks == {"a": Mark("run", 1), "b": Mark("other", 7)}
    assert [each.rows for each in ledger.snapshot().files] == [1, 1]


def test_files_that_are_no_longer_there_cannot_be_replaced(ledger):
    ledger.commit(Change((staged(ledger, [1]),)))
    gone = frozenset(each.path for each in ledger.snapshot().files)
    ledger.commit(Change((staged(ledger, [2]),), gone))
    with pytest.raises(Conflict):
        ledger.commit(Change((staged(ledger, [3]),), gone))
    assert ids_in(ledger) == [2]


def test_a_column_is_added_and_a_whole_table_can_change_its_types(ledger):
    ledger.commit(Change((staged(ledger, [1]),)))
    wider = StructType([*SCHEMA.fields, StructField("more", DoubleType())])
    arrow = pa.schema([("id", pa.int64())])
    ledger.commit(Change((staged(ledger, [2], arrow),), schema=wider))
    assert ledger.snapshot().schema == wider
    assert ids_in(ledger) == [1, 2]
    if isinstance(ledger, DeltaLedger):
        everything = frozenset(each.path for each in ledger.snapshot().files)
        double = StructType([StructField("id", DoubleType()), wider["more"]])
        file = staged(ledger, [1.0, 2.0], pa.schema([("id", pa.float64())]))
        ledger.commit(Change((file,), everything, double))
        assert DeltaTable(str(ledger.path)).to_pyarrow_table()["id"].to_pylist() == [1.0, 2.0]


def test_what_a_crash_left_behind_is_removed_and_nothing_else(ledger):
    ledger.commit(Change((staged(ledger, [1]),)))
    new = staged(ledger, [2])
    if not isinstance(ledger, ParquetLedger):
        ledger.base().mkdir(parents=True, exist_ok=True)
        new.staged.rename(ledger.base() / f"events-0000000003-{new.name}")
        ledger.forget("events-0000000002")
        assert list(ledger.base().rglob("events-0000000003-*"))
    ledger.forget("events-0000000003")
    assert not list(ledger.base().rglob("events-0000000003-*"))
    assert ids_in(ledger) == [1]


def test_small_files_are_joined_in_the_background(ledger):
    background = Background(ledger, fewest=4)
    for n in range(6):
        ledger.commit(Change((staged(ledger, [n]),)))
    background.consider(ledger.snapshot().files)
    background.settle()
    assert len(ledger.snapshot().files) == 1
    assert ids_in(ledger) == list(range(6))
    assert compact(ledger) == 0


def test_a_failure_to_join_costs_nothing(ledger, monkeypatch, caplog):
    for n in range(2):
        ledger.commit(Change((staged(ledger, [n]),)))
    background = Background(ledger, fewest=2)
    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetWriter", None)
        background.consider(ledger.snapshot().files)
        background.settle()
    assert "could not be joined" in caplog.text
    assert ids_in(ledger) == [0, 1]


def test_a_change_that_dies_anywhere_has_happened_or_not(ledger, monkeypatch):
    """Killed at each rename in turn, and once more after the last."""
    real = Path.rename
    expected: list[int] = []
    for fatal in range(1, 9):
        calls = itertools.count(1)

        def dying(path, goal, fatal=fatal, calls=calls):
            if next(calls) == fatal:
                raise KeyboardInterrupt
            return real(path, goal)

        files = tuple(staged(ledger, [fatal * 10 + n]) for n in range(3))
        mark = Mark("run", fatal)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", dying)
            with suppress(KeyboardInterrupt):
                ledger.commit(Change(files, writer="a", mark=mark))
        ledger = type(ledger)(ledger.path)
        if ledger.snapshot().marks.get("a") == mark:
            expected += [fatal * 10 + n for n in range(3)]
        assert ids_in(ledger) == expected
    assert len(expected) >= 3


def test_readers_of_parquet_see_whole_batches_while_it_is_written_and_joined(tmp_path):
    """DuckDB and pandas look all the time: each batch has ten rows, so they count in tens."""
    ledger = ParquetLedger(tmp_path / "rows")
    ledger.create(SCHEMA, Layout())
    ledger.commit(Change((staged(ledger, range(10)),)))
    seen: list[tuple[int, int]] = []
    wrong: list[BaseException] = []
    done = threading.Event()

    def look() -> None:
        try:
            while not done.is_set():
                version = ledger.path.resolve()
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
        ledger.commit(Change(tuple(staged(ledger, half) for half in halves)))
        if batch % 5 == 0:
            compact(ledger)
    done.set()
    reader.join()

    assert not wrong
    assert len(seen) > 1
    assert {count % 10 for count, _ in seen} == {0}
    assert all(count == distinct for count, distinct in seen)
    assert ids_in(ledger) == list(range(400))


def test_versions_of_parquet_go_when_nobody_can_be_reading_them(tmp_path):
    ledger = ParquetLedger(tmp_path / "rows", keep_s=3600)
    ledger.create(SCHEMA, Layout())
    for n in range(3):
        ledger.commit(Change((staged(ledger, [n]),)))
    assert len(list(ledger.versions.glob("0*"))) == 4
    again = ParquetLedger(tmp_path / "rows", keep_s=0)
    again.clean()
    assert [each.name for each in ledger.versions.glob("0*")] == ["0000000003"]
    assert ids_in(again) == [0, 1, 2]
    again.drop()
    assert list(tmp_path.iterdir()) == []


def test_delta_can_skip_files_by_what_their_footers_say(tmp_path):
    ledger = DeltaLedger(tmp_path / "rows")
    ledger.create(SCHEMA, Layout())
    for n in range(3):
        ledger.commit(Change((staged(ledger, range(n * 10, n * 10 + 10)),)))
    table = DeltaTable(str(ledger.path))
    found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted((each["min.id"], each["max.id"], each["null_count.id"]) for each in found) == [
        (0, 9, 0),
        (10, 19, 0),
        (20, 29, 0),
    ]
    assert table.to_pyarrow_table(filters=[("id", ">=", 25)])["id"].to_pylist() == list(
        range(25, 30)
    )


def test_iceberg_is_found_without_its_catalog(tmp_path):
    from pyiceberg.table import StaticTable

    ledger = IcebergLedger(tmp_path / "rows")
    ledger.create(SCHEMA, Layout())
    ledger.commit(Change((staged(ledger, [1, 2]),), writer="a", mark=Mark("run", 4)))
    found = StaticTable.from_metadata(str(ledger.path))
    assert found.scan().to_arrow()["id"].to_pylist() == [1, 2]
    assert found.current_snapshot().summary["hightide.batch"] == "4"
