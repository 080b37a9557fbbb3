"""Errors explained: from Spark's texts to what the user sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from hightide.spark.explain import explain, explain_text, full, in_words, place, reason

APP = Path("shop.py")

ANALYSIS = """\
Traceback (most recent call last):
  File "/srv/shop.py", line 26, in revenue
    orders.stream().select("amont")
  File "/v/lib/python3.11/site-packages/pyspark/errors/exceptions/captured.py", line 2, in deco
    raise converted from None
pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A \
column, variable, or function parameter with name `amont` cannot be resolved. Did you mean one of \
the following? [`amount`, `id`]. SQLSTATE: 42703;
'Project ['amont]
+- ~StreamingRelationV2 org.apache.spark.sql.execution.streaming.sources.RateStreamProvider@467a0e83

"""

WORKER = """\
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/sql/streaming/query.py", line 9, in wait
    return self._jsq.awaitTermination()
pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query [id = adba9236, \
runId = f7b05be0] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred \
in the user provided function in foreach batch sink. Reason: An exception was raised by the Python \
Proxy. Return Message: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/lib/pyspark.zip/worker.py", line 3, in main
    process()
  File "/srv/shop.py", line 39, in price
    return row["amount"]
           ~~~^^^^^^^^^^
KeyError: 'amount'
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = adba9236, runId = f7b05be0]
Current State: ACTIVE

Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink
"""

JAVA = """\
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/py4j/protocol.py", line 327, in get_return_value
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o384.load.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data \
source: hightyde. SQLSTATE: 42K02
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.dataSourceNotFoundError(X.scala:770)
\tat org.apache.spark.sql.execution.datasources.DataSource$.lookupDataSource(DataSource.scala:726)
"""


def test_an_unknown_column_is_told_with_the_known_ones_and_the_line_of_the_app() -> None:
    assert str(explain_text(ANALYSIS, APP)) == (
        "shop.py:26: There is no column `amont`; there are `amount`, `id`."
    )


def test_of_a_nest_of_traces_the_innermost_error_is_told() -> None:
    assert str(explain_text(WORKER, APP)) == "shop.py:39: KeyError: 'amount'"


def test_what_only_java_knows_is_told_without_classes_and_stack() -> None:
    assert explain_text(JAVA, APP).what == "Failed to find the data source: hightyde."
    assert explain_text(JAVA, APP).where is None


def test_without_a_file_the_place_is_the_last_line_outside_of_libraries() -> None:
    assert place(WORKER) == "shop.py:39"
    assert place(JAVA) is None


@pytest.mark.parametrize(
    ("text", "answer", "advised"),
    [
        ("ModuleNotFoundError: No module named 'pyarrow'", "has no pyarrow", "PYSPARK_PYTHON"),
        ('java.io.IOException: Cannot run program "/opt/py": error=2', "/opt/py", "PYSPARK_PYTHON"),
        ("java.lang.OutOfMemoryError: Java heap space", "out of memory", "spark.driver.memory"),
        ("OSError: [Errno 28] No space left on device", "disk is full", "--state"),
        (
            "All masters are unresponsive! Giving up.",
            "No Spark master answers",
            "spark://HOST:PORT",
        ),
        (
            "assertion failed: There are [1] sources in the checkpoint offsets and now there are "
            "[2] sources requested by the query. Cannot continue.",
            "There are [1] sources",
            "--reset",
        ),
    ],
)
def test_what_can_be_mended_comes_with_how(text: str, answer: str, advised: str) -> None:
    words = explain_text(text)
    assert answer in words.what
    assert advised in (words.advice or "")


def test_a_module_of_the_app_that_is_missing_is_not_blamed_on_the_workers() -> None:
    words = explain_text("ModuleNotFoundError: No module named 'prices'")
    assert words.what == "ModuleNotFoundError: No module named 'prices'"
    assert words.advice is None


def test_our_own_errors_are_sentences_and_are_told_as_they_are() -> None:
    text = 'Traceback (most recent call last):\n  File "x"\nhightide.wire.errors.KafkaError: Gone.'
    assert reason(text) == "Gone."


def test_a_text_without_any_trace_is_told_as_it_is() -> None:
    assert reason("something odd") == "something odd"
    assert reason("") == ""


def test_a_very_long_message_is_cut() -> None:
    assert len(reason("ValueError: " + "x" * 5000)) < 1000


def test_what_an_error_came_from_is_kept_also_if_it_was_hidden() -> None:
    def fail() -> None:
        try:
            int("seven")
        except ValueError:
            raise RuntimeError("The number is none.") from None

    with pytest.raises(RuntimeError) as caught:
        fail()
    assert "seven" in full(caught.value)
    assert "The number is none." in in_words(caught.value)
    assert (
        explain(caught.value, Path(__file__)).where
        == f"{Path(__file__)}:{caught.traceback[-1].lineno + 1}"
    )
