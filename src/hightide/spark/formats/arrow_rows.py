"""Decoders that run in Python: a column of bytes in, a column of structs out, a batch at a time.

Only the column `value` passes through Python; the key and the origin of a record do not. The
decoder is made once for each schema and process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from hightide.spark.formats.value_schema import ERROR, VALUE, relaxed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DECODED = "_hightide_decoded"
# From values to the array of structs, and the error of each value; None if there is none.
Decode = Callable[[list[bytes | None]], tuple[pa.Array, Sequence[str | None]]]


class BadRecord(Exception):
    """A value that cannot be decoded; the text says why."""


def decoded_by(rows: DataFrame, wanted: StructType, decoder: Callable[[], Decode]) -> DataFrame:
    """Return the rows with VALUE and ERROR, as a decoder finds them."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas import functions as vectorised

    struct = StructType([StructField("value", relaxed(wanted)), StructField("error", StringType())])

    def decode(values: pa.Array) -> pa.Array:
        found, errors = decoder()(values.to_pylist())
        return pa.StructArray.from_arrays(
            [found, pa.array(errors, pa.string())], names=["value", "error"]
        )

    # Spark would run a deterministic function again for the filter on its errors.
    make: Any = vectorised.arrow_udf
    function = make(decode, struct).asNondeterministic()
    rows = rows.withColumn(DECODED, function("value"))
    found = F.col(DECODED)
    columns = {VALUE: found.getField("value"), ERROR: found.getField("error")}
    return rows.withColumns(columns).drop(DECODED)


def encoded_by(
    row: Column, encoder: Callable[[], Callable[[dict[str, Any]], bytes]], what: str
) -> Column:
    """Return a struct as bytes, by an encoder; a row that does not fit stops the query."""
    from pyspark.sql.pandas import functions as vectorised

    def encode(rows: pa.Array) -> pa.Array:
        write = encoder()
        made = []
        for fields in rows.to_pylist(maps_as_pydicts="strict"):
            try:
                made.append(None if fields is None else write(fields))
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                raise ValueError(f"Row {fields} cannot be written as {what}: {error}") from None
        return pa.array(made, pa.binary())

    make: Any = vectorised.arrow_udf
    made: Column = make(encode, BinaryType())(row)
    return made


def spread(found: pa.Array, errors: Sequence[str | None], is_null: Sequence[bool]) -> pa.Array:
    """Put the decoded rows back between those that could not be decoded."""
    positions: list[int | None] = []
    at = 0
    for error, null in zip(errors, is_null, strict=True):
        good = error is None and not null
        positions.append(at if good else None)
        at += good
    return found.take(pa.array(positions, pa.int64()))
