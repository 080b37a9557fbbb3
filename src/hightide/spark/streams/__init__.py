"""Streams: topics in, plain PySpark in the middle, topics or tables out.

    import hightide.spark.streams as st
    from pyspark.sql import functions as F

    app = st.App("shop")
    orders = app.topic("orders", Order, time="ts", late="10 seconds")

    @app.query(to="revenue", key="user", mode="update")
    def revenue():
        return orders.stream().groupBy(st.tumbling("1 minute"), "user").agg(F.sum("amount"))

    app.run()

DataFrames are those of PySpark. This package adds what PySpark lacks: topics with types and an
event time, tables of the latest row of each key, progress without names to choose, and results that
arrive exactly once.
"""

from hightide.spark.streams.app import App
from hightide.spark.streams.errors import StreamsError
from hightide.spark.streams.query import Query
from hightide.spark.streams.query_plan import Plan
from hightide.spark.streams.query_runner import RunningQueries
from hightide.spark.streams.topic import Topic
from hightide.spark.streams.windows import session, sliding, tumbling, within

__all__ = [
    "App",
    "Plan",
    "Query",
    "RunningQueries",
    "StreamsError",
    "Topic",
    "session",
    "sliding",
    "tumbling",
    "within",
]
