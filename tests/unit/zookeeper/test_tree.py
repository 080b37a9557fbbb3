"""Rules of the tree one by one, where a model would only repeat the code."""

import contextlib
import time

import pytest

from hightide.zookeeper.node import Stat, check_path
from hightide.zookeeper.operation import (
    Check,
    CloseSession,
    Create,
    Created,
    Delete,
    Deleted,
    Multi,
    NewNode,
    OpenSession,
    Request,
    SessionClosed,
    SetAcl,
    SetData,
)
from hightide.zookeeper.tree import Draft, Tree
from hightide.zookeeper.watch import EventType
from hightide.zookeeper.zookeeper_errors import (
    BadArguments,
    BadVersion,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionLost,
    ZooKeeperError,
)

ME, OTHER = 1, 2


@pytest.fixture
def tree():
    tree = Tree()
    for session_id in (ME, OTHER):
        run(tree, OpenSession(session_id, 6000))
    return tree


def run(tree, request, session=ME, now=50):
    """Decide and apply a request; return its result or raise its error."""
    decision = tree.decide(request, session, now)
    if decision.transaction is not None:
        tree.apply(decision.transaction)
        tree.check()
    if isinstance(decision.outcome, ZooKeeperError):
        raise decision.outcome
    return decision.outcome


def events(tree, request, session=ME):
    fired = tree.apply(tree.decide(request, session, 50).transaction)
    return [(watcher, event.type, event.path) for watcher, event, _ in fired]


def test_a_fresh_tree_looks_like_a_fresh_zookeeper():
    tree = Tree()
    assert tree.children("/") == ["zookeeper"]
    assert tree.children("/zookeeper") == ["config", "quota"]
    assert tree.get("/").stat == Stat(0, 0, 0, 0, 0, -1, 0, 0, 0, 1, 0)
    assert tree.get("/zookeeper").stat.cversion == -2


def test_the_stat_of_a_znode_through_its_life(tree):
    assert run(tree, Create("/a", b"xy"), now=100) == NewNode(
        "/a", Stat(3, 3, 100, 100, 0, 0, 0, 0, 2, 0, 3)
    )
    run(tree, SetData("/a", b"xyz"), now=200)
    run(tree, Create("/a/b"), now=300)
    run(tree, Create("/a/c"), now=400)
    run(tree, Delete("/a/b"), now=500)
    run(tree, SetAcl("/a", b"acl"), now=600)
    assert tree.get("/a").stat == Stat(
        czxid=3, mzxid=4, ctime=100, mtime=200, version=1, cversion=3, aversion=1,
        ephemeral_owner=0, data_length=3, num_children=1, pzxid=7,
    )  # fmt: skip
    assert tree.get("/a").acl == b"acl"


def test_a_refused_request_takes_no_zxid(tree):
    before = tree.zxid
    with pytest.raises(NoNode):
        run(tree, Delete("/missing"))
    assert run(tree, Check("/")) is None
    assert tree.zxid == before


def test_sequence_numbers_count_creates_and_never_come_back(tree):
    run(tree, Create("/q"))
    run(tree, Create("/q/plain"))
    assert run(tree, Create("/q/n-", sequence=True)).path == "/q/n-0000000001"
    run(tree, Delete("/q/n-0000000001"))
    run(tree, Delete("/q/plain"))
    assert run(tree, Create("/q/n-", sequence=True)).path == "/q/n-0000000002"
    assert run(tree, Create("/q/", sequence=True)).path == "/q/0000000003"


def test_ephemerals_show_their_owner_and_have_no_children(tree):
    assert run(tree, Create("/e", ephemeral=True)).stat.ephemeral_owner == ME
    with pytest.raises(NoChildrenForEphemerals):
        run(tree, Create("/e/child"), OTHER)


def test_the_end_of_a_session_is_one_transaction_with_all_its_ephemerals(tree):
    run(tree, Create("/mine", ephemeral=True))
    run(tree, Create("/also", ephemeral=True))
    run(tree, Create("/theirs", ephemeral=True), OTHER)
    transaction = tree.decide(CloseSession(), ME, 50).transaction
    assert transaction.changes == (Deleted("/also"), Deleted("/mine"), SessionClosed(ME))
    tree.apply(transaction)
    assert tree.children("/") == ["theirs", "zookeeper"]
    for request in (Create("/x"), Delete("/theirs"), CloseSession()):
        with pytest.raises(SessionLost):
            run(tree, request, ME)


