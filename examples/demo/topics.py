"""The names of the demo's topics; importable where Spark is not installed."""

from __future__ import annotations

APP = "shop"
ORDERS, CLICKS, USERS = "orders", "clicks", "users"
ENRICHED, REVENUE, DEAD_LETTERS = "orders-enriched", "revenue", "orders-dead-letters"
SHOWN = (ORDERS, CLICKS, ENRICHED, REVENUE)
"""The topics whose partitions are shown."""
