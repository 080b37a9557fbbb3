"""Sessions of the server: opened, resumed on a new connection, kept alive, expired.

A session belongs to the tree and survives a restart; its connection does not. A session has one
connection at a time, and every request on it renews the lease. After a restart, and after a pause
of this process, no session expires because of the server's own silence (see `Leases`).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable
from typing import NamedTuple, Protocol

from hightide.zookeeper.committer import Committer, Subscriber
from hightide.zookeeper.operation import CloseSession, OpenSession, Result
from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.traffic import without_reserve
from hightide.zookeeper.session import Leases
from hightide.zookeeper.zookeeper_errors import ZooKeeperError

log = logging.getLogger("hightide.zookeeper")

PASSWORD_BYTES = 16


class Grant(NamedTuple):
    """The session granted to a client; a timeout of 0 means that the session has expired."""

    timeout_ms: int
    session_id: int
    password: bytes


EXPIRED = Grant(0, 0, bytes(PASSWORD_BYTES))


class Claim(NamedTuple):
    """A client's connect request. Session id 0 asks for a new session."""

    last_zxid: int
    timeout_ms: int
    session_id: int
    password: bytes


class SessionConnection(Subscriber, Protocol):
    """The connection of a session."""

    @property
    def is_read_paused(self) -> bool:
        """Whether the client may have sent pings that the server has not read."""

    def replaced(self) -> None:
        """The session has moved to another connection."""


# ZooKeeper expires sessions at its ticks, up to two seconds late. This interval is shorter, so that
# a dead broker is detected sooner.
CHECK_INTERVAL_MS = 200

_EXPIRED_PER_TURN = 100
"""Sessions that are closed before other callbacks run."""


class Sessions:
    """All sessions of a server. Belongs to one event loop."""

    def __init__(self, committer: Committer, options: ServerOptions) -> None:
        self._committer = committer
        self._options = options
        self._check_interval_ms = min(options.tick_ms, CHECK_INTERVAL_MS)
        self._leases = Leases(self._check_interval_ms, _now_ms())
        self._connections: dict[int, SessionConnection] = {}
        self._opening = 0
        for session_id, session in committer.tree.sessions.items():
            self._leases.opened(session_id, session.timeout_ms, _now_ms())

    def is_full(self, is_stranger: bool) -> bool:
        """Return whether no session can be opened; strangers leave some for brokers."""
        most = self._options.limits.sessions
        taken = len(self._committer.tree.sessions) + self._opening
        return taken >= (without_reserve(most) if is_stranger else most)

    def grant(
        self, claim: Claim, connection: SessionConnection, granted: Callable[[Grant], None]
    ) -> None:
        """Open or resume a session, after all requests that arrived before."""
        if claim.session_id == 0:
            self.begin(self.offer(claim), connection, granted)
        else:
            self._resume(claim, self._timeout_ms(claim), connection, granted)

    def _timeout_ms(self, claim: Claim) -> int:
        shortest, longest = self._options.session_timeouts_ms
        return min(max(claim.timeout_ms, shortest), longest)

    def offer(self, claim: Claim) -> Grant:
        """Return a new session that exists only when `begin` is called."""
        # Positive, never 0, and with a server id in the first byte, as in an ensemble.
        session_id = 1 << 56 | secrets.randbits(56)
        return Grant(self._timeout_ms(claim), session_id, secrets.token_bytes(PASSWORD_BYTES))

    def begin(
        self, grant: Grant, connection: SessionConnection, granted: Callable[[Grant], None]
    ) -> None:
        """Open an offered session."""
        timeout_ms, session_id, _ = grant

        def begun(outcome: Result | ZooKeeperError) -> None:
            self._opening -= 1
            if not isinstance(outcome, ZooKeeperError):
                self._leases.opened(session_id, timeout_ms, _now_ms())
                self._hold(session_id, connection)
                granted(grant)

        self._opening += 1
        request = OpenSession(session_id, timeout_ms, grant.password)
        self._committer.submit(request, session_id, begun)

    def _resume(
        self,
        claim: Claim,
        timeout_ms: int,
        connection: SessionConnection,
        granted: Callable[[Grant], None],
    ) -> None:
        def turn(outcome: Result | ZooKeeperError) -> None:
            if isinstance(outcome, ZooKeeperError):
                return
            session = self._committer.tree.session(claim.session_id)
            if session is None or not _is_password(claim.password, session.password):
                granted(EXPIRED)
            elif claim.last_zxid > self._committer.tree.zxid:
                # The client has seen a newer tree: the file was restored to an older state. There
                # is no other server, so the client must open a new session and read everything.
                log.warning(
                    "expired session 0x%x: its client has seen zxid 0x%x, the database is at 0x%x",
                    *(claim.session_id, claim.last_zxid, self._committer.tree.zxid),
                )
                self.close(claim.session_id, lambda _: granted(EXPIRED))
            else:
                self._leases.opened(claim.session_id, timeout_ms, _now_ms())
                self._hold(claim.session_id, connection)
                granted(Grant(timeout_ms, claim.session_id, session.password))

        self._committer.after_pending(turn, claim.session_id)

    def _hold(self, session_id: int, connection: SessionConnection) -> None:
        former = self._connections.get(session_id)
        if former is not None:
            former.replaced()
            self.released(session_id, former)
        self._connections[session_id] = self._committer.sessions[session_id] = connection

    def released(self, session_id: int, connection: SessionConnection) -> None:
        """Drop a closed connection and its watches; the session stays."""
        if self._connections.get(session_id) is connection:
            del self._connections[session_id]
            self._committer.sessions.pop(session_id, None)
            self._committer.tree.watches.forget(session_id)

    def touched(self, session_id: int) -> None:
        self._leases.touched(session_id, _now_ms())

    def close(self, session_id: int, answer: Callable[[Result | ZooKeeperError], None]) -> None:
        """Close a session and delete its ephemerals."""

        def closed(outcome: Result | ZooKeeperError) -> None:
            self._leases.closed(session_id)
            answer(outcome)

        self._committer.submit(CloseSession(), session_id, closed)

    async def expire(self) -> None:
        """Close expired sessions, until cancelled."""
        while True:
            await asyncio.sleep(self._check_interval_ms / 1000)
            for session_id, connection in self._connections.items():
                if connection.is_read_paused:
                    self.touched(session_id)
            for number, session_id in enumerate(self._leases.expired(_now_ms()), 1):
                if not number % _EXPIRED_PER_TURN:
                    await asyncio.sleep(0)
                log.info("session 0x%x expired", session_id)
                self.close(session_id, lambda _: None)


def _is_password(given: bytes, kept: bytes) -> bool:
    """Compare passwords. A session of an in-process tree has none, and cannot be resumed."""
    return len(kept) == PASSWORD_BYTES and hmac.compare_digest(given, kept)


def _now_ms() -> int:
    """Return the event loop's clock, which is monotonic."""
    return int(asyncio.get_running_loop().time() * 1000)
