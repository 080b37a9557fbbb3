"""`hightide zookeeper start` as a process: four-letter words, exit codes, and a full disk."""

import contextlib
import os
import resource
import signal
import socket
import time

import pytest

from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.server_thread import ServerThread
from hightide.zookeeper.zookeeper_errors import StorageError
from tests.unit.zookeeper.raw_client import (
    CREATE,
    EXISTS,
    GET_DATA,
    SET_DATA,
    Closed,
    RawClient,
    RawSocket,
    create,
    read,
    set_data,
    wait_until,
    word,
)

OK, FAILED, USAGE, COMMIT_FAILED = 0, 1, 2, 70


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_a_signal(zookeeper_process, number):
    process = zookeeper_process()
    with RawClient(process.address) as client:
        client.create("/a")
        process.signal(number)
        assert client.is_closed()
    code, output, _ = process.end()
    assert (code, output) == (OK, ""), "it prints one line"


def test_it_keeps_znodes_and_sessions_across_a_kill(zookeeper_process):
    process = zookeeper_process()
    with RawClient(process.address) as client:
        client.create("/a", b"x")
        client.create("/mine", flags=1)
        key = client.key
        process.kill()
    process = zookeeper_process()
    with RawClient(process.address, session=key) as client:
        assert client.session_id == key[0]
        assert client.ok(GET_DATA, read("/a")).buffer() == b"x"
        assert client.exists("/mine")


def test_a_database_of_an_earlier_version_keeps_its_name(zookeeper_process, tmp_path):
    data = tmp_path / "data"
    process = zookeeper_process()
    with RawClient(process.address) as client:
        client.create("/a", b"x")
    process.signal(signal.SIGTERM)
    assert process.end()[0] == OK
    (data / "zookeeper.db").rename(data / "coordination.db")
    process = zookeeper_process()
    with RawClient(process.address) as client:
        assert client.ok(GET_DATA, read("/a")).buffer() == b"x"
    process.signal(signal.SIGTERM)
    assert process.end()[0] == OK
    assert os.listdir(data) == ["coordination.db"]


def test_a_damaged_database_is_refused_with_what_to_do(zookeeper_process, tmp_path):
    process = zookeeper_process()
    with RawClient(process.address) as client:
        client.create("/topic", b"topic-id-0123456789")
    process.signal(signal.SIGTERM)
    assert process.end()[0] == OK
    file = tmp_path / "data" / "zookeeper.db"
    content = file.read_bytes()
    assert content.count(b"topic-id-0123456789") == 1
    file.write_bytes(content.replace(b"topic-id-0123456789", b"topic-id-0123456788"))
    code, output, errors = zookeeper_process(listens=False).end()
    assert (code, output) == (FAILED, "")
    assert str(file) in errors
    assert "the checksum of '/topic' is wrong" in errors
    assert "hightide zookeeper restore BACKUP --to DIRECTORY" in errors
    assert "Traceback" not in errors


def test_in_memory_nothing_is_kept(zookeeper_process, tmp_path):
    process = zookeeper_process("--memory")
    with RawClient(process.address) as client:
        client.create("/a")
    process.signal(signal.SIGTERM)
    assert process.end()[0] == OK
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "nonsense"], "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--tls-cert", "x"], "--tls-key"),
        (["--tls-client-ca", "x"], "--tls-cert"),
        (["--tls-cert", "x", "--tls-key", "y"], "TLS"),
        (["--credentials", "missing"], "missing"),
        (["--tick-ms", "0"], "tick"),
        (["--min-session-timeout-ms", "9", "--max-session-timeout-ms", "8"], "timeout"),
        (["--nonsense"], "nonsense"),
    ],
)
def test_bad_options_are_reported_before_it_starts(zookeeper_process, arguments, words):
    code, output, errors = zookeeper_process(*arguments, listens=False).end()
    assert (code, output) == (USAGE, "")
    assert words in errors
    assert "Traceback" not in errors


def test_a_file_that_is_in_use_is_a_failure(zookeeper_process):
    zookeeper_process()
    code, output, errors = zookeeper_process(listens=False).end()
    assert (code, output) == (FAILED, "")
    assert "in use" in errors
    assert "Traceback" not in errors


