"""Errors in words: what went wrong, where in the app, and what to do, in a few lines.

An exception that comes out of Spark is a nest: Python in a worker, inside a task, inside a job,
inside a query, each with its own trace in one long text.  What a person can act on is the innermost
error and the line of their own file.  This reads texts and not classes, because the same error
arrives as many classes, depending on which thread saw it.  The whole text goes to a log file.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

TRACE = "Traceback (most recent call last):\n"
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
# Frames that are nobody's app: of installed packages, of Python, and of code that is no file.
ELSEWHERE = re.compile(r"site-packages|/lib/python\d|/pyspark/|/hightide/|\.zip/|<")
# What Spark adds behind the reason: the query's plan, where in Java, the query as it stands.
AFTER = re.compile(
    r"\n=== Streaming Query ===|\n\s*at [\w$.]+[(/]|;\s*\n['~+]|\n== |\n\nDriver stacktrace"
    r"|\nSearch path:"
)
CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\] ")
SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5};?")
QUERY = re.compile(r"^Query .*?\[id = [^\]]*\] terminated with exception: ")
JAVA_CLASS = re.compile(r"^(?:[a-z][\w$]*\.)+[A-Z][\w$]*: ")
PYTHON_CLASS = re.compile(r"^(?P<module>(?:\w+\.)*)(?P<name>[A-Z]\w*): ", re.DOTALL)
# Whose messages are sentences by themselves.
SPEAKING = ("hightide.", "pyspark.", "py4j.")
LONGEST = 800

LOG_LOST = (
    "Records that this query has not read are gone, by retention or because the topic was made "
    "anew. To go on with what is there, set failOnDataLoss=false on the topic, or start over with "
    "--reset."
)
RESET = (
    "The query is not the one that wrote this state. Start over with --reset, which forgets its "
    "progress, or give the query another name."
)
ADVICE: tuple[tuple[str, str | None, str | None], ...] = (
    (
        r"with name (?P<it>\S+) cannot be resolved\. Did you mean [^\[]*\[(?P<known>[^\]]*)\]",
        "There is no column {it}; there are {known}.",
        None,
    ),
    (
        r"No module named '(?P<it>hightide|pyspark_hightide|pyarrow|numba|numpy|pandas)\b",
        "The Python of Spark's workers has no {it}.",
        "Install hightide[spark] for that Python, or name one that has it: "
        "PYSPARK_PYTHON=/path/to/python.",
    ),
    (
        r'Cannot run program "(?P<it>[^"]+)"',
        "Spark's workers cannot start the Python {it}.",
        "Say where theirs is: PYSPARK_PYTHON=/path/to/python.",
    ),
    (
        r"Python in worker has different version",
        "The Python of Spark's workers has another version than the one that runs the app.",
        "Name one of the same version: PYSPARK_PYTHON=/path/to/python.",
    ),
    (
        r"All masters are unresponsive|Invalid master URL|Could not parse Master URL",
        "No Spark master answers.",
        "Look at the address behind --master; it reads spark://HOST:PORT.",
    ),
    (
        r"OutOfMemoryError|Cannot allocate memory",
        "Spark has run out of memory.",
        "Give it more with --conf spark.driver.memory=4g (and spark.executor.memory on a cluster), "
        "or let a micro-batch be smaller with maxOffsetsPerTrigger.",
    ),
    (r"No space left on device", "The disk is full.", "Make room, or choose another --state."),
    (
        r"SparkContext was shut down|Connection refused.*py4j|Answer from Java side is empty",
        "Spark's own process has ended.",
        "The reason is at the end of its log.",
    ),
    (r"sources? in the checkpoint offsets and now there are", None, RESET),
    (r"STATE_STORE_\w*SCHEMA|STATE_STORE_(?:KEY|VALUE)_SCHEMA", None, RESET),
    (r"OffsetOutOfRange|data loss|failOnDataLoss", None, LOG_LOST),
    (
        r"\bFenced\b|PRODUCER_FENCED|INVALID_PRODUCER_EPOCH",
        None,
        "Another run of this query has taken over its transactional id. Stop one of the two.",
    ),
    (
        r"UNKNOWN_TOPIC_OR_PARTITION",
        None,
        "Create it with `hightide topic create`, or look at the name.",
    ),
    (
        r"not supported for streaming aggregations without watermark",
        "An aggregation in append mode needs a watermark: nobody knows when a group is complete.",
        'Give the topic its event time, topic(…, time="ts", late="10 seconds"), and group by a '
        'window; or write every change with mode="update".',
    ),
    (
        r"TABLE_OR_VIEW_NOT_FOUND",
        None,
        "SQL sees the topics of the app by their names; one with a dot or a hyphen stands in "
        "`backticks`.",
    ),
    (
        r"_active_spark_context is not None|SparkContext or SparkSession should be created first",
        "The file uses Spark while it is being loaded, before Spark runs.",
        "Move such expressions into the functions of the queries.",
    ),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """An error as a person is told of it."""

    what: str
    where: str | None = None
    advice: str | None = None

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what}" + (f"\n{self.advice}" if self.advice else "")


def full(error: BaseException) -> str:
    """All that is known of an exception, for a log file: Python's trace with Java's inside it.

    Also what it came from, if whoever raised it chose not to say so.
    """
    inner = error.__context__ if error.__suppress_context__ and not error.__cause__ else None
    before = f"{full(inner)}\n" if inner is not None else ""
    return before + "".join(traceback.format_exception(error))


def in_words(error: BaseException) -> str:
    """What to tell people about an exception, as text."""
    return str(explain(error))


def explain(error: BaseException, file: Path | None = None) -> Explanation:
    """What to tell whoever runs the app in `file` about an exception."""
    return explain_text(full(error), file)


def explain_text(text: str, file: Path | None = None) -> Explanation:
    """The same for the text of a trace."""
    what = reason(text)
    where = place(text, file)
    for pattern, better, advice in ADVICE:
        if match := re.search(pattern, text):
            return Explanation(
                better.format(**match.groupdict()) if better else what, where, advice
            )
    return Explanation(what, where)


def reason(text: str) -> str:
    """The innermost message, without the names of classes and without what stands around it."""
    *_, inner = text.rpartition(TRACE)
    lines = inner.splitlines()
    # Frames are indented, and the first line that is not has the error.
    first = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), 0)
    message = AFTER.split("\n".join(lines[first:]), maxsplit=1)[0]
    if match := PYTHON_CLASS.match(message):
        speaks = match["module"].startswith(SPEAKING)
        message = message[match.end() :] if speaks else message[len(match["module"]) :]
    if ".\n: " in message:  # What Py4J makes of an exception in Java that PySpark does not know.
        message = message.partition(".\n: ")[2]
    message = CONDITION.sub("", message.strip())
    message = JAVA_CLASS.sub("", QUERY.sub("", message))
    message = " ".join(SQLSTATE.sub(" ", message).split()).rstrip("; ")
    return message if len(message) <= LONGEST else message[:LONGEST] + " …"


def place(text: str, file: Path | None = None) -> str | None:
    """The innermost line of the app's own file that a trace passes through.

    Without a file: the innermost one that is neither Spark's nor Hightide's nor Python's own.
    """
    frames = list(FRAME.finditer(text))
    if file is not None:
        mine = [frame for frame in frames if Path(frame["file"]).name == file.name]
    else:
        mine = [frame for frame in frames if not ELSEWHERE.search(frame["file"])]
    return f"{file or Path(mine[-1]['file']).name}:{mine[-1]['line']}" if mine else None
