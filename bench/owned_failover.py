"""Measure how soon others lead, when the processes of a broker that dies are ours.

    python -m bench.owned_failover                      `hightide up`, then the test fixture
    python -m bench.owned_failover --only up --kills 50

`hightide up` and `hightide.testing` see that a broker of theirs has died, and end its ZooKeeper
session. One of three brokers leads a topic of 60 partitions. A client writes records one by one
with acks=all. The leader is killed with SIGKILL; every third time it is the controller. When it
serves again, the next is killed.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median

from bench.harness.failover import ASK_EVERY_S, BROKERS, WRITTEN_BEFORE, writing
from bench.harness.wire import Connection, WireFailure
from hightide.testing import Cluster

PARTITIONS = 60
PATIENCE_S = 60.0
KILLS = 20
CONTROLLER_EVERY = 3


@dataclass(slots=True)
class Brokers:
    """The brokers whose processes are ours: how to reach and how to kill one."""

    ports: dict[int, int]
    kill: Callable[[int], None]
    restart: Callable[[int], None]
    """Return at once, or when the broker serves."""


@contextmanager
def of_up() -> Iterator[Brokers]:
    """Brokers of `hightide up`, which restarts them by itself."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hightide", "up", "--brokers", "3", "--port", "0"]
        with subprocess.Popen(
            [*command, "--data", folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as up:
            assert up.stdout is not None
            addresses = up.stdout.readline().removeprefix("bootstrap: ").strip().split(",")
            ports = {
                at: int(address.rpartition(":")[2])
                for at, address in zip(BROKERS, addresses, strict=True)
            }
            try:
                yield Brokers(
                    ports,
                    lambda at: os.kill(_pid(up.pid, at), signal.SIGKILL),
                    lambda _: None,
                )
            finally:
                up.send_signal(signal.SIGINT)


def _pid(parent: int, broker_id: int) -> int:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    for pid in map(int, listed.split()):
        if f"\0broker.id={broker_id}\0" in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    raise ProcessLookupError(f"broker {broker_id} does not run")


@contextmanager
def of_fixture() -> Iterator[Brokers]:
    """Brokers of `hightide.testing`, as the fixture `hightide_cluster` starts them."""
    with Cluster(brokers=3, zookeeper=True) as made:
        ports = {at: made.port(at) for at in BROKERS}
        yield Brokers(ports, lambda at: os.kill(made.pid(at), signal.SIGKILL), made.restart)


OWNERS = {"up": of_up, "fixture": of_fixture}


def _until(is_true: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_true():
        if time.monotonic() > give_up_at:
            raise TimeoutError(what)
        time.sleep(ASK_EVERY_S)


def _led_by(port: int, topic: str, wanted: Callable[[int], bool]) -> bool:
    try:
        with Connection(port) as connection:
            leaders = connection.leaders(topic)
    except (OSError, WireFailure):
        return False
    return len(leaders) == PARTITIONS and all(map(wanted, leaders.values()))


def _one_kill(brokers: Brokers, topic: str, victim: int) -> tuple[float, float]:
    """Return the milliseconds until a record is acknowledged again, and until all have leaders."""
    others = [port for at, port in brokers.ports.items() if at != victim]

    def _is_other(leader: int) -> bool:
        return leader not in {-1, victim}

    order = (victim, *(at for at in BROKERS if at != victim))
    with Connection(brokers.ports[_controller(brokers.ports[victim])]) as connection:
        connection.create_topic(topic, PARTITIONS, 3, assignment=[order] * PARTITIONS)
    _until(
        lambda: all(
            _led_by(port, topic, lambda leader: leader == victim) for port in brokers.ports.values()
        ),
        f"broker {victim} does not lead {topic}",
    )
    with writing(brokers.ports, topic) as writer:
        writer.wait_until(lambda it: it.acknowledged >= WRITTEN_BEFORE)
        killed_at = time.perf_counter()
        brokers.kill(victim)
        for port in others:
            _until(partial(_led_by, port, topic, _is_other), f"{topic} has no other leaders")
        known_at = time.perf_counter()
        writer.wait_until(lambda it: len(it.first_by) > 1)
        acknowledged_at = max(writer.first_by.values())
    return 1000 * (acknowledged_at - killed_at), 1000 * (known_at - killed_at)


def _controller(port: int) -> int:
    with Connection(port) as connection:
        return connection.controller()


def _are_all_back(brokers: Brokers) -> bool:
    try:
        for port in brokers.ports.values():
            with Connection(port) as connection:
                if len(connection.brokers()) < len(BROKERS):
                    return False
    except (OSError, WireFailure):
        return False
    return True


def measure(owner: str, kills: int) -> list[tuple[float, float]]:
    found = []
    with OWNERS[owner]() as brokers:
        for number in range(kills):
            _until(partial(_are_all_back, brokers), "a broker has not come back")
            controller = _controller(brokers.ports[1])
            if number:
                with Connection(brokers.ports[controller]) as connection:
                    connection.delete_topic(f"killed-{number - 1}")
            others = [at for at in BROKERS if at != controller]
            victim = controller if number % CONTROLLER_EVERY == 0 else others[number % 2]
            found.append(_one_kill(brokers, f"killed-{number}", victim))
            print(f"{owner} {number}: broker {victim}, {found[-1][0]:.0f} ms", file=sys.stderr)
            brokers.restart(victim)
    return found


def p99(times: Sequence[float]) -> float:
    return sorted(times)[ceil(0.99 * len(times)) - 1]


def main() -> None:
    """Print a row for each owner."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=OWNERS)
    parser.add_argument("--kills", type=int, default=KILLS)
    options = parser.parse_args()
    print(
        "| owner | kills | acknowledged again, ms: median; p99 | leaders known, ms: median; p99 |"
    )
    print("| --- | --- | --- | --- |")
    for owner in [options.only] if options.only else OWNERS:
        acked, known = zip(*measure(owner, options.kills), strict=True)
        cells = [f"{median(times):.0f}; {p99(times):.0f}" for times in (acked, known)]
        print(f"| {owner} | {options.kills} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
