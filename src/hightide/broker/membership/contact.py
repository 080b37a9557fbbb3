"""Whether this broker is in contact with ZooKeeper, so that its leaderships certainly last.

    session alive by our own clock, and registered in it, and the controller's roles applied
        ─▶ in contact: no other broker leads what this broker leads, except by a message under way
    else
        ─▶ in doubt: another broker may have been elected

Clients' requests ask `in_doubt` each time, with the clock.  A timer would be late after a pause of
the process: the requests that arrived meanwhile are served first.
"""

from __future__ import annotations

from collections.abc import Callable

from hightide.broker.membership.fenced_session import FencedSession
from hightide.zookeeper.interface import Lease


class Contact:
    """The end of the ZooKeeper session as this broker must assume it."""

    __slots__ = ("_clock_s", "_has_roles", "_lease", "_session", "_sure_until_s")

    def __init__(self, lease: Lease, session: FencedSession, has_roles: Callable[[], bool]) -> None:
        """`has_roles` is whether roles of the present broker epoch are applied."""
        self._lease = lease
        self._clock_s = lease.clock_s
        self._session = session
        self._has_roles = has_roles
        self._sure_until_s = 0.0

    def in_doubt(self) -> bool:
        """Whether another broker may have been elected in place of this one."""
        return self._clock_s() >= self._sure_until_s and not self._renew()

    def changed(self) -> None:
        """The session has another state, or the broker has registered in another one."""
        self._sure_until_s = 0.0

    def _renew(self) -> bool:
        if not (self._session.is_admitted and self._has_roles()):
            return False
        self._sure_until_s = self._lease.sure_until_s()
        return self._clock_s() < self._sure_until_s
