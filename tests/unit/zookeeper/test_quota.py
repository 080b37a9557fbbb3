"""How many znodes, bytes, ephemerals and watches clients may have, and what they get past that."""

import pytest

from hightide.zookeeper import operation as op
from hightide.zookeeper.acl import Identity
from hightide.zookeeper.quota import Quota
from hightide.zookeeper.tree import Draft, Tree
from tests.unit.zookeeper.raw_client import (
    CREATE,
    DELETE,
    EXISTS,
    GET_CHILDREN,
    MULTI,
    SET_ACL,
    SET_DATA,
    SET_WATCHES,
    acl,
    create,
    int32,
    multi,
    read,
    set_data,
    set_watches,
    text,
    versioned,
)

EXCEEDED = -125
INITIAL = len(Tree().nodes)


@pytest.fixture
def limited(world):
    def start(**quota):
        world.start(quota=Quota(**quota))
        return world.client()

    return start


def test_kazoo_knows_the_error():
    from kazoo.exceptions import EXCEPTIONS, QuotaExceededError

    assert EXCEPTIONS[EXCEEDED] is QuotaExceededError


def test_the_number_of_znodes_is_limited_and_a_deleted_one_makes_room(limited):
    client = limited(znodes=INITIAL + 2)
    client.create("/a")
    client.create("/b")
    assert client.error(CREATE, create("/c")) == EXCEEDED
    client.ok(SET_DATA, set_data("/a", b"x"))
    client.ok(DELETE, versioned("/a"))
    client.create("/c")


def test_the_operations_of_a_multi_count_together(limited):
    client = limited(znodes=INITIAL + 2)
    body = multi(*[(CREATE, create(f"/{number}")) for number in range(3)])
    client.call(MULTI, body)
    assert not client.exists("/0"), "all or none"
    client.ok(MULTI, multi((CREATE, create("/a")), (CREATE, create("/b"))))
    client.ok(MULTI, multi((DELETE, versioned("/a")), (CREATE, create("/c"))))


def test_the_bytes_of_all_znodes_are_limited(limited):
    client = limited(tree_bytes=Tree().size + 1000)
    client.create("/a", bytes(900))
    assert client.error(CREATE, create("/b", bytes(100))) == EXCEEDED
    assert client.error(SET_DATA, set_data("/a", bytes(1000))) == EXCEEDED
    entries = [(31, "ip", f"10.0.0.{number}") for number in range(10)]
    assert client.error(SET_ACL, text("/a") + acl(entries) + int32(-1)) == EXCEEDED
    client.ok(SET_DATA, set_data("/a", bytes(100)))
    client.create("/b", bytes(100))


def test_the_children_of_one_znode_are_limited(limited):
    client = limited(children=3)
    client.create("/a")
    for number in range(3):
        client.create(f"/a/{number}")
    assert client.error(CREATE, create("/a/3")) == EXCEEDED
    client.create("/a/0/x")


def test_the_ephemerals_of_one_session_are_limited(world, limited):
    client = limited(ephemerals=2)
    client.create("/a", flags=1)
    client.create("/b", flags=1)
    assert client.error(CREATE, create("/c", flags=1)) == EXCEEDED
    client.create("/c")
    client.ok(DELETE, versioned("/a"))
    client.create("/d", flags=1)
    world.client().create("/e", flags=1)


@pytest.mark.parametrize(
    "quota", [{"session_watches": 2}, {"watches": 2}, {"watch_bytes": len("/a/b")}]
)
def test_watches_are_limited(world, limited, quota):
    client = limited(**quota)
    client.error(EXISTS, read("/a", watch=True))
    client.error(EXISTS, read("/b", watch=True))
    assert client.error(EXISTS, read("/c", watch=True)) == EXCEEDED
    assert client.error(GET_CHILDREN, read("/", watch=True)) == EXCEEDED
    assert client.error(SET_WATCHES, set_watches(0, [], ["/c"])) == EXCEEDED
    assert len(world.committer().tree.watches) == 2
    client.create("/a")
    client.error(EXISTS, read("/c", watch=True))
    assert len(world.committer().tree.watches) == 2


def test_strangers_leave_room_for_brokers():
    whole = Quota(znodes=INITIAL + 8, tree_bytes=10_000)
    stranger, broker = Identity((), whole.for_strangers()), Identity((), whole)
    tree = Tree()
    opened = tree.decide(op.OpenSession(1, 1000), 1, 0).transaction
    assert opened is not None
    tree.apply(opened)
    draft = Draft(tree)
    taken = [draft.decide(op.Create(f"/{n}"), 1, 0, stranger).transaction for n in range(20)]
    assert 0 < sum(map(bool, taken)) < 8
    assert draft.decide(op.Create("/brokers"), 1, 0, broker).transaction


def test_counts_agree_after_a_restart(world, limited):
    client = limited()
    client.create("/a", b"abc")
    client.create("/a/b", b"abc", entries=((31, "ip", "127.0.0.1"),))
    client.create("/c", flags=1)
    client.ok(DELETE, versioned("/c"))
    size = world.committer().tree.size
    world.committer().tree.check()
    world.threads[0].stop()
    world.start()
    assert world.committer().tree.size == size
