"""Whether Spark ran each task of a job once is read from its status, which lags."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hightide.spark.sink.foreach_batch import check_session, exactly_once
from hightide.spark.sink.jobs import check_stage
from hightide.spark.sink.marker import Refused
from hightide.spark.sink.tasks import Repeated


def context(*account):
    """Return a Spark context with these statuses of a stage, one after the other."""
    answer = iter(account)
    return SimpleNamespace(
        statusTracker=lambda: SimpleNamespace(getStageInfo=lambda _: next(answer))
    )


def stage(attempt=0, failed=0, completed=2):
    return SimpleNamespace(
        currentAttemptId=attempt, numFailedTasks=failed, numCompletedTasks=completed, numTasks=2
    )


def test_a_stage_is_waited_for_until_all_its_tasks_are_accounted_for():
    check_stage(context(None, stage(completed=0), stage(completed=1), stage()), 7)


@pytest.mark.parametrize("last", [stage(attempt=1), stage(failed=1), stage(attempt=1, completed=1)])
def test_a_stage_that_was_run_again_in_part_is_not_trusted(last):
    with pytest.raises(Repeated, match="was run again"):
        check_stage(context(None, stage(completed=1), last), 7)


def session(**conf):
    return SimpleNamespace(
        sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    )


def test_speculation_is_refused_in_words():
    check_session(session())
    check_session(session(**{"spark.speculation": "false"}))
    with pytest.raises(Refused, match="speculation is on"):
        check_session(session(**{"spark.speculation": "true"}))


def test_a_sink_needs_a_name_and_brokers():
    with pytest.raises(ValueError, match="needs a name"):
        exactly_once("out", bootstrap="localhost:9092", name="")
    with pytest.raises(ValueError, match=r"bootstrap\.servers is missing"):
        exactly_once("out", name="app")
