"""Groups: how soon partitions are assigned, and how many commits a broker takes.

Both brokers wait three seconds for more members before the first assignment
(`group.initial.rebalance.delay.ms`), which would hide all else: here, separate clusters do not
wait. A member learns from a heartbeat that it has to join again, and real clients send one every
three seconds; here it is one every 50 ms, so that the figures show the broker more than that wait,
which is half of 50 ms for one member on average and nearly all of it for fifty.
"""

import select
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

from bench.harness.broker import BrokerFailure, Candidate, NotSupported
from bench.harness.cluster import Cluster, cluster
from bench.harness.generator import Sample
from bench.harness.lab import OTHERS, Lab, Measure, Metric, Workload
from bench.harness.members import HEARTBEAT, HEARTBEAT_S, VERSIONS, Group, listed, sized, text
from bench.harness.process import cpu_s, machine_busy_s
from bench.harness.wire import Answer, Connection

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

TOPIC, PARTITIONS = "shared", 60
GROUP = "members"
FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_COMMIT_VERSION = 10, 8, 7
UNKNOWN_MEMBER = 25
AT_ONCE = {"group.initial.rebalance.delay.ms": "0"}
TURNS, WARM_UP_TURNS = 3, 5
PATIENCE_S = 60.0

# ---- rebalances --------------------------------------------------------------------------------

REBALANCE_METRICS = (
    Metric("formed_s", "the group forms, s", 3),
    Metric("rebalance_s", "one more joins, s", 3),
    Metric("answer_s", "of it after all have asked to join, s", 4),
    Metric("left_s", "one leaves, s", 3),
    Metric("broker_cpu_ms", "broker CPU for the three, ms", 1),
    OTHERS,
)


def rebalance(members: int, *, is_extra: bool = False) -> Workload:
    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        with sharing_at_once(lab, candidate) as made:
            for _ in range(WARM_UP_TURNS):
                one_turn(made, members)
            yield lambda: typical(made, members)

    who = "1 member" if members == 1 else f"{members} members"
    return Workload(
        f"rebalance-{members}",
        f"a group of {who} shares out {PARTITIONS} partitions, gains a member and loses it"
        f" (no initial delay, heartbeats every {HEARTBEAT_S * 1000:.0f} ms)",
        REBALANCE_METRICS,
        open_,
        is_extra=is_extra,
    )


@contextmanager
def sharing_at_once(lab: Lab, candidate: Candidate) -> Iterator[Cluster]:
    """A separate cluster whose groups do not wait for more members, with a topic."""
    with cluster(candidate, lab.directory, 1, AT_ONCE, "groups") as made:
        made.create_topic(TOPIC, PARTITIONS)
        wait_for_coordinator(made, GROUP)
        yield made


def wait_for_coordinator(made: Cluster, group: str) -> None:
    """Wait for the group's coordinator; the first request creates the topic of offsets."""
    stranger = text(group) + struct.pack(">i", 0) + text("stranger") + struct.pack(">h", -1)

    def is_kept(ask: Connection) -> bool:
        if ask.ask(FIND_COORDINATOR, 0, text(group)).i16() != 0:
            return False
        answer = ask.ask(HEARTBEAT, VERSIONS[HEARTBEAT], stranger)
        answer.i32()
        return answer.i16() == UNKNOWN_MEMBER

    next(iter(made.brokers.values())).wait_until(is_kept, PATIENCE_S)


def typical(made: Cluster, members: int) -> Sample:
    """Return the median of several turns, since one depends on the phase of the heartbeats."""
    busy_s, own_s, used_s = machine_busy_s(), time.process_time(), cpu_s(made.pids)
    began = time.perf_counter()
    turns = [one_turn(made, members) for _ in range(TURNS)]
    used_s = cpu_s(made.pids) - used_s
    others_s = machine_busy_s() - busy_s - used_s - (time.process_time() - own_s)
    sample = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
    sample["broker_cpu_ms"] = used_s / TURNS * 1000
    return sample | {"other_cores": max(0.0, others_s / (time.perf_counter() - began))}


