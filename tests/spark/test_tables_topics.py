"""Topics of a real broker as tables, by the command line."""

from __future__ import annotations

import json

import duckdb
import pandas as pd
import pytest
from confluent_kafka import Producer

from hightide.cli import table as commands
from hightide.cli.options import Failed
from hightide.spark.blocking_client import shared_client
from hightide.spark.tables import read
from hightide.spark.tables.parquet import ParquetStore
from hightide.spark.tables.staged_files import StagedFiles
from hightide.spark.tables.table_access import open_table
from tests.spark import topics

pytestmark = pytest.mark.extended


@pytest.fixture
def table(spark, broker, tmp_path, capsys):
    """Run `hightide table …` in this process and session."""

    def run(*arguments):
        more = ["--state", str(tmp_path / "state")]
        if arguments[0] == "create":
            more += ["--bootstrap", broker.bootstrap, "--once"]
        commands.app([*map(str, arguments), *more], standalone_mode=False)
        return capsys.readouterr().out

    return run


def send(cluster, topic, records, partition=0):
    """Write (key, value) pairs; a dict is written as JSON, and None is a tombstone."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for key, value in records:
        text = json.dumps(value).encode() if isinstance(value, dict) else value
        producer.produce(topic, text, key, partition=partition)
    assert producer.flush(topics.DEADLINE_S) == 0


def test_a_topic_of_json_becomes_parquet_that_grows_with_it(spark, broker, table, tmp_path):
    broker.create_topic("clicks-table", partitions=2)
    target = tmp_path / "clicks"
    send(broker, "clicks-table", [("a", {"user": "u1", "n": n}) for n in range(5)])
    send(broker, "clicks-table", [("b", {"user": "u2", "n": 7, "maybe": None})], partition=1)
    create = ("create", "clicks-table", "--to", f"parquet:{target}", "--partition-by", "day")
    table(*create)
    later = {"user": "u3", "n": 1.5, "geo": {"lat": 1.25}, "maybe": "yes"}
    send(broker, "clicks-table", [("c", later)], partition=1)
    table(*create)

    rows = duckdb.sql(
        f'select _partition, _offset, decode(_key), "user", n, maybe, geo.lat'
        f" from '{target}/**/*.parquet' order by all"
    ).fetchall()
    assert rows == [
        *((0, n, "a", "u1", float(n), None, None) for n in range(5)),
        (1, 0, "b", "u2", 7.0, None, None),
        (1, 1, "c", "u3", 1.5, "yes", 1.25),
    ]
    frame = pd.read_parquet(target)
    assert frame["n"].sum() == sum(range(5)) + 7 + 1.5
    assert set(frame["day"].astype(str)) == set(frame["_timestamp"].dt.date.astype(str))
    assert spark.read.parquet(str(target)).count() == 7

    listed = json.loads(table("list", "-o", "json"))
    assert [(table["table"], table["rows"], table["state"]) for table in listed] == [
        ("clicks", 7, "finished")
    ]
    client = shared_client({"bootstrap.servers": broker.bootstrap})
    partitions = [("clicks-table", 0), ("clicks-table", 1)]
    reached = client.committed("clicks-table", partitions)
    assert [reached[partition][0] for partition in partitions] == [5, 2]
    table("compact", "clicks")
    table("drop", "clicks", "--yes")
    assert not target.exists()
    assert client.committed("clicks-table", partitions) == {}


@pytest.mark.parametrize(
    ("kind", "key", "deleted"),
    [
        ("parquet", "_key", b"2"),
        ("delta", "id", b"2"),
        pytest.param("iceberg", "id,kind", b'{"id":2,"kind":"x"}', marks=pytest.mark.extended),
    ],
)
def test_a_compacted_topic_is_its_latest_values_without_the_deleted(
    spark, broker, table, tmp_path, kind, key, deleted
):
    topic = f"users-{kind}"
    broker.create_topic(topic, partitions=1, config={"cleanup.policy": "compact"})
    target = f"{kind}:{tmp_path / topic}"

    def user(number, name):
        record_key = deleted if number == 2 else str(number)
        return record_key, {"id": number, "kind": "x", "name": name}

    schema = ("--schema", "id BIGINT, kind STRING, name STRING", "--buckets", "3")
    create = ("create", topic, "--to", target, "--key", key, *schema)
    send(broker, topic, [user(n, "first") for n in range(6)])
    table(*create)
    send(broker, topic, [user(1, "second"), user(1, "third"), user(3, "second"), (deleted, None)])
    table(*create)

    rows = read(spark, target).select("id", "name").collect()
    expected = {0: "first", 1: "third", 3: "second", 4: "first", 5: "first"}
    assert sorted((row.id, row.name) for row in rows) == sorted(expected.items())
    if kind == "delta":
        send(broker, topic, [("no number", None)])
        with pytest.raises(Failed, match="The key must have id, but is: no number"):
            table(*create)


def test_bad_records_go_to_their_own_topic_and_lines_of_text_are_never_bad(
    spark, broker, table, tmp_path
):
    broker.create_topic("orders-table")
    broker.create_topic("orders-dead")
    send(broker, "orders-table", [("a", {"n": 1}), ("b", b"nonsense"), ("c", {"n": 2})])
    target = f"iceberg:{tmp_path / 'orders'}"
    create = ("create", "orders-table", "--to", target, "--schema", "n BIGINT")
    with pytest.raises(Failed, match="cannot be decoded as json"):
        table(*create)
    table(*create, "--on-error", "dlq:orders-dead")
    assert sorted(row.n for row in read(spark, target).collect()) == [1, 2]
    dead = topics.values(topics.read(broker, subscribe="orders-dead"))
    assert dead == [b"nonsense"]

    lines = f"delta:{tmp_path / 'lines'}"
    table("create", "orders-table", "--to", lines, "--format", "text", "--name", "lines")
    assert len(read(spark, lines).where("value = 'nonsense'").collect()) == 1


def test_a_name_is_not_used_for_two_tables_and_a_table_not_twice_filled(
    spark, broker, table, tmp_path
):
    broker.create_topic("named-table")
    send(broker, "named-table", [("a", {"n": 1})])
    target = f"parquet:{tmp_path / 'named'}"
    table("create", "named-table", "--to", target)
    with pytest.raises(Failed, match="choose another with --name"):
        table("create", "named-table", "--to", f"{target}2", "--name", "named")
    checkpoint = tmp_path / "state" / "named" / "table" / "checkpoint"
    checkpoint.rename(tmp_path / "lost")
    with pytest.raises(Failed, match="Rows would be written twice"):
        table("create", "named-table", "--to", target)
    assert len(read(spark, target).collect()) == 1


def test_a_topic_is_in_its_table_once_although_its_driver_dies(
    spark, broker, table, tmp_path, monkeypatch
):
    broker.create_topic("dying-table", partitions=2)
    target = f"parquet:{tmp_path / 'dying'}"
    for step, (owner, name) in enumerate([(StagedFiles, "write"), (ParquetStore, "commit")]):
        send(broker, "dying-table", [("k", {"n": step * 10 + n}) for n in range(10)], step)
        real = getattr(owner, name)

        def dying(*arguments, real=real):
            real(*arguments)
            raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dying)
            with pytest.raises(Failed, match="killed"):
                table("create", "dying-table", "--to", target)
    table("create", "dying-table", "--to", target)
    assert sorted(row.n for row in read(spark, target).collect()) == list(range(20))
    assert open_table(target).snapshot().marks["dying-table"].batch >= 1
