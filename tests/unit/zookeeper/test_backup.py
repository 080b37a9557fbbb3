"""Any tree survives being a snapshot, a backup file, and a plan of operations."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.zookeeper import acl, backup, znodes
from hightide.zookeeper.backup import Backup, DamagedBackup
from hightide.zookeeper.node import initial_nodes
from hightide.zookeeper.operation import (
    Create,
    Delete,
    Multi,
    OpenSession,
    SetAcl,
    SetData,
)
from hightide.zookeeper.snapshot import (
    BATCH_BYTES,
    BATCH_OPERATIONS,
    Snapshot,
    batches,
    creations,
    deletions,
    differences,
)
from hightide.zookeeper.tree import Tree

OWNER = 1
SECRET = acl.encode(
    [acl.Entry(acl.ALL, "digest", "ann:aGFzaA=="), acl.Entry(acl.READ, "world", "anyone")]
)


class TreeWithSession:
    """A tree with one session, changed by requests."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.execute(OpenSession(OWNER, 6000))

    def execute(self, request) -> bool:
        """Execute a request; return whether it succeeded."""
        decision = self.tree.decide(request, OWNER, 1_700_000_000_000 + self.tree.zxid)
        if decision.transaction is not None:
            self.tree.apply(decision.transaction)
        return not isinstance(decision.outcome, Exception)

    def create(self, path: str, data: bytes | None = b"", **more) -> TreeWithSession:
        assert self.execute(Create(path, data, **more)), path
        return self

    def snapshot(self) -> Snapshot:
        return Snapshot.of(self.tree.zxid, self.tree.nodes)


def written(snapshot: Snapshot, onto: TreeWithSession | None = None) -> Snapshot:
    """Write a snapshot to a tree by its plan; return the snapshot of that tree."""
    target = onto or TreeWithSession()
    for batch in batches(creations(snapshot)):
        assert target.execute(Multi(tuple(batch))), batch
    return target.snapshot()


NAMES = st.sampled_from(["brokers", "seqid", "cluster", "id", "ä€", "a b", "n-2024010112", "x"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))
DATA = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
ACLS = st.sampled_from([b"", b"", SECRET])
REQUESTS = (
    st.builds(Create, PATHS, DATA, st.booleans(), st.booleans(), ACLS)
    | st.builds(Create, PATHS, DATA, acl=ACLS)
    | st.builds(SetData, PATHS | st.just("/"), DATA)
    | st.builds(SetAcl, PATHS, ACLS)
    | st.builds(Delete, PATHS)
)


@st.composite
def trees(draw) -> TreeWithSession:
    source = TreeWithSession()
    for request in draw(st.lists(REQUESTS, max_size=40)):
        source.execute(request)
    return source


# -- the snapshot ------------------------------------------------------------------------------


def test_a_snapshot_has_what_is_persistent_and_counts_the_rest():
    source = (
        TreeWithSession()
        .create("/brokers")
        .create("/brokers/ids")
        .create("/controller", ephemeral=True)
    )
    source.create("/brokers/ids/7", ephemeral=True).create("/brokers/ids/12", ephemeral=True)
    snapshot = source.snapshot()
    assert list(snapshot.nodes) == ["/", "/brokers", "/brokers/ids"]
    assert snapshot.ephemeral_count == 3
    assert sorted(snapshot.brokers) == ["12", "7"]


def test_a_snapshot_has_no_secret_of_the_brokers():
    source = TreeWithSession().create("/brokers").create(znodes.SECRETS)
    source.create(znodes.BROKER_SECRET, znodes.BrokerSecret(b"k" * 32).encode())
    snapshot = source.snapshot()
    assert list(snapshot.nodes) == ["/", "/brokers"]
    assert snapshot.nodes["/"].stat.num_children == 1


@given(trees())
def test_what_is_left_out_leaves_a_sound_tree(source):
    snapshot = source.snapshot()
    root = snapshot.nodes["/"]
    both = root.stat._replace(
        num_children=root.stat.num_children + 1, cversion=root.stat.cversion - 1
    )
    nodes = {**initial_nodes(), **snapshot.nodes, "/": root._replace(stat=both)}
    assert list(Tree.restored(snapshot.zxid, nodes, {}).flaws()) == []


