"""The figures of an app, its status file, and the lock of its process."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.spark.pipelines import status
from hightide.spark.pipelines.status import AppStatus, QueryStatus, State, advanced, lag


def progress(batch=0, at="2026-01-01T00:00:01.000Z", rows=10, **more):
    """Return a progress report of Spark, of a query that reads two partitions."""
    return {
        "timestamp": at,
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 200},
        "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
        "stateOperators": [
            {"numRowsTotal": 7, "memoryUsedBytes": 900, "numRowsDroppedByWatermark": 2}
        ],
        "sources": [
            {
                "endOffset": {"orders": {"0": 5, "1": 5}},
                "latestOffset": {"orders": {"0": 8, "1": 5}},
            }
        ],
        "sink": {"numOutputRows": -1},
        "observedMetrics": {"written": {"rows": 4}},
        **more,
    }


def an_app(**changes) -> AppStatus:
    made = AppStatus(
        "shop", "shop.py", "localhost:9092", "local[2]", 1234, State.RUNNING, 1_000, 2_000
    )
    return dataclasses.replace(made, **changes)


def test_a_report_of_spark_becomes_figures() -> None:
    query = advanced(QueryStatus("revenue", "revenue"), progress())
    assert (query.state, query.batch, query.rows_in, query.rows_out) == (State.RUNNING, 0, 10, 4)
    assert (query.rows_in_per_s, query.rows_out_per_s, query.batch_ms) == (50.0, 20.0, 200)
    assert (query.lag, query.watermark) == (3, "2026-01-01T00:00:00.000Z")
    assert (query.state_rows, query.state_bytes, query.late_rows) == (7, 900, 2)
    assert query.positions == {"orders": {"0": 5, "1": 5}}


def test_rates_are_over_the_time_in_which_the_rows_came() -> None:
    query = advanced(QueryStatus("q"), progress())
    query = advanced(query, progress(1, "2026-01-01T00:00:03.000Z", rows=100))
    assert query.rows_in_per_s == 50.0
    assert query.rows_in == 110
    assert query.late_rows == 4


def test_a_report_that_was_seen_already_counts_once() -> None:
    query = advanced(QueryStatus("q"), progress())
    assert advanced(query, progress()) == query


def test_a_report_of_nothing_keeps_the_time_of_the_last_batch_that_did_something() -> None:
    query = advanced(QueryStatus("q"), progress())
    idle = progress(1, "2026-01-01T00:00:11.000Z", rows=0, durationMs={"triggerExecution": 3})
    assert advanced(query, idle).batch_ms == 200
    assert advanced(query, idle).rows_in_per_s == 0


def test_what_is_not_known_is_none_and_not_zero() -> None:
    bare = {"timestamp": "2026-01-01T00:00:01.000Z", "batchId": 3, "sources": []}
    query = advanced(QueryStatus("q"), bare)
    assert (query.lag, query.rows_out, query.state_rows, query.watermark) == (None,) * 4
    epoch = progress(eventTime={"watermark": "1970-01-01T00:00:00.000Z"})
    assert advanced(QueryStatus("q"), epoch).watermark is None


def test_offsets_of_other_sources_are_no_positions() -> None:
    others = [{"endOffset": "17"}, {"endOffset": 17}, {"endOffset": "x"}, {"endOffset": None}]
    assert advanced(QueryStatus("q"), progress(sources=others)).positions == {}


def test_a_topic_that_is_read_twice_counts_where_the_slower_reader_is() -> None:
    twice = [{"endOffset": {"t": {"0": 9}}}, {"endOffset": '{"t": {"0": 4, "1": 1}}'}]
    query = advanced(QueryStatus("q"), progress(sources=twice))
    assert query.positions == {"t": {"0": 4, "1": 1}}


offsets = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.sampled_from(["0", "1", "2"]), st.integers(0, 1 << 60)),
)


@given(offsets, offsets)
def test_lag_is_never_negative_and_none_at_the_end(positions, ends) -> None:
    assert lag(positions, ends) >= 0
    assert lag(positions, positions) == 0


def test_what_is_written_is_read(tmp_path: Path) -> None:
    query = advanced(QueryStatus("revenue", "revenue"), progress())
    written = an_app(queries=(query,), state=State.FINISHED)
    status.write(tmp_path / "shop", written)
    assert status.read(tmp_path / "shop") == written
    assert list(status.known(tmp_path)) == [written]
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["status.json"]


def test_a_folder_without_a_status_is_no_app(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "status.json").write_text("{")
    assert list(status.known(tmp_path)) == []
    assert list(status.known(tmp_path / "nowhere")) == []


def test_an_app_whose_process_is_gone_has_died(tmp_path: Path) -> None:
    running = an_app(queries=(QueryStatus("q", state=State.RUNNING),))
    status.write(tmp_path, running)
    found = status.read(tmp_path)
    assert found is not None
    assert (found.state, found.queries[0].state) == (State.DIED, State.DIED)


def test_an_app_that_holds_its_lock_runs_and_no_other_can(tmp_path: Path) -> None:
    status.write(tmp_path, an_app())
    with status.app_lock(tmp_path, "shop"):
        assert status.is_running(tmp_path)
        found = status.read(tmp_path)
        assert found is not None
        assert found.state is State.RUNNING
        with (
            pytest.raises(status.AlreadyRunning, match="process 1234"),
            status.app_lock(tmp_path, "shop"),
        ):
            pass
    assert not status.is_running(tmp_path)


def test_the_lock_of_a_process_that_is_killed_is_free(tmp_path: Path) -> None:
    hold = (
        "import sys, pathlib; from hightide.spark.pipelines import status\n"
        "with status.app_lock(pathlib.Path(sys.argv[1]), 'shop'):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert status.is_running(tmp_path)
        child.kill()
    assert not status.is_running(tmp_path)
