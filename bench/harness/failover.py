"""Workloads about a killed leader: how soon others lead, and a client can continue.

A cluster of three, on which a client writes records one by one with acks=all to a partition of the
victim. After the kill it asks the remaining brokers for the leader, a hundred times a second: no
back-off of a client library is in the figures. Every round has a new topic, led by its victim, and
ends when the victim is back.

Most of a failover is the session timeout of the dead broker. That is a setting with different
defaults, 18 s for a Hightide that coordinates as with ZooKeeper and 9 s for Kafka in KRaft mode. So
there is a workload with the defaults, and the others have the same time on both sides. It is 6 s,
as the embedded ZooKeeper accepts no less than 4 s by default; then both sides send a heartbeat
every 2 s. The kill falls anywhere between two heartbeats, and the embedded ZooKeeper expires
sessions every 2 s, as ZooKeeper does: rounds may differ by 2 s.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, islice

from bench.harness.broker import NOT_YET, BrokerFailure, Candidate, Settings
from bench.harness.cluster import PATIENCE_S, Cluster, cluster
from bench.harness.generator import Sample
from bench.harness.lab import Lab, Measure, Metric, Workload
from bench.harness.process import cpu_s, rss_mb
from bench.harness.wire import Connection, WireFailure, one_record

BROKERS = (1, 2, 3)
SESSION_MS = 6000
SAME_SESSION: dict[str, Settings] = {
    "hightide": {"zookeeper.session.timeout.ms": str(SESSION_MS)},
    "kafka": {"broker.session.timeout.ms": str(SESSION_MS)},
}
DEFAULTS: dict[str, Settings] = {}
ASK_EVERY_S = 0.01
WRITE_EVERY_S = 0.005
WRITTEN_BEFORE = 200
# A quorum on a busy machine may elect another leader at any time; then the round starts again.
TRIES = 3
# The time after the creation of many partitions until their followers fetch steadily.
CALM_S = 3.0
IDLE_S = 3.0


# ---- the client -------------------------------------------------------------------------------


@dataclass(slots=True)
class Writer:
    """Writes to partition 0, record after record, and looks for a new leader after a failure."""

    ports: dict[int, int]
    topic: str
    acknowledged: int = 0
    first_by: dict[int, float] = field(default_factory=dict)
    """When each leader acknowledged a record for the first time."""
    _is_over: threading.Event = field(default_factory=threading.Event)
    _batch: bytes = field(default_factory=one_record)

    def run(self) -> None:
        asked = 0
        while not self._is_over.is_set():
            # Another broker every time: one may learn of the leader late.
            port = list(self.ports.values())[asked % len(self.ports)]
            asked += 1
            try:
                leader = self._leader_by(port)
                self._write_to(leader)
            except NOT_YET:
                time.sleep(ASK_EVERY_S)

    def end(self) -> None:
        self._is_over.set()

    def wait_until(self, is_true: Callable[["Writer"], bool]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not is_true(self):
            if time.monotonic() > give_up_at:
                raise BrokerFailure(f"{self.topic}: no record is acknowledged any more")
            time.sleep(ASK_EVERY_S)

    def _leader_by(self, port: int) -> int:
        with Connection(port) as ask:
            leader = ask.leaders(self.topic).get(0, -1)
        if leader not in self.ports:
            raise WireFailure(f"{self.topic} has no leader")
        return leader

    def _write_to(self, leader: int) -> None:
        with Connection(self.ports[leader]) as ask:
            while not self._is_over.is_set():
                ask.produce(self.topic, 0, self._batch)
                self.acknowledged += 1
                self.first_by.setdefault(leader, time.perf_counter())
                time.sleep(WRITE_EVERY_S)


@contextmanager
def writing(ports: dict[int, int], topic: str) -> Iterator[Writer]:
    """A client that writes while the block runs."""
    writer = Writer(ports, topic)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield writer
    finally:
        writer.end()
        thread.join()


# ---- the kill ---------------------------------------------------------------------------------


class ControllerMoved(Exception):
    """The controller moved after the victim was chosen, so no broker was killed."""


def _replaced(made: Cluster, topic: str, victim: int) -> tuple[float, float]:
    """Return when the first and when all partitions had a new leader, on all other brokers."""
    give_up_at = time.monotonic() + PATIENCE_S
    first_at = None
    for broker in made.brokers.values():
        if not broker.is_running:
            continue
        with Connection(broker.port) as ask:
            while True:
                leaders = set(ask.leaders(topic).values())
                if first_at is None and leaders - {-1, victim}:
                    first_at = time.perf_counter()
                if first_at is not None and not leaders & {-1, victim}:
                    break
                if time.monotonic() > give_up_at:
                    raise BrokerFailure(f"{topic} has not got other leaders")
                time.sleep(ASK_EVERY_S)
    assert first_at is not None
    return first_at, time.perf_counter()


def _kill_leader(made: Cluster, topic: str, victim: int, *, is_controller: bool) -> Sample:
    """Kill the victim while a client writes; return the times since then in seconds."""
    broker = made.brokers[victim]
    ports = {at: broker.port for at, broker in made.brokers.items()}
    with writing(ports, topic) as writer:
        writer.wait_until(lambda it: it.acknowledged >= WRITTEN_BEFORE)
        if list(writer.first_by) != [victim]:
            raise BrokerFailure(f"broker {victim} does not lead what it is the first replica of")
        if (made.controller() == victim) is not is_controller:
            raise ControllerMoved
        made.kill(victim)
        first_at, all_at = _replaced(made, topic, victim)
        writer.wait_until(lambda it: len(it.first_by) > 1)
    acked_at = max(writer.first_by.values())
    made.wait_until_led(topic, 1)
    kept = made.end_offsets(topic)[0]
    if kept < writer.acknowledged:
        raise BrokerFailure(f"lost {writer.acknowledged - kept} acknowledged records")
    return {
        "acked_s": acked_at - broker.killed_at,
        "known_s": all_at - broker.killed_at,
        "beyond_s": all_at - broker.killed_at - SESSION_MS / 1000,
        "spread_s": all_at - first_at,
    }


def _led_by(victim: int, partitions: int) -> list[tuple[int, ...]]:
    """Assign all partitions to the victim as leader; the two others follow in turns."""
    one, other = (broker_id for broker_id in BROKERS if broker_id != victim)
    orders = ((victim, one, other), (victim, other, one))
    return [orders[at % 2] for at in range(partitions)]


def _round(made: Cluster, topic: str, partitions: int, *, kills_controller: bool) -> Sample:
    controller = made.controller()
    victim = controller if kills_controller else next(at for at in BROKERS if at != controller)
    empty_mb, began = rss_mb(made.broker_pids), time.perf_counter()
    with made.topic(topic, partitions, assignment=_led_by(victim, partitions)):
        sample: Sample = {"created_s": time.perf_counter() - began}
        if partitions > 1:
            sample |= _at_rest(made, empty_mb)
        sample |= _kill_leader(made, topic, victim, is_controller=kills_controller)
        made.restart(victim)
    return sample


def _at_rest(made: Cluster, empty_mb: float) -> Sample:
    """Measure the cost of idle partitions."""
    time.sleep(CALM_S)
    pids = made.broker_pids
    used_s, began = cpu_s(pids), time.perf_counter()
    time.sleep(IDLE_S)
    share = (cpu_s(pids) - used_s) / (time.perf_counter() - began)
    return {
        "idle_percent": 100 * share,
        "each_mb": (rss_mb(pids) - empty_mb) / len(BROKERS),
    }


# ---- the list ---------------------------------------------------------------------------------

TIMES = (
    Metric("acked_s", "until a client's record is acknowledged, s", 2),
    Metric("known_s", "until all know other leaders, s", 2),
)
BEYOND = Metric("beyond_s", f"the same beyond the {SESSION_MS / 1000:g} s, s", 2)


def _workload(
    name: str,
    title: str,
    metrics: tuple[Metric, ...],
    settings: dict[str, Settings],
    *,
    partitions: int = 1,
    kills_controller: bool = False,
    most_rounds: int = 3,
    is_extra: bool = False,
) -> Workload:
    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        lab.standing.close()
        given = settings.get(candidate.name)
        with cluster(candidate, lab.directory, len(BROKERS), given, "failover") as made:
            numbers = count(1)

            def measure() -> Sample:
                for number in islice(numbers, TRIES):
                    with suppress(ControllerMoved):
                        topic = f"failover-{number}"
                        return _round(made, topic, partitions, kills_controller=kills_controller)
                raise BrokerFailure(f"the controller moved in each of {TRIES} tries")

            yield measure

    return Workload(name, title, metrics, open_, most_rounds=most_rounds, is_extra=is_extra)


SILENCE = f"{SESSION_MS / 1000:g} s of silence are death to both"

FRESH = (
    _workload(
        "failover-1",
        f"kill -9 of the leader of 1 partition, not the controller; {SILENCE}",
        (*TIMES, BEYOND),
        SAME_SESSION,
    ),
    _workload(
        "failover-1000",
        f"kill -9 of the leader of 1,000 partitions, not the controller; {SILENCE}",
        (
            *TIMES,
            BEYOND,
            Metric("spread_s", "from the first new leader to the last, s", 2),
            Metric("created_s", "creation of the topic before, s", 2),
            Metric("each_mb", "its partitions add to the RSS of each broker, MB", 1),
            Metric("idle_percent", "CPU of three idle brokers then, % of a core", 1),
        ),
        SAME_SESSION,
        partitions=1000,
        most_rounds=2,
    ),
    _workload(
        "failover-defaults",
        "kill -9 of the leader of 1 partition; death is 18 s of silence to Hightide, 9 s to Kafka",
        TIMES,
        DEFAULTS,
        most_rounds=2,
    ),
    _workload(
        "failover-controller",
        f"kill -9 of the leader of 1 partition that is also the controller; {SILENCE}",
        (*TIMES, BEYOND),
        SAME_SESSION,
        is_extra=True,
    ),
)
