"""A group whose members join, leave, are killed and are paused at random.

The members are of all clients, in separate processes, while a producer writes.  At the end the
remaining members read everything, and then the histories of all members are checked.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

from hightide.testing import Cluster
from tests.conformance.consuming import ConsumingProcess
from tests.conformance.group_history import GroupHistory, check_group_log, written_for
from tests.conformance.history import History
from tests.conformance.members import MEMBERS
from tests.conformance.workload import ConfluentWriting
from tests.support.eventually import eventually

SESSION_MS = 1500
MOST = 4
"""The largest number of members at a time."""
CALM_S = 60.0


class Storm:
    """Call `begin`, some `step`s, and `end`, which checks the histories."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        dice: random.Random,
        *,
        partitions: int = 6,
        clients: tuple[str, ...] = tuple(MEMBERS),
        **options: Any,
    ) -> None:
        self.cluster = cluster
        self.group = group
        self.dice = dice
        self.clients = clients
        self.options = {"session_ms": SESSION_MS, "poll_interval_ms": 10_000, **options}
        self.topic = cluster.create_topic(partitions=partitions)
        self.written = History()
        self.writing = ConfluentWriting(
            self.written, cluster.bootstrap, self.topic, range(partitions), pace_s=0.005
        )
        self.history = GroupHistory()
        self.members: list[ConsumingProcess] = []
        self.counts: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._stack = ExitStack()

    def __enter__(self) -> Storm:
        self.writing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.writing.is_stopping.set()
        self._stack.close()

    # -- steps -----------------------------------------------------------------------------

    def step(self) -> str:
        """Do one random step; return its name."""
        may = [self.come] if len(self.members) < 2 else [self.leave, self.die, self.sleep]
        if 2 <= len(self.members) < MOST:
            may += [self.come, self.come]
        happens = self.dice.choice(may)
        happens()
        self.counts[happens.__name__] += 1
        return happens.__name__

    def come(self) -> None:
        client = self.dice.choice(self.clients)
        made = ConsumingProcess(
            self.history,
            f"{client}-{next(self._numbers)}",
            client,
            self.cluster.bootstrap,
            self.group,
            [self.topic],
            **self.options,
        )
        self._stack.callback(made.ended)
        self.members.append(made)
        # Most members get records before the next step; with more members than partitions, or in
        # an endless rebalance, none would.
        if self.dice.random() < 0.8:
            eventually(lambda: self.history.owned().get(made.name), CALM_S)

    def leave(self) -> None:
        self._one(out=True).stop()

    def die(self) -> None:
        self._one(out=True).kill()

    def sleep(self) -> None:
        """Pause a member for longer than its session, so that it resumes as an unknown member."""
        sleeper = self._one(out=False)
        sleeper.pause()
        time.sleep(self.dice.uniform(0.2, 1.5) * SESSION_MS / 1000)
        sleeper.resume()

    def _one(self, *, out: bool) -> ConsumingProcess:
        found = self.dice.choice(self.members)
        if out:
            self.members.remove(found)
        return found

    # -- the end ---------------------------------------------------------------------------

    def end(self) -> None:
        """Let the remaining members read everything and leave; raise AnomaliesFound."""
        while len(self.members) < 2:
            self.come()
        self.writing.is_stopping.set()
        self.writing.ended()
        ends = self.written.ends()
        eventually(lambda: not self.history.missing(ends), CALM_S)
        eventually(lambda: self.history.committed() == ends, CALM_S)
        self._stack.close()
        self.history.checked(ends)

    def check_log(self, broker_id: int = 1, *, classic: bool = True) -> int:
        """Check the coordinator's log of the group; return the last generation."""
        records = written_for(self.cluster.data(broker_id), self.group)
        assert records
        generation = check_group_log(records, self.written.ends())
        assert generation or not classic
        return generation
