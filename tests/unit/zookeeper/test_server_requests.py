"""Every request type, its response, and which of several errors is returned."""

import pytest

from tests.unit.zookeeper.raw_client import (
    ADD_WATCH,
    ALL_CHILDREN,
    BAD_ARGUMENTS,
    BAD_VERSION,
    CHANGED,
    CHECK,
    CHECK_WATCHES,
    CHILD,
    CREATE,
    CREATE2,
    CREATE_CONTAINER,
    CREATE_TTL,
    CREATED,
    DELETE,
    DELETED,
    EPHEMERAL_PARENT,
    EXISTS,
    EXISTS_ALREADY,
    GET_ACL,
    GET_CHILDREN,
    GET_CHILDREN2,
    GET_DATA,
    GET_EPHEMERALS,
    INVALID_ACL,
    MALFORMED,
    MULTI,
    MULTI_READ,
    NO_AUTH,
    NO_NODE,
    NO_WATCHER,
    NOT_EMPTY,
    PING,
    RECONFIG,
    REMOVE_WATCHES,
    SASL,
    SET_ACL,
    SET_DATA,
    SET_WATCHES,
    SET_WATCHES2,
    SYNC,
    UNIMPLEMENTED,
    WHO_AM_I,
    Body,
    Event,
    acl,
    create,
    int32,
    multi,
    read,
    set_data,
    set_watches,
    text,
    texts,
    versioned,
)

EPHEMERAL, SEQUENCE = 1, 2
READ_ONLY = ((1, "world", "anyone"),)


def stat_of(client, path):
    return client.ok(EXISTS, read(path)).stat()


def test_a_znode_from_create_to_delete(client):
    assert client.create("/a", b"one") == "/a"
    made = stat_of(client, "/a")
    assert (made.version, made.data_length, made.ephemeral_owner) == (0, 3, 0)
    changed = client.ok(SET_DATA, set_data("/a", b"second", 0)).stat()
    assert (changed.version, changed.data_length, changed.mzxid) == (1, 6, made.mzxid + 1)
    body = client.ok(GET_DATA, read("/a"))
    assert (body.buffer(), body.stat(), body.data) == (b"second", changed, b"")
    deleted = client.call(DELETE, versioned("/a", 1))
    assert (deleted.zxid, deleted.error, deleted.body) == (changed.mzxid + 1, 0, b"")
    assert not client.exists("/a")


def test_create2_tells_the_stat_too(client):
    body = client.ok(CREATE2, create("/a", b"xy", flags=EPHEMERAL | SEQUENCE))
    assert body.text() == "/a0000000000"
    stat = body.stat()
    assert (stat.ephemeral_owner, stat.data_length) == (client.session_id, 2)
    assert body.data == b""


def test_no_data_and_empty_data_differ(client):
    client.create("/none", None)
    client.create("/empty", b"")
    assert client.ok(GET_DATA, read("/none")).buffer() is None
    assert client.ok(GET_DATA, read("/empty")).buffer() == b""
    client.ok(SET_DATA, set_data("/empty", None))
    assert client.ok(GET_DATA, read("/empty")).buffer() is None


def test_no_data_and_empty_data_differ_after_a_restart(world, client):
    client.create("/none", None)
    client.create("/empty", b"")
    world.threads[0].stop()
    world.start()
    again = world.client()
    assert again.ok(GET_DATA, read("/none")).buffer() is None
    assert again.ok(GET_DATA, read("/empty")).buffer() == b""


def test_sequence_numbers_count_creations_not_children(client):
    client.create("/q")
    assert client.create("/q/n-", flags=SEQUENCE) == "/q/n-0000000000"
    client.create("/q/x")
    client.ok(DELETE, versioned("/q/x"))
    assert client.create("/q/", flags=SEQUENCE) == "/q/0000000002"
    assert stat_of(client, "/q").cversion == 4


def test_children_with_and_without_their_stat(client):
    client.create("/a")
    for name in "cab":
        client.create(f"/a/{name}")
    assert client.ok(GET_CHILDREN, read("/a")).texts() == ["a", "b", "c"]
    body = client.ok(GET_CHILDREN2, read("/a"))
    assert body.texts() == ["a", "b", "c"]
    assert body.stat().num_children == 3
    assert client.ok(GET_CHILDREN, read("/")).texts() == ["a", "zookeeper"]


