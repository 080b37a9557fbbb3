"""ACLs, without a server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.zookeeper import acl
from hightide.zookeeper.acl import ADMIN, ALL, CREATE, DELETE, READ, WRITE, Entry, Identity
from hightide.zookeeper.node import OPEN_ACL, WORLD_READS_ACL
from hightide.zookeeper.operation import Create, Delete, OpenSession, SetAcl, SetData
from hightide.zookeeper.tree import Tree
from hightide.zookeeper.zookeeper_errors import InvalidAcl, NoAuth, NoNode

BOB = "bob:" + "1" * 28
ADDRESS = ("ip", "10.1.2.3")
UNAUTHENTICATED = Identity((ADDRESS,))
KNOWN = UNAUTHENTICATED.with_ids(("digest", BOB))
SUPER = UNAUTHENTICATED.with_ids(("super", ""))

ENTRIES = st.lists(
    st.builds(Entry, st.integers(-(2**31), 2**31 - 1), st.text(max_size=5), st.text(max_size=9)),
    max_size=4,
).map(tuple)


@given(ENTRIES)
def test_a_list_survives_its_bytes(entries):
    assert acl.decode(acl.encode(entries)) == entries


def test_the_list_that_allows_everything_takes_no_room():
    assert acl.encode([acl.ANYONE]) == OPEN_ACL == b""
    assert acl.encode([]) != OPEN_ACL
    assert acl.decode(WORLD_READS_ACL) == (Entry(READ, "world", "anyone"),)


def test_a_digest_is_what_zookeeper_makes_of_a_password():
    assert acl.digest(b"super:secret") == "super:lK75jTNcA+U9vtVEw5vB51mj/w4="
    assert acl.digest(b"a:b:c") == "a:cLzgnoJ6mP5qz3w+mwvPE2vDgu0="
    assert acl.digest(b"nocolon") == "nocolon:Ra+cHr2ZoHvBjtNArFGNGlVie4g="
    assert acl.digest("grüße:ü".encode()) == "grüße:jujDpVGSIypTHW+ej/5cFdq3wt4="


@pytest.mark.parametrize(
    ("entry", "who", "expected"),
    [
        (Entry(READ, "world", "anyone"), UNAUTHENTICATED, True),
        (Entry(WRITE | ADMIN, "world", "anyone"), UNAUTHENTICATED, False),
        (Entry(READ, "digest", BOB), UNAUTHENTICATED, False),
        (Entry(READ, "digest", BOB), KNOWN, True),
        (Entry(READ, "digest", "bob:other"), KNOWN, False),
        (Entry(0, "digest", BOB), SUPER, True),
        (Entry(READ, "ip", "10.1.2.3"), UNAUTHENTICATED, True),
        (Entry(READ, "ip", "10.1.2.4"), UNAUTHENTICATED, False),
        (Entry(READ, "ip", "10.1.0.0/16"), UNAUTHENTICATED, True),
        (Entry(READ, "ip", "10.1.2.9/29"), UNAUTHENTICATED, False),
        (Entry(READ, "ip", "0.0.0.0/0"), UNAUTHENTICATED, True),
        (Entry(READ, "ip", "::/0"), UNAUTHENTICATED, False),
        (Entry(READ, "ip", "fe80::/10"), Identity((("ip", "fe80::1"),)), True),
        (Entry(READ, "ip", "10.0.0.0/8"), Identity((("ip", ""),)), False),
    ],
)
def test_who_may_read(entry, who, expected):
    assert who.may(acl.encode([entry]), READ) is expected


def test_one_of_several_permissions_is_enough():
    listed = acl.encode([Entry(ADMIN, "digest", BOB), Entry(READ, "ip", "9.9.9.9")])
    assert KNOWN.may(listed, READ | ADMIN)
    assert not KNOWN.may(listed, READ)


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [Entry(ALL, "world", "stranger")],
        [Entry(ALL, "auth", "")],
        [Entry(ALL, "digest", "no colon")],
        [Entry(ALL, "digest", "a:")],
        [Entry(ALL, "digest", "a:b:c")],
        [Entry(ALL, "ip", "somewhere")],
        [Entry(ALL, "ip", "1.2.3.4/33")],
        [Entry(ALL, "ip", "1.2.3.4/255.0.0.0")],
        [Entry(ALL, "ip", "1.2.3.4/-1")],
        [Entry(ALL, "super", "")],
        [Entry(ALL, "sasl", "bob")],
        [Entry(ALL, "", "")],
        [acl.ANYONE, Entry(ALL, "x509", "CN=a")],
    ],
)
def test_an_invalid_list_is_refused(entries):
    with pytest.raises(InvalidAcl):
        UNAUTHENTICATED.resolve("/a", acl.encode(entries))


def test_auth_becomes_the_names_that_were_proved():
    wanted = acl.encode([Entry(ALL, "auth", "whatever"), Entry(READ, "world", "anyone")])
    assert acl.decode(KNOWN.resolve("/a", wanted)) == (
        Entry(ALL, "digest", BOB),
        Entry(READ, "world", "anyone"),
    )


def test_an_entry_counts_once():
    twice = acl.encode([Entry(READ, "world", "anyone")] * 2)
    assert UNAUTHENTICATED.resolve("/a", twice) == WORLD_READS_ACL
    assert UNAUTHENTICATED.resolve("/a", acl.wire([acl.ANYONE] * 2)) == OPEN_ACL


def test_proving_the_same_twice_changes_nothing():
    assert KNOWN.with_ids(("digest", BOB)).ids == KNOWN.ids


def test_who_may_not_change_a_list_does_not_see_its_hashes():
    shown = acl.without_secrets([Entry(READ, "digest", BOB), Entry(READ, "ip", "::1")])
    assert shown == [Entry(READ, "digest", "bob:x"), Entry(READ, "ip", "::1")]


@pytest.fixture
def tree():
    tree = Tree()
    decide(tree, OpenSession(1, 6000), acl.UNCHECKED)
    return tree


def decide(tree, request, who=UNAUTHENTICATED):
    decision = tree.decide(request, 1, 0, who)
    if decision.transaction is not None:
        tree.apply(decision.transaction)
    return decision.outcome


@pytest.mark.parametrize("permission", [READ, WRITE, CREATE, DELETE, ADMIN])
def test_each_change_needs_its_own_permission(tree, permission):
    only = acl.encode([Entry(permission, "world", "anyone")])
    decide(tree, Create("/a", acl=only), acl.UNCHECKED)
    decide(tree, Create("/a/b"), acl.UNCHECKED)
    allowed = {
        WRITE: decide(tree, SetData("/a", b"x")),
        CREATE: decide(tree, Create("/a/c")),
        DELETE: decide(tree, Delete("/a/b")),
        ADMIN: decide(tree, SetAcl("/a", only)),
    }
    for needed, outcome in allowed.items():
        assert isinstance(outcome, NoAuth) is (needed != permission)


def test_access_is_judged_by_the_tree_as_it_will_be(tree):
    from hightide.zookeeper.tree import Draft

    decide(tree, Create("/a"), acl.UNCHECKED)
    draft = Draft(tree)
    draft.decide(SetAcl("/a", WORLD_READS_ACL), 1, 0, UNAUTHENTICATED)
    assert isinstance(draft.decide(SetData("/a", b""), 1, 0, UNAUTHENTICATED).outcome, NoAuth)
    assert isinstance(draft.decide(Delete("/b/c"), 1, 0, UNAUTHENTICATED).outcome, NoNode)
