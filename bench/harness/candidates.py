"""The brokers that are compared: Hightide, Apache Kafka, and any other that is a command line."""

import base64
import os
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.broker import BrokerFailure, Launch, NotSupported, Place, Settings, free_port
from bench.harness.maven import APACHE_KAFKA, APACHE_KAFKA_TOOLS, NoMaven, jars_of

SOURCE = Path(__file__).resolve().parents[2] / "src"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"

# The options of Kafka's start script.
KAFKA_HEAP = ("-Xmx1G", "-Xms1G")
KAFKA_JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


@dataclass(frozen=True, slots=True)
class Hightide:
    """Hightide from a checkout, under the interpreter that runs the harness."""

    overrides: tuple[str, ...] = ()
    name: str = "hightide"
    source: Path = SOURCE

    @property
    def about(self) -> str:
        where = "this checkout" if self.source == SOURCE else str(self.source.parent)
        return " ".join([f"Hightide of {where}", *self.overrides])

    def alone(self, place: Place, settings: Settings) -> Launch:
        return self._broker(place, settings)

    def together(self, places: list[Place], settings: Settings) -> list[Launch]:
        beside, port = places[0].data.parent / "zookeeper", free_port()
        made = {**settings, "zookeeper.connect": f"127.0.0.1:{port}"}
        brokers = [self._broker(at, made) for at in places]
        listen = ("--listen", f"127.0.0.1:{port}", "--data", str(beside))
        # The alias, because a checkout to compare with may not have `hightide zookeeper` yet.
        return [*brokers, self._launch("coordinator", "start", *listen)]

    def _broker(self, place: Place, settings: Settings) -> Launch:
        made = {"broker.id": place.broker_id, "log.dirs": place.data, **settings}
        given = [*(f"{key}={value}" for key, value in made.items()), *self.overrides]
        more = [word for argument in given for word in ("--override", argument)]
        port = ("--host", "127.0.0.1", "--port", str(place.port))
        return self._launch("broker", "start", *port, *more)

    def _launch(self, *words: str) -> Launch:
        path = os.pathsep.join(filter(None, [str(self.source), os.environ.get("PYTHONPATH")]))
        return Launch((sys.executable, "-m", "hightide", *words), {"PYTHONPATH": path})


@dataclass(frozen=True, slots=True)
class ApacheKafka:
    """Apache Kafka in KRaft mode, heap and collector as its start script has them.

    Every node is broker and controller. Settings are Kafka's defaults but for addresses and
    directories, and for its inner topics, which one broker alone cannot replicate three times.
    """

    jars: tuple[Path, ...]
    name: str = "kafka"

    @staticmethod
    def from_maven() -> "ApacheKafka":
        """Find Kafka; raise NoMaven with the reason if that is impossible."""
        if shutil.which("java") is None:
            raise NoMaven("Java is not installed, so Apache Kafka cannot be run here.")
        return ApacheKafka(tuple({*jars_of(APACHE_KAFKA), *jars_of(APACHE_KAFKA_TOOLS)}))

    @property
    def about(self) -> str:
        java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
        return f"Apache Kafka {APACHE_KAFKA.rpartition(':')[2]}, {java.stderr.splitlines()[0]}"

    @property
    def class_path(self) -> str:
        """Return each library once: the tools have the same ones as the broker."""
        by_name = {path.name: path for path in self.jars}
        return os.pathsep.join(map(str, by_name.values()))

    def alone(self, place: Place, settings: Settings) -> Launch:
        single = {
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }
        return self._launch(place, {**single, **settings}, [place])

    def together(self, places: list[Place], settings: Settings) -> list[Launch]:
        return [self._launch(place, settings, places) for place in places]

    def tool(self, main_class: str, *arguments: str) -> list[str]:
        """Return the command line of one of Kafka's tools."""
        return ["java", "-Xmx512M", *KAFKA_JVM, "-cp", self.class_path, main_class, *arguments]

    def _launch(self, place: Place, settings: Settings, quorum: list[Place]) -> Launch:
        config = place.data.with_suffix(".properties")
        lines = self._properties(place, quorum) | dict(settings)
        java = ("java", "-cp", self.class_path)

        def format_directory() -> None:
            config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
            voters = ",".join(map(_voter, quorum))
            how = [*java, "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format"]
            how += ["--cluster-id", CLUSTER_ID, "--config", str(config)]
            how += ["--initial-controllers", voters]
            done = subprocess.run(how, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BrokerFailure(f"storage could not be formatted: {done.stderr or done.stdout}")

        start = (java[0], *KAFKA_HEAP, *KAFKA_JVM, *java[1:], "kafka.Kafka", str(config))
        return Launch(start, before=format_directory)

    def _properties(self, place: Place, quorum: list[Place]) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": str(place.broker_id),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(
                f"127.0.0.1:{at.inner_port}" for at in quorum
            ),
            "listeners": f"PLAINTEXT://127.0.0.1:{place.port},"
            f"CONTROLLER://127.0.0.1:{place.inner_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{place.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(place.data),
        }


def _voter(place: Place) -> str:
    """Return a controller with its directory id: 16 bytes in base64 without padding."""
    raw = b"hightide-bench-" + bytes([64 + place.broker_id])
    directory_id = base64.urlsafe_b64encode(raw).decode()[:22]
    return f"{place.broker_id}@127.0.0.1:{place.inner_port}:{directory_id}"


def parse(text: str) -> "Hightide | CommandLine":
    """Read `NAME=checkout:DIRECTORY` or `NAME='COMMAND'`.

    Raises ArgumentTypeError with what was expected, which argparse prints.
    """
    name, _, what = (part.strip() for part in text.partition("="))
    if name and what.startswith("checkout:"):
        source = Path(what.removeprefix("checkout:")).resolve() / "src"
        if not (source / "hightide").is_dir():
            raise ArgumentTypeError(f"{text!r}: there is no {source / 'hightide'}")
        return Hightide(name=name, source=source)
    if name and "{port}" in what:
        return CommandLine(name, what)
    raise ArgumentTypeError(
        f"{text!r} is neither NAME=checkout:DIRECTORY nor NAME='COMMAND' with {{port}} in it"
    )


HARMLESS = {"log.segment.delete.delay.ms"}
"""Settings of the harness that a foreign broker may go without."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Any broker that can be started by one command; `{id}`, `{port}` and `{data}` are put in."""

    name: str
    command: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def about(self) -> str:
        return self.command

    def alone(self, place: Place, settings: Settings) -> Launch:
        if settings.keys() - HARMLESS:
            raise NotSupported("takes no settings")
        command = self.command
        marks = {"{id}": place.broker_id, "{port}": place.port, "{data}": place.data}
        for mark, value in marks.items():
            command = command.replace(mark, shlex.quote(str(value)))
        return Launch(tuple(shlex.split(command)), self.environment)

    def together(self, places: list[Place], settings: Settings) -> list[Launch]:  # noqa: ARG002
        raise NotSupported("is one broker only")