def test_what_zookeeper_keeps_for_itself_is_there_to_stay(client):
    assert client.ok(GET_CHILDREN, read("/zookeeper")).texts() == ["config", "quota"]
    for path in ("/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"):
        assert client.error(DELETE, versioned(path)) == BAD_ARGUMENTS


def test_errors_of_single_requests(client):
    client.create("/a")
    client.create("/a/b")
    client.create("/e", flags=EPHEMERAL)
    for kind, body, expected in [
        (CREATE, create("/a"), EXISTS_ALREADY),
        (CREATE, create("/"), EXISTS_ALREADY),
        (CREATE, create("/x/y"), NO_NODE),
        (CREATE, create("/e/child"), EPHEMERAL_PARENT),
        (CREATE, create("relative"), BAD_ARGUMENTS),
        (CREATE, create("/a/.."), BAD_ARGUMENTS),
        (CREATE, create("/a/../b"), NO_NODE),
        (CREATE, create("/a\0b"), BAD_ARGUMENTS),
        (CREATE, create("/z", flags=7), BAD_ARGUMENTS),
        (CREATE, create("/z", entries=()), INVALID_ACL),
        (DELETE, versioned("/a"), NOT_EMPTY),
        (DELETE, versioned("/x"), NO_NODE),
        (DELETE, versioned("/e", 3), BAD_VERSION),
        (SET_DATA, set_data("/x", b""), NO_NODE),
        (SET_DATA, set_data("/a", b"", 9), BAD_VERSION),
        (SET_DATA, set_data("/a/", b""), BAD_ARGUMENTS),
        (CHECK, versioned("/a", 1), BAD_VERSION),
        (EXISTS, read("/x"), NO_NODE),
        (GET_DATA, read("/x"), NO_NODE),
        (GET_CHILDREN, read("/x"), NO_NODE),
        (GET_CHILDREN2, read("/x"), NO_NODE),
        (GET_ACL, text("/x"), NO_NODE),
        (ALL_CHILDREN, text("/x"), NO_NODE),
        (SET_ACL, text("/x") + acl(READ_ONLY) + int32(-1), NO_NODE),
        (SET_ACL, text("/x") + acl(()) + int32(-1), INVALID_ACL),
        (SET_ACL, text("/a") + acl(READ_ONLY) + int32(5), BAD_VERSION),
    ]:
        assert client.error(kind, body) == expected, (kind, body)


def test_a_refused_change_takes_no_zxid(client):
    before = client.call(EXISTS, read("/")).zxid
    client.error(CREATE, create("/x/y"))
    client.error(DELETE, versioned("/x"))
    assert client.call(EXISTS, read("/")).zxid == before


def results(body):
    """Decode the reply of a multi as (type, error or result) per operation."""
    found = []
    while True:
        kind, is_last, error = body.int32(), body.take(1) != b"\0", body.int32()
        if is_last:
            assert (kind, error, body.data) == (-1, -1, b"")
            return found
        if kind == -1:
            assert body.int32() == error
            found.append((kind, error))
            continue
        assert error == 0
        match kind:
            case 1:
                found.append((kind, body.text()))
            case 5:
                found.append((kind, body.stat().version))
            case 8:
                found.append((kind, body.texts()))
            case 4:
                found.append((kind, (body.buffer(), body.stat().version)))
            case _:
                found.append((kind, None))


def test_a_multi_is_one_transaction_with_a_result_for_each_part(client):
    client.create("/old")
    before = client.call(EXISTS, read("/")).zxid
    reply = client.call(
        MULTI,
        multi(
            (CREATE, create("/a", b"x")),
            (CREATE2, create("/a/s", flags=SEQUENCE)),
            (SET_DATA, set_data("/a", b"y", 0)),
            (CHECK, versioned("/a", 1)),
            (DELETE, versioned("/old")),
        ),
    )
    assert (reply.error, reply.zxid) == (0, before + 1)
    assert results(Body(reply.body)) == [
        (1, "/a"),
        (1, "/a/s0000000000"),
        (5, 1),
        (13, None),
        (2, None),
    ]


