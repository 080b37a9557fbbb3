"""Each row of a query is in its topic once, although drivers, tasks and brokers die."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from hightide.spark.blocking_client import shared_client
from hightide.spark.sink import exactly_once, foreach_batch
from hightide.spark.sink.marker import Refused, Replaced
from hightide.spark.sink.rows import Unwritable
from hightide.spark.sink.tasks import Append
from tests.spark.copying_queries import (
    BATCH,
    DEADLINE_S,
    ENDING,
    LOSSES,
    TAKING_OVER,
    WRITING,
    Copy,
    committed,
)
from tests.support import processes
from tests.support.eventually import eventually


@pytest.mark.parametrize(
    ("mode", "tasks", "moments"),
    [
        ("append", 2, [*TAKING_OVER, *WRITING, *ENDING]),
        ("update", 1, [*WRITING[1:], *ENDING]),
        pytest.param("complete", 2, ENDING, marks=pytest.mark.extended),
    ],
)
def test_a_driver_may_die_at_every_step(spark, broker, checkpoint, mode, tasks, moments):
    copy = Copy(spark, broker.bootstrap, f"dying-{mode}", mode, checkpoint, tasks=tasks).create()
    for moment in moments:
        assert copy.live(moment).is_dead, moment
    last = copy.live()
    assert last.replayed  # the last one died between EndTxn and Spark's commit log
    copy.check(last.last.batch + 1)


@pytest.mark.extended
def test_a_driver_that_hears_nothing_of_its_commit_finds_out_what_became_of_it(
    spark, broker, checkpoint
):
    copy = Copy(spark, broker.bootstrap, "unheard", "update", checkpoint).create()
    for loss in LOSSES:
        sink = copy.live(loss)
        assert not sink.is_dead
    assert sink.last.is_replay  # though it was this driver that had written it
    copy.check(len(LOSSES))


# Classes that run on executors are made in functions, so that they are pickled by value.


def failing_once(flag: Path):
    class Failing(Append):
        def append(self, batches):
            done = super().append(batches)
            if flag.exists():
                flag.unlink()
                raise RuntimeError("this task dies after it has written")
            return done

    return Failing


@pytest.mark.parametrize("tasks", [pytest.param(1, marks=pytest.mark.extended), 2])
def test_a_task_that_dies_after_writing_costs_another_transaction_and_no_record(
    spark, broker, checkpoint, tmp_path, monkeypatch, tasks
):
    flag = tmp_path / "fail"
    flag.touch()
    monkeypatch.setattr(foreach_batch, "Append", failing_once(flag))
    name = f"task-{tasks}"
    copy = Copy(spark, broker.bootstrap, name, "append", checkpoint, tasks=tasks).create()
    copy.live()
    assert not flag.exists()
    copy.live()
    copy.check(2)


@pytest.mark.extended
@pytest.mark.timeout(600)  # it starts its own Spark
def test_a_driver_that_is_killed_with_its_tasks_is_followed_by_one_that_goes_on(
    spark, broker, checkpoint, tmp_path
):
    """Spark also retries that driver's tasks, which refuse."""
    copy = Copy(spark, broker.bootstrap, "killed", "update", checkpoint).create()
    command = processes.module(
        "tests.spark.killable_driver", broker.bootstrap, "killed", checkpoint, str(tmp_path)
    )
    with (tmp_path / "said").open("wb") as messages:
        driver = subprocess.Popen(
            command, env=processes.checkout_environment(), stdout=messages, stderr=messages
        )
    try:
        eventually(lambda: (tmp_path / "written").exists() or driver.poll() is not None, 400)
        assert driver.poll() is None, (tmp_path / "said").read_text()[-3000:]
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert (tmp_path / "died").exists()
    # Two batches are committed, and a third is whole but not committed.
    sink = copy.live()
    assert sink.last.batch >= 2
    assert sink.replayed == []
    copy.check(sink.last.batch + 1)


def waiting(flags: Path):
    """Let the first task wait after its first record batch; Spark has cores for others."""

    class Waiting(Append):
        def append(self, batches):
            def held():
                for batch in batches:
                    yield batch
                    try:
                        (flags / "begun").touch(exist_ok=False)
                    except FileExistsError:
                        continue
                    while not (flags / "go on").exists():
                        time.sleep(0.05)

            return super().append(held())

    return Waiting


@pytest.mark.extended
def test_a_broker_that_is_killed_in_mid_batch_costs_nothing(
    spark, three, checkpoint, tmp_path, monkeypatch
):
    copy = Copy(spark, three.bootstrap, "mid-batch", "append", checkpoint, replicas=3).create()
    copy.live()
    monkeypatch.setattr(foreach_batch, "Append", waiting(tmp_path))
    sink = copy.sink()
    query = copy.start(sink)
    eventually((tmp_path / "begun").exists)
    leader = three.leader("mid-batch", 1)
    three.kill(leader)
    try:
        (tmp_path / "go on").touch()
        assert query.awaitTermination(DEADLINE_S)
    finally:
        three.restart(leader)
    copy.check(copy.live().last.batch + 1)


def numbers(spark, batch: int):
    """Return rows for calling a sink without a query."""
    frame = spark.range(batch * BATCH, (batch + 1) * BATCH, 1, 2)
    return frame.selectExpr("CAST(id AS STRING) AS value", "CONCAT('k', id % 5) AS key")


