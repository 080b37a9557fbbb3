"""The command line against a real broker, as a user or a script runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from types import SimpleNamespace

import confluent_kafka
import pytest

from hightide import __version__
from hightide.__main__ import main
from hightide.process import environment
from hightide.testing import Cluster
from tests.conformance.adapters import Record, confluent, values
from tests.conformance.commands import Done, runner
from tests.support.eventually import eventually
from tests.support.processes import hightide


@pytest.fixture
def run(broker, capfd, monkeypatch):
    return runner(broker.bootstrap, capfd, monkeypatch)


@pytest.fixture
def typed(broker):
    """Run a command in a separate process, with input."""

    def run(*arguments, stdin=b""):
        done = subprocess.run(
            [sys.executable, "-m", "hightide", *arguments],
            input=stdin,
            capture_output=True,
            env={**environment(), "HIGHTIDE_BOOTSTRAP": broker.bootstrap},
            timeout=60,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def fresh():
    return f"cli-{uuid.uuid4().hex[:12]}"


# -- connections -------------------------------------------------------------------------------


def test_connections_name_the_client_and_count_its_requests(run, broker):
    name = fresh()
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "client.id": name})
    producer.produce(name, b"one")
    assert producer.flush(30) == 0
    listed = run("cluster", "connections", "-o", "json").json
    mine = [row for row in listed if row["client_id"] == name]
    assert mine
    assert {row["software"] for row in mine} == {"confluent-kafka-python"}
    assert {row["listener"] for row in mine} == {"PLAINTEXT"}
    assert {row["peer_broker"] for row in mine} == {None}
    assert any(row["last_api"] == "Produce" and row["requests"] >= 2 for row in mine)
    # The command sees its own connection, too.
    assert any(row["last_api"] == "DescribeConnections" for row in listed)
    heading, *rows = run("cluster", "connections").lines
    assert heading.split()[:3] == ["BROKER", "CLIENT-ID", "SOFTWARE"]
    assert any(name in row for row in rows)


# -- topics ------------------------------------------------------------------------------------


def test_a_topic_is_created_listed_described_and_deleted(run):
    name = fresh()
    created = run("topic", "create", name, "-p", "3", "--config", "retention.ms=1000", "-o", "json")
    assert created.json == [{"topic": name, "result": "created"}]
    listed = {row["topic"]: row for row in run("topic", "list", "-o", "json").json}
    assert listed[name]["partitions"] == 3
    (described,) = run("topic", "describe", name, "-o", "json").json
    assert described["config"] == {"retention.ms": "1000"}
    assert [partition["leader"] for partition in described["partitions"]] == [1, 1, 1]
    would = run("topic", "delete", name, "--dry-run", "-o", "json")
    assert would.json[0]["result"] == "would be deleted"
    assert run("topic", "delete", name).code == 0
    assert name not in run("topic", "list").out


def test_tables_are_for_people(run):
    name = fresh()
    run("topic", "create", name)
    heading, *rows = run("topic", "list").lines
    assert heading.split() == ["TOPIC", "PARTITIONS", "REPLICATION-FACTOR"]
    assert [name, "1", "1"] in [row.split() for row in rows]
    described = run("topic", "describe", name).lines
    assert described[0].split() == ["topic", name]
    assert described[-1].split() == ["0", "1", "0", "1", "1", "0", "0"]


def test_what_exists_and_what_does_not_is_said(run):
    name = fresh()
    missing = run("topic", "describe", name)
    assert missing.code == 1
    assert missing.err == (f"hightide: There is no topic '{name}' (UNKNOWN_TOPIC_OR_PARTITION).\n")
    run("topic", "create", name)
    again = run("topic", "create", name)
    assert again.code == 1
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert run("topic", "create", name, "--if-not-exists", "-o", "json").json == [
        {"topic": name, "result": "exists"}
    ]
    assert run("topic", "delete", fresh(), "--if-exists").code == 0


def test_nothing_is_deleted_when_one_of_several_does_not_exist(run):
    name = fresh()
    run("topic", "create", name)
    assert run("topic", "delete", name, fresh()).code == 1
    assert name in run("topic", "list").out


def test_topics_are_deleted_only_after_the_answer_at_a_terminal(run, monkeypatch):
    name = fresh()
    run("topic", "create", name)
    answers = iter([False, True])
    asked = []

    def answer(question, err):
        asked.append(question)
        return next(answers)

    monkeypatch.setattr("typer.confirm", answer)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    kept = run("topic", "delete", name)
    assert (kept.code, kept.out) == (1, "")
    assert kept.err == "hightide: Nothing was changed.\n"
    assert name in run("topic", "list").out
    assert run("topic", "delete", name, "--dry-run").code == 0
    assert run("topic", "delete", name, "-o", "json").json[0]["result"] == "deleted"
    assert asked == [f"Delete {name}, and 0 records?"] * 2
    run("topic", "create", name)
    assert run("topic", "delete", name, "--yes").code == 0
    assert len(asked) == 2


def test_a_topic_is_trimmed_to_an_offset_or_to_its_end(run, broker):
    topic = broker.create_topic(partitions=2)
    for at in range(2):
        run("produce", f"{topic}/{at}", *(str(number) for number in range(4 + at)))
    would = run("topic", "trim", f"{topic}/1", "--to-offset", "3", "--dry-run", "-o", "json").json
    assert would == [
        {"topic": topic, "partition": 1, "start": 0, "to": 3, "records": 3}
        | {"result": "would be trimmed"}
    ]
    assert run("topic", "trim", f"{topic}/1", "--to-offset", "3").code == 0
    assert run("consume", f"{topic}/1").lines == ["3", "4"]
    beyond = run("topic", "trim", topic, "--to-offset", "5")
    assert (beyond.code, beyond.out) == (1, "")
    assert f"{topic}/0 ends at offset 4, before 5; nothing was deleted." in beyond.err
    rows = run("topic", "trim", topic, "--to-offset", "3", "-o", "json").json
    assert [row["result"] for row in rows] == ["trimmed", "there already"]
    rows = run("topic", "trim", topic, "--to-end", "-o", "json").json
    assert [(row["to"], row["result"]) for row in rows] == [(4, "trimmed"), (5, "trimmed")]
    assert run("consume", topic).lines == []
    assert run("topic", "trim", fresh(), "--to-end").code == 1
    assert run("topic", "trim", f"{topic}/7", "--to-end").code == 1


def test_a_dry_run_changes_nothing(run):
    name = fresh()
    assert "would be created" in run("topic", "create", name, "--dry-run").out
    assert name not in run("topic", "list").out
    run("topic", "create", name)
    assert run("topic", "alter", name, "-p", "7", "-c", "retention.ms=5", "--dry-run").code == 0
    (described,) = run("topic", "describe", name, "-o", "json").json
    assert len(described["partitions"]) == 1
    assert described["config"] == {}
    assert run("topic", "create", name, "--dry-run").code == 1


def test_a_topic_is_altered(run):
    name = fresh()
    run("topic", "create", name, "-c", "retention.ms=5")
    assert run("topic", "alter", name, "-p", "4", "-c", "cleanup.policy=compact").code == 0
    assert run("topic", "alter", name, "--delete-config", "retention.ms").code == 0
    (described,) = run("topic", "describe", name, "-o", "json").json
    assert len(described["partitions"]) == 4
    assert described["config"] == {"cleanup.policy": "compact"}
    fewer = run("topic", "alter", name, "-p", "2")
    assert fewer.code == 1
    assert "INVALID_PARTITIONS" in fewer.err


# -- settings and cluster ----------------------------------------------------------------------


def test_settings_are_read_changed_and_taken_back(run):
    name = fresh()
    run("topic", "create", name)
    resource = f"topic/{name}"
    assert (
        run("config", "set", resource, "max.message.bytes=7777", "segment.bytes=2000000").code == 0
    )
    changed = {row["name"]: row for row in run("config", "get", resource, "-o", "json").json}
    assert changed["max.message.bytes"]["value"] == "7777"
    assert changed["max.message.bytes"]["source"] == "dynamic_topic_config"
    assert changed["max.message.bytes"]["type"] == "int"
    assert changed["max.message.bytes"]["documentation"]
    assert changed["cleanup.policy"]["source"] == "default_config"
    assert run("config", "unset", resource, "max.message.bytes").code == 0
    found = run("config", "get", resource, "--changed", "-o", "json").json
    assert "max.message.bytes" not in {row["name"] for row in found}
    assert "segment.bytes" in {row["name"] for row in found}


def test_a_wrong_setting_is_refused_in_words(run):
    name = fresh()
    run("topic", "create", name)
    for wrong in ("retention.ms=soon", "no.such.setting=1"):
        done = run("config", "set", f"topic/{name}", wrong)
        assert done.code == 1
        assert wrong.partition("=")[0] in done.err
    missing = run("config", "get", f"topic/{name}", "no.such.setting")
    assert (missing.code, missing.err) == (
        1,
        f"hightide: topic/{name} has no config no.such.setting.\n",
    )
    assert run("config", "get", f"topic/{fresh()}").code == 1


def test_a_brokers_settings_are_shown(run):
    (row,) = run("config", "get", "broker/1", "broker.id", "-o", "json").json
    assert (row["value"], row["read_only"]) == ("1", True)
    missing = run("config", "get", "broker/99")
    assert missing.code == 1
    assert "no broker 99" in missing.err


def test_the_cluster_is_shown(run, broker):
    found = run("cluster", "info", "-o", "json").json
    assert found["controller"] == 1
    (node,) = found["nodes"]
    where = {"id": 1, "host": "127.0.0.1", "port": broker.port(), "rack": None}
    assert {key: node[key] for key in where} == where
    assert (node["controller"], node["alive"]) == (True, True)
    assert node["leads"] == node["in_sync"] == node["replicas"] == found["partitions"]
    assert node["version"] == __version__
    assert run("cluster", "info").lines[-1].split()[0] == "1"


def test_the_doctor_finds_an_address_that_clients_cannot_use(run):
    settings = {"advertised.listeners": "PLAINTEXT://broker.invalid:9092"}
    with Cluster(settings=settings) as cluster:
        done = run("doctor", "--bootstrap", cluster.bootstrap, "-o", "json")
    found = {check["check"]: check for check in json.loads(done.out)}
    assert done.code == 3
    assert found["broker"]["verdict"] == "ok"
    assert found["addresses"]["verdict"] == "bad"
    assert "broker.invalid:9092 of broker 1" in found["addresses"]["found"]
    assert "advertised.listeners" in found["addresses"]["advice"]


def test_log_directories_are_shown_with_their_replicas(run, broker):
    topic = broker.create_topic(partitions=2)
    run("produce", f"{topic}/1", "x" * 1000)
    (directory,) = run("cluster", "logdirs", "-o", "json").json
    assert (directory["broker"], directory["status"]) == (1, "ok")
    assert 0 < directory["usable_bytes"] < directory["total_bytes"]
    rows = run("cluster", "logdirs", "--topic", topic, "-o", "json").json
    assert [(row["broker"], row["partition"]) for row in rows] == [(1, 0), (1, 1)]
    assert rows[0]["size_bytes"] == 0
    assert 1000 < rows[1]["size_bytes"] <= directory["size_bytes"]
    (row,) = run("cluster", "logdirs", "--replicas", "-t", f"{topic}/1", "-o", "json").json
    assert row["log_dir"] == directory["log_dir"]
    assert run("cluster", "logdirs", "--broker", "7", "-o", "json").json == []


# -- records -----------------------------------------------------------------------------------


def test_values_are_produced_and_consumed(run, broker, topic):
    done = run("produce", topic, "one", "two", "-k", "key", "-H", "a=b", "-o", "json")
    assert [row["offset"] for row in done.json] == [0, 1]
    assert done.err == f"2 records to {topic}\n"
    assert run("consume", topic).lines == ["one", "two"]
    assert run("consume", topic, "-k", "-H", "--offset").lines == [
        "0\t0\ta=b\tkey\tone",
        "0\t1\ta=b\tkey\ttwo",
    ]
    (first, _) = confluent.read(broker.bootstrap, topic, 2)
    assert (first.key, first.value, first.headers) == (b"key", b"one", (("a", b"b"),))


def test_lines_of_stdin_are_records(typed, broker, topic):
    done = typed("produce", topic, "-K", ":", "-Z", stdin=b"a:1\nb:\n\nno key\nlast:without end")
    assert done.code == 0, done.err
    found = confluent.read(broker.bootstrap, topic, 5)
    assert [(r.key, r.value) for r in found] == [
        (b"a", b"1"),
        (b"b", None),
        (None, None),
        (None, b"no key"),
        (b"last", b"without end"),
    ]


def test_a_file_is_lines_or_one_record(run, broker, topic, tmp_path):
    file = tmp_path / "data"
    file.write_bytes(b"first\r\nsecond\n")
    assert run("produce", topic, "--file", str(file)).code == 0
    assert run("produce", topic, "--file", str(file), "--whole").code == 0
    assert values(confluent.read(broker.bootstrap, topic, 3)) == [
        b"first",
        b"second",
        b"first\r\nsecond\n",
    ]


def test_json_goes_from_one_topic_to_another(run, typed, broker, topic):
    sent = [
        Record(b"text", key=b"k", headers=(("h", b"1"), ("h", b"2")), timestamp=1_700_000_000_123),
        Record(bytes(range(256)), key=b"\xff"),
        Record(None, key=b"gone"),
    ]
    confluent.produce(broker.bootstrap, topic, sent)
    printed = run("consume", topic, "-o", "json")
    copy = broker.create_topic()
    assert typed("produce", copy, "--json", stdin=printed.out.encode()).code == 0
    found = confluent.read(broker.bootstrap, copy, 3)
    assert [(r.key, r.value, r.headers) for r in found] == [
        (r.key, r.value, r.headers) for r in sent
    ]
    assert found[0].timestamp == 1_700_000_000_123


def test_a_wrong_line_of_json_is_named(typed, topic):
    done = typed("produce", topic, "--json", stdin=b'{"value":"ok"}\n{"valu')
    assert done.code == 1
    assert "Line 2: not JSON" in done.err


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (("--from", "beginning"), range(10)),
        (("--from", "7"), range(7, 10)),
        (("-o", "7"), range(7, 10)),
        (("-o", "-2"), range(8, 10)),
        (("--from", "-2"), range(8, 10)),
        (("--from", "@1700000005000"), range(5, 10)),
        (("-o", "s@1700000005000"), range(5, 10)),
        (("--from", "2023-11-14T22:13:28Z"), range(8, 10)),
        (("--from", "1d"), range(0)),
        (("-n", "3"), range(3)),
        (("-o", "4", "-n", "2"), range(4, 6)),
    ],
)
def test_consuming_starts_where_it_is_told(run, counted, where, found):
    assert run("consume", counted, *where).lines == [str(at) for at in found]


@pytest.fixture(scope="module")
def counted(broker):
    """A topic with the numbers 0 to 9, one each second."""
    topic = broker.create_topic()
    sent = [Record(b"%d" % at, timestamp=1_700_000_000_000 + at * 1000) for at in range(10)]
    confluent.produce(broker.bootstrap, topic, sent)
    return topic


def test_an_empty_topic_is_consumed_at_once(run, topic):
    assert run("consume", topic).lines == []
    assert run("consume", topic, "-o", "json").lines == []


def test_partitions_can_be_chosen(run, broker):
    topic = broker.create_topic(partitions=3)
    for at in range(3):
        assert run("produce", topic, f"in {at}", "-p", str(at)).code == 0
    assert sorted(run("consume", topic).lines) == ["in 0", "in 1", "in 2"]
    assert run("consume", topic, "-p", "2").lines == ["in 2"]
    assert run("consume", f"{topic}/2").lines == ["in 2"]
    assert sorted(run("consume", f"{topic}/0,2").lines) == ["in 0", "in 2"]
    wrong = run("consume", topic, "-p", "7")
    assert (wrong.code, "has no partition 7" in wrong.err) == (1, True)


def test_the_form_of_the_output_is_ones_own(run, counted):
    assert run("consume", counted, "-n", "2", "-f", r"%p/%o=%s;\n").lines == ["0/0=0;", "0/1=1;"]
    heading, row = run("consume", counted, "-n", "1", "-o", "table").lines
    assert heading.split()[:2] == ["PARTITION", "OFFSET"]
    assert row.split()[:3] == ["0", "0", "1700000000000"]


def test_following_prints_what_comes_later(broker, topic):
    confluent.produce(broker.bootstrap, topic, [Record(b"before")])
    arguments = ("consume", topic, "--follow", "-n", "2")
    with hightide(*arguments, bootstrap=broker.bootstrap) as child:
        # The first line proves that the command already follows.
        assert child.stdout.readline() == b"before\n"
        confluent.produce(broker.bootstrap, topic, [Record(b"later")])
        assert child.communicate(timeout=60)[0] == b"later\n"
        assert child.returncode == 0


def test_ctrl_c_ends_following_without_a_word(broker, topic):
    confluent.produce(broker.bootstrap, topic, [Record(b"before")])
    with hightide("consume", topic, "--follow", bootstrap=broker.bootstrap) as child:
        assert child.stdout.readline() == b"before\n"
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=60) == (b"", b"")
        assert child.returncode == 0


def test_consuming_a_topic_that_is_not_there_is_refused(run):
    done = run("consume", fresh())
    assert done.code == 1
    assert "There is no topic" in done.err


def test_producing_creates_the_topic_if_the_broker_allows_it(run, strict_broker):
    assert run("produce", fresh(), "x").code == 0
    done = run("produce", fresh(), "x", "--bootstrap", strict_broker.bootstrap)
    assert done.code == 1
    assert "There is no topic" in done.err


def test_a_refused_record_is_said(run, broker):
    topic = broker.create_topic(config={"max.message.bytes": 500})
    done = run("produce", topic, "x" * 2000)
    assert done.code == 1
    assert "too large" in done.err.lower()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "zstd"])
def test_codecs_and_client_settings_are_passed_on(run, topic, codec):
    assert (
        run("produce", topic, "x" * 500, "-z", codec, "--acks", "1", "-X", "linger.ms=1").code == 0
    )
    assert run("consume", topic, "-X", "check.crcs=true").lines == ["x" * 500]
    wrong = run("produce", topic, "x", "-X", "no.such=1")
    assert (wrong.code, "refuses its settings" in wrong.err) == (1, True)


# -- perf --------------------------------------------------------------------------------------


def test_figures_of_producing_and_consuming(run, broker):
    topic = broker.create_topic(partitions=2)
    wrote = run("perf", "produce", topic, "-n", "2000", "--size", "100", "-o", "json").json
    assert (wrote["records"], wrote["bytes"], wrote["failed"]) == (2000, 200_000, 0)
    assert 0 < wrote["latency_p50_ms"] <= wrote["latency_p99_ms"] <= wrote["latency_max_ms"]
    read = run("perf", "consume", topic, "-o", "json").json
    assert (read["records"], read["bytes"]) == (2000, 200_000)
    assert read["records_per_s"] > 0
    some = run("perf", "produce", topic, "-n", "50", "--rate", "1000", "-o", "json").json
    assert some["seconds"] >= 0.049


def test_perf_says_when_there_is_nothing_to_read(run, topic):
    done = run("perf", "consume", topic)
    assert (done.code, "has no records" in done.err) == (1, True)


def test_latency_end_to_end(run, broker):
    topic = broker.create_topic(partitions=2)
    short = ("perf", "latency", topic, "--rate", "500", "--seconds", "0.4", "--size", "100")
    found = run(*short, "-o", "json").json
    assert (found["records"], found["failed"], found["unconsumed"]) == (200, 0, 0)
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"] <= found["latency_max_ms"]
    assert found["latency_p999_ms"] is None
    assert [percentile["percent"] for percentile in found["percentiles"]] == [
        10,
        25,
        50,
        75,
        90,
        95,
        99,
    ]
    lines = run(*short, "--acks", "1", "--percentiles").lines
    assert any(line.split() == ["PERCENT", "MS"] for line in lines)


def test_messages_that_the_library_refuses_are_said(run, topic):
    done = run("perf", "latency", topic, "--size", "3000000", "--seconds", "0.1")
    assert (done.code, "refuses the record" in done.err) == (1, True)


@pytest.mark.extended
def test_too_few_replicas_are_said_before_anything_is_measured(run):
    name = fresh()
    assert run("topic", "create", name, "-c", "min.insync.replicas=2").code == 0
    done = run("perf", "latency", name, "--seconds", "0.1")
    assert (done.code, "but min.insync.replicas is 2" in done.err) == (1, True)
    done = run("perf", "run", "--replication-factor", "2")
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert not perf_topics(run)


SHORT = ("--rounds", "1", "--seconds", "0.2", "--mb", "1", "--rate", "500", "-p", "2")


def perf_topics(run):
    return [line for line in run("topic", "list").lines if line.startswith("hightide-perf-")]


@pytest.mark.extended
def test_a_cluster_is_measured_on_a_topic_that_does_not_stay(run):
    found = run("perf", "run", *SHORT, "-z", "lz4", "-o", "json").json
    assert (found["partitions"], found["replication_factor"]) == (2, 1)
    assert found["not_shown"]
    measured = {figure["measurement"] for figure in found["figures"]}
    for what in ("produce, 1 MB batches, acks=1", "consume, 64 KB batches, lz4"):
        assert what in measured
    assert {figure["figure"] for figure in found["figures"]} >= {"MB/s", "requests/s", "p99 ms"}
    assert all(
        figure["lowest"] <= figure["median"] <= figure["highest"] for figure in found["figures"]
    )
    assert not perf_topics(run)


@pytest.mark.extended
def test_two_clusters_are_compared(run, broker, strict_broker):
    both = f"{broker.bootstrap},{strict_broker.bootstrap}"
    lines = run("perf", "run", *SHORT, "--compare", both).lines
    heading = next(line.split() for line in lines if line.startswith("MEASUREMENT"))
    assert heading[1:7] == ["FIGURE", "FIRST", "SECOND", "RATIO", "LOWEST", "HIGHEST"]
    assert "Not shown:" in lines
    assert not perf_topics(run)


def test_a_topic_that_exists_is_not_measured_on(run, broker, topic):
    confluent.produce(broker.bootstrap, topic, [Record(b"mine")])
    done = run("perf", "run", *SHORT, "--topic", topic)
    assert (done.code, "exists already" in done.err) == (1, True)
    assert values(confluent.read(broker.bootstrap, topic, 1)) == [b"mine"]


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_topic_is_deleted_even_if_the_measurement_is_broken_off(run, broker, number):
    name = fresh()
    arguments = ("perf", "run", "--topic", name, "--seconds", "60")
    with hightide(*arguments, bootstrap=broker.bootstrap) as child:
        eventually(lambda: name in run("topic", "list").out and holds_records(run, name))
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    assert (child.returncode != 0, out, b"Traceback" in err) == (True, b"", False)
    assert name not in run("topic", "list").out


def holds_records(run, topic):
    (found,) = run("topic", "describe", topic, "-o", "json").json
    return any(partition["end_offset"] for partition in found["partitions"])


# -- files -------------------------------------------------------------------------------------


def test_dump_log_reads_what_the_broker_wrote(run):
    with Cluster() as cluster:
        topic = cluster.create_topic()
        confluent.produce(cluster.bootstrap, topic, [Record(b"v%d" % at) for at in range(5)])
        (file,) = (cluster.data() / f"{topic}-0").glob("*.log")
        first = json.loads(run("dump-log", str(file), "-r", "-o", "json").lines[0])
    assert [record["value"] for record in first["records"]][:1] == ["v0"]
    assert first["crc_ok"] is True


def test_dumped_records_are_produced_again(run, typed, broker):
    sent = [
        Record(b"text", key=b"k", headers=(("h", b"1"), ("h", b"2")), timestamp=1_700_000_000_123),
        Record(bytes(range(256)), key=b"\xff", headers=(("h", b"\xff"),)),
        Record(None, key=b"gone"),
    ]
    with Cluster() as cluster:
        topic = cluster.create_topic()
        confluent.produce(cluster.bootstrap, topic, sent)
        folder = cluster.data() / f"{topic}-0"
        dumped = run("dump-log", str(folder), "--records", "-o", "json")
    copy = broker.create_topic()
    done = typed("produce", copy, "--json", stdin=dumped.out.encode())
    assert (done.code, done.err) == (0, f"3 records to {copy}\n")
    found = confluent.read(broker.bootstrap, copy, 3)
    assert [(r.key, r.value, r.headers) for r in found] == [
        (r.key, r.value, r.headers) for r in sent
    ]
    assert found[0].timestamp == 1_700_000_000_123


# -- pipes and completion ----------------------------------------------------------------------


@pytest.mark.parametrize("output", ["raw", "json", "table"])
def test_a_reader_that_has_enough_is_no_failure(broker, topic, output):
    confluent.produce(broker.bootstrap, topic, [Record(b"v" * 1000) for _ in range(2000)])
    with hightide("consume", topic, "-o", output, bootstrap=broker.bootstrap) as child:
        assert child.stdout.readline()
        child.stdout.close()
        assert child.wait(60) == 0
        assert child.stderr.read() == b""


def test_a_shell_completes_the_names_of_the_cluster(broker, monkeypatch, capfd):
    name = broker.create_topic(name=f"complete-{fresh()}", partitions=2)

    def completed(*words):
        monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", broker.bootstrap)
        monkeypatch.setenv("_HIGHTIDE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(("hightide", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        capfd.readouterr()
        main([])
        printed = capfd.readouterr()
        assert printed.err == ""
        return printed.out.split()

    assert completed("topic", "describe", "complete-") == [name]
    assert completed("consume", f"{name}/") == [f"{name}/0", f"{name}/1"]
    assert "__consumer_offsets" not in completed("topic", "delete", "c")
    assert completed("config", "get", f"topic/{name[:15]}") == [f"topic/{name}"]
    assert completed("config", "get", "broker/") == ["broker/1"]
    assert completed("cluster", "logdirs", "--broker", "") == ["1"]
    assert completed("topic", "describe", "--bootstrap", "127.0.0.1:1", "complete-") == []
    assert "describe" in completed("topic", "de")
