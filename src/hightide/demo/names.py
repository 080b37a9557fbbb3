"""What the demonstration's topics are called; known also where Spark is not installed."""

from __future__ import annotations

APP = "shop"
ORDERS, CLICKS, USERS = "orders", "clicks", "users"
ENRICHED, REVENUE, DEAD_LETTERS = "orders-enriched", "revenue", "orders-dead-letters"
SHOWN = (ORDERS, CLICKS, ENRICHED, REVENUE)
"""The topics whose partitions are looked at."""
