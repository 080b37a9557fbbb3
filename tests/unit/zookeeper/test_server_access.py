"""Access to the server: digest identities, credentials and certificates."""

import ssl

import pytest

from hightide.zookeeper.acl import digest
from hightide.zookeeper.server.options import Limits, ServerOptions, Tls
from hightide.zookeeper.server.server import StartRefused
from hightide.zookeeper.server.server_thread import ServerThread
from tests.support.certificates import CertificateAuthority
from tests.unit.zookeeper.raw_client import (
    AUTH,
    AUTH_FAILED,
    CHANGED,
    CREATE,
    CREATED,
    DELETE,
    DELETED,
    EXISTS,
    GET_ACL,
    GET_CHILDREN,
    GET_DATA,
    INVALID_ACL,
    NO_AUTH,
    SET_ACL,
    SET_DATA,
    Closed,
    Event,
    RawSocket,
    acl,
    buffer,
    create,
    int32,
    read,
    set_data,
    text,
    versioned,
    word,
)

BOB = digest(b"bob:secret")
MINE = ((31, "auth", ""),)


def test_what_is_mine_is_not_for_others(world, client):
    assert client.authenticate("bob:secret") == 0
    client.create("/mine", b"x", entries=MINE)
    assert client.ok(GET_ACL, text("/mine")).acl() == [(31, "digest", BOB)]
    other = world.client()
    assert other.error(GET_DATA, read("/mine")) == NO_AUTH
    assert other.error(GET_ACL, text("/mine")) == NO_AUTH
    assert other.authenticate("bob:wrong") == 0, "an identity without any permissions"
    assert other.error(GET_DATA, read("/mine")) == NO_AUTH
    assert other.authenticate("bob:secret") == 0
    assert other.ok(GET_DATA, read("/mine")).buffer() == b"x"


def test_a_name_belongs_to_the_connection_not_to_the_session(world, client):
    client.authenticate("bob:secret")
    client.create("/mine", entries=MINE)
    again = world.client(session=client.key)
    assert again.error(GET_DATA, read("/mine")) == NO_AUTH


def test_who_may_not_read_hears_nothing_and_its_watch_is_used_up(world, client):
    client.authenticate("bob:secret")
    other = world.client()
    open_to_all = ((31, "world", "anyone"),)
    client.create("/dir")
    for path in ("/dir/a", "/dir/b"):
        other.error(EXISTS, read(path, watch=True))
    client.create("/dir/a", entries=MINE)
    client.create("/dir/b", entries=open_to_all)
    other.ping()
    assert other.events == [Event(CREATED, "/dir/b")]
    other.events.clear()

    for path in ("/dir/a", "/dir/b"):
        other.ok(EXISTS, read(path, watch=True))
    client.ok(SET_DATA, set_data("/dir/a", b"x"))
    client.ok(SET_DATA, set_data("/dir/b", b"x"))
    other.ping()
    assert other.events == [Event(CHANGED, "/dir/b")]
    other.events.clear()

    for path in ("/dir/a", "/dir/b"):
        other.ok(EXISTS, read(path, watch=True))
    other.ok(GET_CHILDREN, read("/dir", watch=True))
    client.ok(SET_ACL, text("/dir") + acl(MINE) + int32(-1))
    client.ok(DELETE, versioned("/dir/a"))
    client.ok(DELETE, versioned("/dir/b"))
    other.ping()
    assert other.events == [Event(DELETED, "/dir/b")], "nor of the children of what it may not read"
    assert len(world.committer().tree.watches) == 0


def test_auth_without_a_name_is_an_invalid_list(client):
    assert client.error(CREATE, create("/mine", entries=MINE)) == INVALID_ACL


def test_a_reader_does_not_see_hashes(world, client):
    client.authenticate("bob:secret")
    client.create("/a", entries=((31, "auth", ""), (1, "world", "anyone")))
    assert world.client().ok(GET_ACL, text("/a")).acl() == [
        (31, "digest", "bob:x"),
        (1, "world", "anyone"),
    ]


