"""The job that writes a batch: its plan, and the check that Spark ran each task once.

A task can tell that it is another attempt, but not that its whole stage is. Spark repeats a stage
if the output of the stage before it is lost with an executor, while tasks of the first attempt may
still run. The driver sees that in Spark's status of the stage, before it commits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hightide.spark.sink.row_routing import Routes
from hightide.spark.sink.tasks import (
    DELIVERED_DDL,
    PIECES_DDL,
    REPEATED,
    Append,
    Encode,
    Repeated,
    Write,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row

STATUS_S = 30.0
PAUSE_S = 0.002


def write(frame: DataFrame, rows: DataFrame, routes: Routes, append: Append) -> list[Row]:
    """Write the rows of a batch, and return what was delivered to each partition."""
    done = plan(frame, rows, routes, append).collect()
    for stage_id in {row.stage for row in done}:
        check_stage(frame.sparkSession.sparkContext, stage_id)
    return [row for row in done if row.records]


def plan(frame: DataFrame, rows: DataFrame, routes: Routes, append: Append) -> DataFrame:
    if is_one_task(frame):
        return rows.mapInArrow(Write(routes, append), DELIVERED_DDL)
    cores = rows.sparkSession.sparkContext.defaultParallelism
    tasks = max(1, min(cores, sum(routes.partitions.values())))
    pieces = rows.mapInArrow(Encode(routes, tasks), PIECES_DDL)
    return pieces.repartitionById(tasks, "task").mapInArrow(append, DELIVERED_DDL)


def is_one_task(frame: DataFrame) -> bool:
    """Return whether one task has all rows; False if finding out takes work."""
    from py4j.protocol import Py4JError

    try:
        # Spark passes a plan to foreachBatch that it has made already.
        return int(frame._jdf.queryExecution().logical().rdd().getNumPartitions()) == 1
    except Py4JError:
        return False


def check_stage(context: SparkContext, stage_id: int) -> None:
    """Raise `Repeated` if a finished stage was run more than once.

    Spark's status lags a little. It is complete when all tasks of the first attempt have succeeded,
    and then there was no other attempt.
    """
    tracker = context.statusTracker()
    deadline_s = time.monotonic() + STATUS_S
    while time.monotonic() < deadline_s:
        stage = tracker.getStageInfo(stage_id)
        if stage is not None:
            if stage.currentAttemptId or stage.numFailedTasks:
                raise Repeated(REPEATED)
            if stage.numCompletedTasks == stage.numTasks:
                return
        time.sleep(PAUSE_S)
    raise Repeated("Spark does not say whether each task of the batch ran once.")
