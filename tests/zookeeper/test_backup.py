"""`hightide zookeeper backup`, `restore` and `copy` between running and stopped servers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from kazoo.client import KazooClient
from kazoo.protocol import serialization as wire
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from hightide.__main__ import main
from hightide.process import environment
from hightide.testing import Cluster
from hightide.zookeeper.snapshot import Snapshot
from hightide.zookeeper.snapshot_locations import Access, location
from tests.support.certificates import CertificateAuthority
from tests.zookeeper import servers

CREDENTIALS = "HIGHTIDE_ZOOKEEPER_CREDENTIALS"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def answer(self):
        return json.loads(self.out)


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `hightide zookeeper …` in this process."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv(CREDENTIALS, raising=False)

    def run(*words):
        capsys.readouterr()
        code = main(["zookeeper", *map(str, words)])
        written = capsys.readouterr()
        assert "Traceback" not in written.err
        return Done(code, written.out, written.err)

    return run


def done(ran):
    assert ran.code == 0, ran.err
    return ran


@contextmanager
def connected(hosts, *credentials):
    client = KazooClient(hosts, timeout=10, auth_data=[("digest", line) for line in credentials])
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def fill(hosts):
    """Create znodes of every kind."""
    with connected(hosts) as client:
        client.ensure_path("/brokers/topics/t/partitions/0")
        client.ensure_path("/brokers/ids")
        client.create("/cluster")
        client.create("/cluster/id", b'{"version":"1","id":"it"}')
        client.create("/controller_epoch", b"7")
        client.create("/brokers/topics/t/partitions/0/state", '{"isr":[1],"ä":"€"}'.encode())
        client.create("/config", b"\xff\x00\xfe")
        client.create("/config/users", b"read me", acl=[make_acl("world", "anyone", read=True)])
        request = client.transaction()
        null = f"{client.chroot}/null"
        request.operations = [wire.Create(null, None, OPEN_ACL_UNSAFE, 0)]
        assert request.commit() == ["/null"]
        client.create("/brokers/seqid")
        for _ in range(5):
            client.set("/brokers/seqid", b"")
        client.create("/config/changes")
        for _ in range(12):
            made = client.create("/config/changes/config_change_", b"x", sequence=True)
            if not made.endswith(("3", "9")):
                client.delete(made)
        client.create("/controller", b"gone with us", ephemeral=True)


def tree(hosts, *credentials):
    """Return data and ACL of all persistent znodes."""
    found = location(hosts, Access(credentials), may_be_new=False)
    try:
        nodes = Snapshot.of(*found.read_all()).nodes
    finally:
        found.close()
    return {path: (node.data, node.acl) for path, node in nodes.items() if path != "/"}


# -- backup and restore ------------------------------------------------------------------------


@pytest.mark.extended
def test_a_tree_moves_from_ours_to_zookeeper_and_back(run, embedded, ensemble, tmp_path):
    fill(embedded.hosts)
    wanted = tree(embedded.hosts)
    assert wanted["/null"][0] is None
    assert wanted["/cluster"][0] == b""
    done(run("copy", "--from", embedded.hosts, "--to", f"{ensemble.hosts}/deep/inside"))
    assert tree(f"{ensemble.hosts}/deep/inside") == wanted
    file = tmp_path / "saved"
    done(run("backup", "--from", f"{ensemble.hosts}/deep/inside", file))
    done(run("restore", file, "--to", f"{embedded.hosts}/again"))
    assert tree(f"{embedded.hosts}/again") == wanted


def test_a_tree_moves_from_zookeeper_into_the_directory_of_ours(run, zookeeper, tmp_path):
    fill(zookeeper.hosts)
    done(run("copy", "--from", zookeeper.hosts, "--to", f"{tmp_path}/zookeeper"))
    started = servers.Embedded(tmp_path / "run")
    shutil.copytree(tmp_path / "zookeeper", tmp_path / "run" / "data")
    started.start()
    try:
        assert tree(started.hosts) == tree(zookeeper.hosts)
        with connected(started.hosts) as client, connected(zookeeper.hosts) as original:
            for path in tree(zookeeper.hosts):
                assert client.exists(path) == original.exists(path)
    finally:
        started.kill()


def test_broker_ids_and_sequence_numbers_go_on_where_they_were(run, backend):
    fill(backend.hosts)
    done(run("copy", "--from", backend.hosts, "--to", f"{backend.hosts}-copy"))
    with connected(f"{backend.hosts}-copy") as client:
        assert client.set("/brokers/seqid", b"").version == 6
        made = client.create("/config/changes/config_change_", sequence=True)
        assert made == "/config/changes/config_change_0000000010"
        assert client.get("/controller_epoch")[0] == b"7"


@pytest.mark.extended
def test_many_and_large_znodes_fit(run, backend, tmp_path):
    with connected(backend.hosts) as client:
        client.create("/brokers")
        waiting = [client.create_async(f"/brokers/{n}", b"x" * n) for n in range(1200)]
        for pending in waiting:
            pending.get(timeout=60)
        client.create("/largest", b"y" * 1_000_000)
    file = tmp_path / "saved"
    ran = done(run("backup", "--from", backend.hosts, file, "-o", "json"))
    assert ran.answer["znodes"] == 1203
    done(run("restore", file, "--to", f"{backend.hosts}-copy"))
    assert tree(f"{backend.hosts}-copy") == tree(backend.hosts)


# -- directories of stopped servers -------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path):
    """The directory of an embedded server that was used and then killed."""
    server = servers.Embedded(tmp_path / "stopped")
    server.start()
    fill(server.hosts)
    server.kill()
    return tmp_path / "stopped" / "data"


def exactly(path):
    return Snapshot.of(*location(str(path), Access(), may_be_new=False).read_all())


def test_a_stopped_server_is_copied_with_all_its_versions(run, stopped, tmp_path):
    wanted = exactly(stopped)
    assert wanted.nodes["/brokers/seqid"].stat.version == 5
    done(run("copy", "--from", stopped, "--to", f"{tmp_path}/copied"))
    assert exactly(tmp_path / "copied") == wanted
    file = tmp_path / "saved"
    done(run("backup", "--from", stopped / "zookeeper.db", file))
    done(run("restore", file, "--to", f"{tmp_path}/restored/zookeeper.db"))
    assert exactly(tmp_path / "restored") == wanted


def test_a_copied_directory_can_be_served(run, stopped, tmp_path):
    done(run("copy", "--from", stopped, "--to", f"{tmp_path}/new/data"))
    server = servers.Embedded(tmp_path / "new")
    server.start()
    try:
        with connected(server.hosts) as client:
            assert client.get("/cluster/id")[0] == b'{"version":"1","id":"it"}'
            client.create("/new", b"x")
    finally:
        server.kill()


def test_a_directory_that_is_in_use_is_refused(run, embedded, tmp_path):
    ran = run("backup", "--from", embedded.folder / "data", tmp_path / "saved")
    assert ran.code == 1
    assert "in use" in ran.err
    assert not (tmp_path / "saved").exists()


def test_a_directory_is_replaced_as_a_whole(run, stopped, embedded):
    with connected(embedded.hosts) as client:
        client.create("/cluster", b"another")
    before = exactly(stopped)
    assert run("copy", "--from", embedded.hosts, "--to", stopped).code == 1
    assert exactly(stopped) == before
    done(run("copy", "--from", embedded.hosts, "--to", stopped, "--overwrite"))
    # Znodes outside the cluster stay.
    assert list(exactly(stopped).nodes) == ["/", "/cluster", "/null"]
    assert exactly(stopped).zxid >= before.zxid


# -- what is refused ---------------------------------------------------------------------------


def test_a_cluster_at_the_target_is_kept_without_overwrite(run, backend):
    source, target = f"{backend.hosts}/one", f"{backend.hosts}/two"
    for hosts, data in ((source, b"new"), (target, b"old")):
        with connected(backend.hosts) as client:
            client.ensure_path(client.chroot and hosts.removeprefix(backend.hosts))
        with connected(hosts) as client:
            client.ensure_path("/cluster")
            client.create("/cluster/id", data)
            client.create(f"/only-{data.decode()}")
            client.create("/brokers")
            client.create(f"/brokers/{data.decode()}")
    before = tree(target)
    ran = run("copy", "--from", source, "--to", target)
    assert ran.code == 1
    assert "already has /brokers, /cluster." in ran.err
    ran = done(run("copy", "--from", source, "--to", target, "--overwrite", "--dry-run"))
    assert "nothing was changed" in ran.err
    assert tree(target) == before
    done(run("copy", "--from", source, "--to", target, "--overwrite"))
    # Znodes outside the cluster stay.
    assert tree(target) == tree(source) | {"/only-old": before["/only-old"]}


def test_nothing_is_copied_while_brokers_are_registered(run, embedded, zookeeper):
    fill(embedded.hosts)
    ends = ("--from", embedded.hosts, "--to", zookeeper.hosts)
    with connected(embedded.hosts) as broker:
        broker.create("/brokers/ids/1", ephemeral=True)
        broker.create("/brokers/ids/2", ephemeral=True)
        ran = run("copy", *ends)
        assert ran.code == 1
        assert f"Brokers 1, 2 are registered at {embedded.hosts}" in ran.err
        assert tree(zookeeper.hosts) == {}
        ran = done(run("copy", *ends, "--force", "-o", "json"))
        assert ran.answer["ephemerals_left_out"] == 2
        assert "2 ephemeral znodes were left out" in ran.err
    with connected(zookeeper.hosts) as broker:
        broker.create("/brokers/ids/1", ephemeral=True)
        ran = run("copy", *ends, "--overwrite")
        assert ran.code == 1
        assert f"Broker 1 is registered at {zookeeper.hosts}" in ran.err
        done(run("copy", *ends, "--overwrite", "--force"))
    assert tree(zookeeper.hosts) == tree(embedded.hosts)


def test_a_damaged_file_is_refused_before_anything_is_touched(run, embedded, tmp_path):
    fill(embedded.hosts)
    file = tmp_path / "saved"
    done(run("backup", "--from", embedded.hosts, file))
    file.write_bytes(file.read_bytes()[:-70])
    ran = run("restore", file, "--to", f"{embedded.hosts}/copy")
    assert ran.code == 1
    assert "truncated" in ran.err
    assert tree(f"{embedded.hosts}/copy") == {}


@pytest.mark.parametrize(
    "words",
    [
        ("backup", "file"),
        ("restore", "no-such-file", "--to", "127.0.0.1:1"),
        ("copy", "--from", "127.0.0.1:1"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, words):
    assert run(*words).code == 2


def test_a_place_and_itself_are_no_ends_of_a_copy(run, embedded):
    assert run("copy", "--from", embedded.hosts, "--to", embedded.hosts).code == 2


@pytest.mark.extended
def test_a_location_that_does_not_answer_is_reported(run, tmp_path):
    address = f"127.0.0.1:{servers.free_port()}"
    start = time.monotonic()
    ran = run("backup", "--from", address, tmp_path / "saved")
    assert ran.code == 1
    assert f"Cannot connect to ZooKeeper at {address}: Connection refused." in ran.err
    assert time.monotonic() - start < 20


def test_an_invalid_location_is_reported(run, tmp_path):
    for ran in (
        run("backup", "--from", tmp_path, tmp_path / "saved"),
        run("backup", "--from", "zk1", tmp_path / "saved"),
    ):
        assert ran.code == 1
        assert "There is no ZooKeeper at" in ran.err
    assert list(tmp_path.iterdir()) == []


# -- a tree that changes while it is read --------------------------------------------------------


@contextmanager
def writing(hosts, path):
    """A client that writes all the time."""
    stopped = threading.Event()
    began = threading.Event()

    def write():
        with connected(hosts) as client:
            while not stopped.is_set():
                client.set(path, b"x")
                began.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert began.wait(30)
        yield
    finally:
        stopped.set()
        thread.join()


@pytest.fixture
def busy(backend):
    with connected(backend.hosts) as client:
        client.create("/inside")
        client.create("/outside")
        for number in range(200):
            client.create(f"/inside/{number}")
    return backend


@pytest.mark.extended
def test_znodes_that_never_stop_changing_are_refused_without_allow_changes(run, busy, tmp_path):
    file = tmp_path / "saved"
    with writing(busy.hosts, "/inside/7"):
        ran = run("backup", "--from", f"{busy.hosts}/inside", file)
        assert ran.code == 1
        assert "changed during every one of 5 reads" in ran.err
        assert not file.exists()
        done(run("backup", "--from", f"{busy.hosts}/inside", file, "--allow-changes"))
    done(run("restore", file, "--to", f"{busy.hosts}/copy"))


def test_what_others_write_elsewhere_does_not_count(run, busy, tmp_path):
    with writing(busy.hosts, "/outside"):
        done(run("backup", "--from", f"{busy.hosts}/inside", tmp_path / "saved"))


# -- access --------------------------------------------------------------------------------------


def test_access_lists_need_credentials_and_are_kept(run, backend, monkeypatch):
    secret = [make_digest_acl("ann", "secret", all=True), make_acl("world", "anyone", read=True)]
    with connected(backend.hosts, "ann:secret") as client:
        client.create("/config", b"x", acl=secret)
        client.create("/config/users", b"y", acl=secret[:1])
    ran = run("copy", "--from", backend.hosts, "--to", f"{backend.hosts}-copy")
    assert ran.code == 1
    assert "/config" in ran.err or "credentials" in ran.err
    monkeypatch.setenv(CREDENTIALS, "ann:secret")
    done(run("copy", "--from", backend.hosts, "--to", f"{backend.hosts}-copy"))
    found = tree(f"{backend.hosts}-copy", "ann:secret")
    assert found == tree(backend.hosts, "ann:secret")
    with connected(f"{backend.hosts}-copy") as client:
        assert [entry.id.scheme for entry in client.get_acls("/config")[0]] == ["digest", "world"]


@pytest.fixture
def guarded(tmp_path):
    """An embedded server with TLS and credentials."""
    authority, stranger = (CertificateAuthority(tmp_path, name) for name in ("own", "stranger"))
    issued = authority.issue("server")
    known = tmp_path / "known"
    known.write_text("ann:secret\n")
    server = servers.Embedded(
        tmp_path / "guarded",
        *("--tls-cert", str(issued.certificate), "--tls-key", str(issued.key)),
        *("--credentials", str(known)),
    )
    server.start()
    yield server, authority.certificate, known, stranger.certificate
    server.kill()


@pytest.mark.extended
def test_a_guarded_server_is_reached_with_tls_and_credentials(run, guarded, tmp_path):
    server, certificate, known, stranger = guarded
    secured = ("--tls-ca", certificate, "--credentials", known)
    done(run("backup", "--from", server.hosts, tmp_path / "saved", *secured))
    known.write_text("ann:wrong\n")
    ran = run("backup", "--from", server.hosts, tmp_path / "other", *secured)
    assert ran.code == 1
    assert "the credentials" in ran.err
    assert not (tmp_path / "other").exists()
    # In a separate process: kazoo leaves sockets open that it cannot use.
    words = ["--from", server.hosts, str(tmp_path / "other"), "--tls-ca", str(stranger)]
    ran = subprocess.run(
        [sys.executable, "-m", "hightide", "zookeeper", "backup", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "certificate verify failed" in ran.stderr
    assert "Traceback" not in ran.stderr


# -- a cluster -----------------------------------------------------------------------------------


def test_a_cluster_that_moved_to_zookeeper_serves_its_topics(run, ensemble, tmp_path, capsys):
    with Cluster(zookeeper=True, data=tmp_path) as cluster:
        topic = cluster.create_topic(partitions=2)
        assert main(["produce", topic, "kept", "-b", cluster.bootstrap]) == 0
    done(run("copy", "--from", tmp_path / "zookeeper", "--to", ensemble.hosts))
    with Cluster(data=tmp_path, zookeeper_connect=ensemble.hosts) as cluster:
        capsys.readouterr()
        assert main(["consume", topic, "--from", "beginning", "-b", cluster.bootstrap]) == 0
        assert "kept" in capsys.readouterr().out
        assert cluster.create_topic() != topic
