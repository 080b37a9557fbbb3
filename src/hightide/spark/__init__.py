"""The data pipeline: topics in Spark through PySpark, with no jar.

    columns     record batches ⇄ Arrow, at native speed
    source      `spark.read` and `spark.readStream.format("hightide")`
    sink        `format("hightide")` to write, and `exactly_once` for `foreachBatch`
    formats     values ⇄ columns: JSON, Avro, Protobuf, text
    streams     topics in, plain PySpark in the middle, topics or tables out
    tables      topics as Parquet, Delta and Iceberg tables
    pipelines   run, watch and stop an app

It needs the extra `hightide[spark]` and Java 17 or newer. The broker imports nothing from here.
"""
