"""JSON values, decoded and encoded by Spark's own `from_json` and `to_json`: no row passes Python.

`from_json` accepts more than it should, so more is checked. A field of the wrong type makes a
record bad, and so do a missing required field and text after the object, which the parser would
ignore: two objects in one record are not one. The reason is computed only for bad records, so it
may parse the record again.

Confluent's prefix of five bytes starts with a zero byte, as no JSON does, and is skipped.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, cast

from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from hightide.spark.formats import dataclass_schema
from hightide.spark.formats.value_schema import ERROR, VALUE, BadSchema, Schema, once, relaxed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The field in which Spark puts a record that does not fit the schema.
CORRUPT = "_hightide_corrupt"
TEXT = "_hightide_text"
PARSED = "_hightide_parsed"
SPACE = " \t\r\n"
# What stands between two objects in one record.
SEAMS = ("}{", "} {", "}\n{", "}\r\n{")
# How many characters of a value a reason shows.
SHOWN = 80
# Spark's default writes milliseconds, and omits null fields.
WRITTEN = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "ignoreNullFields": "false"}


@dataclass(frozen=True)
class JsonSchema(Schema):
    """A JSON schema. A DDL stays text until it is needed: only a Spark session parses it."""

    given: StructType | str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    format = "json"

    @property
    def type(self) -> StructType:
        return self.given if isinstance(self.given, StructType) else struct_of_ddl(self.given)

    def decode(self, rows: DataFrame, *, with_reasons: bool = True) -> DataFrame:
        from pyspark.sql import functions as F

        wanted = self.type
        text = _without_prefix(F.col("value"))
        options = {**self.options, "columnNameOfCorruptRecord": CORRUPT}
        parsed = F.from_json(text, relaxed(wanted, StructField(CORRUPT, StringType())), options)
        rows = rows.withColumns({TEXT: once(text), PARSED: once(parsed)})
        found = F.col(PARSED)
        value = F.when(found.isNotNull(), _filled(found, wanted))
        error = _error(wanted, with_reasons)
        return rows.withColumns({VALUE: value, ERROR: error}).drop(TEXT, PARSED)

    def encode(self, row: Column) -> Column:
        from pyspark.sql import functions as F

        return F.to_json(row, {**WRITTEN, **self.options}).cast("binary")


def struct_of_ddl(ddl: str) -> StructType:
    from pyspark import SparkContext

    # A session is active only in the thread that made it; the context is there in every thread,
    # also in the one that Spark calls for a batch.
    if SparkContext._active_spark_context is None:
        raise BadSchema(
            f"The schema {ddl!r} can be parsed only by Spark, and there is no session yet."
        )
    try:
        found = DataType.fromDDL(ddl)
    except Exception as error:
        # The first line is the parser's message; the rest is Spark's stack.
        reason = str(error).strip().splitlines()[0]
        raise BadSchema(f"The schema {ddl!r} is invalid: {reason}") from None
    if not isinstance(found, StructType):
        raise BadSchema(
            f"The schema {ddl!r} has no columns; expected for example 'name STRING, n BIGINT'."
        )
    return found


def _without_prefix(value: Column) -> Column:
    from pyspark.sql import functions as F

    bare = F.when(value.substr(1, 1) == F.lit(b"\0"), value.substr(6, 2**31 - 1)).otherwise(value)
    return bare.cast("string")


def _filled(found: Column, struct: StructType) -> Column:
    """Return the struct without Spark's own field, and with defaults for missing fields."""
    from pyspark.sql import functions as F

    def column(field: StructField) -> Column:
        here = found.getField(field.name)
        kind = field.dataType
        if isinstance(kind, StructType) and _has_defaults(kind):
            here = F.when(here.isNotNull(), _filled(here, kind))
        elif isinstance(kind, ArrayType) and _has_defaults(kind.elementType):
            inner = cast(StructType, kind.elementType)
            here = F.transform(here, lambda it: F.when(it.isNotNull(), _filled(it, inner)))
        default = field.metadata.get(dataclass_schema.DEFAULT)
        if default is not None:
            text = json.dumps({field.name: json.loads(default)})
            alone = relaxed(StructType([field]))
            here = F.coalesce(here, F.from_json(F.lit(text), alone).getField(field.name))
        return here.alias(field.name)

    return F.struct(*(column(field) for field in struct.fields))


def _has_defaults(kind: DataType) -> bool:
    return isinstance(kind, StructType) and any(
        dataclass_schema.DEFAULT in field.metadata
        or _has_defaults(field.dataType)
        or (isinstance(field.dataType, ArrayType) and _has_defaults(field.dataType.elementType))
        for field in kind.fields
    )


