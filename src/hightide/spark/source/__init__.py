"""`spark.read` and `spark.readStream` with `format("hightide")`: topics as DataFrames.

    options      what the user wrote, checked
    positions    where to start and end
    planning     which offsets a batch reads, and how they are cut into tasks
    partitions   what the brokers tell of topics and offsets
    reader       a batch, and how a task reads
    stream       a stream, from batch to batch
    progress     commits to a consumer group, for those who watch

Spark finds the source by the package `pyspark_hightide`, which stands beside this one.  It starts
several processes for one query, and each of them loads only what it needs: what is named here is
imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hightide.spark.source.batch_plan import DataLoss
    from hightide.spark.source.progress import Progress, commit_progress
    from hightide.spark.source.reader import BatchReader
    from hightide.spark.source.source_options import OptionError, for_batch, for_stream, parse
    from hightide.spark.source.stream import StreamReader

__all__ = [
    "BatchReader",
    "DataLoss",
    "OptionError",
    "Progress",
    "StreamReader",
    "commit_progress",
    "for_batch",
    "for_stream",
    "parse",
]

_MODULES = {
    "BatchReader": "reader",
    "DataLoss": "batch_plan",
    "OptionError": "source_options",
    "Progress": "progress",
    "StreamReader": "stream",
    "commit_progress": "progress",
    "for_batch": "source_options",
    "for_stream": "source_options",
    "parse": "source_options",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
