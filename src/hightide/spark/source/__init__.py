"""`spark.read` and `spark.readStream` with `format("hightide")`: topics as DataFrames.

    source_options   the options of the user, checked
    offsets          offsets and positions: where to start and end
    batch_plan       which offsets a batch reads, and how they are split into tasks
    partitions       topics, partitions and log ends, asked of the brokers
    reader           a batch query, and how a task reads
    stream           a streaming query, from micro-batch to micro-batch
    progress         commits to a consumer group, so that tools show the lag

Spark finds the source by the package `pyspark_hightide`, beside this one. Spark starts several
processes for one query, and each of them loads only what it needs: the names below are imported
when they are first used.
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
