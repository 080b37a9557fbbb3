"""Fuzz a running broker over sockets: `python -m tests.fuzz.live [--seconds N] [--seed N]`.

Connections send valid requests of every API and version, with mutations: hostile lengths, frames
cut at any byte, random bytes, garbage between requests, arrays with thousands of elements.

Meanwhile a bystander produces and asks for metadata on its own connection, and must always get its
response. At the end the broker runs, its log has no traceback and no request that kept the event
loop for long, its memory has not grown much, and a consumer reads every acknowledged record. A seed
always sends the same attacks.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import random
import re
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from typing import Any, NamedTuple
from uuid import UUID

from hightide.broker.network.dispatch import served_versions
from hightide.testing import Cluster
from hightide.wire import batch
from hightide.wire.errors import WireError
from hightide.wire.frame import encode_request
from hightide.wire.messages import APIS, REQUESTS
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from hightide.wire.types import api_of
from tests.conformance.raw import Raw, good_batch, produce_request, produced, resident_bytes
from tests.fuzz.mutation import HOSTILE_INTS, mutated
from tests.support.seeds import first_seed
from tests.unit.wire.message_values import full

ATTACKERS = 4
MOST_GROWTH_BYTES = 64 * 2**20
# The bystander must have its response by then. A busy machine alone delays it by tenths.
MOST_WAIT_S = 5.0
# The broker logs turns of 100 ms. On a busy machine the scheduler alone makes such turns, so they
# are printed, and only longer ones fail.
STALL_MS = 1000
RESPONSE_S = 0.2
BYSTANDER_PAUSE_S = 0.01
# `request.max.names` is 10,000: the broker serves the first three and refuses the last.
LARGEST_CROWD = 9_000
CROWDS = (100, 2_000, LARGEST_CROWD, 20_000)

FUZZED, STANDING = "fuzzed", "standing"
DELETE_TOPICS = 20
HEADER_BYTES = 8
STALL = re.compile(r"(\w+) version (\d+) .* kept the event loop for (\d+) ms")

SETTINGS = {
    "auto.create.topics.enable": False,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}


class Request(NamedTuple):
    """A valid request: its message, and its frame with the size."""

    key: int
    version: int
    message: Any
    frame: bytes

    def __str__(self) -> str:
        return f"{APIS[self.key][0]} v{self.version}"


class Attack(NamedTuple):
    """What a connection sends, and how to describe it."""

    name: str
    data: bytes


@dataclass
class Report:
    """Everything that is wrong, and figures of the run."""

    seed: int
    findings: list[str] = field(default_factory=list)
    connections: int = 0
    acknowledged: int = 0
    grown_bytes: int = 0
    slowest_response_s: float = 0.0
    slowest: list[tuple[float, str, int]] = field(default_factory=list)
    stalls: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        slowest = [f"{seconds:.2f} s {name}, {size} bytes" for seconds, name, size in self.slowest]
        return "\n".join(
            [
                f"seed {self.seed}: {self.connections} connections,"
                f" {self.acknowledged} records acknowledged to the bystander,"
                f" its slowest response {self.slowest_response_s * 1000:.0f} ms,"
                f" memory grown by {self.grown_bytes / 2**20:.1f} MiB",
                *(f"slow: {line}" for line in slowest),
                *(f"stall: {line}" for line in self.stalls),
                *(f"FAILED: {finding}" for finding in self.findings),
                *(
                    [f"replay: python -m tests.fuzz.live --seed {self.seed}"]
                    if self.findings
                    else []
                ),
            ]
        )


# -- requests ----------------------------------------------------------------------------------


def requests(topic_id: UUID) -> Iterator[Request]:
    """Yield a valid request of every API and version, about the topic `fuzzed`."""
    for key, (low, high) in served_versions().items():
        cls = REQUESTS[key]
        for version in range(max(low, api_of(cls).versions[0]), high + 1):
            message = full(cls, version)
            if key != DELETE_TOPICS:
                _adapt(message, topic_id)
            yield Request(key, version, message, encode_request(message, version, 7, "fuzz"))


def _adapt(struct_: Any, topic_id: UUID) -> None:
    """Name an existing topic and partition, and make waits short."""
    for name in struct_.__slots__:
        setattr(struct_, name, _adapted(name, getattr(struct_, name), topic_id))


def _adapted(name: str, value: Any, topic_id: UUID) -> Any:
    if isinstance(value, list):
        return [_adapted(name, item, topic_id) for item in value]
    if is_dataclass(value):
        _adapt(value, topic_id)
    elif isinstance(value, str) and name in ("name", "topic", "topics", "topic_name"):
        return FUZZED
    elif isinstance(value, UUID):
        return topic_id
    elif name == "records":
        return bytes(good_batch())
    elif name.endswith("_ms"):
        return 10
    elif isinstance(value, int) and not isinstance(value, bool):
        if "partition" in name or name in ("index", "leader_epoch", "current_leader_epoch"):
            return 0
        if name in ("replica_id", "acks"):
            return -1
    return value


def crowded(request: Request, chance: random.Random, count: int = 0) -> bytes | None:
    """Return the request with one array of many elements; None if it has no array."""
    message = copy.deepcopy(request.message)
    arrays = list(_arrays(message))
    if not arrays:
        return None
    owner, name = chance.choice(arrays)
    first = getattr(owner, name)[0]
    count = count or chance.choice(CROWDS)
    setattr(owner, name, [_varied(first, number) for number in range(count)])
    try:
        return encode_request(message, request.version, 7, "fuzz")
    except WireError:
        return None


def _arrays(struct_: Any) -> Iterator[tuple[Any, str]]:
    for name in struct_.__slots__:
        value = getattr(struct_, name)
        if isinstance(value, list) and value:
            yield struct_, name
            if is_dataclass(value[0]):
                yield from _arrays(value[0])


def _varied(item: Any, number: int) -> Any:
    if isinstance(item, str):
        return f"{item}-{number}"
    if isinstance(item, int):
        return number
    varied = copy.copy(item)
    if is_dataclass(item):
        for name in type(item).__slots__:  # type: ignore[attr-defined]
            value = getattr(item, name)
            if isinstance(value, str):
                setattr(varied, name, f"{value}-{number}")
            elif name in ("partition", "index", "partition_index"):
                setattr(varied, name, number)
    return varied


# -- attacks -----------------------------------------------------------------------------------


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def with_hostile_length(request: Request, chance: random.Random) -> bytes:
    """Overwrite four bytes of the body with a length that cannot be right."""
    body = bytearray(request.frame[4:])
    at = chance.randrange(HEADER_BYTES, max(len(body) - 3, HEADER_BYTES + 1))
    left = len(body) - at - 4
    struct.pack_into(">i", body, at, chance.choice([*HOSTILE_INTS, max(left, 0) + 1]))
    return framed(bytes(body))


def with_mutations(request: Request, chance: random.Random) -> bytes:
    """Mutate the body behind the header, which names the API and version."""
    head, body = request.frame[4 : 4 + HEADER_BYTES], request.frame[4 + HEADER_BYTES :]
    return framed(head + mutated(body, chance))


def cut_to_size(request: Request, chance: random.Random) -> bytes:
    """Cut the frame at any byte, with the size of what is left."""
    return framed(request.frame[4 : chance.randrange(4, len(request.frame))])


def half(request: Request, chance: random.Random) -> bytes:
    """Cut the frame at any byte, with the size of the whole."""
    return request.frame[: chance.randrange(len(request.frame))]


def with_hostile_size(request: Request, chance: random.Random) -> bytes:
    size = chance.choice([*HOSTILE_INTS, len(request.frame) - 3, 100 * 2**20 + 1])
    return struct.pack(">i", size) + request.frame[4:]


def pipelined(request: Request, chance: random.Random) -> bytes:
    """Send requests in one piece, with garbage among them."""
    parts = [request.frame] * chance.randrange(1, 20)
    garbage = chance.choice([framed(chance.randbytes(40)), chance.randbytes(40)])
    parts.insert(chance.randrange(len(parts) + 1), garbage)
    return b"".join(parts)


def noise(_: Request, chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(1, 4000))


def unchanged(request: Request, _: random.Random) -> bytes:
    return request.frame


ATTACKS: tuple[Callable[[Request, random.Random], bytes | None], ...] = (
    with_hostile_length,
    with_hostile_length,
    with_mutations,
    with_mutations,
    cut_to_size,
    half,
    with_hostile_size,
    pipelined,
    noise,
    unchanged,
    crowded,
)


def attack(valid: list[Request], chance: random.Random) -> Attack:
    request = chance.choice(valid)
    kind = chance.choice(ATTACKS)
    data = kind(request, chance)
    if data is None:
        return Attack(f"{request} unchanged", request.frame)
    return Attack(f"{request} {kind.__name__}", data)


class _Connection(Raw):
    def wait(self, seconds: float) -> None:
        """Wait for the first bytes of a response, or the end of the connection."""
        self._socket.settimeout(seconds)
        with contextlib.suppress(OSError):
            self._socket.recv(65536)


class _Attacker(threading.Thread):
    """Opens a connection for each attack until the deadline."""

    def __init__(
        self, cluster: Cluster, valid: list[Request], seed: str, deadline: float, report: Report
    ) -> None:
        super().__init__(name=f"attacker {seed}")
        self._cluster = cluster
        self._valid = valid
        self._chance = random.Random(seed)
        self._deadline = deadline
        self._report = report
        self.slowest: list[tuple[float, str, int]] = []
        self.connections = 0

    def run(self) -> None:
        while time.monotonic() < self._deadline:
            chosen = attack(self._valid, self._chance)
            began = time.monotonic()
            try:
                with _Connection(self._cluster) as raw:
                    self._send(raw, chosen)
            except (OSError, AssertionError) as error:
                self._report.findings.append(f"{chosen.name}, {len(chosen.data)} bytes: {error!r}")
                return
            self.connections += 1
            took = time.monotonic() - began
            self.slowest = sorted([*self.slowest, (took, chosen.name, len(chosen.data))])[-3:]

    def _send(self, raw: _Connection, chosen: Attack) -> None:
        raw.send(chosen.data)
        if self._chance.random() < 0.5:
            # The broker closes the connection after the client does.
            raw.finish()
            while raw.receive() is not None:
                pass
        else:
            raw.wait(RESPONSE_S)


class _Bystander(threading.Thread):
    """Produces and asks for metadata on one connection, which must never be closed."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        super().__init__(name="bystander")
        self._raw = Raw(cluster)
        self._report = report
        self._stops = threading.Event()
        self.values: list[bytes] = []
        self.slowest_s = 0.0

    def stop(self) -> None:
        self._stops.set()
        self.join()

    def run(self) -> None:
        try:
            with self._raw:
                while not self._stops.wait(BYSTANDER_PAUSE_S):
                    began = time.monotonic()
                    self._produce()
                    self._look()
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        except (OSError, AssertionError) as error:
            self._report.findings.append(f"the bystander got no response: {error!r}")

    def _produce(self) -> None:
        value = b"%d" % len(self.values)
        records = batch.build([batch.Record(0, int(time.time() * 1000), None, value)])
        response = self._raw.ask(produce_request(STANDING, records, acks=-1), 9)
        assert response is not None, "the broker closed the connection"
        code = produced(response).error_code
        assert code == 0, f"Produce was refused with error code {code}"
        self.values.append(value)

    def _look(self) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=STANDING)])
        response = self._raw.ask(request, 9)
        assert response is not None, "the broker closed the connection"
        assert response.topics[0].error_code == 0, response


