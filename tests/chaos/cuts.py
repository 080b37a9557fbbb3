"""How soon a cluster resumes after a cut, and how soon a leader that was cut off stops serving.

    python -m tests.chaos.cuts

The leader of a partition is cut off from its followers, then also from ZooKeeper, while clients
reach it all the time.  This prints what it measured, and fails if it took longer than promised.
"""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import Producer

from hightide.wire.errors import ErrorCode
from tests.chaos.room import Room, enter
from tests.conformance.raw import Raw
from tests.conformance.replicated import fetch

TOPIC = "cut"
CUT_S = 11.0
SESSION_S = 4.0
RESUMES_S = 2.0
STOPS_S = 2 * SESSION_S + 1.0
"""A session until it is in doubt, a session after its successor began, and the election."""


class Writer:
    """Writes with acks=all all the time, and keeps when records were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[float] = []
        options = {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 120_000}
        self._producer = Producer(options)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._producer.produce(TOPIC, b"v", on_delivery=self._delivered)
            self._producer.poll(0.02)

    def _delivered(self, error: object, _message: object) -> None:
        if error is None:
            self.acknowledged.append(time.monotonic())

    def first_after(self, moment: float, limit_s: float = 60.0) -> float:
        """Return how long after a moment the next record was acknowledged."""
        while time.monotonic() < moment + limit_s:
            if self.acknowledged and self.acknowledged[-1] > moment:
                return min(at for at in self.acknowledged if at > moment) - moment
            time.sleep(0.01)
        return limit_s

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._producer.flush(30)


def cut_from(room: Room, leader: int, *, zookeeper: bool) -> None:
    assert room.network is not None
    others = [machine.name for broker, machine in room.machines.items() if broker != leader]
    if zookeeper:
        others += [machine.name for machine in room.zookeepers.machines]
    room.network.cut([room.machines[leader].name], others)


def heal(room: Room) -> float:
    assert room.network is not None
    room.network.heal()
    return time.monotonic()


def resumes(room: Room, writer: Writer, *, zookeeper: bool) -> float:
    """Cut the leader off; return how long after the heal a record is acknowledged."""
    cut_from(room, room.leader_now(TOPIC), zookeeper=zookeeper)
    time.sleep(CUT_S)
    return writer.first_after(heal(room))


def serves(room: Room) -> float:
    """Cut the leader off from all but clients; return how long it answers their reads."""
    leader, began = room.leader_now(TOPIC), time.monotonic()
    cut_from(room, leader, zookeeper=True)
    last_s = 0.0
    while (now_s := time.monotonic() - began) < 2 * STOPS_S:
        try:
            with Raw(room, leader) as raw:
                if fetch(raw, TOPIC, 0).error_code == ErrorCode.NONE:
                    last_s = now_s
        except OSError:
            pass
        time.sleep(0.05)
    heal(room)
    return last_s


def main() -> int:
    if lacking := enter("tests.chaos.cuts", sys.argv[1:]):
        print(f"not run: it needs {', '.join(lacking)}")
        return 2
    settings = {"zookeeper.session.timeout.ms": int(SESSION_S * 1000)}
    settings |= {"replica.lag.time.max.ms": 30_000}
    room = Room(settings=settings).start()
    try:
        room.place_topic({0: [1, 2, 3]}, TOPIC)
        writer = Writer(room.bootstrap)
        writer.first_after(time.monotonic())
        found = [resumes(room, writer, zookeeper=False) for _ in range(2)]
        print(f"resumed {', '.join(f'{s:.2f} s' for s in found)} after a cut from the followers")
        served_s = serves(room)
        print(f"a leader that was cut off served reads for {served_s:.1f} s")
        writer.stop()
    finally:
        room.stop()
        room.remove(keep=False)
    return 0 if max(found) <= RESUMES_S and served_s <= STOPS_S else 1


if __name__ == "__main__":
    sys.exit(main())
