"""Rows of Spark into topics.

rows            what a DataFrame must look like, and what it is turned into
options         the options, named as those of Spark's Kafka sink
routing         rows → partitions → record batches, on executors
delivery        record batches → brokers, on executors
writer          `format("hightide")`: plain, at least once
marker          what a transaction says about the batch in it, and what follows from that
transactions    one micro-batch is one transaction, whoever dies when
exactly_once    the same as a function for `foreachBatch`
"""

from hightide.spark.sink.exactly_once import ExactlyOnce, exactly_once
from hightide.spark.sink.marker import Refused
from hightide.spark.sink.rows import Unwritable

__all__ = ["ExactlyOnce", "Refused", "Unwritable", "exactly_once"]