def test_a_session_that_ends_in_the_draft_that_used_it_leaves_nothing(tree):
    run(tree, Create("/old", ephemeral=True))
    run(tree, Create("/gone", ephemeral=True))
    draft = Draft(tree)
    requests: list[Request] = [
        SetData("/old", b"changed"),
        Delete("/gone"),
        Create("/new", ephemeral=True),
        CloseSession(),
    ]
    for decision in [draft.decide(request, ME, 50) for request in requests]:
        tree.apply(decision.transaction)
    tree.check()
    assert decision.transaction.changes == (Deleted("/new"), Deleted("/old"), SessionClosed(ME))
    assert tree.children("/") == ["zookeeper"]
    assert {path for path, node in draft.nodes.items() if node is None} == {
        "/old", "/gone", "/new",
    }  # fmt: skip


def test_a_draft_that_is_dropped_changed_nothing(tree):
    before = dict(tree.nodes), dict(tree.sessions), tree.zxid
    draft = Draft(tree)
    assert draft.decide(Create("/a"), ME, 50).transaction.zxid == 3
    assert draft.decide(Create("/a/b"), ME, 50).transaction.zxid == 4
    assert (tree.nodes, tree.sessions, tree.zxid) == before


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Create("relative"), BadArguments),
        (Create("/missing/child"), NoNode),
        (Create("/a"), NodeExists),
        (Create("/a/"), BadArguments),
        (Create("/missing/"), NoNode),
        (Create("/"), NodeExists),
        (Create("/a/\x00"), BadArguments),
        (Delete("/a"), NotEmpty),
        (Delete("/a/b", version=4), BadVersion),
        (Delete("/missing"), NoNode),
        (Delete("/"), BadArguments),
        (Delete("/zookeeper/quota"), BadArguments),
        (Delete(""), BadArguments),
        (SetData("/a", b"", version=1), BadVersion),
        (SetData("nowhere", b""), BadArguments),
        (SetAcl("/a", b"", version=1), BadVersion),
        (Check("/a", version=1), BadVersion),
        (Check("/missing"), NoNode),
    ],
    ids=str,
)
def test_what_is_refused_and_how(tree, request_, error):
    run(tree, Create("/a"))
    run(tree, Create("/a/b"))
    with pytest.raises(error) as refusal:
        run(tree, request_)
    assert type(refusal.value) is error


@pytest.mark.parametrize("path", ["/", "/a", "/a/b.c", "/...", "/a/..b", "/ü", "/a b", "/\ufdd0"])
def test_valid_paths(path):
    check_path(path)


@pytest.mark.parametrize(
    "path",
    ["", "a", "/a/", "//", "/a//b", "/.", "/..", "/a/./b", "/a/..", "/\x00", "/\x1f", "/\x7f",
     "/\x9f", "/\ud800", "/\ue000", "/\ufff0", "/\U0001f600", "/a/\n", "/a\n/"],
)  # fmt: skip
def test_invalid_paths(path):
    with pytest.raises(BadArguments):
        check_path(path)


def test_a_multi_is_one_transaction_whose_parts_see_each_other(tree):
    results = run(
        tree,
        Multi(
            (Create("/a"), SetData("/a", b"1", 0), Create("/a/s", sequence=True), Check("/a", 1))
        ),
    )
    assert [type(result) for result in results] == [NewNode, Stat, NewNode, type(None)]
    assert results[2].path == "/a/s0000000000"
    assert {tree.get(path).stat.mzxid for path in ("/a", "/a/s0000000000")} == {3}
    assert tree.zxid == 3


