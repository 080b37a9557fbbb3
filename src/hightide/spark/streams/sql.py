"""Queries in SQL: each topic that a query names is a view of that name.

A topic that is declared with a key is a table, the latest row of each key; any other is a stream,
with the watermark of its event time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hightide.spark.streams.app import App


def from_sql(app: App, text: str) -> DataFrame:
    for name in mentioned(text, app.topics):
        app.topics[name].view().createOrReplaceTempView(f"`{name}`")
    return app.spark.sql(text)


def mentioned(text: str, names: Iterable[str]) -> list[str]:
    """The names that stand in a text of SQL as words.  One too many does no harm."""
    return [
        name
        for name in names
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE)
    ]
