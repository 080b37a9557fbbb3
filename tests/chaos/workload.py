"""The clients of a chaos run, their supervisor, and the notes of the faults.

    workload = Workload(bootstrap, folder, seed=7, rate=2000)
    workload.create_topics()
    workload.start()
    workload.wait_for_acks()
    with workload.fault("kill leader", broker=2):
        ...                                  # harm, hold and heal; raise if it does not heal
    workload.drain()                         # every send answered, every reader at the end
    findings = check(workload.folder)
    Report(findings).write(path)

Clients are processes: writers, readers and copiers of confluent-kafka, aiokafka and kafka-python,
and members of a group. A client that dies is started again under a new name. The folder is the
history (`history.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tests.chaos.clients import java
from tests.chaos.clients.job import PROBER, Job
from tests.chaos.history import END_MARKER, NEMESIS, Payload, Recorder, encode, parsed

CONFLUENT, AIO, KAFKA_PYTHON, JAVA = "confluent-kafka", "aiokafka", "kafka-python", "java"
CLIENTS = (CONFLUENT, AIO, KAFKA_PYTHON)
COPIERS = (CONFLUENT, AIO)
# librdkafka carries most of the load: it costs the least of the machine.
SHARES = {CONFLUENT: 6.0, AIO: 1.0, KAFKA_PYTHON: 1.0, JAVA: 2.0}
ROOT = Path(__file__).parents[2]
STILL_S = 30.0
"""After this time without faults a client of librdkafka that has not come to its end is restarted.

librdkafka 2.16 can stop for good when brokers are killed: its main thread and a broker's thread
wait for each other's lock (`rd_kafka_toppar_handle_OffsetForLeaderEpoch` and
`rd_kafka_broker_fail`), or a consumer does not connect to a leader any more.  Other clients have to
come to their ends by themselves."""


class Tail:
    """Follows the histories of running clients: acknowledgements and ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, BinaryIO] = {}
        self._torn: dict[Path, bytes] = defaultdict(bytes)
        self.begun: dict[tuple[str, str], int] = defaultdict(int)
        """For each writer and partition, how many records it has begun to send."""
        self.acked: dict[tuple[str, str], int] = defaultdict(int)
        """The end of the acknowledged numbers."""
        self.acknowledged = 0
        self.committed: dict[str, int] = defaultdict(int)
        """Transactions, by process."""
        self.ends: set[tuple[str, str]] = set()
        """Group or reader, and the partition whose end it has met."""

    def follow(self) -> None:
        """Read what was added."""
        for path in self._folder.glob("*.jsonl"):
            if path not in self._files:
                self._files[path] = path.open("rb")
        for path, file in self._files.items():
            data = self._torn[path] + file.read()
            *lines, self._torn[path] = data.split(b"\n")
            for line in lines:
                if b'"f":"send"' in line or b'"f":"end"' in line or b'"f":"commit"' in line:
                    self._take(line)

    def _take(self, line: bytes) -> None:
        operation = parsed(line)
        if operation is None:
            return
        process, kind, f, value, *_ = operation
        if f == "end":
            self.ends.add((process.rpartition(".")[0], value[0]))
        elif f == "commit":
            self.committed[process.rpartition(".")[0]] += kind == "ok"
        elif kind == "invoke":
            self.begun[process, value[0]] = value[2]
        elif kind == "ok":
            self.acknowledged += sum(run[1] for run in value[1])
            last = value[1][-1]
            self.acked[process, value[0]] = max(self.acked[process, value[0]], last[0] + last[1])

    def close(self) -> None:
        for file in self._files.values():
            file.close()


