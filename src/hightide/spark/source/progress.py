"""A query's progress as commits of a consumer group, so that every Kafka tool shows its lag.

The checkpoint stays authoritative. These commits only serve monitoring, so no failure here stops a
query. The source commits by itself if `kafka.group.id` is set: whenever Spark asks for the end of
the next batch, it says where the last one ended. With a long trigger interval that is late by one
interval, and the last batch before a stop is not committed. For such queries, `commit_progress`
commits when Spark reports a batch.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from hightide.spark.source.offsets import UNDECIDED, Offsets, TopicPartition, from_json
from hightide.spark.source.source_options import client_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long a batch waits for a commit; the group coordinator may be unavailable.
COMMIT_S = 2.0
# How Spark describes a Python source; it does not give the name.
PYTHON = "PythonMicroBatchStream"
_log = logging.getLogger(__name__)


class GroupProgress:
    """Commits a query's offsets if a group is named. Failures are logged, never raised."""

    def __init__(self, client: Mapping[str, str], group: str | None) -> None:
        self._client = client
        self._group = group
        self._committed: Offsets = {}
        self._commit: threading.Thread | None = None

    def reached(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not self._group or not offsets or offsets == self._committed:
            return
        if self._commit is not None and self._commit.is_alive():
            return
        self._commit = threading.Thread(
            target=self._do, args=(self._group, dict(offsets)), daemon=True
        )
        self._commit.start()
        self._commit.join(COMMIT_S)

    def _do(self, group: str, offsets: Offsets) -> None:
        from hightide.spark.blocking_client import shared_client

        try:
            shared_client(self._client).commit(group, offsets)
        except Exception as error:
            _log.warning(
                "The progress of the query could not be committed to group %s; only the lag "
                "that tools show is affected: %s",
                group,
                error,
            )
        else:
            self._committed = offsets


class Progress(StreamingQueryListener):
    """Commits the ends of batches as Spark reports them."""

    def __init__(self, options: Mapping[str, str], group: str, query: str | None = None) -> None:
        client = client_properties({key.lower(): value for key, value in options.items()})
        self._group = GroupProgress(client, group)
        self._query = query

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if self._query not in (None, event.progress.name):
            return
        ends: Offsets = {}
        for source in event.progress.sources:
            if PYTHON in source.description:
                ends.update(offsets_of(source.endOffset))
        self._group.reached(ends)

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...


def offsets_of(text: str | None) -> Offsets:
    """Return the offsets in a report, empty if it is the report of another kind of source."""
    try:
        found = json.loads(text or "{}")
        return {} if found == UNDECIDED else from_json(found)
    except (ValueError, TypeError, AttributeError):
        return {}


def commit_progress(
    spark: SparkSession, options: Mapping[str, str], group: str, query: str | None = None
) -> Progress:
    """Commit the progress of one query, or of all, to a group when a batch ends.

    `options` are those of the source, for the brokers. To end it, pass the result to
    `spark.streams.removeListener`.
    """
    listener = Progress(options, group, query)
    spark.streams.addListener(listener)
    return listener
