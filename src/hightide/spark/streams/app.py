"""An app: topics, queries, and the Spark session in which they run.

Declaring costs nothing: no session and no broker is asked before something is planned, tried or
started. The place of an app's progress follows from its name and the names of its queries, so a
query continues where it stopped, and there is no path or id to choose.

    <state>/<app>/<query>/checkpoint    Spark's progress and state
    <app>-<query>                       the transactional id, and the group that shows the lag
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hightide.spark.formats import BadSchema, OnError, Schema, schema_of
from hightide.spark.session import session
from hightide.spark.streams import query_runner
from hightide.spark.streams.document import read, schema_in
from hightide.spark.streams.durations import interval
from hightide.spark.streams.errors import StreamsError, unknown
from hightide.spark.streams.query import Query, declared, name_of
from hightide.spark.streams.query_plan import Plan, build, plan
from hightide.spark.streams.topic import EARLIEST, Moment, Topic
from hightide.spark.streams.trial import Rows, matches, run_trial

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Build = Callable[[], "DataFrame"]
F = TypeVar("F", bound=Callable[[], Any])
BROKERS = "localhost:9092"
STATE = "./.hightide/pipelines"


class App:
    """Reads topics and writes topics and tables."""

    def __init__(
        self,
        name: str,
        *,
        brokers: str | None = None,
        master: str | None = None,
        state: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name_of(name, "an app")
        self.brokers = brokers or os.environ.get("HIGHTIDE_BOOTSTRAP") or BROKERS
        self.master = master or os.environ.get("HIGHTIDE_MASTER") or "local[*]"
        self.state = str(state or os.environ.get("HIGHTIDE_STATE") or STATE)
        self.settings = dict(settings or {})
        self.options = dict(options or {})
        self.topics: dict[str, Topic] = {}
        self.queries: dict[str, Query] = {}
        self.tests: dict[str, Callable[[], None]] = {}
        # Topics as DataFrames; used by this package only.
        self.frames: dict[str, DataFrame] = {}
        self._spark: SparkSession | None = None

    # -- declaring ---------------------------------------------------------------------------

    def topic(
        self,
        name: str,
        schema: type | str | Schema = "raw",
        *,
        time: str | None = None,
        late: str | timedelta = "10 seconds",
        key: str | Sequence[str] = (),
        on_error: str | OnError = "fail",
        start: Moment = EARLIEST,
        options: Mapping[str, str] | None = None,
    ) -> Topic:
        """Declare a topic: the schema of its values, and the column of their event time.

        `late` is how much later than the newest row a row may arrive and still count; `key` are the
        columns by which the topic is a table; `on_error` is `fail`, `skip` or `dlq:TOPIC`.
        """
        if name in self.topics:
            raise StreamsError(f"Topic {name} is declared twice; choose another name.")
        try:
            parsed, handling = schema_of(schema), OnError.parse(on_error)
        except BadSchema as error:
            raise StreamsError(f"Topic {name}: {error}") from None
        made = Topic(
            self,
            name_of(name, "a topic"),
            parsed,
            time=time,
            late=interval(late, f"late= of topic {name}", zero=True),
            key=(key,) if isinstance(key, str) else tuple(key),
            on_error=handling,
            start=start,
            options=dict(options or {}),
        )
        self.topics[name] = made
        return made

    def query(
        self, to: str | Topic, *, name: str | None = None, **declaration: Any
    ) -> Callable[[F], F]:
        """Make a function that returns a DataFrame a query of this app.

        `to` is a topic, or `parquet:`, `delta:` or `iceberg:PATH`, `memory:`, `print:`. The other
        options are `key`, `mode`, `every`, `guarantee`, `partition`, `partitions`, `replication`,
        `partition_by`.
        """

        def register(function: F) -> F:
            self._add(name or function.__name__, function, to, doc=function.__doc__, **declaration)
            return function

        return register

    def sql(self, name: str, text: str, *, to: str | Topic, **declaration: Any) -> None:
        """Declare a query in SQL, where topics are tables of that name."""
        self._add(name, lambda: from_sql(self, text), to, sql=text, **declaration)

    def _add(self, name: str, function: Build, to: str | Topic, **declaration: Any) -> None:
        if name in self.queries:
            raise StreamsError(f"Query {name} is declared twice; choose another name.")
        place = to.name if isinstance(to, Topic) else to
        try:
            self.queries[name] = declared(name, function, place, **declaration)
        except TypeError as error:
            raise StreamsError(f"Query {name}: {str(error).partition(' ')[2]}.") from None

    @classmethod
    def load(cls, path: str | Path) -> App:
        """Load the app of a YAML file."""
        document = read(path)
        top = dict(document.app)
        app = cls(top.pop("app"), **top)
        for name, topic in document.topics.items():
            topic["schema"] = schema_in(topic["schema"], Path(path).parent)
            topic["start"] = str(topic.get("start", EARLIEST))
            app.topic(name, **topic)
        for name, query in document.queries.items():
            app.sql(name, query.pop("sql"), **query)
        for name, test in document.tests.items():
            app.tests[name] = lambda test=test: app._expect(**test)  # type: ignore[misc]
        return app

    def _expect(self, query: str, given: Mapping[str, Rows], expect: Rows) -> None:
        found = self.test(query, **given)
        wrong = matches(found, expect)
        assert wrong is None, wrong

    def configure(
        self,
        *,
        brokers: str | None = None,
        master: str | None = None,
        state: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Override settings from the command line, before the app starts."""
        self.brokers = brokers or self.brokers
        self.master = master or self.master
        self.state = str(state or self.state)
        self.settings |= dict(settings or {})

    # -- planning, trying, running -----------------------------------------------------------

    @property
    def spark(self) -> SparkSession:
        """The session, created on first use."""
        if self._spark is None:
            self._spark = session(self.name, self.master, self.settings)
        return self._spark

    def find(self, query: str | Callable[..., Any]) -> Query:
        name = query if isinstance(query, str) else query.__name__
        if name not in self.queries:
            raise unknown("query", name, self.queries)
        return self.queries[name]

    def build(self, query: str) -> DataFrame:
        """Return the DataFrame of a query; no broker is asked."""
        return build(self, self.find(query))

    def plan(self, only: Sequence[str] = ()) -> list[Plan]:
        """Plan the queries, and report everything that can be found wrong without data."""
        if not self.queries:
            raise StreamsError(f"App {self.name} has no queries.")
        return [plan(self, self.find(query)) for query in only or self.queries]

    def test(self, query: str | Callable[..., Any], **topics: Rows) -> list[dict[str, Any]]:
        """Run a query on lists of dicts, one list for each topic that it reads."""
        return run_trial(self, self.find(query), topics)

    def start(
        self,
        *,
        once: bool = False,
        only: Sequence[str] = (),
        say: Callable[[str], None] = lambda words: print(words, file=sys.stderr),
    ) -> query_runner.RunningQueries:
        """Start the queries and return while they run; `say` reports topics that were created."""
        return query_runner.start(self, self.plan(only), once=once, say=say)

    def run(self, once: bool = False, only: Sequence[str] = ()) -> None:
        """Run the queries until all have ended, one fails, or Ctrl-C.

        `once` processes what is there now, and ends.
        """
        with query_runner.stop_signals() as stop:
            running = self.start(once=once, only=only)
            while not running.wait(query_runner.TURN_S):
                if stop.is_set():
                    running.stop()
                    return

    # -- where things are --------------------------------------------------------------------

    def group(self, query: str) -> str:
        """Return a query's transactional id, which is also the group that shows its lag."""
        return f"{self.name}-{query}"

    def place(self, query: str) -> str:
        """Return the folder in which a query keeps its checkpoint."""
        # Relative to this process: Spark's working directory may differ.
        state = self.state if "://" in self.state else str(Path(self.state).absolute())
        return f"{state.rstrip('/')}/{self.name}/{query}"

    def client_options(self) -> dict[str, str]:
        """Return the options of sources and sinks that reach the brokers."""
        return {"kafka.bootstrap.servers": self.brokers} | self.options

    def source_options(self, topic: Topic) -> dict[str, str]:
        """Return the options that read a topic."""
        options = {"subscribe": topic.name, "kafka.isolation.level": "read_committed"}
        if topic.on_error.action == "dlq":
            options["includeHeaders"] = "true"
        return {**options, **self.client_options(), **topic.options}

    def schema_for(self, topic: str) -> Schema | None:
        """Return the schema of a topic's values; None, which means JSON, if it is not declared."""
        return self.topics[topic].schema if topic in self.topics else None


def from_sql(app: App, text: str) -> DataFrame:
    """Run SQL in which each topic is a view of its name.

    A topic with a key is a table, the latest row of each key; any other is a stream with the
    watermark of its event time.
    """
    for name in mentioned(text, app.topics):
        app.topics[name].view().createOrReplaceTempView(f"`{name}`")
    return app.spark.sql(text)


def mentioned(text: str, names: Iterable[str]) -> list[str]:
    """Return the names that occur in a SQL text as words. One too many does no harm."""
    return [
        name
        for name in names
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE)
    ]
