"""The connections of a server: their limits, their turns, their memory, and counters.

Connections take turns. The next turn is for the connection that has used the least time, so a
broker's ping does not wait until hundreds of busy clients have been served. If all connections
together hold too much memory, the one that holds most is closed.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from itertools import count
from typing import Protocol

from hightide.zookeeper.server.options import Limits

log = logging.getLogger("hightide.zookeeper")


class Peer(Protocol):
    """A connection, as `Traffic` counts it and four-letter words show it."""

    host: str
    address: str
    session_id: int
    received: int
    sent: int
    used_s: float
    counted_bytes: int

    @property
    def input_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...
    def serve(self) -> bool:
        """Handle input for one turn; return whether none is left that could be handled."""

    def abort(self) -> None: ...


class Traffic:
    """Connections and counters of one server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._per_host: dict[str, int] = {}
        self._ready: list[tuple[float, int, Peer]] = []
        self._is_scheduled = False
        self._numbers = count()
        self._used_s = 0.0
        self._held_bytes = 0
        self.connections: dict[Peer, None] = {}
        self.received = 0
        self.sent = 0
        self.answered = 0
        self.latency_s = 0.0
        self.latency_min_s = 0.0
        self.latency_max_s = 0.0

    def admit(self, peer: Peer) -> bool:
        """Add a connection; return False if there are too many.

        Neither this host nor the others can take all connections.
        """
        most = without_reserve(self._limits.connections)
        local = self._per_host.get(_LOCAL, 0)
        host = _host(peer)
        here = self._per_host.get(host, 0)
        if len(self.connections) >= self._limits.connections:
            return False
        if host == _LOCAL:
            if local >= most:
                return False
        elif here >= self._limits.connections_per_address or len(self.connections) - local >= most:
            return False
        self.connections[peer] = None
        # Before many new connections have had a first turn, those that are known are served.
        peer.used_s = self._used_s + 2 * self._limits.turn_s
        self._per_host[host] = here + 1
        return True

    def leave(self, peer: Peer) -> None:
        if peer in self.connections:
            del self.connections[peer]
            self._held_bytes -= peer.counted_bytes
            host = _host(peer)
            self._per_host[host] -= 1
            if not self._per_host[host]:
                del self._per_host[host]

    def ready(self, peer: Peer) -> None:
        """Give the connection a turn."""
        peer.used_s = max(peer.used_s, self._used_s)
        # Small requests first: that a large one takes long is known only when it was served.
        expected_s = min(peer.input_bytes * _S_PER_BYTE, self._limits.turn_s)
        heapq.heappush(self._ready, (peer.used_s + expected_s, next(self._numbers), peer))
        self._schedule()

    def _schedule(self) -> None:
        if self._ready and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Serve connections for one turn of the event loop."""
        self._is_scheduled = False
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._limits.turn_s
        while self._ready:
            tag, _, peer = heapq.heappop(self._ready)
            # No connection that waits has used less than this, so one that was idle is the next.
            self._used_s = max(self._used_s, tag - self._limits.turn_s)
            # By the CPU clock: on a busy machine a ping is not charged for what others take.
            began_s = time.thread_time()
            is_done = True
            try:
                is_done = peer.serve()
            except Exception:
                log.exception("closed the connection of %s", peer.address)
                peer.abort()
            peer.used_s += time.thread_time() - began_s
            if not is_done:
                self.ready(peer)
            if loop.time() > ends_at:
                break
        self._schedule()

    def count_bytes(self, peer: Peer) -> None:
        """Count the memory that a connection holds."""
        if peer not in self.connections:
            return
        held = peer.held_bytes
        self._held_bytes += held - peer.counted_bytes
        peer.counted_bytes = held
        if self._held_bytes > self._limits.held_bytes:
            self._shed()

    def _shed(self) -> None:
        """Close the connections that hold most, until the others leave an eighth free."""
        # What a socket has sent since is not known before it is asked for.
        for peer in self.connections:
            peer.counted_bytes = peer.held_bytes
        self._held_bytes = sum(peer.counted_bytes for peer in self.connections)
        if self._held_bytes <= self._limits.held_bytes:
            return
        for peer in sorted(self.connections, key=lambda peer: -peer.counted_bytes):
            if self._held_bytes <= without_reserve(self._limits.held_bytes):
                break
            log.warning(
                "closed the connection of %s: it holds %d of the %d bytes that all connections may",
                *(peer.address, peer.counted_bytes, self._limits.held_bytes),
            )
            self._held_bytes -= peer.counted_bytes
            peer.counted_bytes = 0
            peer.abort()

    def write_answered(self, latency_s: float) -> None:
        """Record the latency of a write."""
        self.latency_min_s = min(self.latency_min_s, latency_s) if self.answered else latency_s
        self.latency_max_s = max(self.latency_max_s, latency_s)
        self.latency_s += latency_s
        self.answered += 1


_S_PER_BYTE = 4e-7
"""The time that a byte of a request may take: 20 bytes are an operation of a multi."""
_LOCAL = ""
"""All addresses of this host are counted as one."""


def _host(peer: Peer) -> str:
    return _LOCAL if is_loopback(peer.host) else peer.host


def without_reserve(limit: int) -> int:
    """Return what one kind of clients may take of a limit: seven eighths."""
    return limit - limit // 8


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this host."""
    return host.startswith("127.") or host == "::1"
