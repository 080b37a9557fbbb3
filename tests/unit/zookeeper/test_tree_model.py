"""The tree against a simple model: one mutable dict, copied for undo.

Both execute every request, several at a time through one draft; outcomes, stats and watch events
must agree. At the end the transactions alone must rebuild the same tree.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hightide.zookeeper.node import Stat
from hightide.zookeeper.operation import (
    Check,
    CloseSession,
    Create,
    Delete,
    Multi,
    NewNode,
    OpenSession,
    SetAcl,
    SetData,
)
from hightide.zookeeper.tree import Draft, Tree
from hightide.zookeeper.zookeeper_errors import MultiFailed, NoNode, ZooKeeperError

BAD_ARGUMENTS, NO_NODE, BAD_VERSION, NO_CHILDREN, EXISTS, NOT_EMPTY, SESSION = (
    -8, -101, -103, -108, -110, -111, -112,
)  # fmt: skip


class Refused(Exception):
    def __init__(self, code):
        self.code = code


class Model:
    """A simple ZooKeeper: a znode is a dict, a watch is an entry of a list."""

    def __init__(self):
        self.zxid = 0
        self.sessions = set()
        self.nodes: dict[str, dict[str, Any]] = {
            path: {"data": b"", "z": (0, 0, 0), "t": (0, 0), "v": 0, "av": 0, "owner": 0,
                   "acl": b"", "created": 0, "changes": changes}
            for path, changes in
            {"/": -1, "/zookeeper": -2, "/zookeeper/quota": 0, "/zookeeper/config": 0}.items()
        }  # fmt: skip
        self.watches = []
        self.events = []

    def children(self, path):
        prefix = path.rstrip("/") + "/"
        names = (other[len(prefix) :] for other in self.nodes if other.startswith(prefix))
        return sorted(name for name in names if name and "/" not in name)

    def stat(self, path):
        node = self.nodes[path]
        (czxid, mzxid, pzxid), (ctime, mtime) = node["z"], node["t"]
        return Stat(
            czxid, mzxid, ctime, mtime, node["v"], node["changes"], node["av"], node["owner"],
            len(node["data"] or b""), len(self.children(path)), pzxid,
        )  # fmt: skip

    def run(self, request, session, now):
        nodes = {path: dict(node) for path, node in self.nodes.items()}
        before = self.__dict__ | {
            "nodes": nodes, "watches": list(self.watches), "sessions": set(self.sessions),
        }  # fmt: skip
        self.zxid += 1
        self.events = []
        try:
            if isinstance(request, OpenSession):
                self.sessions.add(request.session_id)
                return None
            if session not in self.sessions:
                raise Refused(SESSION)
            result, changed = self.dispatch(request, session, now)
        except Refused as refusal:
            self.__dict__ = before
            self.events = []
            return refusal.code
        if not changed:
            self.zxid -= 1
        return result

    def dispatch(self, request, session, now):
        if isinstance(request, CloseSession):
            for path in sorted(p for p, node in self.nodes.items() if node["owner"] == session):
                self.delete(Delete(path))
            self.sessions.remove(session)
            return None, True
        if isinstance(request, Multi):
            results = []
            for index, operation in enumerate(request.operations):
                try:
                    results.append(self.one(operation, session, now))
                except Refused as refusal:
                    rest = len(request.operations) - index - 1
                    raise Refused([0] * index + [refusal.code] + [-2] * rest) from refusal
            return results, any(
                not isinstance(operation, Check) for operation in request.operations
            )
        return self.one(request, session, now), not isinstance(request, Check)

    def one(self, request, session, now):
        if isinstance(request, Create):
            return self.create(request, session, now)
        if isinstance(request, Delete):
            return self.delete(request)
        node = self.nodes.get(request.path)
        if node is None:
            raise Refused(NO_NODE)
        if request.version not in (-1, node["av" if isinstance(request, SetAcl) else "v"]):
            raise Refused(BAD_VERSION)
        if isinstance(request, Check):
            return None
        if isinstance(request, SetAcl):
            node["av"] += 1
            node["acl"] = request.acl
        else:
            node["data"] = request.data
            node["v"] += 1
            node["z"] = (node["z"][0], self.zxid, node["z"][2])
            node["t"] = (node["t"][0], now)
            self.fire("data", request.path, 3)
        return self.stat(request.path)

    def create(self, request, session, now):
        path = request.path
        parent = path.rpartition("/")[0] or "/"
        if parent not in self.nodes:
            raise Refused(NO_NODE)
        if request.sequence:
            path += str(self.nodes[parent]["created"]).rjust(10, "0")
        if path in self.nodes:
            raise Refused(EXISTS)
        if self.nodes[parent]["owner"]:
            raise Refused(NO_CHILDREN)
        self.touch(parent)
        self.nodes[parent]["created"] += 1
        self.nodes[path] = {
            "data": request.data, "z": (self.zxid,) * 3, "t": (now, now), "v": 0, "av": 0,
            "owner": session if request.ephemeral else 0, "created": 0, "changes": 0,
            "acl": request.acl,
        }  # fmt: skip
        self.fire("data", path, 1)
        self.fire("children", parent, 4)
        return NewNode(path, self.stat(path))

    def delete(self, request):
        path = request.path
        if path == "/" or path.startswith("/zookeeper"):
            raise Refused(BAD_ARGUMENTS)
        if path not in self.nodes:
            raise Refused(NO_NODE)
        if request.version not in (-1, self.nodes[path]["v"]):
            raise Refused(BAD_VERSION)
        if self.children(path):
            raise Refused(NOT_EMPTY)
        parent = path.rpartition("/")[0] or "/"
        notified = self.fire("data", path, 2)
        self.fire("children", path, 2, notified)
        del self.nodes[path]
        self.touch(parent)
        self.fire("children", parent, 4)

    def touch(self, parent):
        node = self.nodes[parent]
        node["changes"] += 1
        node["z"] = (*node["z"][:2], self.zxid)

    def fire(self, kind, path, event, notified=()):
        hit = [watch for watch in self.watches if watch[:2] == (kind, path)]
        self.watches = [watch for watch in self.watches if watch not in hit]
        watchers = [watcher for _, _, watcher in hit if watcher not in notified]
        self.events += [(watcher, (event, path), self.nodes[path]["acl"]) for watcher in watchers]
        return watchers

    def watch(self, kind, path, watcher):
        if (kind, path, watcher) not in self.watches:
            self.watches.append((kind, path, watcher))


NAMES = st.sampled_from(["a", "b"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
ANY_PATHS = PATHS | st.sampled_from(["/", "/zookeeper", "/zookeeper/quota"])
VERSIONS = st.sampled_from([-1, -1, -1, 0, 1, 2])
DATA = st.none() | st.binary(max_size=3)
ACLS = st.binary(max_size=2)
CREATES = st.builds(Create, PATHS, DATA, st.booleans(), st.booleans(), ACLS)
OPERATIONS = (
    CREATES
    | st.builds(Delete, ANY_PATHS, VERSIONS)
    | st.builds(SetData, ANY_PATHS, DATA, VERSIONS)
    | st.builds(Check, ANY_PATHS, VERSIONS)
)
REQUESTS = (
    CREATES
    | OPERATIONS
    | st.builds(SetAcl, PATHS, ACLS, VERSIONS)
    | st.builds(Multi, st.lists(OPERATIONS, max_size=4).map(tuple))
)
SESSIONS = st.integers(0, 1)


def comparable(outcome):
    """Convert an outcome for comparison: a code, codes per operation, or the result."""
    if isinstance(outcome, MultiFailed):
        return outcome.codes
    return outcome.code if isinstance(outcome, ZooKeeperError) else outcome


class TreeMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.tree, self.model = Tree(), Model()
        self.transactions = []
        self.now = 1000
        self.last_session = 0
        self.current = [self.open(), self.open()]

    def open(self):
        self.last_session += 1
        self.decide_together([(OpenSession(self.last_session, 6000, b"secret"), 0)])
        return self.last_session

    def decide_together(self, requests):
        self.now += 1
        draft = Draft(self.tree)
        before = dict(self.tree.nodes)
        decisions = [draft.decide(request, who, self.now) for request, who in requests]
        assert self.tree.nodes == before, "deciding must not change the tree"
        for (request, who), decision in zip(requests, decisions, strict=True):
            expected = self.model.run(request, who, self.now)
            assert comparable(decision.outcome) == expected
            fired = []
            if decision.transaction is not None:
                fired = self.tree.apply(decision.transaction)
                self.transactions.append(decision.transaction)
            assert fired == self.model.events
            assert self.tree.zxid == self.model.zxid
        for path, node in draft.nodes.items():
            assert self.tree.nodes.get(path) == node, "the draft foresaw something else"

    @rule(requests=st.lists(st.tuples(REQUESTS, SESSIONS), min_size=1, max_size=4))
    def change(self, requests):
        self.decide_together([(request, self.current[who]) for request, who in requests])

    @rule(who=SESSIONS, farewell=st.lists(REQUESTS, max_size=3))
    def end_session(self, who, farewell):
        old = self.current[who]
        requests = [*farewell, CloseSession(), Create("/a")]
        self.decide_together([(request, old) for request in requests])
        self.current[who] = self.open()

    @rule(path=ANY_PATHS, watcher=st.none() | SESSIONS)
    def exists(self, path, watcher):
        there = path in self.model.nodes
        assert self.tree.exists(path, watcher) == (self.model.stat(path) if there else None)
        if watcher is not None:
            self.model.watch("data", path, watcher)

    @rule(path=ANY_PATHS, watcher=st.none() | SESSIONS)
    def read(self, path, watcher):
        try:
            node = self.tree.get(path, watcher)
            names = self.tree.children(path, watcher)
        except NoNode:
            assert path not in self.model.nodes
            return
        assert (node.data, node.stat) == (self.model.nodes[path]["data"], self.model.stat(path))
        assert names == self.model.children(path)
        if watcher is not None:
            self.model.watch("data", path, watcher)
            self.model.watch("children", path, watcher)

    @rule(watcher=SESSIONS)
    def watcher_leaves(self, watcher):
        self.tree.watches.forget(watcher)
        self.model.watches = [watch for watch in self.model.watches if watch[2] != watcher]

    @invariant()
    def whole(self):
        if hasattr(self, "tree"):
            self.tree.check()
            assert len(self.tree.watches) == len(self.model.watches)

    def teardown(self):
        if not hasattr(self, "tree"):
            return
        replayed = Tree()
        for transaction in self.transactions:
            replayed.apply(transaction)
        replayed.check()
        restored = Tree.restored(self.tree.zxid, self.tree.nodes, self.tree.sessions)
        restored.check()
        for twin in (replayed, restored):
            assert twin.nodes == self.tree.nodes
            assert twin.sessions == self.tree.sessions
            assert twin.zxid == self.tree.zxid


# Shrinking a failure takes longer than a passing run.
TestTree = pytest.mark.timeout(400)(TreeMachine.TestCase)
TestTree.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