def test_a_request_is_judged_by_the_name_it_was_sent_with(client):
    """A later identity does not apply to earlier requests, even in the same commit."""
    client.authenticate("bob:secret")
    client.create("/mine", entries=MINE)
    client.authenticate("eve:secret")
    first = client.send(CREATE, create("/eves", entries=MINE))
    client.send(AUTH, int32(0) + text("digest") + buffer(b"zoe:secret"), xid=-4)
    assert client.reply(first).error == 0
    client.reply(-4)
    entries = client.ok(GET_ACL, text("/eves")).acl()
    assert [name.partition(":")[0] for _, _, name in entries] == ["bob", "eve"]


@pytest.mark.parametrize("scheme", ["sasl", "world", "auth", "super", "x509", ""])
def test_a_scheme_that_is_not_known_fails_and_closes(client, scheme):
    last = client.send(CREATE, create("/before"))
    client.send(AUTH, int32(0) + text(scheme) + buffer(b"bob:secret"), xid=-4)
    client.send(CREATE, create("/after"))
    assert client.reply(last).error == 0
    assert client.reply(-4).error == AUTH_FAILED
    assert client.is_closed()


@pytest.mark.parametrize("body", [text("digest") + int32(-1), int32(-1) + buffer(b"bob:secret")])
def test_half_a_proof_fails_and_closes(client, body):
    client.send(AUTH, int32(0) + body, xid=-4)
    assert client.reply(-4).error == AUTH_FAILED
    assert client.is_closed()


def test_an_address_can_be_named_as_a_scheme(client):
    assert client.authenticate("", scheme="ip") == 0


def test_a_client_has_so_many_names_and_no_more(client):
    for number in range(99):
        assert client.authenticate(f"user{number}:x") == 0
    assert client.authenticate("user0:x") == 0, "one that it has already"
    assert client.authenticate("one:more") == AUTH_FAILED
    assert client.is_closed()


CREDENTIALS = ("admin:top", "broker:wet:paper")


@pytest.fixture
def guarded(world):
    world.start(credentials=CREDENTIALS)
    return world


def test_a_client_without_credentials_is_not_served(guarded):
    client = guarded.client()
    for kind, body in [
        (CREATE, create("/a")),
        (EXISTS, read("/")),
        (GET_DATA, read("/")),
        (14, b""),
    ]:
        assert client.error(kind, body) == NO_AUTH
    client.ping()
    client.close_session()


@pytest.mark.parametrize("credentials", CREDENTIALS)
def test_who_shows_credentials_is_served(guarded, credentials):
    client = guarded.client()
    assert client.authenticate(credentials) == 0
    client.create("/a", entries=((31, "digest", "x:y"),))
    assert client.ok(GET_DATA, read("/a")).buffer() == b"", "and may do anything"
    assert client.authenticate("another:name") == 0
    client.ok(SET_DATA, set_data("/a", b""))


@pytest.mark.parametrize("wrong", ["admin:", "admin:to", "admin:topp", "eve:top", "", "broker:wet"])
def test_wrong_credentials_fail_and_close(guarded, wrong):
    client = guarded.client()
    assert client.authenticate(wrong) == AUTH_FAILED
    assert client.is_closed()


def test_a_session_that_moves_must_show_credentials_again(guarded):
    client = guarded.client()
    client.authenticate(CREDENTIALS[0])
    client.create("/a", flags=1)
    again = guarded.client(session=client.key)
    assert again.session_id == client.session_id
    assert again.error(EXISTS, read("/a")) == NO_AUTH


def test_the_requests_before_authentication_are_refused_in_order(guarded):
    client = guarded.client()
    first = client.send(CREATE, create("/a"))
    client.send(AUTH, int32(0) + text("digest") + buffer(b"admin:top"), xid=-4)
    third = client.send(CREATE, create("/a"))
    assert client.reply(first).error == NO_AUTH
    assert client.reply(-4).error == 0
    assert client.reply(third).error == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_an_address_that_other_hosts_can_reach_needs_credentials_or_tls(world, host):
    with pytest.raises(StartRefused, match="other hosts"):
        ServerThread(ServerOptions(host=host, port=0)).start()
    for guard in ({"insecure": True}, {"credentials": CREDENTIALS}):
        try:
            world.start(host=host, file=None, **guard)
        except OSError:
            if ":" not in host:
                raise
            pytest.skip("this host has no IPv6")