def one_turn(made: Cluster, members: int) -> Sample:
    with Group(made.port, GROUP, TOPIC, PARTITIONS) as group:
        first, another = group.connect(members), group.connect(1)
        began = time.perf_counter()
        group.enter(first)
        sample = {"formed_s": group.settle() - began}
        group.stay(2 * HEARTBEAT_S)
        began = time.perf_counter()
        group.enter(another)
        settled = group.settle()
        sample["rebalance_s"] = settled - began
        sample["answer_s"] = settled - max(member.asked_at for member in group.members)
        group.stay(2 * HEARTBEAT_S)
        began = time.perf_counter()
        group.part_with(another[0])
        sample["left_s"] = group.settle() - began
        return sample


# ---- commits -----------------------------------------------------------------------------------

CONNECTIONS, IN_FLIGHT = 4, 32


@contextmanager
def open_commits(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
    made = lab.standing.cluster(candidate)
    with made.topic(TOPIC, PARTITIONS):
        for number in range(CONNECTIONS):
            wait_for_coordinator(made, committing(number))

        def measure() -> Sample:
            sample: Sample = {}
            commit(lab, made, sample, "one", 1)
            commit(lab, made, sample, "all", PARTITIONS)
            sample["all_offsets"] = sample["all_rate"] * PARTITIONS
            return sample

        measure()
        yield measure


def committing(number: int) -> str:
    return f"commits-{number}"


class Committer:
    """A connection with many equal commits in flight."""

    def __init__(self, port: int, group: str, partitions: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._request = commit_request(group, partitions)
        self._answer = b""
        self._unread = b""

    def begin(self) -> None:
        """Equal requests have equal responses, so only the first one is parsed."""
        self.socket.sendall(self._request)
        self._answer = self._first_answer()
        self.socket.sendall(self._request * IN_FLIGHT)

    def go_on(self) -> int:
        """Read the responses, send as many requests again, and return their number."""
        data = self._unread + self.socket.recv(1 << 20)
        whole = len(data) // len(self._answer)
        end = whole * len(self._answer)
        if data[:end] != self._answer * whole or len(data) == len(self._unread):
            raise BrokerFailure("a commit was not answered as the first one was")
        self._unread = data[end:]
        self.socket.sendall(self._request * whole)
        return whole

    def close(self) -> None:
        self.socket.close()

    def _first_answer(self) -> bytes:
        head = self._exactly(4)
        body = self._exactly(int.from_bytes(head))
        check_commit(Answer(body))
        return head + body

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise BrokerFailure("the broker closed the connection of a commit")
            data += piece
        return data


def commit_request(group: str, partitions: int) -> bytes:
    """An OffsetCommit from outside the group, in the last version before flexible ones."""
    offsets = (struct.pack(">iqi", index, 1_000_000, 0) + text("") for index in range(partitions))
    no_member = struct.pack(">i", -1) + text("") + struct.pack(">h", -1)
    body = text(group) + no_member + listed([text(TOPIC) + listed(offsets)])
    head = struct.pack(">hhi", OFFSET_COMMIT, OFFSET_COMMIT_VERSION, 1) + text("bench")
    return sized(head + body)


def check_commit(answer: Answer) -> None:
    answer.i32(), answer.i32()
    for _ in range(answer.i32()):
        answer.string()
        for _ in range(answer.i32()):
            index, error = answer.i32(), answer.i16()
            if error:
                raise BrokerFailure(f"a commit to partition {index}: error code {error}")


def commit(lab: Lab, made: Cluster, sample: Sample, key: str, partitions: int) -> None:
    """Commit for the time of a round, with requests of this many partitions each."""
    with ExitStack() as stack:
        committers = {}
        for number in range(CONNECTIONS):
            one = Committer(made.port, committing(number), partitions)
            committers[stack.enter_context(closing(one)).socket] = one
            one.begin()
        busy_s, own_s, used_s = machine_busy_s(), time.process_time(), cpu_s(made.pids)
        done, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < lab.seconds:
            for ready in select.select(list(committers), [], [], PATIENCE_S)[0]:
                done += committers[ready].go_on()
        elapsed, used_s = now - began, cpu_s(made.pids) - used_s
        others_s = machine_busy_s() - busy_s - used_s - (time.process_time() - own_s)
    if not done:
        raise BrokerFailure("no commit was answered inside the window")
    sample[f"{key}_rate"] = done / elapsed
    sample[f"{key}_cpu_us"] = used_s / done * 1e6
    sample["other_cores"] = max(sample.get("other_cores", 0.0), others_s / elapsed)


# ---- real clients ------------------------------------------------------------------------------

REAL_MEMBERS = 10
CLASSIC, NEWER = "classic", "consumer"


@contextmanager
def open_real(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
    """librdkafka's members in this process: the waiting time of an application."""
    if find_spec("confluent_kafka") is None:
        raise NotSupported("needs confluent-kafka")
    with sharing_at_once(lab, candidate) as made:
        numbers = count()

        def formed(members: int, protocol: str) -> float:
            return formed_by_librdkafka(made, f"real-{next(numbers)}", members, protocol)

        def measure() -> Sample:
            return {
                "one_s": formed(1, CLASSIC),
                "ten_s": formed(REAL_MEMBERS, CLASSIC),
                "one_newer_s": formed(1, NEWER),
                "ten_newer_s": formed(REAL_MEMBERS, NEWER),
            }

        measure()
        yield measure


class RealMember(threading.Thread):
    """A consumer that polls until it is stopped, and knows what it has been assigned."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        # Only this workload needs it.
        from confluent_kafka import Consumer, KafkaError, KafkaException

        self.owned: set[int] = set()
        self.is_over = threading.Event()
        self._is_incremental = settings["group.protocol"] == NEWER
        self._consumer = Consumer(settings)
        # The former is raised although it is not an exception.
        self._complaints: tuple[Any, ...] = (KafkaError, KafkaException)
        # Connected first, as in a running process.
        self._consumer.list_topics(TOPIC, timeout=PATIENCE_S)

    def run(self) -> None:
        self._consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked)
        while not self.is_over.is_set():
            self._consumer.poll(0.01)
        # A client that is closed in the middle of a rebalance raises an error.
        with suppress(*self._complaints):
            self._consumer.close()

    def _assigned(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        if self._is_incremental:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)
        self.owned = {partition.partition for partition in consumer.assignment()}

    def _revoked(self, consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        if self._is_incremental:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()
        self.owned = {partition.partition for partition in consumer.assignment()}


def formed_by_librdkafka(made: Cluster, group: str, members: int, protocol: str) -> float:
    """Return the seconds from the first subscription until every partition has one member."""
    settings = {
        "bootstrap.servers": made.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "log_level": 0,
    }
    people = [RealMember(settings) for _ in range(members)]
    began = time.perf_counter()
    for process in people:
        process.start()
    try:
        while not is_shared_evenly([process.owned for process in people]):
            if time.perf_counter() - began > PATIENCE_S:
                raise BrokerFailure(f"{members} members have not shared {TOPIC} out")
            time.sleep(0.002)
        return time.perf_counter() - began
    finally:
        for process in people:
            process.is_over.set()
        for process in people:
            process.join()


def is_shared_evenly(shares: Sequence[set[int]]) -> bool:
    everything = sorted(partition for share in shares for partition in share)
    least = min(len(share) for share in shares)
    return everything == list(range(PARTITIONS)) and least >= PARTITIONS // len(shares)


# ---- the list ----------------------------------------------------------------------------------

ONE_BROKER = (
    rebalance(1),
    rebalance(10),
    rebalance(50),
    Workload(
        "group-commits",
        f"OffsetCommit over {CONNECTIONS} connections, {IN_FLIGHT} in flight on each",
        (
            Metric("one_rate", "of 1 partition, requests/s", 0, more_is_better=True),
            Metric("one_cpu_us", "broker CPU for each, µs", 1),
            Metric("all_rate", f"of {PARTITIONS} partitions, requests/s", 0, more_is_better=True),
            Metric("all_offsets", f"of {PARTITIONS} partitions, offsets/s", 0, more_is_better=True),
            Metric("all_cpu_us", "broker CPU for each of these, µs", 1),
            OTHERS,
        ),
        open_commits,
    ),
    Workload(
        "group-librdkafka",
        f"librdkafka's consumers share out {PARTITIONS} partitions, from the first subscription on"
        " (no initial delay)",
        (
            Metric("one_s", "1 member, s", 2),
            Metric("ten_s", f"{REAL_MEMBERS} members, s", 2),
            Metric("one_newer_s", "1 member, newer protocol, s", 2),
            Metric("ten_newer_s", f"{REAL_MEMBERS} members, newer protocol, s", 2),
        ),
        open_real,
        most_rounds=3,
        is_extra=True,
    ),
)
