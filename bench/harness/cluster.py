"""A cluster of one kind of broker: one broker, or several with ZooKeeper beside them."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness.broker import (
    NOT_YET,
    START_TIMEOUT_S,
    Broker,
    BrokerFailure,
    Candidate,
    Place,
    Settings,
    free_port,
)
from bench.harness.wire import DESCRIBE_QUORUM, Connection

PATIENCE_S = 60.0


class Cluster:
    """A cluster as generators see it: `port` is that of the first broker."""

    def __init__(self, name: str, brokers: dict[int, Broker], beside: list[Broker]) -> None:
        self.name = name
        self.brokers = brokers
        self._beside = beside

    @property
    def port(self) -> int:
        return next(broker.port for broker in self.brokers.values() if broker.is_running)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    @property
    def pids(self) -> list[int]:
        """All processes of the cluster, also those beside the brokers."""
        return [pid for process in (*self.brokers.values(), *self._beside) for pid in process.pids]

    @property
    def broker_pids(self) -> list[int]:
        return [pid for broker in self.brokers.values() for pid in broker.pids]

    def prepare(self) -> None:
        for process in (*self._beside, *self.brokers.values()):
            process.prepare()

    def start(self) -> None:
        for process in (*self._beside, *self.brokers.values()):
            process.begin()
        for broker in self.brokers.values():
            broker.wait_until(lambda ask: len(ask.brokers()) == len(self.brokers))

    def kill(self, broker_id: int) -> None:
        self.brokers[broker_id].kill()

    def restart(self, broker_id: int) -> None:
        """Start it again, and wait until all brokers know that it is back."""
        self.brokers[broker_id].start()
        for broker in self.brokers.values():
            broker.wait_until(lambda ask: len(ask.brokers()) == len(self.brokers))

    def controller(self) -> int:
        """Return the controller node."""
        with Connection(self.port) as ask:
            has_quorum = DESCRIBE_QUORUM in ask.api_versions()
            return ask.quorum_leader() if has_quorum else ask.controller()

    def end(self) -> None:
        """Kill the brokers: a clean stop would write data that is removed anyway."""
        for process in (*self.brokers.values(), *self._beside):
            process.kill()

    # ---- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        partitions: int,
        replicas: int = 1,
        *,
        settings: Settings | None = None,
        assignment: Sequence[Sequence[int]] = (),
    ) -> None:
        """Create it and wait until every broker knows leaders that serve."""
        self._ask_controller(
            lambda ask: ask.create_topic(topic, partitions, replicas, settings or {}, assignment)
        )
        self.wait_until_led(topic, len(assignment) or partitions)

    def delete_topic(self, topic: str) -> None:
        self._ask_controller(lambda ask: ask.delete_topic(topic))

    @contextmanager
    def topic(
        self,
        topic: str,
        partitions: int,
        replicas: int = 1,
        *,
        settings: Settings | None = None,
        assignment: Sequence[Sequence[int]] = (),
    ) -> Iterator[str]:
        """A topic that exists while the block runs."""
        self.create_topic(topic, partitions, replicas, settings=settings, assignment=assignment)
        try:
            yield topic
        finally:
            self.delete_topic(topic)

    def wait_until_led(self, topic: str, partitions: int) -> None:
        """Wait until all brokers know a leader of each partition, and these leaders serve."""
        for broker in self.brokers.values():
            if broker.is_running:
                broker.wait_until(lambda ask: ask.led_partitions(topic) >= partitions, PATIENCE_S)
        give_up_at = time.monotonic() + PATIENCE_S
        for broker_id, led in self._led_by(topic).items():
            while True:
                try:
                    with Connection(self.brokers[broker_id].port) as ask:
                        ask.offsets_of(topic, led)
                    break
                except NOT_YET:
                    if time.monotonic() > give_up_at:
                        raise BrokerFailure(f"{topic} is not served by its leaders") from None
                    time.sleep(0.005)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the log end offset of each partition, from its leader."""
        found: dict[int, int] = {}
        for broker_id, led in self._led_by(topic).items():
            with Connection(self.brokers[broker_id].port) as ask:
                found |= ask.offsets_of(topic, led)
        return found

    def _led_by(self, topic: str) -> dict[int, list[int]]:
        with Connection(self.port) as ask:
            leaders = ask.leaders(topic)
        led: dict[int, list[int]] = {}
        for partition, broker_id in leaders.items():
            led.setdefault(broker_id, []).append(partition)
        return led

    def _ask_controller(self, question: Callable[[Connection], object]) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with Connection(self.port) as ask:
                    ports = ask.brokers()
                    port = ports.get(ask.controller(), self.port)
                with Connection(port, PATIENCE_S) as ask:
                    question(ask)
                return
            except NOT_YET as error:
                if time.monotonic() > give_up_at:
                    raise BrokerFailure(str(error)) from None
                time.sleep(0.1)


@contextmanager
def prepared(
    candidate: Candidate,
    under: Path,
    count: int = 1,
    settings: Settings | None = None,
    label: str = "cluster",
) -> Iterator[Cluster]:
    """Yield a cluster on empty directories, not started; kill and remove it afterwards."""
    folder = under / f"{candidate.name}-{label}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    places = [
        Place(at, folder / f"broker-{at}", free_port(), free_port()) for at in range(1, count + 1)
    ]
    if count == 1:
        launches = [candidate.alone(places[0], settings or {})]
    else:
        launches = candidate.together(places, settings or {})
    brokers = {
        place.broker_id: Broker(launch, place.data, place.port)
        for place, launch in zip(places, launches, strict=False)
    }
    beside = [
        Broker(launch, folder / f"beside-{at}", 0) for at, launch in enumerate(launches[count:])
    ]
    made = Cluster(candidate.name, brokers, beside)
    try:
        made.prepare()
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def cluster(
    candidate: Candidate,
    under: Path,
    count: int = 1,
    settings: Settings | None = None,
    label: str = "cluster",
) -> Iterator[Cluster]:
    """Yield a started cluster on empty directories."""
    with prepared(candidate, under, count, settings, label) as made:
        made.start()
        yield made
