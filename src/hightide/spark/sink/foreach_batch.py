"""`exactly_once`: a function for `foreachBatch` that writes every row to its topic exactly once.

    once = exactly_once("totals", bootstrap="localhost:9092", name="shop-totals")
    totals.writeStream.foreachBatch(once).outputMode("update").start()

Consumers with `read_committed` see each micro-batch whole or not at all, and never twice, whatever
fails. `transactions` has the protocol and `tasks` the code of executors; this module connects both
to Spark. The sink works with every output mode: it writes the rows that the query gives for a
batch.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hightide.spark.blocking_client import BlockingClient, Identity, shared_client
from hightide.spark.explain import in_words
from hightide.spark.sink import jobs
from hightide.spark.sink.marker import Claim, Refused, Verdict
from hightide.spark.sink.row_routing import Routes
from hightide.spark.sink.rows import Unwritable, checked
from hightide.spark.sink.sink_options import PREFIX, SinkOptions, of_client
from hightide.spark.sink.tasks import Append
from hightide.spark.sink.transactions import Stopped, Transactions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TIMEOUT_S = 300.0
# Spark recognises its own interruption by this text, so that a stopped query has not failed.
STOPPED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling the sink, because the query was "
    "stopped: java.lang.InterruptedException"
)
FINAL = re.compile(rf"{re.escape(Unwritable.__module__)}\.Unwritable: (.+)")
# Tell an error between here and the brokers from one in the user's functions.
IN_PYTHON = "Traceback (most recent call last)"
IN_HIGHTIDE = re.compile(r"hightide/(spark/(sink|source)|client)/")


class TaskFailed(Exception):
    """Spark could not run the tasks of a batch; the text is the reason alone."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of the last batch."""

    batch: int
    is_replay: bool
    records: int
    bytes: int


def exactly_once(
    to: str | None = None,
    *,
    name: str,
    bootstrap: str | None = None,
    options: Mapping[str, str] | None = None,
    key: str | Column | None = None,
    partition: str | Column | None = None,
    headers: str | Column | None = None,
    codec: str | None = None,
    retries: int = 3,
    timeout_s: float = TIMEOUT_S,
) -> ExactlyOnce:
    """Return a function for `foreachBatch` that writes each micro-batch in one transaction.

    `to` is the topic; without it, rows need a column `topic`. `name` is the transactional id, and
    with the suffix "-batches" the group that holds the marker: it must be unique to the query and
    stay the same across restarts. `options` are properties of Kafka clients, with or without the
    prefix "kafka.". `key`, `partition` and `headers` name columns to be used as such; a column
    `value` is required. A batch that fails is retried `retries` times. A transaction may be open
    for at most `timeout_s`.
    """
    client = {option.removeprefix(PREFIX): value for option, value in (options or {}).items()}
    if bootstrap is not None:
        client["bootstrap.servers"] = bootstrap
    if codec is not None:
        client["compression.type"] = codec
    columns = {"key": key, "partition": partition, "headers": headers}
    given = {target: column for target, column in columns.items() if column is not None}
    return ExactlyOnce(name, of_client(client, to), given, retries, round(timeout_s * 1000))