def test_a_port_that_is_in_use_is_a_failure(zookeeper_process):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, errors = zookeeper_process("--listen", address, listens=False).end()
    assert code == FAILED
    assert "cannot start" in errors
    assert "Traceback" not in errors


def test_credentials_come_from_a_file_or_the_environment(zookeeper_process, tmp_path):
    file = tmp_path / "credentials"
    file.write_text("admin:top\n\nbroker:wet\n")
    new, old = "HIGHTIDE_ZOOKEEPER_CREDENTIALS", "HIGHTIDE_COORDINATOR_CREDENTIALS"
    for environment, right, wrong in [
        ({}, "broker:wet", "other:word"),
        ({new: "other:word"}, "other:word", "x:y"),
        ({old: "other:word"}, "other:word", "x:y"),
        ({new: "other:word", old: "x:y"}, "other:word", "x:y"),
    ]:
        arguments = ["--memory", *([] if environment else ["--credentials", str(file)])]
        process = zookeeper_process(*arguments, environment=environment)
        with RawClient(process.address) as client:
            assert client.error(EXISTS, read("/")) == -102
            assert client.authenticate(right) == 0
            assert client.exists("/")
        with RawClient(process.address) as client:
            assert client.authenticate(wrong) == -115
    file.write_text("\n")
    code, _, errors = zookeeper_process("--credentials", str(file), listens=False).end()
    assert code == USAGE
    assert "expected lines of user:password" in errors


def test_with_credentials_it_listens_for_other_hosts(zookeeper_process):
    environment = {"HIGHTIDE_ZOOKEEPER_CREDENTIALS": "other:word"}
    process = zookeeper_process("--listen", "0.0.0.0:0", environment=environment)
    assert word(process.address, "ruok") == "imok"


def test_a_commit_that_fails_ends_the_process_and_is_not_acknowledged(zookeeper_process):
    process = zookeeper_process()
    client = RawClient(process.address)
    other = RawClient(process.address)
    with client, other:
        client.create("/a", b"kept")
        other.error(EXISTS, read("/b", watch=True))
        # From here on no file of the process may grow.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        sent = [client.send(CREATE, create("/b", bytes(100_000)))]
        sent += [client.send(SET_DATA, set_data("/a", b"lost")), client.send(EXISTS, read("/b"))]
        assert client.is_closed(), "no response"
        assert other.is_closed(), "and no event"
    code, output, errors = process.end()
    assert (code, output) == (COMMIT_FAILED, "")
    assert "stops serving" in errors
    assert "Traceback" not in errors
    process = zookeeper_process()
    with RawClient(process.address) as client:
        assert client.ok(GET_DATA, read("/a")).buffer() == b"kept"
        assert not client.exists("/b")


def test_a_disk_that_is_full_under_load_loses_nothing_that_was_answered(zookeeper_process):
    process = zookeeper_process()
    answered = 0
    with RawClient(process.address) as client:
        client.create("/n", b"0")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (300_000, 300_000))
        with contextlib.suppress(Closed, OSError):
            for number in range(1, 10_000):
                assert client.error(SET_DATA, set_data("/n", b"%0500d" % number)) == 0
                answered = number
    assert process.end()[0] == COMMIT_FAILED
    assert answered > 10
    process = zookeeper_process()
    with RawClient(process.address) as client:
        assert int(client.ok(GET_DATA, read("/n")).buffer()) in (answered, answered + 1)


def test_a_thread_reports_a_failed_commit(tmp_path):
    thread = ServerThread(ServerOptions(port=0, file=tmp_path / "zookeeper.db"))
    failures = []
    thread.on_failure = failures.append
    with RawClient(thread.start()) as client:
        committer = thread.server._committer
        execute = committer._store._db.execute
        committer._thread.submit(execute, "PRAGMA max_page_count=1").result()
        client.send(CREATE, create("/large", bytes(100_000)))
        assert client.is_closed()
    wait_until(lambda: failures)
    assert isinstance(failures[0], StorageError)
    thread.stop()
    thread.stop()


