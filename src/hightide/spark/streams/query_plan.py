"""What Spark makes of a query before any data flows: what it reads, its columns, its mistakes.

Nothing here asks a broker, so a plan can be made on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hightide.spark.explain import in_words
from hightide.spark.formats import BadSchema
from hightide.spark.streams.errors import StreamsError, listed
from hightide.spark.streams.output import check, results
from hightide.spark.streams.query import Query
from hightide.spark.streams.query_context import building

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from hightide.spark.streams.app import App


@dataclass(frozen=True, slots=True)
class Plan:
    query: Query
    # Topics, each with how it is read: stream, table or batch.
    reads: tuple[tuple[str, str], ...]
    columns: StructType
    rows: DataFrame = field(repr=False)

    @property
    def explained(self) -> str:
        """Spark's logical plan."""
        return str(self.rows._jdf.queryExecution().analyzed().toString())


def plan(app: App, query: Query) -> Plan:
    rows = build(app, query)
    check(app, rows, query)
    check_mode(rows, query)
    return Plan(query, tuple(reads(rows)), results(rows, query).schema, rows)


def build(app: App, query: Query) -> DataFrame:
    """Return the DataFrame that a query's function returns."""
    from pyspark.sql import DataFrame

    _ = app.spark  # Column functions need a session.
    try:
        with building(query.name):
            rows = query.build()
    except (StreamsError, BadSchema) as error:
        raise StreamsError(f"Query {query.name}: {error}") from None
    except Exception as error:
        if not _is_from_spark(error):
            raise
        raise StreamsError(f"Query {query.name}: {in_words(error)}") from None
    if not isinstance(rows, DataFrame):
        raise StreamsError(
            f"Query {query.name} returns {type(rows).__name__}; it must return a DataFrame."
        )
    if not rows.isStreaming:
        raise StreamsError(
            f"Query {query.name} reads no stream: start with topic.stream() and join tables to it. "
            f"Topics are {listed(app.topics)}."
        )
    return rows


def _is_from_spark(error: Exception) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError)


def check_mode(rows: DataFrame, query: Query) -> None:
    """Check that the query can run in its output mode: Spark's own check, before the start."""
    jvm: Any = rows.sparkSession._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, query.mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)
    except Exception as error:
        if not _is_from_spark(error):
            raise
        raise StreamsError(
            f'Query {query.name} cannot run with mode="{query.mode}": {in_words(error)}'
        ) from None


def reads(rows: DataFrame) -> list[tuple[str, str]]:
    """Return the topics that the leaves of a plan read."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    found: dict[tuple[str, str], None] = {}
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.nodeName() == "StreamingRelationV2":
            options, kind = leaf.extraOptions(), "stream"
        elif leaf.nodeName() == "DataSourceV2Relation":
            options = leaf.options()
            kind = "table" if options.get("endingOffsets") == "live" else "batch"
        else:
            continue
        topic = options.get("subscribe")
        if topic is not None:
            found[topic, kind] = None
    return list(found)