class ExactlyOnce:
    """Called with each micro-batch and its number."""

    def __init__(
        self,
        name: str,
        options: SinkOptions,
        columns: Mapping[str, str | Column],
        retries: int,
        timeout_ms: int,
    ) -> None:
        if not name:
            raise ValueError("A sink needs a name: the transactional id, the same across restarts.")
        self.name = name
        self.last: BatchResult | None = None
        self._options = replace(options, acks=-1)
        self._columns = columns
        self._retries = retries
        self._timeout_ms = timeout_ms
        self._transactions: Transactions | None = None
        # Calls without a query count as one run for the lifetime of this object.
        self._run_without_query = str(uuid.uuid4())

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        query = _Query(frame)
        if self._transactions is None:
            check_session(frame)
            self._transactions = Transactions(
                self._brokers(),
                self.name,
                home=self._options.topic,
                timeout_ms=self._timeout_ms,
                retries=self._retries,
            )
        rows = self._rows(frame)
        routes = self._routes()
        claim = Claim(
            query.id, query.run or self._run_without_query, batch_id, query.input(batch_id)
        )
        done: list[Any] = []

        def write(identity: Identity) -> Sequence[str]:
            append = Append(self._options.client, self.name, identity)
            try:
                done[:] = jobs.write(frame, rows, routes, append)
            except Exception as error:
                raise query.explained(error) from None
            return [row.topic for row in done]

        def replay() -> None:
            frame.write.format("noop").mode("overwrite").save()

        verdict = self._transactions.batch(claim, write, replay)
        is_replay = verdict is Verdict.REPLAY
        records, size = sum(row.records for row in done), sum(row.bytes for row in done)
        self.last = BatchResult(batch_id, is_replay, records, size)

    def _brokers(self) -> BlockingClient:
        return shared_client(self._options.client)

    def _rows(self, frame: DataFrame) -> DataFrame:
        """Return the columns that are written, under their names."""
        from pyspark.sql import functions

        for name, column in self._columns.items():
            chosen = functions.col(column) if isinstance(column, str) else column
            frame = frame.withColumn(name, chosen)
            if name == "key" and dict(frame.dtypes)[name] != "binary":
                frame = frame.withColumn(name, functions.col(name).cast("string"))
        wanted = checked(dict(frame.dtypes), self._options.topic)
        return frame.select(*wanted)

    def _routes(self) -> Routes:
        topic = self._options.topic
        return Routes(
            self._brokers().topics(None if topic is None else [topic]),
            topic,
            self._options.codec,
            self._options.max_bytes,
            is_transactional=True,
        )


def check_session(frame: DataFrame) -> None:
    """Check that Spark runs tasks as a transaction requires."""
    conf = frame.sparkSession.sparkContext.getConf()
    if str(conf.get("spark.speculation", "false")).lower() == "true":
        raise Refused(
            "spark.speculation is on, so Spark could run a task of the transaction twice. "
            "Set spark.speculation=false to write exactly once."
        )


class _Query:
    """The query that a batch belongs to, as far as Spark tells."""

    def __init__(self, frame: DataFrame) -> None:
        self._session = frame.sparkSession
        context = self._session.sparkContext
        self.id = context.getLocalProperty("sql.streaming.queryId") or ""
        # Spark runs the jobs of a query in a job group named after the run.
        self.run = context.getLocalProperty("spark.jobGroup.id") or "" if self.id else ""

    def input(self, batch: int) -> str:
        """Return a fingerprint of the batch's end offsets; empty if they are not available."""
        from py4j.protocol import Py4JError

        if not self.id:
            return ""
        try:
            logged = self._execution().offsetLog().get(batch).get().offsets()
            texts = [logged.apply(index).toString() for index in range(logged.size())]
        except (Py4JError, AttributeError):
            return ""
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

    def is_stopped(self) -> bool:
        from py4j.protocol import Py4JError

        if not self.id:
            return False
        try:
            return not self._execution().isActive()
        except (Py4JError, AttributeError):
            # Spark drops a query when it has ended.
            return True

    def explained(self, error: Exception) -> Exception:
        """Return the exception that the failure of a job means."""
        if self.is_stopped():
            return Stopped(STOPPED)
        text = str(error)
        final = FINAL.search(text)
        if final:
            return Unwritable(final[1])
        if IN_PYTHON in text and not IN_HIGHTIDE.search(text):
            return Unwritable(in_words(error))
        return TaskFailed(in_words(error))

    def _execution(self) -> Any:
        """Return Spark's own object; the session of a batch does not list it."""
        context = self._session.sparkContext
        assert context._jvm is not None
        number = context._jvm.java.util.UUID.fromString(self.id)
        state: Callable[[], Any] = self._session._jsparkSession.sharedState
        return state().activeStreamingQueries().get(number)