@pytest.mark.parametrize("credentials", ["nocolon", ":x", "x:", ""])
def test_credentials_need_a_user_and_a_password(credentials):
    with pytest.raises(ValueError, match="user:password"):
        ServerOptions(credentials=(credentials,))


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def issued(authority):
    """The certificate of the server, or of a client."""
    return authority.issue("ours")


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A certificate of an authority that the server does not trust."""
    return CertificateAuthority(tmp_path_factory.mktemp("strange")).issue("strange")


def trusting(authority, certificate=None):
    """The TLS context of a client that trusts the server and presents this certificate."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    return context


def test_tls(world, authority, issued):
    world.start(tls=Tls(issued.certificate, issued.key))
    client = world.client(tls=trusting(authority))
    client.create("/a", b"x" * 100_000)
    assert client.ok(GET_DATA, read("/a")).buffer() == b"x" * 100_000
    xids = [client.send(EXISTS, read("/")) for _ in range(100)]
    assert all(client.reply(xid).error == 0 for xid in xids)
    assert word(world.address, "ruok", trusting(authority)) == "imok"
    client.close_session()


def test_a_plain_client_gets_nothing_from_a_tls_port(world, issued):
    tls = Tls(issued.certificate, issued.key)
    world.start(tls=tls, limits=Limits(handshake_s=0.5))
    with RawSocket(world.address) as plain:
        plain.send_frame(bytes(45))
        assert plain.is_closed()
    with RawSocket(world.address) as silent:
        assert silent.is_closed()


def test_a_client_must_show_a_certificate_that_the_authority_signed(
    world, authority, issued, strange
):
    world.start(tls=Tls(issued.certificate, issued.key, client_ca=authority.certificate))
    assert world.client(tls=trusting(authority, issued)).session_id
    for stranger in (None, strange):
        with RawSocket(world.address, trusting(authority, stranger)) as raw:
            raw.send_frame(bytes(45))
            with pytest.raises((ssl.SSLError, Closed)):
                raw.frame()


def test_tls_files_that_cannot_be_used_are_reported(tmp_path):
    options = ServerOptions(port=0, tls=Tls(tmp_path / "no.pem", tmp_path / "no.key"))
    with pytest.raises(StartRefused, match="TLS"):
        ServerThread(options).start()


def test_a_session_is_opened_only_after_authentication(guarded):
    before = guarded.committer().tree.zxid
    client = guarded.client()
    assert client.session_id
    client.ping()
    assert guarded.committer().tree.sessions == {}
    assert guarded.committer().tree.zxid == before
    assert client.authenticate(CREDENTIALS[0]) == 0
    assert list(guarded.committer().tree.sessions) == [client.session_id]
    client.create("/a", flags=1)
    assert guarded.client(session=client.key).session_id == client.session_id


def test_a_session_that_was_never_opened_cannot_be_resumed(guarded):
    client = guarded.client()
    assert guarded.client(session=client.key).session_id == 0


def test_a_client_must_authenticate_within_a_short_time(world):
    world.start(credentials=CREDENTIALS, limits=Limits(handshake_s=0.2))
    known = world.client()
    assert known.authenticate(CREDENTIALS[0]) == 0
    new, resumed = world.client(), world.client(session=known.key)
    assert new.is_closed()
    assert resumed.is_closed()
    again = world.client(session=known.key)
    assert again.authenticate(CREDENTIALS[0]) == 0
    again.create("/a")


def test_the_number_of_sessions_is_limited_after_authentication_too(world):
    world.start(credentials=CREDENTIALS, limits=Limits(sessions=1))
    first, second = world.client(), world.client()
    assert first.authenticate(CREDENTIALS[0]) == 0
    with pytest.raises(Closed):
        second.authenticate(CREDENTIALS[0])