def test_a_driver_that_was_replaced_stops_and_has_written_nothing(
    spark, broker, tmp_path, monkeypatch
):
    copy = Copy(spark, broker.bootstrap, "zombie", "append", "").create()
    older, newer = copy.sink(), copy.sink()
    older(numbers(spark, 0), 0)
    # Now it is suspended in the middle of a batch, which another driver writes meanwhile.
    monkeypatch.setattr(foreach_batch, "Append", waiting(tmp_path))
    failures = []

    def sleep_walk():
        try:
            older(numbers(spark, 1), 1)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=sleep_walk)
    thread.start()
    eventually((tmp_path / "begun").exists)
    monkeypatch.undo()
    newer(numbers(spark, 1), 1)
    (tmp_path / "go on").touch()
    thread.join()
    assert isinstance(failures[0], Replaced)
    newer(numbers(spark, 2), 2)
    with pytest.raises(Replaced, match="has taken over"):
        older(numbers(spark, 2), 2)
    copy.check(3)


def test_a_query_that_is_stopped_in_mid_batch_has_not_failed(
    spark, broker, checkpoint, tmp_path, monkeypatch
):
    copy = Copy(spark, broker.bootstrap, "stopped", "append", checkpoint).create()
    monkeypatch.setattr(foreach_batch, "Append", waiting(tmp_path))
    query = copy.start(copy.sink())
    eventually((tmp_path / "begun").exists)
    query.stop()
    (tmp_path / "go on").touch()
    assert query.exception() is None
    monkeypatch.undo()
    copy.check(copy.live().last.batch + 1)


def test_a_deleted_checkpoint_begins_a_new_life_and_a_restored_one_is_refused(
    spark, broker, checkpoint, tmp_path
):
    copy = Copy(spark, broker.bootstrap, "lives", "append", checkpoint).create()
    copy.live()
    backup = tmp_path / "backup"
    shutil.copytree(checkpoint, backup)
    copy.live()
    copy.live()
    copy.check(3)
    shutil.rmtree(checkpoint)
    shutil.move(backup, checkpoint)
    with pytest.raises(Exception, match="Batch 1 is older than the last one, 2"):
        copy.live()
    shutil.rmtree(checkpoint)
    assert copy.live().replayed == []
    seen = committed(broker.bootstrap, "lives", copy.partitions)
    assert len(seen) == 4 * BATCH
    marker = shared_client({"bootstrap.servers": broker.bootstrap}).committed("lives-batches")
    assert marker["lives", 0][0] == 1


def test_a_batch_without_rows_records_its_number(spark, broker):
    client = shared_client({"bootstrap.servers": broker.bootstrap})
    client.create_topic("empty", 2)
    once = exactly_once("empty", bootstrap=broker.bootstrap, name="nothing")
    once(numbers(spark, 0).where("false"), 0)
    assert client.committed("nothing-batches")["empty", 0][0] == 1
    once(numbers(spark, 1).where("false"), 1)
    with pytest.raises(Refused, match="Batch 0 is older than the last one, 1"):
        once(numbers(spark, 0), 0)


def test_rows_choose_topic_partition_headers_and_time(spark, broker):
    client = shared_client({"bootstrap.servers": broker.bootstrap})
    client.create_topic("chosen-a", 4)
    client.create_topic("chosen-b", 2)
    rows = spark.sql(
        """
        SELECT IF(id % 2 = 0, 'chosen-a', 'chosen-b') AS topic, CAST(id AS STRING) AS value,
               id AS user, IF(id < 10, CAST(1 AS INT), NULL) AS place,
               ARRAY(STRUCT('id' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers,
               TIMESTAMP_MILLIS(1700000000000 + id) AS timestamp
        FROM RANGE(100)
        """
    )
    once = exactly_once(
        options={"kafka.bootstrap.servers": broker.bootstrap},
        name="chosen",
        key="user",
        partition="place",
        codec="lz4",
    )
    once(rows, 0)
    seen = committed(broker.bootstrap, "chosen-a", 4) + committed(broker.bootstrap, "chosen-b", 2)
    assert sorted(int(record.value()) for record in seen) == list(range(100))
    for record in seen:
        number = int(record.value())
        assert record.topic() == ("chosen-b" if number % 2 else "chosen-a")
        assert record.key() == record.value()
        assert record.headers() == [("id", record.value())]
        assert record.timestamp()[1] == 1700000000000 + number
        assert record.partition() == 1 or number >= 10
    assert once.last.records == 100
    (marker,) = client.committed("chosen-batches").values()
    assert marker[0] == 1
    assert json.loads(marker[1])["query"] == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "CAST(9 AS INT) AS partition",
            "partition 9 of 'refused', which has the partitions 0 to 1",
        ),
        ("ARRAY(STRUCT(CAST(NULL AS STRING) AS key, value)) AS headers", "a header has no key"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_in_words(spark, broker, change, words):
    shared_client({"bootstrap.servers": broker.bootstrap}).create_topic("refused", 2)
    once = exactly_once("refused", bootstrap=broker.bootstrap, name="refused")
    rows = spark.range(3).selectExpr("CAST('x' AS BINARY) AS value").selectExpr("*", change)
    with pytest.raises(Unwritable, match=words):
        once(rows, 0)
    assert committed(broker.bootstrap, "refused", 2) == []


def test_a_transaction_that_brokers_do_not_allow_is_refused_in_words(spark, broker):
    once = exactly_once("x", bootstrap=broker.bootstrap, name="long", timeout_s=3600)
    shared_client({"bootstrap.servers": broker.bootstrap}).create_topic("x")
    with pytest.raises(Refused, match="allow no transaction of 3600 s"):
        once(numbers(spark, 0), 0)
