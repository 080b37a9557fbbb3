"""Rows of Spark into topics.

rows            what a DataFrame must look like
options         the options, named as those of Spark's Kafka sink
routing         rows → partitions → record batches, on executors
delivery        record batches → brokers, on executors
writer          `format("hightide")`: plain, at least once
marker          what a transaction says about the batch in it, and what follows from that
transactions    one micro-batch is one transaction, whoever dies when
jobs, tasks     how Spark writes a batch, on the driver and on executors
foreach_batch   `exactly_once`: all of it as a function for `foreachBatch`
"""

from hightide.spark.sink.foreach_batch import ExactlyOnce, exactly_once
from hightide.spark.sink.marker import Refused
from hightide.spark.sink.rows import Unwritable

__all__ = ["ExactlyOnce", "Refused", "Unwritable", "exactly_once"]
