"""A topic that processes copy exactly once while they are killed, and the check of the copy.

Copiers (`copier.py`) are started again whenever they exit, as a supervisor would do.  The copy is
complete when the group's offsets are at the end of the source: they are committed with the copies,
so no record can follow, and the copy is final.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Producer, TopicPartition

from hightide.client.broker_connection import ConnectionFailed
from tests.conformance.adapters import aio, confluent, kafka_python
from tests.conformance.raw_transactions import GROUP, find_coordinator, positions
from tests.conformance.transaction_history import check_copy
from tests.support import processes

COPIER = "tests.conformance.copier"
CLIENTS = (confluent.NAME, kafka_python.NAME, aio.NAME)
SIZE = 750
"""Messages in a transaction."""


def fill(bootstrap: str, topic: str, partitions: int, messages: int) -> dict[int, list[bytes]]:
    """Write the source; return the values of each partition."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20}
    )
    values: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Any) -> None:
        if error is not None:
            failures.append(error)

    for number in range(messages):
        index = number % partitions
        values[index].append(b"%d/%d" % (index, number))
        while True:
            try:
                producer.produce(topic, values[index][-1], partition=index, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failures, failures[0]
    return values


def read_committed(
    bootstrap: str, topic: str, partitions: int, limit_s: float = 60.0
) -> dict[int, list[bytes | None]]:
    """Return all committed records, to the end of each partition."""
    found: dict[int, list[bytes | None]] = {index: [] for index in range(partitions)}
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True}
    deadline_s = time.monotonic() + limit_s
    with confluent.consumer(bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, index, 0) for index in found])
        ended: set[int] = set()
        while len(ended) < partitions:
            assert time.monotonic() < deadline_s, f"{topic} has no end; {sorted(ended)} ended"
            for message in consumer.consume(5000, 0.2):
                error = message.error()
                if error is None:
                    found[message.partition()].append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
    return found


class Copier:
    """One copier, which is started again after it exits."""

    def __init__(self, job: Mapping[str, Any], log: Path) -> None:
        self.job = job
        self.starts = 0
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._twins: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                processes.module(COPIER, json.dumps(self.job)),
                env=processes.checkout_environment(),
                stdout=log,
                stderr=log,
            )

    def tend(self) -> None:
        """Start it again if it has ended."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def leave_for_dead(self) -> None:
        """Pause it and start another in its place; when it resumes, it must do no harm."""
        assert self._process is not None
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGSTOP)
            self._twins.append(self._process)
        self.start()

    def wake_the_dead(self) -> None:
        for twin in self._twins:
            if twin.poll() is None:
                os.kill(twin.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.kill()
        for twin in self._twins:
            twin.kill()
            twin.wait()

    def said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class Copying:
    """Copiers of one client, from one topic to another."""

    def __init__(
        self,
        cluster: Any,
        client: str,
        source: str,
        partitions: int,
        folder: Path,
        *,
        copiers: int = 2,
        size: int = SIZE,
        pause_s: float = 0.05,
        protocol: str = "classic",
    ) -> None:
        self.cluster = cluster
        self.client = client
        self.source = source
        self.partitions = partitions
        self.group = f"copy-{client}-{source}"
        self.target = f"{source}-by-{client}"
        self._done = 0
        self.copiers = []
        for number in range(copiers):
            job: dict[str, Any] = {
                "client": client,
                "bootstrap": cluster.bootstrap,
                "source": source,
                "target": self.target,
                "group": self.group,
                "transactional_id": f"{self.group}-{number}",
                "size": size,
                "pause_s": pause_s,
                "protocol": protocol if client == confluent.NAME else "classic",
            }
            if client == aio.NAME:
                job["partitions"] = list(range(partitions))[number::copiers]
            self.copiers.append(Copier(job, folder / f"{self.group}-{number}.log"))

    def start(self) -> None:
        for copier in self.copiers:
            copier.start()

    def stop(self) -> None:
        for copier in self.copiers:
            copier.stop()

    def tend(self) -> None:
        for copier in self.copiers:
            copier.tend()

    def done(self) -> int:
        """Return how many messages are copied, by the group's committed offsets.

        It does not wait for a response: while the value is unknown, it returns the last known one.
        """
        patience_s, self.cluster.patience_s = self.cluster.patience_s, 0.2
        try:
            if find_coordinator(self.cluster, self.group, GROUP) in self.cluster.able():
                indexes = range(self.partitions)
                found = positions(self.cluster, self.group, self.source, *indexes)
                self._done = max(self._done, sum(max(offset, 0) for offset, _ in found))
        except (ConnectionFailed, OSError, AssertionError):
            pass
        finally:
            self.cluster.patience_s = patience_s
        return self._done

    def check(self, values: Mapping[int, Iterable[bytes]]) -> None:
        check_copy(values, read_committed(self.cluster.bootstrap, self.target, self.partitions))

    def said(self) -> str:
        return "\n".join(
            f"{copier.job['transactional_id']}:\n{copier.said()}" for copier in self.copiers
        )


def wait_for(
    copyings: Sequence[Copying],
    messages: int,
    limit_s: float,
    *,
    clients: Iterable[str] = CLIENTS,
) -> None:
    """Wait until the copiers of these clients have copied so many; restart all that exit."""
    waiting = [copying for copying in copyings if copying.client in clients]
    deadline_s = time.monotonic() + limit_s
    while waiting:
        for copying in copyings:
            copying.tend()
        waiting = [copying for copying in waiting if copying.done() < messages]
        if waiting and time.monotonic() > deadline_s:
            told = {copying.client: (copying.done(), copying.said()[-2000:]) for copying in waiting}
            raise AssertionError(f"not {messages} copied in {limit_s} s: {told}")
        time.sleep(0.05)
