"""What a new broker leaves open: addresses, files, arguments and redirects."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import create_server, socket

import pytest

from hightide.broker.membership.identity import StartupRefused, known_identity
from hightide.cli import up
from hightide.log.disk import MemoryDisk, RealDisk
from hightide.settings import Broker, InvalidSetting, load_broker
from hightide.settings.secrets import is_secret
from hightide.spark.formats import confluent
from hightide.spark.formats.avro_format import AvroSchema
from hightide.spark.pipelines import logs, status
from hightide.testing import Cluster
from hightide.zookeeper.store import Store


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_listeners_without_a_host_serve_this_host_only() -> None:
    for settings in (Broker(), Broker(listeners="PLAINTEXT://:9092")):
        assert [str(at) for at in settings.listening()] == ["PLAINTEXT://127.0.0.1:9092"]
    (line,) = Broker(listeners="PLAINTEXT://:9092").narrowed()
    assert "PLAINTEXT://0.0.0.0:9092 serves all addresses" in line
    assert not list(Broker().narrowed())
    assert Broker(listeners="PLAINTEXT://0.0.0.0:1").listening()[0].host == "0.0.0.0"


@pytest.mark.usefixtures("open_umask")
def test_a_log_directory_and_its_files_are_private(tmp_path) -> None:
    disk = RealDisk(tmp_path / "data")
    disk.make_directory("t-0")
    disk.create("t-0/0.log")
    disk.replace("meta.properties", b"x")
    assert disk.lock()
    disk.unlock()
    for path in (tmp_path / "data").rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert mode(tmp_path / "data") == 0o700


@pytest.mark.usefixtures("open_umask")
def test_the_folder_of_an_app_is_private(tmp_path) -> None:
    """Spark's checkpoints are in it, with the values of records."""
    logs.settings(tmp_path / "settings")
    logs.keep(tmp_path / "errors", "x")
    assert mode(tmp_path / "settings") == mode(tmp_path / "errors") == 0o700
    with status.app_lock(tmp_path / "app", "app"):
        assert mode(tmp_path / "app") == 0o700
        assert mode(tmp_path / "app" / status.LOCK_FILE) == 0o600


@pytest.mark.usefixtures("open_umask")
def test_the_database_of_zookeeper_is_private_and_an_open_one_is_closed(tmp_path, caplog) -> None:
    file = tmp_path / "new" / "zookeeper.db"
    Store(file).close()
    assert (mode(file.parent), mode(file)) == (0o700, 0o600)
    file.chmod(0o644)
    file.parent.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        store = Store(file)
    for path in file.parent.iterdir():
        assert mode(path) == 0o600, path
    store.close()
    assert "chmod 700" in caplog.text
    assert "mode 644" in caplog.text


@pytest.mark.parametrize("text", ["version=2\n", "version=x\n", ""])
def test_meta_properties_of_an_unknown_version_are_refused(text) -> None:
    disk = MemoryDisk()
    disk.replace("meta.properties", f"{text}broker.id=1\ncluster.id=c\n".encode())
    with pytest.raises(StartupRefused, match=r"meta.properties has .*version.*this broker knows"):
        known_identity([disk])


def test_a_secret_in_arguments_is_refused_without_showing_it(capsys) -> None:
    option = "zookeeper.credentials=u:hush"
    with pytest.raises(InvalidSetting, match="KAFKA_ZOOKEEPER_CREDENTIALS") as refused:
        load_broker(None, {}, [option])
    assert "hush" not in str(refused.value)
    with pytest.raises(SystemExit):
        up.parse(["--override", option])
    shown = capsys.readouterr().err
    assert "KAFKA_ZOOKEEPER_CREDENTIALS" in shown
    assert "hush" not in shown
    given = load_broker(None, {"KAFKA_ZOOKEEPER_CREDENTIALS": "u:hush"}, [])
    assert given.zookeeper_credentials == "u:hush"