def test_a_multi_that_fails_tells_which_part_and_changes_nothing(client):
    reply = client.call(
        MULTI,
        multi(
            (CREATE, create("/a")),
            (CREATE, create("/a/b")),
            (CHECK, versioned("/a", 7)),
            (CREATE, create("/c")),
            (CREATE, create("/d")),
        ),
    )
    assert reply.error == 0
    assert results(Body(reply.body)) == [(-1, 0), (-1, 0), (-1, BAD_VERSION), (-1, -2), (-1, -2)]
    assert not client.exists("/a")


def test_a_multi_of_nothing_succeeds(client):
    assert results(client.ok(MULTI, multi())) == []


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ((CREATE, create("/b", flags=7)), BAD_ARGUMENTS),
        ((CREATE, create("/b", flags=4)), UNIMPLEMENTED),
        ((CREATE_CONTAINER, create("/b")), UNIMPLEMENTED),
        ((CREATE_TTL, create("/b", flags=5) + bytes(8)), UNIMPLEMENTED),
        ((CREATE, create("/b", entries=())), INVALID_ACL),
        ((CREATE, create("relative")), BAD_ARGUMENTS),
        ((SET_DATA, set_data("", b"")), BAD_ARGUMENTS),
        ((CHECK, versioned("")), BAD_ARGUMENTS),
    ],
)
def test_a_part_that_makes_no_sense_fails_in_its_place(client, operation, expected):
    parts = multi((CREATE, create("/a")), operation, (CREATE, create("/c")))
    assert results(client.ok(MULTI, parts)) == [(-1, 0), (-1, expected), (-1, -2)]
    early = multi((DELETE, versioned("/missing")), operation)
    assert results(client.ok(MULTI, early)) == [(-1, NO_NODE), (-1, -2)]


@pytest.mark.parametrize(
    ("kind", "rest"), [(SET_DATA, int32(0, -1)), (CHECK, int32(-1)), (SET_ACL, int32(0, -1))]
)
def test_no_path_where_one_is_changed_is_a_bad_one(client, kind, rest):
    assert client.error(kind, int32(-1) + rest) == BAD_ARGUMENTS


def test_flags_are_judged_before_the_path(client):
    assert client.error(CREATE, int32(-1) + create("", flags=7)[4:]) == BAD_ARGUMENTS
    assert client.error(CREATE, int32(-1) + create("")[4:]) == MALFORMED


def test_a_multi_with_something_else_in_it_is_not_understood(client):
    assert client.error(MULTI, multi((GET_DATA, read("/")))) == MALFORMED
    assert client.error(MULTI, multi((CREATE, create("/a")), (99, b""))) == MALFORMED
    ttl = CREATE, create("/a", flags=5)
    assert client.error(MULTI, multi(ttl)) == MALFORMED
    early = client.ok(MULTI, multi((DELETE, versioned("/missing")), ttl))
    assert results(early) == [(-1, NO_NODE), (-1, -2)], "it was never looked at"
    assert client.error(MULTI, multi((CREATE, create("/a")), (CHECK, int32(-1, -1)))) == MALFORMED
    assert not client.exists("/a")


def test_several_questions_as_one(client):
    client.create("/a", b"x")
    questions = multi((GET_DATA, read("/a", True)), (GET_CHILDREN, read("/a")), (4, read("/no")))
    assert results(client.ok(MULTI_READ, questions)) == [(4, (b"x", 0)), (8, []), (-1, NO_NODE)]
    client.ok(SET_DATA, set_data("/a", b""))
    assert client.events == [], "they arm no watches"
    assert client.error(MULTI_READ, multi((CREATE, create("/b")))) == MALFORMED


def test_access_lists_are_kept_and_shown(client):
    client.create("/a", entries=((31, "world", "anyone"), (1, "ip", "127.0.0.1/8")))
    body = client.ok(GET_ACL, text("/a"))
    assert body.acl() == [(31, "world", "anyone"), (1, "ip", "127.0.0.1/8")]
    assert body.stat().aversion == 0
    assert client.ok(SET_ACL, text("/a") + acl(READ_ONLY) + int32(0)).stat().aversion == 1
    body = client.ok(GET_ACL, text("/a"))
    assert body.acl() == [(1, "world", "anyone")]
    assert body.stat().version == 0
    body = client.ok(GET_ACL, text("/zookeeper/config"))
    assert (body.acl(), body.stat().aversion) == ([(1, "world", "anyone")], -1)