def test_a_thread_that_cannot_start_says_why(tmp_path):
    first = ServerThread(ServerOptions(port=0, file=tmp_path / "zookeeper.db"))
    address = first.start()
    assert address[0] == "127.0.0.1"
    second = ServerThread(ServerOptions(port=0, file=tmp_path / "zookeeper.db"))
    with pytest.raises(StorageError, match="in use"):
        second.start()
    second.stop()
    first.stop()
    third = ServerThread(ServerOptions(port=0, file=tmp_path / "zookeeper.db"))
    third.start()
    third.stop()


def test_a_server_that_was_never_started_can_be_stopped():
    ServerThread(ServerOptions()).stop()


def parsed(text, separator):
    return dict(line.split(separator, 1) for line in text.splitlines() if separator in line)


def test_four_letter_words(world, client):
    client.create("/a", b"12345")
    client.create("/mine", flags=1)
    client.error(EXISTS, read("/b", watch=True))
    assert word(world.address, "ruok") == "imok"
    assert word(world.address, "isro") == "rw"
    server = parsed(word(world.address, "srvr"), ": ")
    assert server["Zookeeper version"].startswith("3.8.0-")
    assert server["Mode"] == "standalone"
    assert server["Node count"] == "6"
    assert server["Zxid"] == "0x3"
    assert set(server) >= {"Latency min/avg/max", "Received", "Sent", "Connections", "Outstanding"}
    status = word(world.address, "stat")
    assert "\nClients:\n /127.0.0.1:" in status
    assert f"sid=0x{client.session_id:x}" in word(world.address, "cons")
    assert parsed(word(world.address, "envi"), "=")["zookeeper.version"].startswith("3.8.0")
    assert parsed(word(world.address, "conf"), "=")["tickTime"] == "100"
    metrics = parsed(word(world.address, "mntr"), "\t")
    assert metrics["zk_server_state"] == "standalone"
    assert metrics["zk_znode_count"] == "6"
    assert metrics["zk_watch_count"] == "1"
    assert metrics["zk_ephemerals_count"] == "1"
    assert metrics["zk_global_sessions"] == "1"
    assert metrics["zk_num_alive_connections"] == "2", (
        "the connection of this request is one of them"
    )
    assert int(metrics["zk_approximate_data_size"]) > 5
    assert float(metrics["zk_avg_latency"]) > 0
    counts = "outstanding_requests packets_received packets_sent min_latency max_latency"
    for name in f"{counts} open_file_descriptor_count max_file_descriptor_count".split():
        assert int(metrics[f"zk_{name}"]) >= 0


def test_a_word_that_is_not_known_is_not_answered(world, client):
    assert word(world.address, "kill") == ""
    client.ping()


def test_a_word_may_come_in_pieces_and_with_a_line_end(world):
    world.start(file=None)
    with RawSocket(world.address) as raw:
        for letter in "ruok":
            raw.socket.sendall(letter.encode())
            time.sleep(0.01)
        assert raw.socket.recv(100) == b"imok"
    assert word(world.address, "ruok\n") == "imok"


def test_twenty_thousand_znodes_are_there_again_after_a_restart(zookeeper_process):
    process = zookeeper_process()
    with RawClient(process.address) as client:
        for parent in range(20):
            client.create(f"/{parent}")
            xids = [
                client.send(CREATE, create(f"/{parent}/{number}", bytes(100)))
                for number in range(1000)
            ]
            assert all(client.reply(xid).error == 0 for xid in xids)
    process.signal(signal.SIGTERM)
    process.end()
    process = zookeeper_process()
    assert "Node count: 20024" in word(process.address, "srvr")
    process.signal(signal.SIGTERM)
    process.end()


def test_nothing_that_the_server_does_not_need_is_loaded(tmp_path):
    import subprocess
    import sys

    program = (
        "import sys; import hightide.zookeeper.server.main;"
        "import hightide.zookeeper.server.server;"
        "print([name for name in ('kazoo', 'typer', 'rich', 'uvloop', 'hightide.broker',"
        " 'hightide.wire', 'sqlite3') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout == b"[]\n"


def test_who_closes_its_half_after_a_word_still_gets_the_answer(world):
    """As `echo ruok | nc` does."""
    world.start(file=None)
    with RawSocket(world.address) as raw:
        raw.socket.sendall(b"ruok")
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.socket.recv(100) == b"imok"
        assert raw.is_closed()
