"""What tables decide before anything is written: names, repeats, schemas, which files to merge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hightide.spark.tables.compaction import plan
from hightide.spark.tables.record_rows import merged, schema_for
from hightide.spark.tables.schema_evolution import evolve, wider
from hightide.spark.tables.table_store import DataFile, Layout, Mark, bucket_of, judge
from hightide.spark.tables.table_target import Kind, TableError, is_table, parse
from hightide.spark.tables.table_writer import writer


def struct(**types) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


# -- names ---------------------------------------------------------------------------------------


def test_a_target_is_a_kind_and_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse("delta:tables/big").path == tmp_path / "tables" / "big"
    assert parse("iceberg:file:///x/y").path.as_posix() == "/x/y"
    assert parse("parquet:/x").kind is Kind.PARQUET
    assert str(parse("parquet:/x")) == "parquet:/x"
    assert not is_table("orders")
    assert not is_table("dlq:orders")
    for wrong in ("orders", "delta:", "csv:/x", "delta:s3://bucket/x"):
        with pytest.raises(TableError, match=r"parquet:PATH|mounted"):
            parse(wrong)


def test_a_writer_says_what_is_wrong_before_it_writes(tmp_path):
    with pytest.raises(TableError, match="is not a valid name"):
        writer(f"delta:{tmp_path / 'x'}", name="a/b")
    with pytest.raises(TableError, match="skip folders like _partition="):
        writer(f"parquet:{tmp_path / 'x'}", partition_by="_partition")


def test_a_layout_is_kept_as_it_was_made():
    layout = Layout(("a", "b"), ("day",), "at", 7)
    assert Layout.of(layout.plain()) == layout


def test_the_name_of_a_file_says_its_bucket():
    assert bucket_of("day=2026-11-16/b0007-orders-0000000001-00000-abcd.parquet") == 7
    assert bucket_of("bees-0000000001.parquet") is None
    assert bucket_of("orders-0000000001.parquet") is None


# -- repeats -------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(0, 50))
def test_only_the_last_batch_of_the_same_run_is_a_repeat(last, batch):
    mark = Mark("run", last)
    if batch < last:
        with pytest.raises(TableError, match="written twice"):
            judge(mark, "run", batch, is_repeatable=False)
        assert judge(mark, "run", batch, is_repeatable=True)
    else:
        assert judge(mark, "run", batch, is_repeatable=False) == (batch > last)
        assert judge(mark, "run", batch, is_repeatable=True) == (batch > last)
    assert judge(None, "run", batch, is_repeatable=False)


def test_a_new_checkpoint_may_only_fill_tables_that_converge():
    with pytest.raises(TableError, match="a new checkpoint"):
        judge(Mark("old", 0), "new", 0, is_repeatable=False)
    assert judge(Mark("old", 9), "new", 0, is_repeatable=True)


# -- schemas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "incoming", "expected"),
    [
        (IntegerType(), LongType(), LongType()),
        (LongType(), ShortType(), LongType()),
        (FloatType(), DoubleType(), DoubleType()),
        (LongType(), DoubleType(), DoubleType()),
        (DoubleType(), IntegerType(), DoubleType()),
        (DecimalType(10, 2), DecimalType(12, 4), DecimalType(12, 4)),
        (DecimalType(38, 2), DecimalType(38, 4), None),
        (StringType(), NullType(), StringType()),
        (StringType(), LongType(), None),
        (LongType(), StringType(), None),
        (ArrayType(IntegerType()), ArrayType(LongType()), ArrayType(LongType())),
        (MapType(StringType(), IntegerType()), MapType(LongType(), IntegerType()), None),
        (struct(a=LongType()), struct(b=StringType()), struct(a=LongType(), b=StringType())),
        (struct(a=LongType()), struct(a=StringType()), None),
    ],
)
def test_a_type_becomes_wide_enough_for_both_or_there_is_none(table, incoming, expected):
    assert wider(table, incoming) == expected


def test_columns_are_added_at_the_end_and_none_is_lost():
    table = struct(a=IntegerType(), b=StringType())
    found = evolve(table, struct(c=LongType(), a=LongType()))
    assert found.schema == struct(a=LongType(), b=StringType(), c=LongType())
    assert (found.added, found.widened) == (("c",), ("a",))
    assert evolve(table, struct(b=StringType())).schema == table


def test_what_does_not_fit_is_said():
    table = struct(a=StringType(), k=IntegerType())
    with pytest.raises(TableError, match="Column a is string in the table and bigint"):
        evolve(table, struct(a=LongType()))
    with pytest.raises(TableError, match="Column k"):
        evolve(table, struct(k=LongType()), fixed=["k"])
    with pytest.raises(TableError, match="only in upper and lower case"):
        evolve(table, struct(A=StringType()))


def test_inferred_fields_take_the_types_that_the_table_has():
    known = struct(n=DoubleType(), s=StringType(), k=LongType(), _key=StringType())
    found = struct(_corrupt_record=StringType(), n=LongType(), s=LongType(), x=NullType())
    assert merged(found, known) == struct(n=DoubleType(), s=StringType())
    assert merged(found, known, key=["k", "_key"]).names == ["n", "s", "k"]
    assert merged(struct(s=NullType()), known) == struct(s=StringType())
    assert merged(struct(at=StringType()), None, time="at") == struct(at=TimestampType())


def test_a_format_needs_what_it_needs():
    assert schema_for("json", None) is None
    assert schema_for("json", "infer") is None
    assert schema_for("text", None).type.names == ["value"]
    for format, schema in (("xml", None), ("avro", None), ("protobuf", "a.desc")):
        with pytest.raises(TableError, match=r"format|schema"):
            schema_for(format, schema)


# -- merging files -------------------------------------------------------------------------------

SIZES = st.lists(st.tuples(st.integers(1, 5_000), st.sampled_from("ab")), max_size=60)


@given(SIZES, st.integers(2, 8))
def test_files_are_joined_within_their_partition_and_up_to_a_size(sizes, min_files):
    files = [
        DataFile(f"{at}.parquet", size, 1, {"day": day}) for at, (size, day) in enumerate(sizes)
    ]
    groups = plan(files, target_bytes=4_000, min_files=min_files)
    joined = [file.path for group in groups for file in group]
    assert len(joined) == len(set(joined))
    for group in groups:
        assert len(group) >= min_files
        assert len({file.partition["day"] for file in group}) == 1
        assert sum(file.size_bytes for file in group) <= 4_000
        assert all(file.size_bytes < 2_000 for file in group)


def test_a_large_file_is_not_copied_for_a_few_small_ones():
    large = DataFile("large", 1_000_000, 1)
    small = [DataFile(f"{at}", 1_000, 1) for at in range(8)]
    assert plan([large, *small], target_bytes=10_000_000, min_files=8) == [small]
    assert plan([large, *small], target_bytes=10_000_000, min_files=2) == [[large, *small]]


def test_the_files_of_a_table_with_a_key_are_left_alone():
    assert plan([DataFile(f"b000{at}-x.parquet", 10, 1) for at in range(9)], min_files=2) == []