def test_a_refused_multi_says_who_is_to_blame_and_changes_nothing(tree):
    before = dict(tree.nodes)
    tree.exists("/a", watcher=ME)
    operations = (Create("/a"), SetData("/a", b"1"), Delete("/missing"), Create("/b"), Check("/"))
    decision = tree.decide(Multi(operations), ME, 50)
    assert isinstance(decision.outcome, MultiFailed)
    assert decision.transaction is None
    assert (decision.outcome.index, type(decision.outcome.cause)) == (2, NoNode)
    assert decision.outcome.codes == [0, 0, NoNode.code, -2, -2]
    assert "operation 3 of 5" in str(decision.outcome)
    assert tree.nodes == before
    assert len(tree.watches) == 1


def test_a_multi_that_only_checks_needs_no_transaction(tree):
    decision = tree.decide(Multi((Check("/"), Check("/zookeeper"))), ME, 50)
    assert decision.outcome == [None, None]
    assert decision.transaction is None


def test_watches_fire_once_in_order_and_once_per_watcher(tree):
    tree.exists("/a", watcher=7)
    tree.children("/", watcher=7)
    assert events(tree, Create("/a")) == [(7, EventType.CREATED, "/a"), (7, EventType.CHILD, "/")]
    assert events(tree, SetData("/a", b"1")) == []
    tree.get("/a", watcher=7)
    tree.get("/a", watcher=8)
    assert events(tree, SetData("/a", b"2")) == [
        (7, EventType.CHANGED, "/a"),
        (8, EventType.CHANGED, "/a"),
    ]
    tree.get("/a", watcher=7)
    tree.children("/a", watcher=7)
    tree.children("/a", watcher=8)
    tree.children("/", watcher=9)
    assert events(tree, Delete("/a")) == [
        (7, EventType.DELETED, "/a"),
        (8, EventType.DELETED, "/a"),
        (9, EventType.CHILD, "/"),
    ]
    assert len(tree.watches) == 0


def test_reading_a_missing_znode_arms_nothing_but_exists_does(tree):
    for read in (tree.get, tree.children):
        with pytest.raises(NoNode):
            read("/a", 7)
    assert len(tree.watches) == 0
    assert tree.exists("/a", 7) is None
    assert len(tree.watches) == 1


def test_access_lists_fire_nothing(tree):
    tree.get("/", watcher=7)
    tree.children("/", watcher=7)
    assert events(tree, SetAcl("/", b"x")) == []


def test_watches_brought_along_fire_at_once_if_something_happened(tree):
    run(tree, Create("/a"))
    run(tree, Create("/old"))
    seen = tree.zxid
    run(tree, SetData("/a", b"new"))
    run(tree, Create("/a/b"))
    fired = tree.rearm(
        7, seen, ["/a", "/old", "/gone"], ["/a", "/later"], ["/a", "/old", "/gone"]
    )  # fmt: skip
    assert [(event.type, event.path) for _, event, _ in fired] == [
        (EventType.CHANGED, "/a"),
        (EventType.DELETED, "/gone"),
        (EventType.CREATED, "/a"),
        (EventType.CHILD, "/a"),
        (EventType.DELETED, "/gone"),
    ]
    assert events(tree, Create("/later")) == [(7, EventType.CREATED, "/later")]
    assert events(tree, Create("/old/x")) == [(7, EventType.CHILD, "/old")]
    assert events(tree, SetData("/old", b"")) == [(7, EventType.CHANGED, "/old")]


def test_a_transaction_cannot_be_applied_twice(tree):
    transaction = tree.decide(Create("/a"), ME, 50).transaction
    assert transaction.changes == (Created("/a", b"", b"", 0),)
    tree.apply(transaction)
    with pytest.raises(AssertionError):
        tree.apply(transaction)


def test_empty_data_and_no_data_differ(tree):
    run(tree, Create("/empty", b""))
    run(tree, Create("/none", None))
    assert tree.get("/empty").data == b""
    assert tree.get("/none").data is None
    assert tree.get("/none").stat.data_length == 0


def test_a_path_of_a_megabyte_is_checked_in_no_time():
    for path in ("/" + "x" * 1_000_000, "/" + "x/" * 500_000 + "x", "/" + "/" * 1_000_000):
        began = time.monotonic()
        with contextlib.suppress(BadArguments):
            check_path(path)
        assert time.monotonic() - began < 0.5