@given(trees())
def test_leaving_out_keeps_every_count_of_creates(source):
    for path, node in source.snapshot().nodes.items():
        assert node.create_count == source.tree.nodes[path].create_count


# -- the file ----------------------------------------------------------------------------------


def file_of(snapshot: Snapshot) -> bytes:
    return b"".join(backup.encode(Backup(snapshot, "zk:2181/kafka", 1_700_000_000_000)))


@given(trees())
def test_any_tree_comes_back_from_its_file(source):
    expected = Backup(source.snapshot(), "zk:2181/kafka", 1_700_000_000_000)
    found = backup.decode(b"".join(backup.encode(expected)))
    assert found == expected
    assert list(found.snapshot.nodes) == list(expected.snapshot.nodes)


@pytest.fixture(scope="module")
def content() -> bytes:
    source = (
        TreeWithSession()
        .create("/brokers", None)
        .create("/brokers/ids")
        .create("/cluster", b"\xff")
    )
    return file_of(source.create("/cluster/id", b'{"id":"x"}', acl=SECRET).snapshot())


def test_null_and_empty_data_differ_in_the_file(content):
    lines = {line.get("path"): line for line in map(json.loads, content.splitlines())}
    assert lines["/brokers"]["data"] is None
    assert lines["/brokers/ids"]["text"] == ""
    assert lines["/cluster"]["base64"] == "/w=="
    assert lines["/cluster/id"]["text"] == '{"id":"x"}'


@settings(max_examples=300)
@given(st.data())
def test_a_file_that_was_cut_off_or_changed_is_refused(content, data):
    at = data.draw(st.integers(0, len(content) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                content[:at],
                content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
                content[:at] + content[at + 1 :],
                content + content[at:],
            ]
        )
    )
    with pytest.raises(DamagedBackup):
        backup.decode(damaged)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(other):
    with pytest.raises(DamagedBackup):
        backup.decode(other)


def signed(*lines: object) -> bytes:
    """Encode lines with a valid checksum."""
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return body + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"


HEADER = {
    "format": "hightide-zookeeper",
    "version": 1,
    "source": "x",
    "taken_ms": 1,
    "zxid": 1,
    "count": 1,
    "ephemerals_left_out": 0,
    "brokers": [],
}
ROOT = {"path": "/", "text": "", "stat": dict.fromkeys(backup._STAT, 0)}


def test_a_file_made_by_hand_is_taken_if_it_is_right():
    assert list(backup.decode(signed(HEADER, ROOT)).snapshot.nodes) == ["/"]


def test_a_backup_of_an_earlier_version_is_read():
    header = {**HEADER, "format": "hightide-coordination"}
    assert list(backup.decode(signed(header, ROOT)).snapshot.nodes) == ["/"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "not a ZooKeeper backup"),
        ([{"format": "something else"}], "not a ZooKeeper backup"),
        ([{**HEADER, "version": 2}], "version 2 is not supported, expected 1"),
        ([HEADER], "expected 1 znodes, found 0"),
        ([HEADER, ROOT, ROOT], "expected 1 znodes, found 2"),
        ([{**HEADER, "count": 2}, ROOT, ROOT], "occurs twice"),
        ([HEADER, {**ROOT, "path": "/a/b"}], "before its parent"),
        ([HEADER, {**ROOT, "path": "a"}], "invalid path"),
        ([HEADER, {**ROOT, "stat": {}}], "czxid"),
        ([HEADER, {"path": "/", "base64": "?", "stat": ROOT["stat"]}], "invalid content"),
        ([HEADER, {"path": "/", "data": 1, "stat": ROOT["stat"]}], "unknown encoding"),
        ([HEADER, []], "invalid content"),
    ],
)
def test_a_file_with_invalid_content_is_refused_with_the_reason(lines, words):
    with pytest.raises(DamagedBackup, match=words):
        backup.decode(signed(*lines))


