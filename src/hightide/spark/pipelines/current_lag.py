"""The current lag of an app's queries, asked of the brokers.

The status that an app writes is as old as its last micro-batch, and stays so once the app stops.
"""

from __future__ import annotations

import asyncio
import dataclasses

from hightide.client.admin import Admin
from hightide.spark.pipelines.status import AppStatus, Positions, lag

LATEST = -1


def refreshed(status: AppStatus) -> AppStatus:
    """Return the status with the current lag; raises the client's errors if no broker answers."""
    return asyncio.run(refresh(status))


async def refresh(status: AppStatus) -> AppStatus:
    """The same as a coroutine."""
    wanted = {
        (topic, int(partition)): LATEST
        for query in status.queries
        for topic, partitions in query.positions.items()
        for partition in partitions
    }
    if not wanted:
        return status
    ends = await _ends(status.brokers, wanted)
    queries = tuple(
        dataclasses.replace(query, lag=lag(query.positions, ends)) if query.positions else query
        for query in status.queries
    )
    return dataclasses.replace(status, queries=queries)


async def _ends(bootstrap: str, wanted: dict[tuple[str, int], int]) -> Positions:
    async with Admin(bootstrap) as admin:
        found = await admin.records.offsets(wanted)
    ends: Positions = {}
    for (topic, number), at in found.items():
        ends.setdefault(topic, {})[str(number)] = at.offset
    return ends
