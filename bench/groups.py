"""Measure groups: how soon one has formed, and how many commits a broker takes.

    python bench/groups.py                                  everything, under a minute
    python bench/groups.py --only commits --rounds 10 --json result.json

The cluster is that of `hightide up`, with its settings. Members are librdkafka's, all in one
process and started at once. Commits come over plain sockets, many in flight on each, because a
client that waits for every answer measures the way there and back.
"""

import contextlib
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness.broker import BrokerFailure
from harness.command import Bench, Workload, run
from harness.generator import Sample
from harness.lab import OTHERS, Measure, Metric
from harness.process import cpu_s, machine_busy_s, wait_for_quiet, with_descendants

TOPIC, PARTITIONS = "shared", 60
MEMBERS = 10
CLASSIC, NEWER = "classic", "consumer"
PATIENCE_S = 30.0
OFFSET_COMMIT, OFFSET_COMMIT_VERSION = 8, 7
CONNECTIONS, IN_FLIGHT = 4, 32


@dataclass(slots=True)
class Subject:
    """A local cluster of one broker."""

    bench: Bench
    port: int
    process: subprocess.Popen[str]
    groups: int = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        return with_descendants(self.process.pid)

    def new_group(self) -> str:
        self.groups += 1
        return f"group-{self.groups}"


@contextmanager
def running(bench: Bench) -> Iterator[Subject]:
    with tempfile.TemporaryDirectory(prefix="up-", dir=bench.folder) as folder:
        command = [sys.executable, "-m", "hightide", "up", "--port", "0", "--data", folder]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("bootstrap: "):
                raise BrokerFailure(f"hightide up said {line!r}")
            subject = Subject(bench, int(line.rpartition(":")[2]), process)
            admin = AdminClient({"bootstrap.servers": subject.bootstrap, "log_level": 0})
            for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
                made.result()
            yield subject
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)


# ---- formation ---------------------------------------------------------------------------------


@contextmanager
def open_formation(bench: Bench) -> Iterator[Measure]:
    with running(bench) as subject:
        sample: Sample = {"first_s": formed(subject, 1, CLASSIC)}

        def measure() -> Sample:
            sample["one_s"] = formed(subject, 1, CLASSIC)
            sample["ten_s"] = formed(subject, MEMBERS, CLASSIC)
            sample["one_consumer_s"] = formed(subject, 1, NEWER)
            sample["ten_consumer_s"] = formed(subject, MEMBERS, NEWER)
            return dict(sample)

        yield measure


def formed(subject: Subject, members: int, protocol: str) -> float:
    """Seconds from the first subscription until every partition has its one member."""
    wait_for_quiet(subject.bench.quiet_s)
    settings = {
        "bootstrap.servers": subject.bootstrap,
        "group.id": subject.new_group(),
        "group.protocol": protocol,
        "log_level": 0,
    }
    consumers = [Consumer(settings) for _ in range(members)]
    for each in consumers:
        each.list_topics(TOPIC, timeout=PATIENCE_S)  # connected, as in a process that runs
    owned: dict[int, set[int]] = {}
    is_over = threading.Event()
    threads = [
        threading.Thread(target=be_member, args=(each, number, owned, is_over, protocol == NEWER))
        for number, each in enumerate(consumers)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    try:
        while not is_shared_out(owned, members):
            if time.perf_counter() - began > PATIENCE_S:
                raise BrokerFailure(f"{members} members have not shared {TOPIC} out")
            time.sleep(0.002)
        return time.perf_counter() - began
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        for each in consumers:
            # A client that is in the middle of a rebalance complains of its own end.
            with contextlib.suppress(KafkaError, KafkaException):
                each.close()


def be_member(
    consumer: Consumer,
    number: int,
    owned: dict[int, set[int]],
    is_over: threading.Event,
    is_incremental: bool,
) -> None:
    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        if is_incremental:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)
        owned[number] = {each.partition for each in consumer.assignment()}

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        if is_incremental:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()
        owned[number] = {each.partition for each in consumer.assignment()}

    consumer.subscribe([TOPIC], on_assign=assigned, on_revoke=revoked)
    while not is_over.is_set():
        consumer.poll(0.01)


def is_shared_out(owned: dict[int, set[int]], members: int) -> bool:
    shares = list(owned.values())
    everything = [each for share in shares for each in share]
    is_even = len(shares) == members and min(map(len, shares)) >= PARTITIONS // members
    return is_even and sorted(everything) == list(range(PARTITIONS))


# ---- commits -----------------------------------------------------------------------------------


@contextmanager
def open_commits(bench: Bench) -> Iterator[Measure]:
    with running(bench) as subject:
        formed(subject, 1, CLASSIC)  # so that there is a topic of offsets
        yield lambda: commits_round(subject)