def test_the_error_says_what_is_wrong_with_a_damaged_file(content, tmp_path):
    file = tmp_path / "saved"
    for damaged, words in (
        (b"", "saved: the file is empty"),
        (content[:-1], "truncated"),
        (content[: len(content) // 2], "truncated"),
        (content.replace(b"brokers", b"brakers"), "changed or damaged"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(DamagedBackup, match=words):
            backup.read(file)


def test_a_file_is_replaced_as_a_whole_and_readable_by_its_owner_only(tmp_path):
    file = tmp_path / "saved"
    file.write_text("an older one")
    wanted = Backup(TreeWithSession().create("/a").snapshot(), "x", 1)
    backup.write(wanted, file)
    assert backup.read(file) == wanted
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "saved").mkdir()
    with pytest.raises(OSError, match="directory"):
        backup.write(Backup(TreeWithSession().snapshot(), "x", 1), tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


# -- the plan ----------------------------------------------------------------------------------


@given(trees())
def test_any_tree_can_be_written_operation_by_operation(source):
    snapshot = source.snapshot()
    assert list(differences(snapshot, written(snapshot))) == []


@given(trees(), trees())
def test_any_tree_can_be_written_over_another(source, other):
    snapshot = source.snapshot()
    paths = [path for path in other.snapshot().nodes if path != "/"]
    ephemerals = [path for path, node in other.tree.nodes.items() if node.stat.ephemeral_owner]
    for batch in batches(deletions([*paths, *ephemerals])):
        assert other.execute(Multi(tuple(batch)))
    assert list(differences(snapshot, written(snapshot, other))) == []


def test_the_id_of_the_cluster_is_written_last_and_deleted_first():
    source = (
        TreeWithSession()
        .create("/cluster")
        .create("/cluster/id")
        .create("/config")
        .create("/config/x")
    )
    paths = list(source.snapshot().nodes)
    assert [operation.path for operation in creations(source.snapshot())][-1] == "/cluster/id"
    assert next(deletions(paths)).path == "/cluster/id"


def test_the_counter_of_broker_ids_goes_on_where_it_was():
    source = TreeWithSession().create("/brokers").create("/brokers/seqid")
    for _ in range(1203):
        assert source.execute(SetData("/brokers/seqid", b""))
    found = written(source.snapshot())
    assert found.nodes["/brokers/seqid"].stat.version == 1203


def test_sequence_numbers_go_on_where_they_were():
    source = TreeWithSession().create("/changes")
    for _ in range(700):
        source.create("/changes/c_", sequence=True)
    for number in range(690):
        assert source.execute(Delete(f"/changes/c_{number:010}"))
    target = TreeWithSession()
    written(source.snapshot(), target)
    target.create("/changes/c_", sequence=True)
    assert "/changes/c_0000000700" in target.tree.nodes


def test_a_topic_that_looks_like_a_sequence_number_is_none():
    source = TreeWithSession().create("/topics").create("/topics/sales-2024010112")
    assert len(list(creations(source.snapshot()))) == 2


def test_no_request_is_too_large():
    source = TreeWithSession().create("/a")
    for number in range(2000):
        source.create(f"/a/{number}", b"x" * (number % 7) * 1000)
    source.create("/large", b"x" * (BATCH_BYTES + 1))
    groups = list(batches(creations(source.snapshot())))
    assert sum(map(len, groups)) == 2002
    assert all(len(group) <= BATCH_OPERATIONS for group in groups)
    alone = [group for group in groups if group[0].path == "/large"]
    assert [len(group) for group in alone] == [1]
    for group in groups:
        sizes = [len(operation.data or b"") for operation in group]
        assert sum(sizes) <= BATCH_BYTES or len(group) == 1


def test_what_differs_is_said():
    wanted = TreeWithSession().create("/a").create("/b", b"1").create("/c").create("/d").snapshot()
    found = (
        TreeWithSession()
        .create("/a")
        .create("/b", b"2")
        .create("/c", acl=SECRET)
        .create("/e")
        .snapshot()
    )
    assert list(differences(wanted, found)) == [
        "/b has different data",
        "/c has a different ACL",
        "/d is missing",
        "/e is unexpected",
    ]
