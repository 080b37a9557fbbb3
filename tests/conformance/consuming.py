"""Members that poll and commit until they are stopped or killed.

`Consuming` is a member in a thread, `ConsumingProcess` one in a process that can be killed, paused
and stopped by signals.  Both commit their records before they poll again, and note every event in a
`GroupHistory`.  The process runs this module and prints its events to stdout, line by line.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

with warnings.catch_warnings():
    # The clients use deprecated features of Python; that is their business.
    warnings.simplefilter("ignore")
    from tests.conformance.adapters import Refused
    from tests.conformance.members import MEMBERS, AioMember, Change, Member

from tests.conformance.group_history import UNKNOWN, Event, GroupHistory, Partition, now_s
from tests.support import processes

END_S = 30.0
Note = Callable[[Event], None]


def consume(
    name: str, client: str, options: Mapping[str, Any], note: Note, is_stopping: Callable[[], bool]
) -> None:
    """Run a member that commits all records before it polls again."""
    owed: dict[Partition, int] = {}
    """Read but uncommitted offsets of partitions that the member still owns."""

    def changed(change: Change) -> None:
        if change.partitions:
            offsets = dict.fromkeys(change.partitions)
            note(Event(now_s(), name, change.kind, change.generation, offsets))
        if change.kind != "assigned":
            for place in change.partitions:
                owed.pop(place, None)

    with MEMBERS[client](on_change=changed, **options) as member:
        while not is_stopping():
            owed.update(poll_once(name, member, note))
            # aiokafka revokes partitions at any time, in another thread: too late for a commit
            # here.
            if owed and (commit(name, member, dict(owed), note) or client == AioMember.client):
                owed.clear()
    note(Event(now_s(), name, "ended", UNKNOWN, {}))


def poll_once(name: str, member: Member, note: Note) -> dict[Partition, int]:
    """Return the offsets to commit after these records."""
    before = member.generation()
    records = member.poll(0.1)
    if not records:
        return {}
    # After a rebalance within the poll, the generation of a record is unknown.
    generation = before if member.generation() == before else UNKNOWN
    reads: dict[Partition, tuple[int, int]] = {}
    for record in records:
        first, last = reads.get(record.place, (record.offset, record.offset - 1))
        if record.offset != last + 1:
            text = f"{record.place}: {record.offset} came after {last} in one poll"
            note(Event(now_s(), name, "error", generation, {}, text=text))
        reads[record.place] = (first, record.offset)
    note(Event(now_s(), name, "delivered", generation, reads))
    return {place: last + 1 for place, (_, last) in reads.items()}


def commit(name: str, member: Member, offsets: dict[Partition, int], note: Note) -> bool:
    before, begun_s = member.generation(), now_s()
    note(Event(begun_s, name, "committing", before, offsets))
    try:
        member.commit(offsets)
    except Refused as refusal:
        note(Event(now_s(), name, "refused", before, offsets, begun_s, refusal.name))
        return False
    generation = before if member.generation() == before else UNKNOWN
    note(Event(now_s(), name, "committed", generation, offsets, begun_s))
    return True


class Consuming(threading.Thread):
    """A member in a thread."""

    def __init__(
        self,
        history: GroupHistory,
        name: str,
        client: str,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        **options: Any,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._history = history
        self._client = client
        self._options = {
            "bootstrap": bootstrap,
            "group": group,
            "topics": list(topics),
            **options,
        }
        self._is_stopping = threading.Event()
        history.is_strict[name] = client != AioMember.client
        self.start()

    def run(self) -> None:
        try:
            stopping = self._is_stopping.is_set
            consume(self.name, self._client, self._options, self._history.note, stopping)
        except BaseException as error:  # the check of the history reports it
            self._history.note(Event(now_s(), self.name, "error", UNKNOWN, {}, text=repr(error)))

    def stop(self) -> None:
        """Leave the group."""
        self._is_stopping.set()

    def ended(self) -> None:
        self.stop()
        self.join(END_S)
        assert not self.is_alive(), f"{self.name} does not come to an end"


class ConsumingProcess:
    """A member in a separate process."""

    def __init__(
        self,
        history: GroupHistory,
        name: str,
        client: str,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        **options: Any,
    ) -> None:
        self.name = name
        self._history = history
        history.is_strict[name] = client != AioMember.client
        wanted = {"bootstrap": bootstrap, "group": group, "topics": list(topics), **options}
        self._errors = bytearray()
        self.process = subprocess.Popen(
            processes.module("tests.conformance.consuming", json.dumps([name, client, wanted])),
            env=processes.checkout_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=target, daemon=True) for target in (self._hear, self._complain)
        ]
        for reader in self._readers:
            reader.start()

    def _hear(self) -> None:
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self._history.note(loaded(json.loads(line)))

    def _complain(self) -> None:
        for line in self.process.stderr:
            self._errors += line

    def stop(self) -> None:
        """Leave the group."""
        self.process.send_signal(signal.SIGTERM)

    def pause(self) -> None:
        self._history.is_strict[self.name] = False
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: no LeaveGroup is sent."""
        self.process.kill()
        self._reap()
        self._history.note(Event(now_s(), self.name, "ended", UNKNOWN, {}))

    def ended(self) -> None:
        """Leave the group, and wait for the end of the process."""
        if self.process.poll() is None:
            self.stop()
        try:
            self._reap()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self._reap()
            raise AssertionError(f"{self.name} does not come to an end") from None
        # A member that is stopped before it has joined has no group to leave.
        ways = (0, -signal.SIGKILL, -signal.SIGTERM)
        assert self.process.returncode in ways, self._errors.decode()

    def _reap(self) -> None:
        self.process.wait(END_S)
        for reader in self._readers:
            reader.join(END_S)
        self.process.stdout.close()
        self.process.stderr.close()


# -- messages between processes ----------------------------------------------------------------


def dumped(event: Event) -> list[Any]:
    offsets = [[*place, value] for place, value in event.offsets.items()]
    return [*event[:4], offsets, event.begun_s, event.text]


def loaded(item: list[Any]) -> Event:
    at_s, member, kind, generation, offsets, begun_s, text = item
    places = {
        (topic, index): tuple(value) if isinstance(value, list) else value
        for topic, index, value in offsets
    }
    return Event(at_s, member, kind, generation, places, begun_s, text)


def told(history: GroupHistory, **wanted: int) -> None:
    """Wait until these members have so many partitions each."""

    def counts() -> dict[str, int]:
        return {name: len(them) for name, them in history.owned().items() if name in wanted}

    deadline_s = now_s() + END_S
    while (found := counts()) != wanted:
        errors = [event for event in history.events if event.kind == "error"]
        assert not errors, errors
        assert now_s() < deadline_s, f"{found}, and not {wanted}"
        time.sleep(0.02)


def main() -> None:
    name, client, options = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    lock = threading.Lock()

    def note(event: Event) -> None:
        line = json.dumps(dumped(event)).encode() + b"\n"
        with lock:
            os.write(1, line)

    consume(name, client, options, note, stopping.is_set)


if __name__ == "__main__":
    main()