def test_which_of_several_errors_is_told(client):
    """Existence, then access, then version, in ZooKeeper's order."""
    client.create("/locked", entries=READ_ONLY)
    client.create("/hidden", entries=((30, "world", "anyone"),))
    for kind, body, expected in [
        (SET_DATA, set_data("/locked", b"", 9), NO_AUTH),
        (SET_DATA, set_data("/missing", b""), NO_NODE),
        (CREATE, create("/locked/child"), NO_AUTH),
        (CREATE, create("/locked/child", entries=()), INVALID_ACL),
        (CREATE, create("relative", entries=()), BAD_ARGUMENTS),
        (CREATE, create("/missing/child", entries=()), INVALID_ACL),
        (CREATE, create("/locked/../child"), NO_NODE),
        (DELETE, versioned("/locked/child"), NO_AUTH),
        (DELETE, versioned("/locked", 5), BAD_VERSION),
        (SET_ACL, text("/locked") + acl(READ_ONLY) + int32(9), NO_AUTH),
        (SET_ACL, text("/locked") + acl(()) + int32(9), INVALID_ACL),
        (GET_DATA, read("/hidden"), NO_AUTH),
        (GET_CHILDREN, read("/hidden"), NO_AUTH),
        (GET_CHILDREN2, read("/hidden"), NO_AUTH),
        (EXISTS, read("/hidden"), 0),
        (CHECK, versioned("/hidden", 9), NO_AUTH),
        (ALL_CHILDREN, text("/hidden"), NO_AUTH),
        (SET_DATA, set_data("/hidden", b"", 9), BAD_VERSION),
    ]:
        assert client.error(kind, body) == expected, (kind, body)
    assert client.error(DELETE, versioned("/locked")) == 0, "that is up to the parent"


def test_a_refused_question_arms_no_watch(world, client):
    client.create("/hidden", entries=((30, "world", "anyone"),))
    for kind in (GET_DATA, GET_CHILDREN):
        assert client.error(kind, read("/hidden", watch=True)) == NO_AUTH
    assert len(world.committer().tree.watches) == 0


def test_watches_brought_along_fire_at_once_if_something_happened(client):
    for path in ("/same", "/set", "/gone", "/kids"):
        client.create(path)
    client.create("/kids/old")
    seen = client.call(EXISTS, read("/")).zxid
    client.ok(SET_DATA, set_data("/set", b"x"))
    client.ok(DELETE, versioned("/gone"))
    client.create("/kids/new")
    client.create("/came")
    body = set_watches(
        seen,
        data=["/same", "/set", "/gone"],
        exists=["/came", "/not-yet"],
        children=["/kids", "/same", "/gone"],
    )
    reply = client.reply(client.send(SET_WATCHES, body, xid=-8))
    assert (reply.error, reply.body) == (0, b"")
    assert client.events == [
        Event(CHANGED, "/set"),
        Event(DELETED, "/gone"),
        Event(CREATED, "/came"),
        Event(CHILD, "/kids"),
        Event(DELETED, "/gone"),
    ]
    client.events.clear()
    client.ok(SET_DATA, set_data("/same", b"x"))
    client.create("/same/child")
    client.create("/not-yet")
    assert client.events == [Event(CHANGED, "/same"), Event(CHILD, "/same"), Event(1, "/not-yet")]


def test_the_newer_form_of_setting_watches(client):
    client.create("/a")
    body = set_watches(0, data=["/a"], exists=["/b"])
    client.ok(SET_WATCHES2, body + texts([]) + texts([]))
    assert client.events == [Event(CHANGED, "/a")]
    assert client.error(SET_WATCHES2, body + texts(["/a"]) + texts([])) == UNIMPLEMENTED
    client.create("/b")
    assert client.events[1:] == [Event(CREATED, "/b")]


CHILDREN_WATCH, DATA_WATCH, ANY_WATCH = 1, 2, 3