# -- the run -----------------------------------------------------------------------------------


def run(seconds: float, seed: int) -> Report:
    """Fuzz a new broker for some seconds."""
    report = Report(seed)
    with Cluster(settings=SETTINGS) as cluster:
        cluster.create_topic(STANDING)
        cluster.create_topic(FUZZED, partitions=2)
        valid = list(requests(_topic_id(cluster)))
        bystander = _Bystander(cluster, report)
        bystander.start()
        _warm_up(cluster, valid)
        before = resident_bytes(cluster)
        deadline = time.monotonic() + seconds
        attackers = [
            _Attacker(cluster, valid, f"{seed} {number}", deadline, report)
            for number in range(ATTACKERS)
        ]
        for attacker in attackers:
            attacker.start()
        for attacker in attackers:
            attacker.join()
        bystander.stop()
        report.connections = sum(attacker.connections for attacker in attackers)
        report.slowest = sorted(slow for attacker in attackers for slow in attacker.slowest)[-5:]
        report.acknowledged = len(bystander.values)
        report.slowest_response_s = bystander.slowest_s
        _check(cluster, report, before, bystander.values)
    return report


def _warm_up(cluster: Cluster, valid: list[Request]) -> None:
    """Send every request, and one with a large array, so that the broker has its usual memory.

    The broker generates each codec on first use, and Python keeps the memory of large requests.
    """
    newest = {request.key: request for request in valid}
    largest = [crowded(request, random.Random(0), LARGEST_CROWD) for request in newest.values()]
    for frame in [*(request.frame for request in valid), *filter(None, largest)]:
        with _Connection(cluster) as raw:
            raw.send(frame)
            raw.wait(RESPONSE_S)