def _error(wanted: StructType, with_reasons: bool) -> Column:
    """Return null for a good record, else what is wrong with it."""
    from pyspark.sql import functions as F

    text, found = F.col(TEXT), F.col(PARSED)
    is_corrupt = found.isNull() | found.getField(CORRUPT).isNotNull()
    is_more = _is_more_than_one(text)
    is_invalid = ~F.is_valid_utf8(text)
    faults = list(_faults(found, wanted, ""))
    is_bad = reduce(or_, (is_so for is_so, _ in faults), is_corrupt | is_more | is_invalid)
    if not with_reasons:
        return F.when(text.isNotNull() & is_bad, F.lit("bad"))
    shown = F.substring(F.regexp_replace(text, r"\s+", " "), 1, SHOWN)
    reason = (
        F.when(is_invalid, F.lit("the value is not UTF-8"))
        .when(_members(text).isNull(), F.concat(F.lit("the value is not a JSON object: "), shown))
        .when(is_more, F.concat(F.lit("there is more than one JSON object: "), shown))
        .when(is_corrupt, F.coalesce(_misfits(text, found, wanted), _inside(shown)))
        .otherwise(F.concat_ws("; ", *(F.when(is_so, words) for is_so, words in faults)))
    )
    return F.when(text.isNotNull() & is_bad, reason)


def _is_more_than_one(text: Column) -> Column:
    """Return whether something follows the object.

    Inside of an array the parser would fail on it; only suspect records are parsed that way.
    """
    from pyspark.sql import functions as F

    ends = F.rtrim(text, F.lit(SPACE)).endswith("}")
    suspect = reduce(or_, (text.contains(seam) for seam in SEAMS), ~ends)
    array = F.from_json(F.concat(F.lit("["), text, F.lit("]")), "array<map<string,string>>")
    return suspect & array.isNull()


def _members(text: Column) -> Column:
    """Return the members of a JSON object as text; null if it is not an object."""
    from pyspark.sql import functions as F

    return F.from_json(text, "map<string,string>")


def _faults(found: Column, struct: StructType, path: str) -> Iterator[tuple[Column, Column]]:
    """Yield what can be wrong with a record whose types are right, each with its message."""
    from pyspark.sql import functions as F

    for field in struct.fields:
        here, name, kind = found.getField(field.name), f"{path}{field.name}", field.dataType
        if not field.nullable:
            yield here.isNull(), F.lit(f"{name} is missing")
        allowed = field.metadata.get(dataclass_schema.ALLOWED)
        if allowed:
            words = F.lit(f"{name} should be one of {', '.join(map(str, allowed))}, but is ")
            yield here.isNotNull() & ~here.isin(allowed), F.concat(words, here.cast("string"))
        if isinstance(kind, StructType):
            for is_faulty, words in _faults(here, kind, f"{name}."):
                yield here.isNotNull() & is_faulty, words
        elif isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
            inner = kind.elementType
            for position in range(len(list(_faults(here, inner, "")))):
                yield _in_element(here, inner, name, position)


def _in_element(
    array: Column, inner: StructType, name: str, position: int
) -> tuple[Column, Column]:
    """Return one of the faults that an element of an array can have."""
    from pyspark.sql import functions as F

    def fault(element: Column) -> tuple[Column, Column]:
        return list(_faults(element, inner, f"{name}[]."))[position]

    wrong = F.filter(array, lambda it: it.isNotNull() & fault(it)[0])
    is_faulty = F.coalesce(F.size(wrong), F.lit(0)) > 0
    return is_faulty, fault(F.get(wrong, F.lit(0)))[1]


def _misfits(text: Column, found: Column, wanted: StructType) -> Column:
    """Return the members that are in the text but could not be parsed; null if there are none."""
    from pyspark.sql import functions as F

    types = F.lit(
        json.dumps({field.name: field.dataType.simpleString() for field in wanted.fields})
    )
    given = F.map_filter(_members(text), lambda _, value: value.isNotNull())
    lost = F.array_except(F.map_keys(given), F.map_keys(_members(F.to_json(found))))
    lost = F.array_intersect(lost, F.map_keys(_members(types)))
    misfits = F.transform(
        lost,
        lambda name: F.concat(
            name,
            F.lit(" should be "),
            F.element_at(_members(types), name),
            F.lit(", but is "),
            F.substring(F.element_at(given, name), 1, SHOWN),
        ),
    )
    return F.when(F.size(lost) > 0, F.array_join(misfits, "; "))


def _inside(shown: Column) -> Column:
    from pyspark.sql import functions as F

    return F.concat(F.lit("a nested value does not have the type of the schema: "), shown)
