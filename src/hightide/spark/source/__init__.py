"""`spark.read` and `spark.readStream` with `format("hightide")`: topics as DataFrames.

    options      what the user wrote, checked
    positions    where to start and end
    planning     which offsets a batch reads, and how they are cut into tasks
    partitions   what the brokers tell of topics and offsets
    reader       a batch, and how a task reads
    stream       a stream, from batch to batch
    progress     commits to a consumer group, for those who watch

Spark finds the source by the package `pyspark_hightide`, which stands beside this one.
"""

from hightide.spark.source.options import OptionError, for_batch, for_stream, parse
from hightide.spark.source.progress import Progress, commit_progress
from hightide.spark.source.reader import BatchReader
from hightide.spark.source.stream import StreamReader

__all__ = [
    "BatchReader",
    "OptionError",
    "Progress",
    "StreamReader",
    "commit_progress",
    "for_batch",
    "for_stream",
    "parse",
]
