"""The figures of running queries in the brokers' /metrics: rates, lag, batches, state.

    Spark ── reports of micro-batches ──▶ listener ──▶ figures ── every few seconds ──▶ a broker

The figures are those of `hightide pipeline status`.  They are pushed as the metrics of any Kafka
client (KIP-714), from a thread of their own, so that no query fails or waits because of them.  The
client property `enable.metrics.push=false` turns them off.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from hightide.client.routing import Router
from hightide.client.security import security_of
from hightide.client.telemetry import LAST_PUSH_S, TelemetryPush, Value
from hightide.spark.pipelines.status import QueryStatus, State, advanced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CLIENT_ID = "hightide-spark"
"""Brokers take the metrics of clients with this id without a subscription."""
ENABLED = "enable.metrics.push"
_FALSE = ("false", "0", "no")
_GAUGES: tuple[tuple[str, Callable[[QueryStatus], float | None]], ...] = (
    ("spark.query.input.rows.per.second", lambda query: query.rows_in_per_s),
    ("spark.query.output.rows.per.second", lambda query: query.rows_out_per_s),
    ("spark.query.lag.records", lambda query: query.lag),
    ("spark.query.batch.duration.ms", lambda query: query.batch_ms),
    ("spark.query.batch.id", lambda query: query.batch),
    ("spark.query.state.rows", lambda query: query.state_rows),
    ("spark.query.state.bytes", lambda query: query.state_bytes),
    ("spark.query.active", lambda query: query.state in (State.STARTING, State.RUNNING)),
    ("spark.query.failed", lambda query: query.state is State.FAILED),
)
_COUNTERS: tuple[tuple[str, Callable[[QueryStatus], float | None]], ...] = (
    ("spark.query.input.rows.total", lambda query: query.rows_in),
    ("spark.query.output.rows.total", lambda query: query.rows_out),
    ("spark.query.late.rows.total", lambda query: query.late_rows),
)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    """One query: its consumer group, and its figures."""

    group: str
    status: QueryStatus


class QueryFigures:
    """The figures of queries, by what Spark reports."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Watched] = {}

    def add(self, name: str, group: str, query_id: str) -> None:
        with self._lock:
            self._queries[query_id] = _Watched(group, QueryStatus(name))

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Spark has reported a micro-batch."""
        self._change(progress["id"], lambda status: advanced(status, progress))

    def idle(self, query_id: str) -> None:
        """A query has had nothing to do for a while."""
        self._change(
            query_id, lambda status: dataclasses.replace(status, rows_in_per_s=0, rows_out_per_s=0)
        )

    def ended(self, query_id: str, error: str | None) -> None:
        state = State.FINISHED if error is None else State.FAILED
        self._change(
            query_id,
            lambda status: dataclasses.replace(
                status, state=state, rows_in_per_s=0, rows_out_per_s=0, error=error
            ),
        )

    def _change(self, query_id: str, change: Callable[[QueryStatus], QueryStatus]) -> None:
        with self._lock:
            found = self._queries.get(query_id)
            if found is not None:
                found.status = change(found.status)

    def values(self) -> Iterator[Value]:
        """Yield the figures that are known."""
        with self._lock:
            queries = [(query.group, query.status) for query in self._queries.values()]
        for group, status in queries:
            labels = {"query": status.name, "group_id": group}
            for is_counter, metrics in ((False, _GAUGES), (True, _COUNTERS)):
                for name, figure in metrics:
                    value = figure(status)
                    if value is not None:
                        yield Value(name, labels, float(value), is_counter)


class QueryMetrics(StreamingQueryListener):
    """Listens to queries, and pushes their figures until `stop`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.figures = QueryFigures()
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._push: TelemetryPush | None = None
        self._has_failed = self._is_stopping = False
        self._thread = threading.Thread(
            target=self._run, name="hightide-query-metrics", daemon=True
        )

    @classmethod
    def start(cls, spark: SparkSession, options: Mapping[str, str]) -> QueryMetrics | None:
        """Listen to the queries of a session; None if the client properties say no."""
        if options.get(ENABLED, "true").strip().lower() in _FALSE:
            return None
        metrics = cls(options)
        try:
            spark.streams.addListener(metrics)
            metrics._thread.start()
        except Exception as error:
            metrics._failed(error)
        return metrics

    def watch(self, name: str, query: StreamingQuery, group: str) -> None:
        self.figures.add(name, group, str(query.id))

    def stop(self, spark: SparkSession, queries: Iterable[StreamingQuery]) -> None:
        """Push the last figures of queries that have ended, and wait a second for that at most."""
        try:
            spark.streams.removeListener(self)
            # Spark informs its listeners too late.
            for query in queries:
                if query.lastProgress is not None:
                    self.figures.progressed(json.loads(query.lastProgress.json))
                error = query.exception()
                self.figures.ended(str(query.id), None if error is None else str(error))
        except Exception as error:
            self._failed(error)
        self._is_stopping = True
        if self._loop is not None and self._push is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._push.stop)
        if self._thread.is_alive():
            self._thread.join(LAST_PUSH_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._push_all())
        except Exception as error:
            self._failed(error)

    async def _push_all(self) -> None:
        router = Router(
            self._options["bootstrap.servers"],
            client_id=CLIENT_ID,
            security=security_of(self._options),
            long_running=True,
        )
        self._push = TelemetryPush(router, self.figures.values)
        self._loop = asyncio.get_running_loop()
        if self._is_stopping:
            self._push.stop()
        try:
            await self._push.run()
        finally:
            router.close()

    def _failed(self, error: Exception) -> None:
        if not self._has_failed:
            _log.warning("The figures of the queries are not pushed to the brokers: %s", error)
        self._has_failed = True

    # -- what Spark reports ------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        try:
            self.figures.progressed(json.loads(event.progress.json))
        except Exception as error:
            self._failed(error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.figures.idle(str(event.id))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.figures.ended(str(event.id), event.exception)
