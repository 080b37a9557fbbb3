"""Rows of Spark into topics.

rows            which columns a DataFrame must have
sink_options    the options, named as those of Spark's Kafka sink
routing         rows → partitions → record batches, on executors
delivery        record batches → brokers, on executors
at_least_once   `format("hightide")`
marker          what a transaction says about its micro-batch, and what follows from that
transactions    one micro-batch is one transaction, whatever fails
jobs, tasks     how Spark writes a batch, on the driver and on executors
foreach_batch   `exactly_once`: all of it as a function for `foreachBatch`
"""

from hightide.spark.sink.foreach_batch import ExactlyOnce, exactly_once
from hightide.spark.sink.marker import Refused
from hightide.spark.sink.rows import Unwritable

__all__ = ["ExactlyOnce", "Refused", "Unwritable", "exactly_once"]
