"""`exactly_once`: a function for `foreachBatch` after which every row is in its topic once.

    once = exactly_once("totals", bootstrap="localhost:9092", name="shop-totals")
    totals.writeStream.foreachBatch(once).outputMode("update").start()

Readers of committed records see each micro-batch whole or not at all, and never twice, whoever
dies.  `transactions` has the protocol, `tasks` what runs on executors; here both are joined to
Spark. All output modes are the query's own affair: what it gives for a batch is written.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hightide.spark.blocking_client import BlockingClient, Identity, brokers
from hightide.spark.explain import in_words
from hightide.spark.sink import jobs
from hightide.spark.sink.marker import Claim, Refused, Verdict
from hightide.spark.sink.routing import Routes
from hightide.spark.sink.rows import Unwritable, checked
from hightide.spark.sink.sink_options import PREFIX, SinkOptions, of_client
from hightide.spark.sink.tasks import Append
from hightide.spark.sink.transactions import Stopped, Transactions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TIMEOUT_S = 300.0
# Spark takes these words for its own interruption: a query that is stopped has not failed.
STOPPED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling the sink, because the query was "
    "stopped: java.lang.InterruptedException"
)
FINAL = re.compile(rf"{re.escape(Unwritable.__module__)}\.Unwritable: (.+)")
# How one knows an error on the way from or to brokers from one of functions that make the rows.
IN_PYTHON = "Traceback (most recent call last)"
ON_THE_WAY = re.compile(r"hightide/(spark/(sink|source)|client)/")


class TaskFailed(Exception):
    """Spark could not run the tasks of a batch; the text is the reason alone."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the last batch."""

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
    """A function for `foreachBatch` that writes each micro-batch in one transaction.

    `to` is the topic; without it, rows have a column `topic`.  `name` is the transactional id, and
    with "-batches" behind it the group that the marker is kept in: one for each query, and always
    the same.  `options` are Kafka's properties of clients, with the prefix "kafka." or without.
    `key`, `partition` and `headers` name columns that are to be used as such; `value` must be
    there.  A batch that fails is tried `retries` times again.  No transaction may be open for
    longer than `timeout_s`.
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
    """Called with each micro-batch, and with its number."""

    def __init__(
        self,
        name: str,
        options: SinkOptions,
        columns: Mapping[str, str | Column],
        retries: int,
        timeout_ms: int,
    ) -> None:
        if not name:
            raise ValueError("A sink needs a name: it is its transactional id, across restarts.")
        self.name = name
        self.last: Written | None = None
        self._options = replace(options, acks=-1)
        self._columns = columns
        self._retries = retries
        self._timeout_ms = timeout_ms
        self._transactions: Transactions | None = None
        # Who calls by hand, without a query, is one run as long as this lives.
        self._by_hand = str(uuid.uuid4())

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
        claim = Claim(query.id, query.run or self._by_hand, batch_id, query.input(batch_id))
        done: list[Any] = []

        def write(identity: Identity) -> Sequence[str]:
            append = Append(self._options.client, self.name, identity)
            try:
                done[:] = jobs.write(frame, rows, routes, append)
            except Exception as error:
                raise query.words(error) from None
            return [row.topic for row in done]

        def replay() -> None:
            frame.write.format("noop").mode("overwrite").save()

        verdict = self._transactions.batch(claim, write, replay)
        is_replay = verdict is Verdict.REPLAY
        records, size = sum(row.records for row in done), sum(row.bytes for row in done)
        self.last = Written(batch_id, is_replay, records, size)

    def _brokers(self) -> BlockingClient:
        return brokers(self._options.client)

    def _rows(self, frame: DataFrame) -> DataFrame:
        """The columns that are written, under their names."""
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
    """Whether Spark runs tasks as a transaction needs it."""
    conf = frame.sparkSession.sparkContext.getConf()
    if str(conf.get("spark.speculation", "false")).lower() == "true":
        raise Refused(
            "spark.speculation is on, so Spark would run tasks twice that write to a transaction. "
            "Set spark.speculation=false to write exactly once."
        )


class _Query:
    """The query that a batch belongs to, as far as Spark tells."""

    def __init__(self, frame: DataFrame) -> None:
        self._session = frame.sparkSession
        context = self._session.sparkContext
        self.id = context.getLocalProperty("sql.streaming.queryId") or ""
        # Spark runs the jobs of a query as a group that has the name of the run.
        self.run = context.getLocalProperty("spark.jobGroup.id") or "" if self.id else ""

    def input(self, batch: int) -> str:
        """A fingerprint of the offsets that the batch ends with; empty if they cannot be seen."""
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
            # Spark forgets a query when it has ended.
            return True

    def words(self, error: Exception) -> Exception:
        """What the failure of a job means."""
        if self.is_stopped():
            return Stopped(STOPPED)
        text = str(error)
        final = FINAL.search(text)
        if final:
            return Unwritable(final[1])
        if IN_PYTHON in text and not ON_THE_WAY.search(text):
            return Unwritable(in_words(error))
        return TaskFailed(in_words(error))

    def _execution(self) -> Any:
        """Spark's own object; the session of a batch does not have it in its list."""
        context = self._session.sparkContext
        assert context._jvm is not None
        number = context._jvm.java.util.UUID.fromString(self.id)
        state: Callable[[], Any] = self._session._jsparkSession.sharedState
        return state().activeStreamingQueries().get(number)