@dataclass(slots=True)
class Client:
    """A client that is started again when it dies."""

    job: dict[str, Any]
    name: str
    process: subprocess.Popen[str] | None = None
    starts: int = 0
    is_expected_to_end: bool = False
    ends: set[str] = field(default_factory=set)
    """The partitions whose end it must meet."""

    @property
    def role(self) -> str:
        return str(self.job["role"])

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Workload:
    """Starts, supervises, drains and stops the clients of one run.

    `prefix` is put before every command, as in ("ip", "netns", "exec", "clients"). `clients` and
    `copiers` choose from confluent-kafka, aiokafka, kafka-python (which does not copy) and java,
    for which `java.missing()` says why it cannot run here. `rate` is the number of records that
    all writers send in a second. `compacted` adds a topic with keys that is compacted.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *,
        seed: int = 0,
        rate: float = 1500.0,
        partitions: int = 4,
        clients: Iterable[str] = CLIENTS,
        copiers: Iterable[str] = COPIERS,
        members: int = 2,
        compacted: bool = False,
        topic: str = "chaos",
        durable: bool = True,
        idempotent: bool = True,
        answer_ms: int = 3000,
        patience_ms: int = 120_000,
        prefix: Iterable[str] = (),
    ) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.partitions = partitions
        self.topic = topic
        self.orders = f"{topic}-orders"
        """The source of the copiers."""
        self.keyed = f"{topic}-keyed" if compacted else ""
        self.copies = {client: f"{topic}-copies-{client}" for client in copiers}
        self._prefix = tuple(prefix)
        self._shared = {
            "bootstrap": bootstrap,
            "folder": str(folder),
            "partitions": partitions,
            "answer_ms": answer_ms,
            "patience_ms": patience_ms,
        }
        self._writes = {"durable": durable, "idempotent": idempotent}
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._is_stopped = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._leaders = threading.Thread(target=self._watch_leaders, daemon=True)
        self._markers = itertools.count()
        self.stood_still: list[str] = []
        """Clients of librdkafka that were restarted at the end, because they stood still."""
        self._faults = itertools.count(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.nemesis = Recorder(folder, NEMESIS)
        self.tail = Tail(folder)
        self.rate = rate
        self._shares: dict[str, float] = {}
        self.clients = self._planned(tuple(clients), members)

    def _planned(self, names: tuple[str, ...], members: int) -> list[Client]:
        found: list[Client] = []
        job: dict[str, Any]
        compressions = ("none", "lz4", "zstd", "gzip")
        total = sum(SHARES[name] for name in names) + bool(self.copies) + bool(self.keyed)
        everywhere = {f"{self.topic}-{index}" for index in range(self.partitions)}
        for name in names:
            codec = self._random.choice(compressions) if name == CONFLUENT else "none"
            job = {"topic": self.topic, "compression": codec, **self._writes}
            found.append(self._client("writer", name, **job))
            self._shares[found[-1].name] = SHARES[name] / total
            found.append(self._client("reader", name, topic=self.topic, ends=everywhere))
        probed = {topic: "" for topic in self.topics if topic not in self.copies.values()}
        found.append(self._client("writer", PROBER, topics=probed, idempotent=False))
        if self.copies:
            found.append(self._client("writer", CONFLUENT, "orders", topic=self.orders))
            self._shares[found[-1].name] = 1 / total
        if self.keyed:
            found.append(self._client("writer", CONFLUENT, "keyed", topic=self.keyed, keys=20))
            self._shares[found[-1].name] = 1 / total
        for number in range(members):
            group = f"{self.topic}-group"
            job = {"topic": self.topic, "group": group, "ends": everywhere}
            found.append(self._client("member", CONFLUENT, f"{number + 1}", **job))
        for name, target in self.copies.items():
            ends = {f"{self.orders}-{index}" for index in range(self.partitions)}
            job = {"topic": self.orders, "target": target, "group": f"{target}-group"}
            job["transactional_id"] = f"{target}-id"
            found.append(self._client("copier", name, ends=ends, **job))
            ends = {f"{target}-{index}" for index in range(self.partitions)}
            job = {"topic": target, "isolation": "read_committed"}
            found.append(self._client("reader", CONFLUENT, f"of-{target}", ends=ends, **job))
        return found

    def _client(
        self, role: str, client: str, suffix: str = "", *, ends: Iterable[str] = (), **job: Any
    ) -> Client:
        name = "-".join(part for part in (client, role, suffix) if part)
        return Client({"role": role, "client": client, **self._shared, **job}, name, ends={*ends})

    # -- topics ----------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, str]:
        """Every topic, and the isolation level at which it is read."""
        found = {self.topic: "read_uncommitted"}
        if self.keyed:
            found[self.keyed] = "read_uncommitted"
        if self.copies:
            found[self.orders] = "read_uncommitted"
        return found | dict.fromkeys(self.copies.values(), "read_committed")

    def create_topics(
        self, replicas: int = 3, config: Mapping[str, str] | None = None, limit_s: float = 60.0
    ) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        shared = {"min.insync.replicas": str(min(2, replicas)), **(config or {})}
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline_s = time.monotonic() + limit_s
        for name in self.topics:
            given = shared | (compacted if name == self.keyed else {})
            wanted = NewTopic(name, self.partitions, replicas, config=given)
            while True:
                try:
                    admin.create_topics([wanted])[name].result(limit_s)
                    break
                except KafkaException as error:
                    if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                        break
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.2)

    # -- clients ---------------------------------------------------------------------------

    def start(self) -> None:
        for client in self.clients:
            self._launch(client)
        self._supervisor.start()
        self._leaders.start()

    def _watch_leaders(self) -> None:
        """Note every new leader that a broker knows, for the picture of the report."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

        settings: Any = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        settings |= {"socket.timeout.ms": 2000, "reconnect.backoff.max.ms": 500}
        admin = AdminClient(settings)
        known: dict[str, int] = {}
        while not self._is_stopped.wait(0.5):
            try:
                topics = admin.list_topics(timeout=2).topics
            except KafkaException:
                continue
            found = {
                f"{topic}-{index}": partition.leader
                for topic in self.topics
                if topic in topics
                for index, partition in topics[topic].partitions.items()
            }
            if new := {name: at for name, at in found.items() if known.get(name) != at}:
                known |= new
                self.nemesis.note("info", "leaders", new)

    def _launch(self, client: Client) -> None:
        client.starts += 1
        process = f"{client.name}.{client.starts}"
        job = {**client.job, "process": process}
        if client.name in self._shares:
            job["rate"] = self.rate * self._shares[client.name]
        whole = asdict(Job(**job))  # raises for a setting that does not exist
        if job["client"] == JAVA:
            command = [*java.command(), *java.arguments(whole)]
        else:
            command = [sys.executable, "-m", "tests.chaos.clients", json.dumps(job)]
        errors = (self.folder / f"{process}.stderr").open("ab")
        with errors:
            client.process = subprocess.Popen(
                [*self._prefix, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
                text=True,
            )

    def _supervise(self) -> None:
        while not self._is_stopped.wait(0.1):
            with self._lock:
                self.tail.follow()
                for client in self.clients:
                    if client.process is None or client.is_running or client.is_expected_to_end:
                        continue
                    client.process.stdin.close()
                    code = client.process.returncode
                    value = {"client": f"{client.name}.{client.starts}", "code": code}
                    self.nemesis.note("info", "client-ended", value)
                    self._launch(client)

    def _tell(self, client: Client, command: str) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            client.process.stdin.write(command + "\n")
            client.process.stdin.flush()

    def set_rate(self, rate: float) -> None:
        """Let all writers together send so many records in a second from now on."""
        with self._lock:
            self.rate = rate
            for client in self.clients:
                if client.name in self._shares:
                    self._tell(client, f"rate {rate * self._shares[client.name]}")

    def kill_client(self, role: str = "member") -> str:
        """Kill a client of this role, which its supervisor starts again; return its name."""
        with self._lock:
            running = [found for found in self.clients if found.role == role and found.is_running]
            if not running:
                return ""
            client = self._random.choice(running)
            client.process.kill()
            return client.name

    # -- faults ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def fault(self, name: str, **details: object) -> Iterator[dict[str, object]]:
        """Note a fault: the block harms, holds and heals.

        The fault ends where the block calls `healed`, or else at the end of the block. An error
        that leaves the block means that the cluster did not heal by itself.

            with workload.fault("kill", broker=2) as fault:
                ...
                workload.healed(fault)        # from here on, the cluster can recover
                workload.wait_for_acks()
        """
        value = {"id": next(self._faults), **details}
        self.nemesis.note("invoke", name, value)
        noted: dict[str, object] = {"name": name, "value": value}
        try:
            yield noted
        except BaseException as error:
            self.nemesis.note("info", name, value, repr(error))
            raise
        self.nemesis.note("ok", name, value, t_ns=int(str(noted.get("t_ns", 0))))

    def healed(self, fault: dict[str, object]) -> None:
        """The harm is undone now; what follows in the block waits for the recovery."""
        fault["t_ns"] = time.monotonic_ns()

    # -- waiting ---------------------------------------------------------------------------

    def wait_for_acks(self, limit_s: float = 60.0, topics: Iterable[str] = ()) -> float:
        """Wait until each partition acknowledged a send that began from now on; return seconds."""
        began_s = time.monotonic()
        with self._lock:
            self.tail.follow()
            before = dict(self.tail.begun)
        wanted = {
            f"{topic}-{index}"
            for topic in topics or (self.topic, *([self.orders] if self.copies else []))
            for index in range(self.partitions)
        }
        while True:
            with self._lock:
                self.tail.follow()
                acked = {
                    partition
                    for (writer, partition), end in self.tail.acked.items()
                    if end > before.get((writer, partition), 0)
                }
            if wanted <= acked:
                return time.monotonic() - began_s
            if time.monotonic() > began_s + limit_s:
                missing = sorted(wanted - acked)
                raise TimeoutError(f"no acknowledgements in {missing} for {limit_s:.0f} s")
            time.sleep(0.02)

    def wait_for_commits(self, limit_s: float = 60.0) -> float:
        """Wait until each copier has committed a transaction from now on; return seconds."""
        began_s = time.monotonic()
        names = [client.name for client in self.clients if client.role == "copier"]
        with self._lock:
            self.tail.follow()
            before = {name: self.tail.committed[name] for name in names}
        while True:
            with self._lock:
                self.tail.follow()
                late = [name for name in names if self.tail.committed[name] <= before[name]]
            if not late:
                return time.monotonic() - began_s
            if time.monotonic() > began_s + limit_s:
                raise TimeoutError(f"no transactions of {late} for {limit_s:.0f} s")
            time.sleep(0.02)

    # -- the end ---------------------------------------------------------------------------

    def drain(self, limit_s: float = 120.0) -> list[str]:
        """Let the writers finish, everything be read and copied, and read all logs once more.

        Call it when the cluster has healed.  It stops all clients.  It returns what did not come to
        its end within the limit; the history notes that, and the checker reports it.
        """
        deadline_s = time.monotonic() + limit_s
        self.nemesis.note("info", "drain", None)
        misses = self._finish("writer", deadline_s)
        plain = [topic for topic, level in self.topics.items() if level == "read_uncommitted"]
        misses += self._mark_ends(plain, deadline_s)
        everyone = [client for client in self.clients if client.role != "writer"]
        copies = [client for client in everyone if client.job["topic"] in self.copies.values()]
        misses += self._wait_for_ends([c for c in everyone if c not in copies], deadline_s)
        misses += self._finish("copier", deadline_s)
        misses += self._mark_ends(self.copies.values(), deadline_s)
        misses += self._wait_for_ends(copies, deadline_s)
        for role in ("reader", "member"):
            misses += self._finish(role, time.monotonic() + 10)
        misses += self._read_all(max(deadline_s, time.monotonic() + 60))
        for miss in misses:
            self.nemesis.note("info", "missed", miss)
        self.stop()
        return misses

    def _finish(self, role: str, deadline_s: float) -> list[str]:
        clients = [client for client in self.clients if client.role == role]
        with self._lock:
            for client in clients:
                client.is_expected_to_end = True
                if client.process is not None:
                    self._tell(client, "finish")
        misses = []
        for client in clients:
            while client.is_running and time.monotonic() < deadline_s:
                time.sleep(0.02)
            if client.is_running:
                misses.append(f"{client.name} did not finish")
                client.process.kill()
        return misses

    def _mark_ends(self, topics: Iterable[str], deadline_s: float) -> list[str]:
        """Write the last record of each partition."""
        from confluent_kafka import Producer

        number = next(self._markers)
        missing = {(topic, index) for topic in topics for index in range(self.partitions)}
        settings = {"bootstrap.servers": self.bootstrap, "log_level": 0, "acks": "all"}
        settings |= {"enable.idempotence": True, "retry.backoff.max.ms": 250}
        patience_ms = max(1000, int((deadline_s - time.monotonic()) * 1000))
        producer = Producer({**settings, "message.timeout.ms": patience_ms})
        for topic, index in sorted(missing):
            value = encode(Payload(END_MARKER, f"{topic}-{index}", number))
            key = END_MARKER.encode() if topic == self.keyed else None

            def delivered(error: Any, _: Any, where: tuple[str, int] = (topic, index)) -> None:
                if error is None:
                    missing.discard(where)

            producer.produce(topic, value, key, partition=index, on_delivery=delivered)
        producer.flush(patience_ms / 1000 + 1)
        return [f"{topic}-{index} does not take its last record" for topic, index in missing]

    def _wait_for_ends(self, clients: list[Client], deadline_s: float) -> list[str]:
        """Wait until each reader, group and copier has met the ends of its partitions."""
        restart_s = time.monotonic() + STILL_S
        while True:
            late = self._late(clients)
            if not late:
                return []
            if time.monotonic() > restart_s:
                restart_s = deadline_s
                self._restart_still([client for client in clients if client.name in late])
            if time.monotonic() > deadline_s:
                return sorted(set(late.values()))
            time.sleep(0.05)

    def _late(self, clients: list[Client]) -> dict[str, str]:
        """Return the clients that have not met their ends, and which."""
        with self._lock:
            self.tail.follow()
            met = defaultdict(set)
            for name, partition in self.tail.ends:
                met[name].add(partition)
        # The members of a group meet its ends together.
        groups = defaultdict(set)
        for client in clients:
            groups[client.job.get("group") or client.name] |= met[client.name]
        late = {}
        for client in clients:
            group = client.job.get("group") or client.name
            if missing := client.ends - groups[group]:
                late[client.name] = f"{group} did not come to the end of {sorted(missing)}"
        return late

    def _restart_still(self, clients: list[Client]) -> None:
        """Kill clients of librdkafka that stand still; their supervisor starts them again."""
        with self._lock:
            for client in clients:
                if client.job["client"] == CONFLUENT and client.is_running:
                    self.stood_still.append(f"{client.name}.{client.starts}")
                    client.process.kill()

    def _read_all(self, deadline_s: float) -> list[str]:
        job = {"topics": self.topics, "role": "final", "client": CONFLUENT, **self._shared}
        client = Client(job, "final", is_expected_to_end=True)
        while True:
            self._launch(client)
            while client.is_running and time.monotonic() < deadline_s:
                time.sleep(0.05)
            if client.is_running:
                client.process.kill()
                client.process.wait()
                return ["the final reader did not come to the end"]
            client.process.stdin.close()
            if client.process.returncode == 0:
                return []

    def stop(self) -> None:
        """Stop all clients now."""
        self._is_stopped.set()
        for thread in (self._supervisor, self._leaders):
            if thread.is_alive():
                thread.join()
        for client in self.clients:
            client.is_expected_to_end = True
            if client.process is not None:
                with contextlib.suppress(BrokenPipeError):
                    client.process.stdin.close()
        for client in self.clients:
            if client.process is None:
                continue
            try:
                client.process.wait(3)
            except subprocess.TimeoutExpired:
                client.process.kill()
                client.process.wait()
        self.tail.close()
        self.nemesis.close()
