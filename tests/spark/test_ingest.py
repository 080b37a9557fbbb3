"""`hightide ingest` as a process against a real broker: rotation, kill -9, exactly-once, HTTP."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from hightide.ingest.records import Record
from hightide.ingest.sender import ExactlyOnceSender, IngestError
from tests.support.eventually import eventually

pytestmark = pytest.mark.extended

DEADLINE_S = 120
KILLS = 3


@contextlib.contextmanager
def ingest(*arguments, cluster, folder, **options):
    """A running `hightide ingest`, killed at the end if it still runs."""
    command = [sys.executable, "-m", "hightide", "ingest", *map(str, arguments)]
    command += ["--bootstrap", cluster.bootstrap]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(*arguments, cluster, folder, stdin=None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "hightide", "ingest", *map(str, arguments)]
    return subprocess.run(
        [*command, "--bootstrap", cluster.bootstrap],
        check=False,
        cwd=folder,
        input=stdin,
        capture_output=True,
        timeout=DEADLINE_S,
    )


def records(cluster, topic, isolation="read_committed"):
    """Return all records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "any",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, DEADLINE_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found, ended = [], set()
    while len(ended) < len(partitions):
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        if message.error() is None:
            found.append(message)
        else:
            ended.add(message.partition())
    consumer.close()
    return found


def values(cluster, topic, **given) -> list[str]:
    return [record.value().decode() for record in records(cluster, topic, **given)]


