"""Whether the broker is alive, and ready for clients; if not, why.

Each check has a name and a plain reason when it fails.  A broker is ready when it is registered in
a ZooKeeper session that is certainly alive, has applied the state that the controller published,
has recovered its logs, has taken all roles that it was given, and is in the ISR of the partitions
that it follows.  So a rolling restart that waits for it never lacks two replicas of a partition.

A broker is alive when its event loop runs, so one that is stuck does not respond at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hightide.broker.environment import ZooKeeperSession
from hightide.broker.membership.fenced_session import FencedSession
from hightide.broker.network.turn import Turn
from hightide.broker.replication.disk_monitor import DiskMonitor
from hightide.broker.replication.isr_changes import IsrChanges
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.state_changes import StateChanges
from hightide.core.metadata.image import MetadataImage
from hightide.zookeeper.interface import SessionState

_NAMED = 3  # partitions in a reason
_STEPS = 16  # partitions between two looks at the clock


class Check(NamedTuple):
    """One condition for being ready."""

    name: str
    problem: str | None
    """Why it does not hold; None if it does."""


class Parts:
    """The parts of a broker that exist once it has joined its cluster."""

    def __init__(
        self,
        zookeeper: ZooKeeperSession,
        session: FencedSession,
        state_changes: StateChanges,
        disk_monitor: DiskMonitor,
        isr_changes: IsrChanges,
        broker_epoch: Callable[[], int],
        is_serving: Callable[[], bool],
    ) -> None:
        self.zookeeper = zookeeper
        self.disk_monitor = disk_monitor
        self.isr_changes = isr_changes
        self.is_serving = is_serving
        self.disconnects = 0
        self.expires = 0
        self._session = session
        self._state_changes = state_changes
        self._broker_epoch = broker_epoch
        zookeeper.on_state(self._session_changed)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.SUSPENDED:
            self.disconnects += 1
        elif state is SessionState.LOST:
            self.expires += 1

    def checks(self, catching_up: Sequence[str]) -> list[Check]:
        """Look at everything now, except at the replicas that are catching up."""
        return [
            Check("zookeeper", self._zookeeper_problem()),
            Check("registration", self._registration_problem()),
            Check("state", self._state_problem()),
            Check("roles", self._roles_problem()),
            Check("replicas", _replicas_problem(catching_up)),
            Check("clients", None if self.is_serving() else "clients are not served yet"),
        ]

    def _zookeeper_problem(self) -> str | None:
        zookeeper = self.zookeeper
        left_s = zookeeper.sure_until_s() - zookeeper.clock_s()
        if left_s > 0:
            return None
        return f"the session may have ended: its state is {zookeeper.state.value}"

    def _registration_problem(self) -> str | None:
        if self._broker_epoch() < 0:
            return "the broker has not registered yet"
        if not self._session.is_admitted:
            return "the broker has not registered in its new session yet"
        return None

    def _state_problem(self) -> str | None:
        if not self._state_changes.is_initialized.is_set():
            return "the controller has not published the cluster's state yet"
        if self._state_changes.applied_epoch != self._broker_epoch():
            return "the controller has not published this broker's new roles yet"
        return None

    def _roles_problem(self) -> str | None:
        waiting = self._state_changes.not_taken
        if not waiting:
            return None
        return f"the roles of {len(waiting)} partitions could not be taken: {_named(waiting)}"


def _replicas_problem(catching_up: Sequence[str]) -> str | None:
    if not catching_up:
        return None
    return f"{len(catching_up)} replicas are not in the ISR yet: {_named(catching_up)}"


def _named(partitions: Sequence[str]) -> str:
    more = f" and {len(partitions) - _NAMED} more" if len(partitions) > _NAMED else ""
    return ", ".join(partitions[:_NAMED]) + more


async def catching_up(
    replicas: Iterable[Replica], image: MetadataImage, broker_id: int, turn: Turn
) -> list[str]:
    """Return the partitions that this broker follows without being in the ISR.

    Left out are those that it cannot catch up with, because the leader is gone or its own disk has
    failed, and those that a reassignment is moving here, which may take hours.
    """
    found = []
    for at, replica in enumerate(replicas):
        if at % _STEPS == 0:
            await turn.pause()
        state = replica.state
        if (
            replica.follower is not None
            and state is not None
            and broker_id not in state.isr
            and broker_id not in state.adding
            and replica.failure is None
            and state.leader in image.live
        ):
            found.append(f"{replica.topic}-{replica.partition}")
    return found


def checks(
    parts: Parts | None, catching_up: Sequence[str] = (), *, is_stopping: bool
) -> list[Check]:
    """Return all checks.  Without parts, the broker waits for ZooKeeper, or recovers its logs."""
    if parts is None:
        problem = "ZooKeeper has not been reached, or the logs are not recovered yet"
        found = [Check("start", problem)]
    else:
        found = [Check("start", None), *parts.checks(catching_up)]
    if is_stopping:
        found.append(Check("stop", "the broker stops"))
    return found


def is_ready(found: Iterable[Check]) -> bool:
    """Whether all checks hold."""
    return all(check.problem is None for check in found)


def json_report(found: list[Check]) -> str:
    """Return all checks as JSON."""
    checks = [
        {"name": check.name, "ok": check.problem is None, "problem": check.problem}
        for check in found
    ]
    return json.dumps({"ready": is_ready(found), "checks": checks}) + "\n"


def report(found: list[Check], *, verbose: bool) -> str:
    """Say what fails, or with `verbose` also what holds."""
    lines = [
        f"[+] {check.name}" if check.problem is None else f"[-] {check.name}: {check.problem}"
        for check in found
        if verbose or check.problem is not None
    ]
    return "\n".join([*lines, "ready" if is_ready(found) else "not ready"]) + "\n"
