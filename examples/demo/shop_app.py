"""The demo's pipeline: an app of `hightide.spark.streams` like any other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import hightide.spark.streams as st
from examples.demo.topics import APP, CLICKS, DEAD_LETTERS, ENRICHED, ORDERS, REVENUE, USERS


@dataclass
class Order:
    order: str
    user: str
    product: str
    amount: float
    at: datetime


@dataclass
class Click:
    user: str
    page: str
    at: datetime


@dataclass
class User:
    user: str
    name: str
    country: str


def shop(brokers: str, state: str, tables: str) -> st.App:
    """Return the app; it writes to topics, and to a Delta table in the folder `tables`."""
    from pyspark.sql import functions as F

    app = st.App(APP, brokers=brokers, master="local[2]", state=state)
    orders = app.topic(ORDERS, Order, time="at", late="5 seconds", on_error=f"dlq:{DEAD_LETTERS}")
    clicks = app.topic(CLICKS, Click, time="at", late="5 seconds")
    users = app.topic(USERS, User, key="user")

    @app.query(to=ENRICHED, key="user")
    def enriched() -> object:
        """Every order with its user's name and country."""
        return orders.stream().join(users.table(), "user", "left")

    @app.query(to=REVENUE, key=("start", "product"), mode="update", every="2 seconds")
    def revenue() -> object:
        """The revenue of each product in ten seconds."""
        sums = (
            orders.stream()
            .groupBy(st.tumbling("10 seconds"), "product")
            .agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount"))
        )
        return sums.select(F.col("window.start").alias("start"), "product", "orders", "amount")

    @app.query(to=f"delta:{tables}/clicks-per-page", every="5 seconds")
    def pages() -> object:
        """The clicks on each page in ten seconds, as a table."""
        counts = clicks.stream().groupBy(st.tumbling("10 seconds"), "page").count()
        return counts.select(F.col("window.start").alias("start"), "page", "count")

    return app
