"""A shop: revenue per minute, orders paid in time, and orders with their customers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import hightide.spark.streams as st


@dataclass
class Order:
    id: int
    user: str
    amount: float
    ts: datetime


@dataclass
class Payment:
    order_id: int
    method: str
    paid_at: datetime


@dataclass
class User:
    user: str
    city: str


app = st.App("shop")
orders = app.topic("orders", Order, time="ts", late="10 seconds", on_error="dlq:orders-bad")
payments = app.topic("payments", Payment, time="paid_at", late="10 seconds")
users = app.topic("users", User, key="user")


@app.query(to="revenue", key="user", mode="update")
def revenue() -> DataFrame:
    """What each user spent in each minute, written again whenever it changes."""
    by_minute = orders.stream().groupBy(st.tumbling("1 minute"), "user")
    return by_minute.agg(F.sum("amount").alias("total"))


@app.query(to="paid-orders", key="id")
def paid() -> DataFrame:
    """Orders that were paid within five minutes."""
    order, payment = orders.stream().alias("o"), payments.stream().alias("p")
    is_same = F.col("o.id") == F.col("p.order_id")
    in_time = st.within("5 minutes", "o.ts", "p.paid_at")
    return order.join(payment, is_same & in_time).select("id", "user", "amount", "method")


@app.query(to="parquet:tables/orders", partition_by="city")
def by_city() -> DataFrame:
    """Every order with the current city of its user."""
    return orders.stream().join(users.table(), "user").select("id", "user", "city", "amount")


def test_orders_of_a_minute_add_up() -> None:
    rows = [
        {"id": 1, "user": "ada", "amount": 2.0, "ts": "2026-01-31T12:00:01"},
        {"id": 2, "user": "ada", "amount": 3.0, "ts": "2026-01-31T12:00:59"},
        {"id": 3, "user": "ada", "amount": 4.0, "ts": "2026-01-31T12:01:00"},
    ]
    found = app.test(revenue, orders=rows)
    assert sorted(row["total"] for row in found) == [4.0, 5.0]


def test_an_order_has_the_city_where_its_user_lives_now() -> None:
    found = app.test(
        by_city,
        orders=[{"id": 1, "user": "ada", "amount": 2.0, "ts": "2026-01-31T12:00:00"}],
        users=[{"user": "ada", "city": "Paris"}, {"user": "ada", "city": "London"}],
    )
    assert found == [{"id": 1, "user": "ada", "city": "London", "amount": 2.0}]


if __name__ == "__main__":
    app.run()
