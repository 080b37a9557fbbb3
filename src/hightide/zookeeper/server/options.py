"""Options and limits of the embedded ZooKeeper server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hightide.zookeeper.quota import Quota

DEFAULT_PORT = 2181
MAX_FRAME_BYTES = 0xFFFFF
"""ZooKeeper's jute.maxbuffer: the largest request, and so the largest znode."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. With a `client_ca`, a client must present a certificate signed by it."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits for clients. A connection that exceeds one is closed."""

    connections: int = 10_000
    connections_per_address: int = 60
    """Connections from this host are not counted: a local user can do worse."""
    sessions: int = 20_000
    """Strangers get seven eighths of it."""
    handshake_s: float = 5.0
    """A connection must open its session within this time."""
    output_bytes: int = 64 * 1024 * 1024
    """Unsent output of one connection."""
    requests: int = 1000
    """Pending requests of one connection; the server reads no more until some are answered."""
    request_bytes: int = 4 * 1024 * 1024
    """The size of all pending requests of one connection."""
    response_bytes: int = 4 * 1024 * 1024
    """One response. ZooKeeper's clients refuse more than this by default."""
    operations: int = 2000
    """Operations in one multi or multiRead."""
    items: int = 10_000
    """Paths in one setWatches, and ACL entries in one request."""
    outstanding: int = 1000
    """ZooKeeper's globalOutstandingLimit: pending requests of all connections. Past it, a
    connection that has pending requests is not read."""
    turn_s: float = 0.01
    """How long the requests of one connection may keep the event loop before others are served."""
    held_bytes: int = 256 * 1024 * 1024
    """Input, pending requests and unsent output of all connections together. Past it, the
    connections that hold most are closed."""
    identities: int = 100
    """Ids that one connection may prove, its address included."""
    identity_bytes: int = 1024
    """One id that a connection proves."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """One server. Without a `file` it keeps everything in memory."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 picks a free one."""
    file: Path | None = None
    tick_ms: int = 2000
    """The unit of the two defaults below, and at least how often sessions are checked."""
    min_session_timeout_ms: int | None = None
    max_session_timeout_ms: int | None = None
    credentials: tuple[str, ...] = ()
    """`user:password`, each a super user. If there are any, clients must use one of them."""
    words: tuple[str, ...] = ("srvr",)
    """ZooKeeper's 4lw.commands.whitelist: what clients on other hosts may ask; `*` is all."""
    tls: Tls | None = None
    insecure: bool = False
    """Serve other hosts without credentials or TLS."""
    limits: Limits = field(default_factory=Limits)
    quota: Quota = field(default_factory=Quota)

    def __post_init__(self) -> None:
        if self.tick_ms <= 0:
            raise ValueError("the tick must be at least 1 ms")
        shortest, longest = self.session_timeouts_ms
        if not 0 < shortest <= longest:
            raise ValueError(
                f"the shortest session timeout, {shortest} ms, must be positive and not above the"
                f" longest, {longest} ms"
            )
        for line in self.credentials:
            user, colon, password = line.partition(":")
            if not (user and colon and password):
                raise ValueError("credentials must be user:password")

    @property
    def session_timeouts_ms(self) -> tuple[int, int]:
        """The shortest and the longest session timeout that the server grants."""
        shortest, longest = self.min_session_timeout_ms, self.max_session_timeout_ms
        return (
            2 * self.tick_ms if shortest is None else shortest,
            20 * self.tick_ms if longest is None else longest,
        )