def test_up_says_when_other_hosts_are_served() -> None:
    assert all(map(up.serves_this_host_only, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(up.serves_this_host_only, ("0.0.0.0", "::", "10.0.0.1", "host")))


def test_a_test_cluster_passes_secrets_by_the_environment(tmp_path) -> None:
    cluster = Cluster(settings={"zookeeper.credentials": "u:hush"})
    cluster._folder = tmp_path
    assert "hush" not in " ".join(cluster._arguments(1, 9092))
    assert cluster._variables(1) == {"KAFKA_ZOOKEEPER_CREDENTIALS": "u:hush"}


def test_names_of_secrets_are_known() -> None:
    assert all(map(is_secret, ("sasl.password", "ssl.key.password", "sasl.jaas.config")))
    assertion = "sasl.oauthbearer.assertion.private.key"
    assert all(map(is_secret, (f"{assertion}.pem", f"{assertion}.passphrase")))
    assert is_secret("delegation.token.secret.key")
    assert not any(map(is_secret, ("broker.id", "sasl.oauthbearer.token.endpoint.url")))


@pytest.mark.parametrize("text", ["hush", ":hush", "hush:"])
def test_credentials_without_user_or_password_are_refused_without_showing_them(text) -> None:
    with pytest.raises(InvalidSetting, match="must be user:password") as refused:
        load_broker(None, {"KAFKA_ZOOKEEPER_CREDENTIALS": text}, [])
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://h/", "h:80", "http://"])
def test_a_registry_is_asked_over_http_only(url) -> None:
    with pytest.raises(ValueError, match="http://host or https://host"):
        confluent.Registry(url)


@pytest.mark.parametrize("url", ["http://u:hush/x@h", "http://u:1/hush@h", "http://u:hush#@h"])
def test_a_password_that_is_not_encoded_is_refused_without_showing_it(url) -> None:
    with pytest.raises(ValueError, match="percent-encode") as refused:
        confluent.Registry(url)
    assert "hush" not in str(refused.value)


def test_the_password_of_a_registry_is_in_no_text() -> None:
    registry = confluent.Registry("http://u:hush@127.0.0.1:1")
    schema = AvroSchema('"int"', registry.url)
    assert "hush" not in f"{registry} {registry!r} {schema} {schema!r}"


def registry_that_sends(*parts: bytes, pause_s: float = 0.0) -> tuple[confluent.Registry, socket]:
    """Return a registry whose server sends these parts to each client, and its socket."""
    server = create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    for part in parts:
                        connection.sendall(part)
                        time.sleep(pause_s)

    threading.Thread(target=serve, daemon=True).start()
    return confluent.Registry(f"http://127.0.0.1:{server.getsockname()[1]}"), server


OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"SSH-2.0-x\r\n",
        OK % 9 + b"{",
        OK % 200_000 + b"[" * 200_000,
        OK % (1 << 20) + b"x" * (1 << 20),
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000,
    ],
)
def test_a_registry_that_talks_nonsense_is_unreachable(monkeypatch, response) -> None:
    monkeypatch.setattr(confluent, "TRIES", 1)
    monkeypatch.setattr(confluent, "RESPONSE_BYTES", 500_000)
    registry, server = registry_that_sends(response)
    with server, pytest.raises(confluent.RegistryUnreachable, match="did not return /schemas"):
        registry.schema(1)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", OK % 10_000])
def test_a_registry_that_sends_byte_by_byte_is_given_up(monkeypatch, head) -> None:
    monkeypatch.setattr(confluent, "TRIES", 1)
    monkeypatch.setattr(confluent, "TIMEOUT_S", 0.5)
    registry, server = registry_that_sends(head, *[b"x"] * 30, pause_s=0.1)
    before_s = time.monotonic()
    with server, pytest.raises(confluent.RegistryUnreachable, match=r"within 0\.5 s"):
        registry.schema(1)
    assert time.monotonic() - before_s < 10


def test_a_registry_that_redirects_elsewhere_does_not_pass_on_the_password(monkeypatch) -> None:
    monkeypatch.setattr(confluent, "TRIES", 1)
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.connection.getsockname()[1], self.headers.get("Authorization")))
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{other.server_port}/schemas/ids/1")
            self.end_headers()

        def log_message(self, *_) -> None:
            pass

    first, other = (HTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
    for server in (first, other):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        registry = confluent.Registry(f"http://u:p@127.0.0.1:{first.server_port}")
        with pytest.raises(confluent.RegistryUnreachable, match="redirects to"):
            registry.schema(1)
    finally:
        for server in (first, other):
            server.shutdown()
            server.server_close()
    assert {port for port, _ in seen} == {first.server_port}
