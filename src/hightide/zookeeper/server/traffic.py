"""The connections of a server, their limits, and counters of requests and responses."""

from __future__ import annotations

from typing import Protocol

from hightide.zookeeper.server.options import Limits


class Peer(Protocol):
    """A connection, as `Traffic` counts it and four-letter words show it."""

    host: str
    address: str
    session_id: int
    received: int
    sent: int

    def abort(self) -> None: ...


class Traffic:
    """Connections and counters of one server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._per_host: dict[str, int] = {}
        self.connections: dict[Peer, None] = {}
        self.received = 0
        self.sent = 0
        self.answered = 0
        self.latency_s = 0.0
        self.latency_min_s = 0.0
        self.latency_max_s = 0.0

    def admit(self, peer: Peer) -> bool:
        """Add a connection; return False if there are too many."""
        here = self._per_host.get(peer.host, 0)
        if len(self.connections) >= self._limits.connections:
            return False
        if here >= self._limits.connections_per_address and not is_loopback(peer.host):
            return False
        self.connections[peer] = None
        self._per_host[peer.host] = here + 1
        return True

    def leave(self, peer: Peer) -> None:
        if peer in self.connections:
            del self.connections[peer]
            self._per_host[peer.host] -= 1
            if not self._per_host[peer.host]:
                del self._per_host[peer.host]

    def write_answered(self, latency_s: float) -> None:
        """Record the latency of a write."""
        self.latency_min_s = min(self.latency_min_s, latency_s) if self.answered else latency_s
        self.latency_max_s = max(self.latency_max_s, latency_s)
        self.latency_s += latency_s
        self.answered += 1


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this host."""
    return host.startswith("127.") or host == "::1"
