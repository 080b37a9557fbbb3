"""The client at a server that requires credentials or TLS."""

from __future__ import annotations

import asyncio
import ssl
import time

import pytest

from hightide.zookeeper.client import ClientTls, ZooKeeperClient
from hightide.zookeeper.interface import SessionState
from hightide.zookeeper.zookeeper_errors import AuthFailed, NoAuth, NotConnected
from tests.support.certificates import CertificateAuthority
from tests.support.proxy import Proxy
from tests.zookeeper import servers
from tests.zookeeper.client_world import States, scenario, session

CREDENTIALS = "broker:tide pool"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """NAME.pem, .crt and .key: authority, certificate and key of this host and of another name."""
    folder = tmp_path_factory.mktemp("tls")
    CertificateAuthority(folder, "ours").issue("ours", "127.0.0.1")
    CertificateAuthority(folder, "other").issue("other", "other.invalid")
    return folder


@pytest.fixture
def start(tmp_path):
    """Start an embedded server with these options."""
    running = []

    def started(*arguments):
        server = servers.Embedded(tmp_path, *map(str, arguments))
        server.start()
        running.append(server)
        return server

    yield started
    for server in running:
        server.kill()


@pytest.fixture
def guarded(start, tmp_path):
    file = tmp_path / "credentials"
    file.write_text(f"{CREDENTIALS}\n")
    file.chmod(0o600)
    return start("--credentials", file)


@scenario
async def test_one_who_is_known_is_served_also_after_reconnecting(guarded):
    proxy = Proxy(guarded.hosts)
    try:
        async with session(f"{proxy.hosts}/kafka", credentials=CREDENTIALS) as client:
            states = States(client)
            await client.create("/a", b"1")
            proxy.cut()
            await states.until(SessionState.SUSPENDED, SessionState.CONNECTED)
            assert (await client.get("/a"))[0] == b"1"
    finally:
        proxy.close()


@scenario
async def test_wrong_credentials_are_refused_at_once_and_in_words(guarded):
    started = time.monotonic()
    with pytest.raises(AuthFailed, match=guarded.hosts):
        await ZooKeeperClient.connect(guarded.hosts, credentials="broker:wrong")
    assert time.monotonic() - started < 5


@scenario
async def test_no_credentials_are_refused_at_once(guarded):
    with pytest.raises(NoAuth):
        await ZooKeeperClient.connect(guarded.hosts)


@scenario
async def test_a_password_is_not_logged(guarded, caplog):
    with caplog.at_level(1):
        async with session(guarded.hosts, credentials=CREDENTIALS) as client:
            await client.create("/a", b"data of mine")
        with pytest.raises(AuthFailed):
            await ZooKeeperClient.connect(guarded.hosts, credentials="broker:other secret")
    for secret in ("tide pool", "other secret", "data of mine"):
        assert secret not in caplog.text


@scenario
async def test_credentials_that_are_refused_later_end_the_session_and_are_tried_again(
    guarded, tmp_path
):
    async with session(guarded.hosts, credentials=CREDENTIALS) as client:
        states = States(client)
        (tmp_path / "credentials").write_text("other:user\n")
        await asyncio.to_thread(guarded.restart)
        await states.until(SessionState.CONNECTED, SessionState.LOST)
        (tmp_path / "credentials").write_text(f"{CREDENTIALS}\n")
        await asyncio.to_thread(guarded.restart)
        async with asyncio.timeout(20):
            while True:
                try:
                    await client.connected(20_000)
                    await client.exists("/")
                    break
                except (AuthFailed, NotConnected):
                    await asyncio.sleep(0.05)


@scenario
async def test_tls_serves(start, certificates):
    server = start("--tls-cert", certificates / "ours.crt", "--tls-key", certificates / "ours.key")
    tls = ClientTls(ca=str(certificates / "ours.pem"))
    async with session(f"{server.hosts}/kafka", tls=tls) as client:
        await client.create("/a", b"x" * 500_000)
        assert len((await client.get("/a"))[0]) == 500_000
        answers = await asyncio.gather(*(client.exists("/a") for _ in range(500)))
        assert len(answers) == 500


@scenario
async def test_answers_that_came_in_one_piece_of_tls_are_all_read_at_once(embedded, certificates):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "ours.crt", certificates / "ours.key")
    proxy = Proxy(embedded.server.hosts, context)
    try:
        tls = ClientTls(ca=str(certificates / "ours.pem"))
        async with session(proxy.hosts, tls=tls, session_timeout_ms=30_000) as client:
            proxy.hold_responses()
            calls = [asyncio.create_task(client.exists("/")) for _ in range(50)]
            await asyncio.sleep(0.3)
            started = time.monotonic()
            proxy.heal()
            await asyncio.gather(*calls)
            assert time.monotonic() - started < 5, "they waited for the next ping"
    finally:
        proxy.close()


@scenario
async def test_tls_shows_a_certificate_where_one_is_wanted(start, certificates):
    server = start(
        *("--tls-cert", certificates / "ours.crt", "--tls-key", certificates / "ours.key"),
        *("--tls-client-ca", certificates / "other.pem"),
    )
    ca = str(certificates / "ours.pem")
    ours = ClientTls(ca, str(certificates / "other.crt"), str(certificates / "other.key"))
    async with session(server.hosts, tls=ours) as client:
        assert await client.exists("/") is not None
    with pytest.raises(NotConnected):
        await ZooKeeperClient.connect(server.hosts, tls=ClientTls(ca), connection_timeout_ms=1000)


@scenario
async def test_tls_trusts_neither_a_stranger_nor_one_with_another_name(start, certificates):
    server = start(
        "--tls-cert", certificates / "other.crt", "--tls-key", certificates / "other.key"
    )
    other = str(certificates / "other.pem")
    for tls in (ClientTls(ca=str(certificates / "ours.pem")), ClientTls(ca=other)):
        with pytest.raises(NotConnected, match="CERTIFICATE_VERIFY_FAILED"):
            await ZooKeeperClient.connect(server.hosts, tls=tls, connection_timeout_ms=1000)
    async with session(server.hosts, tls=ClientTls(ca=other, check_hostname=False)) as client:
        assert await client.exists("/") is not None
