"""A real Apache Kafka, one node in KRaft mode, from its own jars.

Maven downloads and keeps the jars; without Maven or a network, `NoKafka` says so. The node has four
listeners: plaintext, SASL, TLS, and both. As a program it prints its listeners and runs until it is
stopped:

    python -m tests.spark.apache [PORT]
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness.maven import APACHE_KAFKA, NoMaven, jars_of
from tests.support.certificates import CertificateAuthority

USER, PASSWORD = "alice", "wonder; land = 'x'"
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL", "CONTROLLER")
START_S = 120


class NoKafka(Exception):
    """Apache Kafka cannot be run here; the text says why."""


class Kafka:
    """One node, which runs during the `with` block."""

    def __init__(self, port: int | None = None, heap: str = "512m") -> None:
        self._ports = {
            name: free_port() if port is None else port + at for at, name in enumerate(LISTENERS)
        }
        self._heap = heap
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, listener: str = "PLAINTEXT") -> str:
        return f"localhost:{self._ports[listener]}"

    @property
    def bootstrap(self) -> str:
        """The `bootstrap.servers` of a client."""
        return self.address()

    @property
    def authority(self) -> Path:
        """The certificate of the authority that issued the node's and the client's."""
        return self._folder / "ca.pem"

    @property
    def client_store(self) -> Path:
        """Key and certificate of a client, as a PEM key store."""
        return self._folder / "client-both.pem"

    def __enter__(self) -> Kafka:
        self._folder = Path(tempfile.mkdtemp(prefix="hightide-kafka-"))
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        jars = classpath()
        certificates(self._folder)
        config = self._folder / "server.properties"
        config.write_text(self._properties())
        java = ["java", f"-Xmx{self._heap}", "-XX:+UseSerialGC", "-cp", jars]
        users = [
            f"--add-scram={mechanism}=[name={USER},iterations=4096,password={PASSWORD}]"
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        ]
        format_it = [*java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg"]
        format_it += ["--standalone", "-c", str(config), *users]
        done = subprocess.run(format_it, check=False, capture_output=True, text=True)
        if done.returncode:
            raise NoKafka(f"Kafka's storage could not be formatted: {done.stderr or done.stdout}")
        with (self._folder / "kafka.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(config)], stdout=log, stderr=log, cwd=self._folder
            )
        self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("localhost", self._ports["PLAINTEXT"]), 1).close()
                return
            except OSError:
                time.sleep(0.2)
        raise NoKafka(f"Kafka did not start: {(self._folder / 'kafka.log').read_text()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _properties(self) -> str:
        plain = (
            f'username="{USER}" password="{escaped(PASSWORD)}" user_{USER}="{escaped(PASSWORD)}"'
        )
        module = "org.apache.kafka.common.security"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"localhost:{self._ports['CONTROLLER']}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": ",".join(f"{name}://localhost:{self._ports[name]}" for name in LISTENERS),
            "advertised.listeners": ",".join(
                f"{name}://localhost:{self._ports[name]}" for name in LISTENERS[:-1]
            ),
            "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in LISTENERS[:-1])
            + ",CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._folder / "data"),
            "num.partitions": "1",
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._folder / "server-both.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "ssl.client.auth": "requested",
        }
        for name in ("sasl_plaintext", "sasl_ssl"):
            lines[f"listener.name.{name}.plain.sasl.jaas.config"] = (
                f"{module}.plain.PlainLoginModule required {plain};"
            )
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                lines[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = (
                    f"{module}.scram.ScramLoginModule required;"
                )
        return "".join(
            f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in lines.items()
        )


def escaped(text: str) -> str:
    """Escape a text for a quoted JAAS option."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def classpath() -> str:
    """Return Kafka's jars; Maven downloads them if they are missing."""
    if shutil.which("java") is None:
        raise NoKafka("java is not installed, so Apache Kafka cannot be run here.")
    try:
        return ":".join(map(str, jars_of(APACHE_KAFKA)))
    except NoMaven as error:
        raise NoKafka(f"{error} So Apache Kafka cannot be run here.") from error


def certificates(folder: Path) -> None:
    """Write the authority, and PEM key stores for localhost and for a client."""
    authority = CertificateAuthority(folder)
    for name in ("server", "client"):
        authority.issue(name)


def main() -> None:
    with Kafka(int(sys.argv[1]) if len(sys.argv) > 1 else None) as kafka:
        for listener in LISTENERS[:-1]:
            print(f"{listener}: {kafka.address(listener)}")
        print(
            f"authority: {kafka.authority}", f"client: {kafka.client_store}", sep="\n", flush=True
        )
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    main()