class TestFiles:
    def test_what_is_there_is_read_once_with_key_and_headers(self, broker, tmp_path) -> None:
        topic = broker.create_topic("ingest-once", partitions=3)
        log = tmp_path / "app.log"
        log.write_bytes(b'{"user":"a"}\n\xff\r\nlast')
        done = run("files", "*.log", "--to", topic, "--once", cluster=broker, folder=tmp_path)
        assert (done.returncode, done.stderr.decode()) == (0, f"3 records to {topic}\n")
        found = records(broker, topic)
        assert [record.value() for record in found] == [b'{"user":"a"}', b"\xff", b"last"]
        assert {record.key() for record in found} == {str(log).encode()}
        assert dict(found[1].headers()) == {
            "hightide.file": str(log).encode(),
            "hightide.position": b"13",
            "hightide.host": socket.gethostname().encode(),
        }
        # A second run finds nothing new.
        run("files", "*.log", "--to", topic, "--once", cluster=broker, folder=tmp_path)
        assert len(records(broker, topic)) == 3

    def test_lines_may_be_wrapped_in_json_and_keyed_by_a_field(self, broker, tmp_path) -> None:
        topic = broker.create_topic("ingest-json")
        (tmp_path / "a.log").write_bytes(b'{"user":{"name":"ada"}}\nnot json\n')
        done = run(
            "files", "a.log", "--to", topic, "--once", "--format", "json", "--key",
            "json:user.name", "--exactly-once", cluster=broker, folder=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        first, second = records(broker, topic)
        assert (first.key(), second.key()) == (b"ada", None)
        made = json.loads(second.value())
        assert made.pop("at").startswith("20")
        assert made == {
            "file": str(tmp_path / "a.log"),
            "position": 24,
            "host": socket.gethostname(),
            "line": "not json",
        }

    @pytest.mark.parametrize("is_exact", [False, True])
    def test_nothing_is_missing_when_it_is_killed_while_files_are_written_and_rotated(
        self, broker, tmp_path, is_exact
    ) -> None:
        topic = broker.create_topic(f"ingest-killed-{is_exact}", partitions=2)
        arguments = ["files", "app.log*", "--to", topic, "--quiet", "0.5"]
        arguments += ["--exactly-once"] if is_exact else []
        with written_and_rotated(tmp_path / "app.log") as written:
            for _ in range(KILLS):
                before = len(values(broker, topic, isolation="read_uncommitted"))
                with ingest(*arguments, cluster=broker, folder=tmp_path) as process:
                    eventually(lambda before=before: grown(broker, topic, before))
                    process.send_signal(signal.SIGKILL)
        done = run(*arguments, "--once", cluster=broker, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        found = Counter(values(broker, topic))
        assert set(found) == set(written)
        if is_exact:
            assert sum(found.values()) == len(written)

    def test_a_second_collector_of_the_same_name_is_refused(self, broker, tmp_path) -> None:
        topic = broker.create_topic("ingest-second")
        log = tmp_path / "a.log"
        log.write_text("one\n")
        with ingest("files", "a.log", "--to", topic, cluster=broker, folder=tmp_path) as first:
            eventually(lambda: values(broker, topic) == ["one"])
            done = run("files", "a.log", "--to", topic, cluster=broker, folder=tmp_path)
            assert done.returncode == 1
            assert b"Another `hightide ingest` stores its positions" in done.stderr
            with log.open("a") as file:
                file.write("two\n")
            eventually(lambda: values(broker, topic) == ["one", "two"])
            first.send_signal(signal.SIGTERM)
            assert first.wait(DEADLINE_S) == 0
            assert first.stderr.read() == f"2 records to {topic}\n"

    def test_a_second_exact_collector_ends_the_first(self, broker, tmp_path) -> None:
        topic = broker.create_topic("ingest-fenced")
        log = tmp_path / "a.log"
        log.write_text("one\n")
        arguments = ("files", "a.log", "--to", topic, "--exactly-once")
        with ingest(*arguments, cluster=broker, folder=tmp_path) as first:
            eventually(lambda: values(broker, topic) == ["one"])
            done = run(*arguments, "--once", cluster=broker, folder=tmp_path)
            assert (done.returncode, done.stderr.decode()) == (0, f"0 records to {topic}\n")
            with log.open("a") as file:
                file.write("two\n")
            assert first.wait(DEADLINE_S) == 1
            assert f"Another `hightide ingest` has started as {topic}" in first.stderr.read()
        assert run(*arguments, "--once", cluster=broker, folder=tmp_path).returncode == 0
        assert values(broker, topic) == ["one", "two"]

    def test_a_collector_that_was_ended_says_so_although_the_library_has_lost_the_reason(
        self, broker
    ) -> None:
        """A delivery callback that raises and catches an exception clears librdkafka's error."""

        class Swallowing(ExactlyOnceSender):
            def _delivered(self, error, message) -> None:
                with contextlib.suppress(LookupError):
                    raise LookupError
                super()._delivered(error, message)

        topic = broker.create_topic("ingest-swallowed")
        names = {"name": topic, "positions_topic": topic, "say": lambda _: None}
        first = Swallowing(broker.bootstrap, topic, {}, **names)
        ExactlyOnceSender(broker.bootstrap, topic, {}, **names)
        with pytest.raises(IngestError, match=f"Another `hightide ingest` has started as {topic}"):
            first.send([Record(b"one"), Record(b"two")], {})


def grown(cluster, topic, before) -> bool:
    """Return whether a topic has new records, committed or not."""
    return len(values(cluster, topic, isolation="read_uncommitted")) > before


@contextlib.contextmanager
def written_and_rotated(log: Path):
    """Write numbered lines continuously, and rename the file every 300 lines."""
    stop, written = threading.Event(), []

    def write() -> None:
        file = log.open("a", buffering=1)
        while not stop.is_set():
            for _ in range(30):
                written.append(f"{len(written)} {'x' * 40}")
                file.write(f"{written[-1]}\n")
            if len(written) % 300 == 0:
                log.rename(log.with_name(f"app.log.{len(written)}"))
                file.close()
                file = log.open("a", buffering=1)
            time.sleep(0.01)
        file.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


class TestStdin:
    def test_lines_go_to_the_topic_until_the_end(self, broker, tmp_path) -> None:
        topic = broker.create_topic("ingest-stdin")
        done = run(
            "stdin", "--to", topic, cluster=broker, folder=tmp_path, stdin=b"one\ntwo\n\nlast"
        )
        assert (done.returncode, done.stderr.decode()) == (0, f"4 records to {topic}\n")
        assert values(broker, topic) == ["one", "two", "", "last"]

    def test_a_line_is_sent_before_the_next_one_comes(self, broker, tmp_path) -> None:
        topic = broker.create_topic("ingest-stdin-slow")
        with ingest(
            "stdin", "--to", topic, cluster=broker, folder=tmp_path, stdin=subprocess.PIPE
        ) as process:
            process.stdin.write("one\n")
            process.stdin.flush()
            eventually(lambda: values(broker, topic) == ["one"])
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0

    def test_what_is_not_taken_makes_it_fail(self, broker, tmp_path) -> None:
        topic = broker.create_topic("ingest-stdin-refused", config={"max.message.bytes": "1000"})
        done = run("stdin", "--to", topic, cluster=broker, folder=tmp_path, stdin=b"x" * 5000)
        assert done.returncode == 1
        assert b"1 records were rejected" in done.stderr


@pytest.fixture(scope="module")
def server(broker, tmp_path_factory):
    """A server for two topics; bodies have at most 100 kB."""
    for topic in ("ingest-http", "ingest-http-two"):
        broker.create_topic(topic)
    with ingest(
        "http", "--to", "ingest-http", "--to", "ingest-http-two", "--port", "0", "--max-body",
        "100000", "--max-connections", "4", cluster=broker, folder=tmp_path_factory.mktemp("http"),
    ) as process:  # fmt: skip
        words = process.stderr.readline()
        assert words.startswith("Listening on http://127.0.0.1:"), words
        process.port = int(words.split(":")[2].split(" ")[0])
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def call(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


LINES = {"Content-Type": "application/x-ndjson"}


class TestHttp:
    def test_lines_are_records_and_the_answer_says_where_they_are(self, broker, server) -> None:
        status, reported = call(server, "POST", "/topics/ingest-http-two", b"a\r\n\nb\n", LINES)
        assert status == 200
        assert reported == {
            "topic": "ingest-http-two",
            "records": 2,
            "offsets": [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}],
        }
        assert values(broker, "ingest-http-two") == ["a", "b"]

    def test_any_other_body_is_one_record(self, broker, server) -> None:
        body = b'{"a":\n1}'
        gzipped = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        assert call(server, "POST", "/?key=k", body)[0] == 200
        assert call(server, "POST", "/", gzip.compress(body), gzipped)[0] == 200
        # A body of unknown length is chunked.
        assert call(server, "POST", "/", iter([b'{"a":', b"\n1}"]))[0] == 200
        found = records(broker, "ingest-http")
        assert [(record.key(), record.value()) for record in found] == [
            (b"k", body), (None, body), (None, body),
        ]  # fmt: skip

    def test_one_connection_takes_many_requests(self, server) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
        for _ in range(3):
            connection.request("POST", "/", b"x")
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("Connection")) == (200, "keep-alive")
            answer.read()
        connection.close()

    @pytest.mark.parametrize(
        ("method", "path", "body", "headers", "status", "words"),
        [
            ("POST", "/topics/nope", b"x", {}, 404, "there is no /topics/nope here"),
            ("PUT", "/", b"x", {}, 405, "send records with POST"),
            ("POST", "/", b"", {}, 400, "the body is empty"),
            ("POST", "/", b"\n\n", LINES, 400, "the body is empty"),
            ("POST", "/", b"x" * 100_001, {}, 413, "the body has more than 100000 bytes"),
            ("POST", "/", b"x" * 20, {"Content-Encoding": "gzip"}, 400, "the body is not gzip"),
            ("POST", "/", b"x", {"Content-Encoding": "br"}, 415, "send gzip, deflate or identity"),
            ("POST", "/", gzip.compress(b"x" * 200_000), {"Content-Encoding": "gzip"}, 413, "more"),
            ("POST", "/", b"x", {"Content-Length": "x"}, 400, "bad Content-Length"),
        ],
    )
    def test_what_cannot_be_taken_is_refused_in_words(
        self, server, method, path, body, headers, status, words
    ) -> None:
        found, reported = call(server, method, path, body, headers)
        assert found == status
        assert words in reported["error"]

    def test_what_is_no_http_is_refused_too(self, server) -> None:
        for sent in (
            b"hello\r\n\r\n",
            b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
            b"x" * 40_000,
        ):
            with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as raw:
                raw.sendall(sent)
                assert raw.recv(100).startswith(b"HTTP/1.1 4")

    def test_connections_have_a_bound(self, server) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                raw = stack.enter_context(
                    socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)
                )
                raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert raw.recv(12) == b"HTTP/1.1 200"
            raw = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)
            )
            assert raw.recv(12) == b"HTTP/1.1 503"

    def test_a_record_the_broker_refuses_is_told(self, broker, server) -> None:
        broker.create_topic("ingest-http-small", config={"max.message.bytes": "1000"})
        with ingest(
            "http", "--to", "ingest-http-small", "--port", "0",
            cluster=broker, folder=os.getcwd(),
        ) as process:  # fmt: skip
            process.port = int(process.stderr.readline().split(":")[2].split(" ")[0])
            status, reported = call(process, "POST", "/", b"x" * 5000)
        assert (status, reported["written"]) == (413, 0)