def test_watches_are_looked_for_and_removed(client):
    client.create("/a")
    client.ok(GET_DATA, read("/a", watch=True))
    assert client.error(CHECK_WATCHES, versioned("/a", DATA_WATCH)) == 0
    assert client.error(CHECK_WATCHES, versioned("/a", ANY_WATCH)) == 0
    assert client.error(CHECK_WATCHES, versioned("/a", CHILDREN_WATCH)) == NO_WATCHER
    assert client.error(REMOVE_WATCHES, versioned("/a", CHILDREN_WATCH)) == NO_WATCHER
    assert client.error(REMOVE_WATCHES, versioned("/a", DATA_WATCH)) == 0
    assert client.error(REMOVE_WATCHES, versioned("/a", ANY_WATCH)) == NO_WATCHER
    client.ok(SET_DATA, set_data("/a", b""))
    assert client.events == []
    assert client.error(CHECK_WATCHES, versioned("/a", 9)) == MALFORMED


def test_removing_all_watches_of_a_znode_leaves_those_of_others(world, client):
    other = world.client()
    client.create("/a")
    for watcher in (client, other):
        watcher.ok(GET_DATA, read("/a", watch=True))
        watcher.ok(GET_CHILDREN, read("/a", watch=True))
    client.ok(REMOVE_WATCHES, versioned("/a", ANY_WATCH))
    client.ok(DELETE, versioned("/a"))
    other.ping()
    assert client.events == []
    assert other.events == [Event(DELETED, "/a")]


def test_a_session_can_list_its_ephemerals(world, client):
    other = world.client()
    client.create("/dir")
    for path in ("/b", "/dir/a"):
        client.create(path, flags=EPHEMERAL)
    other.create("/c", flags=EPHEMERAL)
    assert client.ok(GET_EPHEMERALS, text("/")).texts() == ["/b", "/dir/a"]
    assert client.ok(GET_EPHEMERALS, text("/dir")).texts() == ["/dir/a"]
    assert client.ok(GET_EPHEMERALS, int32(-1)).texts() == ["/b", "/dir/a"]
    assert other.ok(GET_EPHEMERALS, text("/")).texts() == ["/c"]


def test_all_that_is_below_a_znode_is_counted(client):
    for path in ("/a", "/a/b", "/a/b/c", "/ab"):
        client.create(path)
    assert client.ok(ALL_CHILDREN, text("/a")).int32() == 2
    assert client.ok(ALL_CHILDREN, text("/")).int32() == 4 + 3


def test_sync_repeats_the_path(client):
    assert client.ok(SYNC, text("/any")).text() == "/any"
    assert client.ok(SYNC, int32(-1)).data == int32(-1), "even none"


def test_a_ping_is_answered_as_a_ping_whatever_it_was_called(client):
    client.send(PING, xid=77)
    assert client.receive().xid == -2


def test_the_empty_path_is_read_as_the_root_and_cannot_be_watched(world, client):
    assert client.ok(GET_CHILDREN, read("", watch=True)).texts() == ["zookeeper"]
    assert client.ok(GET_CHILDREN2, read("")).texts() == ["zookeeper"]
    assert client.ok(GET_DATA, read("", watch=True)).buffer() == b""
    assert client.ok(EXISTS, read("", watch=True)).stat() == stat_of(client, "/")
    assert client.ok(GET_ACL, text("")).acl() == [(31, "world", "anyone")]
    assert client.error(SET_DATA, set_data("", b"")) == BAD_ARGUMENTS
    assert len(world.committer().tree.watches) == 0


def test_who_am_i(client):
    def names():
        body = client.ok(WHO_AM_I)
        return [(body.text(), body.text()) for _ in range(body.int32())]

    assert names() == [("ip", "127.0.0.1")]
    assert client.authenticate("bob:secret") == 0
    assert names() == [("ip", "127.0.0.1"), ("digest", "bob")]


@pytest.mark.parametrize("kind", [RECONFIG, CREATE_CONTAINER, CREATE_TTL, SASL, ADD_WATCH, 77, -1])
def test_what_is_not_offered_is_said_so_and_the_connection_stays(client, kind):
    assert client.error(kind, create("/a") + bytes(8)) == UNIMPLEMENTED
    client.ping()


def test_containers_and_ttl_znodes_are_not_offered(client):
    for flags in (4, 5, 6):
        assert client.error(CREATE, create("/a", flags=flags)) == UNIMPLEMENTED
    assert not client.exists("/a")


def test_times_are_wall_clock_milliseconds(client):
    import time

    client.create("/a")
    assert abs(stat_of(client, "/a").ctime - time.time() * 1000) < 5000
