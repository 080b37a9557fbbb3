"""Explain errors: what went wrong, where in the app, and what to do, in a few lines.

An exception that comes out of Spark is nested: Python in a worker, inside a task, inside a job,
inside a query, each with its own trace in one long text. A user can act on the innermost error and
on the line of their own file. This module reads texts and not classes, because the same error
arrives as many classes, depending on the thread that saw it. The whole text goes to a log file.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

TRACE = "Traceback (most recent call last):\n"
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
# Frames that belong to no app: installed packages, Python itself, and code without a file.
ELSEWHERE = re.compile(r"site-packages|/lib/python\d|/pyspark/|/hightide/|\.zip/|<")
# What Spark appends to the reason: the plan, the Java stack, the state of the query.
AFTER = re.compile(
    r"\n=== Streaming Query ===|\n\s*at [\w$.]+[(/]|;\s*\n['~+]|\n== |\n\nDriver stacktrace"
    r"|\nSearch path:"
)
CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\] ")
SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5};?")
QUERY = re.compile(r"^Query .*?\[id = [^\]]*\] terminated with exception: ")
JAVA_CLASS = re.compile(r"^(?:[a-z][\w$]*\.)+[A-Z][\w$]*: ")
PYTHON_CLASS = re.compile(r"^(?P<module>(?:\w+\.)*)(?P<name>[A-Z]\w*): ", re.DOTALL)
# The classes of these packages are dropped: their messages are sentences.
READABLE = ("hightide.", "pyspark.", "py4j.")
MAX_LENGTH = 800

LOG_LOST = (
    "Records that this query has not read are gone: retention deleted them, or the topic was "
    "created again. To continue without them, set failOnDataLoss=false on the topic, or start over "
    "with --reset."
)
RESET = (
    "Another version of the query wrote this state. Start over with --reset, which deletes its "
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
        "Install hightide[spark] for that Python, or choose one that has it: "
        "PYSPARK_PYTHON=/path/to/python.",
    ),
    (
        r'Cannot run program "(?P<it>[^"]+)"',
        "Spark's workers cannot start the Python {it}.",
        "Set the path of theirs: PYSPARK_PYTHON=/path/to/python.",
    ),
    (
        r"Python in worker has different version",
        "Spark's workers and the app run different versions of Python.",
        "Choose the same version: PYSPARK_PYTHON=/path/to/python.",
    ),
    (
        r"All masters are unresponsive|Invalid master URL|Could not parse Master URL",
        "No Spark master answers.",
        "Check the address of --master; expected spark://HOST:PORT.",
    ),
    (
        r"OutOfMemoryError|Cannot allocate memory",
        "Spark has run out of memory.",
        "Give it more with --conf spark.driver.memory=4g (and spark.executor.memory on a cluster), "
        "or make micro-batches smaller with maxOffsetsPerTrigger.",
    ),
    (
        r"No space left on device",
        "The disk is full.",
        "Free some space, or choose another --state.",
    ),
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
        "Create it with `hightide topic create`, or check the name.",
    ),
    (
        r"not supported for streaming aggregations without watermark",
        "An aggregation in append mode needs a watermark, which says when a group is complete.",
        'Give the topic its event time, topic(…, time="ts", late="10 seconds"), and group by a '
        'window; or write every change with mode="update".',
    ),
    (
        r"TABLE_OR_VIEW_NOT_FOUND",
        None,
        "In SQL, topics of the app are tables of that name; put a name with a dot or a hyphen in "
        "`backticks`.",
    ),
    (
        r"_active_spark_context is not None|SparkContext or SparkSession should be created first",
        "The file uses Spark while it is loaded, before Spark runs.",
        "Move such expressions into the functions of the queries.",
    ),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """An error as the user sees it."""

    what: str
    where: str | None = None
    advice: str | None = None

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what}" + (f"\n{self.advice}" if self.advice else "")


def full(error: BaseException) -> str:
    """Return everything that is known of an exception, for a log file: Python's trace with Java's
    inside.

    This includes the exception's context even if `raise … from None` hides it.
    """
    inner = error.__context__ if error.__suppress_context__ and not error.__cause__ else None
    before = f"{full(inner)}\n" if inner is not None else ""
    return before + "".join(traceback.format_exception(error))


def in_words(error: BaseException) -> str:
    """Return the explanation of an exception as text."""
    return str(explain(error))


def explain(error: BaseException, file: Path | None = None) -> Explanation:
    """Explain an exception to the user who runs the app in `file`."""
    return explain_text(full(error), file)


def explain_text(text: str, file: Path | None = None) -> Explanation:
    """Explain an exception, given the text of its trace."""
    what = reason(text)
    where = place(text, file)
    for pattern, better, advice in ADVICE:
        if match := re.search(pattern, text):
            return Explanation(
                better.format(**match.groupdict()) if better else what, where, advice
            )
    return Explanation(what, where)


def reason(text: str) -> str:
    """Return the innermost message, without class names and Spark's additions."""
    *_, inner = text.rpartition(TRACE)
    lines = inner.splitlines()
    # Frames are indented; the first line that is not holds the error.
    first = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), 0)
    message = AFTER.split("\n".join(lines[first:]), maxsplit=1)[0]
    if match := PYTHON_CLASS.match(message):
        is_readable = match["module"].startswith(READABLE)
        message = message[match.end() :] if is_readable else message[len(match["module"]) :]
    if ".\n: " in message:  # How Py4J shows a Java exception that PySpark does not know.
        message = message.partition(".\n: ")[2]
    message = CONDITION.sub("", message.strip())
    message = JAVA_CLASS.sub("", QUERY.sub("", message))
    message = " ".join(SQLSTATE.sub(" ", message).split()).rstrip("; ")
    return message if len(message) <= MAX_LENGTH else message[:MAX_LENGTH] + " …"


def place(text: str, file: Path | None = None) -> str | None:
    """Return the innermost line of the app's own file that a trace passes through.

    Without a file: the innermost line that is neither Spark's nor Hightide's nor Python's own.
    """
    frames = list(FRAME.finditer(text))
    if file is not None:
        mine = [frame for frame in frames if Path(frame["file"]).name == file.name]
    else:
        mine = [frame for frame in frames if not ELSEWHERE.search(frame["file"])]
    return f"{file or Path(mine[-1]['file']).name}:{mine[-1]['line']}" if mine else None