def test_a_topic_or_a_broker_that_is_not_there_is_said_at_once(broker, tmp_path) -> None:
    done = run("files", "x", "--to", "bad topic!", cluster=broker, folder=tmp_path)
    assert done.returncode == 1
    done = run("files", "x", "--to", "t", "--key", "what", cluster=broker, folder=tmp_path)
    assert done.returncode == 2
    assert b"path, none or json:FIELD" in done.stderr


def test_a_transaction_of_another_collector_does_not_hide_positions(broker, tmp_path) -> None:
    topic = broker.create_topic("ingest-beside")
    (tmp_path / "a.log").write_text("one\n")
    arguments = ("files", "a.log", "--to", topic, "--once", "--exactly-once")
    assert run(*arguments, cluster=broker, folder=tmp_path).returncode == 0
    other = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "ingest-other"})
    other.init_transactions(DEADLINE_S)
    other.begin_transaction()
    other.produce("hightide-ingest-positions", b"{}", b"other/1:2")
    assert other.flush(DEADLINE_S) == 0
    with (tmp_path / "a.log").open("a") as file:
        file.write("two\n")
    # Ours is behind the open transaction; the next start must wait for it to see its positions.
    ending = threading.Timer(2, lambda: other.commit_transaction(DEADLINE_S))
    ending.start()
    done = run(*arguments, cluster=broker, folder=tmp_path)
    ending.join()
    assert done.returncode == 0, done.stderr
    assert values(broker, topic) == ["one", "two"]
