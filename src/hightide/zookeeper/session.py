"""Sessions, which survive a restart, and their leases, which do not.

A Session is part of the tree. A Lease is not: after a restart every session gets its full timeout,
and the clocks differ. Znodes carry wall-clock times, leases use a monotonic clock, `now_ms` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Session(NamedTuple):
    """A session in the tree; with the password a client resumes it on a new connection."""

    timeout_ms: int
    password: bytes


@dataclass(slots=True)
class _Lease:
    timeout_ms: int
    deadline_ms: int


class Leases:
    """The leases of all sessions; the caller calls `expired` every `check_interval_ms`."""

    __slots__ = ("_check_interval_ms", "_last_check_ms", "_leases")

    def __init__(self, check_interval_ms: int, now_ms: int) -> None:
        self._check_interval_ms = check_interval_ms
        self._last_check_ms = now_ms
        self._leases: dict[int, _Lease] = {}

    def opened(self, session_id: int, timeout_ms: int, now_ms: int) -> None:
        self._leases[session_id] = _Lease(timeout_ms, now_ms + timeout_ms)

    def touched(self, session_id: int, now_ms: int) -> None:
        """Renew a lease. An unknown session is ignored: it may just have expired."""
        lease = self._leases.get(session_id)
        if lease is not None:
            lease.deadline_ms = now_ms + lease.timeout_ms

    def closed(self, session_id: int) -> None:
        self._leases.pop(session_id, None)

    def expired(self, now_ms: int) -> list[int]:
        """Return the sessions whose lease ran out, oldest deadline first, and drop their leases.

        If this call itself is late, the process was paused (SIGSTOP, a slow disk) and could not
        read from its clients: every lease is extended by the delay and none expires.
        """
        late_ms = now_ms - self._last_check_ms - self._check_interval_ms
        self._last_check_ms = now_ms
        if late_ms > self._check_interval_ms:
            for lease in self._leases.values():
                lease.deadline_ms += late_ms
            return []
        due = [(lease.deadline_ms, session) for session, lease in self._leases.items()]
        gone = [session for deadline_ms, session in sorted(due) if deadline_ms < now_ms]
        for session_id in gone:
            del self._leases[session_id]
        return gone
