"""Sessions: what must survive a restart, and until when each may stay silent.

The two are kept apart. A Session is part of the tree; a lease is not, because after a restart
every session gets a full fresh timeout, and because its clock differs: znodes carry wall-clock
times, leases are measured by a clock that never jumps. `now_ms` is that second clock here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Session(NamedTuple):
    """A session as the tree keeps it; the password lets a client take it to a new connection."""

    timeout_ms: int
    password: bytes


@dataclass(slots=True)
class _Lease:
    timeout_ms: int
    deadline_ms: int


class Leases:
    """The leases of all sessions; the shell calls `expired` every `look_ms`."""

    __slots__ = ("_last_look_ms", "_leases", "_look_ms")

    def __init__(self, look_ms: int, now_ms: int) -> None:
        self._look_ms = look_ms
        self._last_look_ms = now_ms
        self._leases: dict[int, _Lease] = {}

    def opened(self, session_id: int, timeout_ms: int, now_ms: int) -> None:
        self._leases[session_id] = _Lease(timeout_ms, now_ms + timeout_ms)

    def touched(self, session_id: int, now_ms: int) -> None:
        """The session was heard of. An unknown one is ignored: it may just have expired."""
        lease = self._leases.get(session_id)
        if lease is not None:
            lease.deadline_ms = now_ms + lease.timeout_ms

    def closed(self, session_id: int) -> None:
        self._leases.pop(session_id, None)

    def expired(self, now_ms: int) -> list[int]:
        """Sessions whose lease ran out, oldest deadline first; each is reported once.

        If this call itself comes late, the process was stopped (a paused machine, a slow disk) and
        could not have heard its clients: every lease is extended by the lateness and none expires.
        """
        late_ms = now_ms - self._last_look_ms - self._look_ms
        self._last_look_ms = now_ms
        if late_ms > self._look_ms:
            for lease in self._leases.values():
                lease.deadline_ms += late_ms
            return []
        due = [(lease.deadline_ms, session) for session, lease in self._leases.items()]
        gone = [session for deadline_ms, session in sorted(due) if deadline_ms < now_ms]
        for session_id in gone:
            del self._leases[session_id]
        return gone
