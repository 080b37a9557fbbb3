"""The data source "hightide", where Spark looks for it: a top-level package named `pyspark_*`.

Spark imports it to learn the name, even for queries that read something else, so only what that
needs is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Topics of Hightide and of Apache Kafka, to read and to write."""

    @classmethod
    def name(cls) -> str:
        return "hightide"

    def schema(self) -> str:
        from hightide.spark.columns.record_schema import ddl
        from hightide.spark.source import parse

        options = parse(self.options)
        return ddl(headers=options.headers, columns=options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from hightide.spark.source import BatchReader, for_batch

        options = for_batch(self.options)
        self._check(schema, options.headers, options.columns)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from hightide.spark.source import StreamReader, for_stream

        options = for_stream(self.options)
        self._check(schema, options.headers, options.columns)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from hightide.spark.sink.at_least_once import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from hightide.spark.sink.at_least_once import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _check(self, schema: StructType, headers: bool, columns: tuple[str, ...] | None) -> None:
        """Refuse another schema than the topic's."""
        from hightide.spark.columns.record_schema import arrow_schema
        from hightide.spark.source import OptionError

        wanted = arrow_schema(headers=headers, columns=columns).names
        if schema.fieldNames() != wanted:
            raise OptionError(
                f"A topic has the columns {', '.join(wanted)}; another schema cannot be set. "
                "To leave some out, set the option columns."
            )
