"""How far the queries of an app are behind the ends of the logs now, asked of the brokers.

What an app writes down itself is as old as its last micro-batch, and stays so once it has stopped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hightide.spark.brokers import brokers
from hightide.spark.pipelines.status import AppStatus, Positions, lag

LATEST = -1


def refreshed(status: AppStatus, options: Mapping[str, str] | None = None) -> AppStatus:
    """The status with the lag of now; raises as the client does when no broker answers."""
    wanted = {
        (topic, int(partition)): LATEST
        for query in status.queries
        for topic, partitions in query.positions.items()
        for partition in partitions
    }
    if not wanted:
        return status
    client = brokers({"bootstrap.servers": status.brokers, **(options or {})})
    ends: Positions = {}
    for (topic, number), offset in client.offsets(wanted, read_committed=True).items():
        ends.setdefault(topic, {})[str(number)] = offset
    queries = tuple(
        dataclasses.replace(each, lag=lag(each.positions, ends)) if each.positions else each
        for each in status.queries
    )
    return dataclasses.replace(status, queries=queries)