def _topic_id(cluster: Cluster) -> UUID:
    with Raw(cluster) as raw:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=FUZZED)])
        found: UUID = raw.ask(request, 10).topics[0].topic_id
        return found


def _check(cluster: Cluster, report: Report, before: int, acknowledged: list[bytes]) -> None:
    findings = report.findings
    log = cluster.log()
    if not cluster.is_running():
        findings.append(f"the broker has stopped:\n{log[-5000:]}")
        return
    at = log.find("Traceback")
    if at >= 0:
        findings.append(f"the broker's log has a traceback:\n{log[max(at - 500, 0) : at + 4000]}")
    for name, version, took in STALL.findall(log):
        report.stalls.append(f"{name} v{version} took {took} ms")
        if int(took) >= STALL_MS:
            findings.append(f"{name} v{version} kept the event loop for {took} ms")
    report.grown_bytes = resident_bytes(cluster) - before
    if report.grown_bytes >= MOST_GROWTH_BYTES:
        findings.append(f"the broker's memory has grown by {report.grown_bytes} bytes")
    if report.slowest_response_s > MOST_WAIT_S:
        findings.append(f"the bystander waited {report.slowest_response_s:.1f} s")
    lost = set(acknowledged) - set(_consumed(cluster, len(acknowledged)))
    if lost:
        findings.append(f"{len(lost)} acknowledged records are lost, such as {min(lost)!r}")


def _consumed(cluster: Cluster, count: int, limit_s: float = 20) -> list[bytes]:
    """Return the values of the bystander's topic, read with librdkafka."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "live"})
    consumer.assign([TopicPartition(STANDING, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + limit_s
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                values.append(message.value() or b"")
    consumer.close()
    return values


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("tests.fuzz.live", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, help="of the attacks; by default random")
    given = parser.parse_args(arguments)
    seed = first_seed(is_new=True) if given.seed is None else given.seed
    report = run(given.seconds, seed)
    print(report)
    return int(bool(report.findings))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