def commits_round(subject: Subject) -> Sample:
    sample: Sample = {}
    committed(subject, sample, "one", 1)
    committed(subject, sample, "all", PARTITIONS)
    sample["all_offsets"] = sample["all_rate"] * PARTITIONS
    return sample


def committed(subject: Subject, sample: Sample, key: str, partitions: int) -> None:
    """Commit for the time of a round, with requests of this many partitions each."""
    wait_for_quiet(subject.bench.quiet_s)
    sockets = [socket.create_connection(("127.0.0.1", subject.port)) for _ in range(CONNECTIONS)]
    requests = [commit_request(subject.new_group(), partitions) for _ in sockets]
    for each, request in zip(sockets, requests, strict=True):
        each.sendall(request)
    sizes = {each: answer_size(each) for each in sockets}
    for each, request in zip(sockets, requests, strict=True):
        each.sendall(request * IN_FLIGHT)
        each.setblocking(False)
    pids = subject.pids
    busy_s, own_s = machine_busy_s(), time.process_time()
    used_s, began = cpu_s(pids), time.perf_counter()
    count, missing = 0, dict.fromkeys(sockets, 0)
    by_socket = dict(zip(sockets, requests, strict=True))
    while (now := time.perf_counter()) - began < subject.bench.seconds:
        ready, _, _ = select.select(sockets, [], [], PATIENCE_S)
        for each in ready:
            got = missing[each] + len(each.recv(1 << 20))
            answered, missing[each] = divmod(got, sizes[each])
            count += answered
            if answered:
                each.setblocking(True)
                each.sendall(by_socket[each] * answered)
                each.setblocking(False)
    elapsed, used_s = now - began, cpu_s(pids) - used_s
    sample[f"{key}_rate"] = count / elapsed
    sample[f"{key}_cpu_us"] = used_s / max(count, 1) * 1e6
    others = machine_busy_s() - busy_s - used_s - (time.process_time() - own_s)
    sample["other_cores"] = max(sample.get("other_cores", 0.0), others / elapsed)
    for each in sockets:
        each.close()


def commit_request(group: str, partitions: int) -> bytes:
    """An OffsetCommit of somebody who is no member, in the last version before flexible ones."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    body = text(group) + struct.pack(">i", -1) + text("") + struct.pack(">h", -1)
    body += struct.pack(">i", 1) + text(TOPIC) + struct.pack(">i", partitions)
    for index in range(partitions):
        body += struct.pack(">iqi", index, 1_000_000, 0) + text("")
    head = struct.pack(">hhi", OFFSET_COMMIT, OFFSET_COMMIT_VERSION, 1) + text("bench")
    return struct.pack(">i", len(head) + len(body)) + head + body


def answer_size(connection: socket.socket) -> int:
    """The bytes of one answer, which must not tell of errors."""
    (size,) = struct.unpack(">i", receive(connection, 4))
    answer = receive(connection, size)
    # Correlation id, throttle time, one topic with its name and partitions, each with its error.
    (name_length,) = struct.unpack_from(">h", answer, 12)
    at = 14 + name_length
    (count,) = struct.unpack_from(">i", answer, at)
    for nth in range(count):
        index, error = struct.unpack_from(">ih", answer, at + 4 + 6 * nth)
        if error:
            raise BrokerFailure(f"a commit to partition {index} failed with error {error}")
    return 4 + int(size)


def receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise BrokerFailure("the broker closed the connection")
        data += piece
    return data


# ---- the command -------------------------------------------------------------------------------

WORKLOADS = (
    Workload(
        "formation",
        f"a group shares out {PARTITIONS} partitions, from the first subscription on",
        (
            Metric("first_s", "1 member, the first of the cluster, s", 2, goal=1.0),
            Metric("one_s", "1 member, s", 2, goal=1.0),
            Metric("ten_s", f"{MEMBERS} members, s", 2, goal=1.0),
            Metric("one_consumer_s", "1 member, newer protocol, s", 2),
            Metric("ten_consumer_s", f"{MEMBERS} members, newer protocol, s", 2),
        ),
        open_formation,
    ),
    Workload(
        "commits",
        f"OffsetCommit over {CONNECTIONS} connections, {IN_FLIGHT} in flight on each",
        (
            Metric("one_rate", "of 1 partition, requests/s", more_is_better=True, goal=20_000),
            Metric("one_cpu_us", "CPU of the cluster for each, µs", 1),
            Metric("all_rate", f"of {PARTITIONS} partitions, requests/s", more_is_better=True),
            Metric("all_offsets", "offsets/s", more_is_better=True),
            Metric("all_cpu_us", "CPU of the cluster for each, µs", 1),
            OTHERS,
        ),
        open_commits,
    ),
)


if __name__ == "__main__":
    run(WORKLOADS, __doc__, seconds=1.0)
