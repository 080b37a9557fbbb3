"""What a coordinator is told before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PORT = 2181
MAX_FRAME_BYTES = 0xFFFFF
"""ZooKeeper's jute.maxbuffer: the largest request, and so the largest znode."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form. With a `client_ca`, a client must show a certificate that it signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the machine clients may take. Past a limit a connection is closed."""

    connections: int = 10_000
    connections_per_address: int = 60
    """Connections from this machine are not counted: its user can do worse."""
    sessions: int = 20_000
    handshake_s: float = 5.0
    """A connection must open its session within this time."""
    output_bytes: int = 64 * 1024 * 1024
    """What waits for a client that does not read."""
    requests: int = 1000
    """Unanswered requests of one connection; no more are read until some are answered."""
    request_bytes: int = 4 * 1024 * 1024
    """And what they may take up together."""
    names: int = 100
    """Whom one connection may claim to be, its address included."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """One coordinator. Without a `file` it keeps everything in memory."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 picks a free one."""
    file: Path | None = None
    tick_ms: int = 2000
    """How often sessions are looked at; and the unit of the two defaults below."""
    min_session_timeout_ms: int | None = None
    max_session_timeout_ms: int | None = None
    credentials: tuple[str, ...] = ()
    """`user:password`, each a super user. If there are any, nobody else is served."""
    tls: Tls | None = None
    insecure: bool = False
    """Serve other machines without credentials or TLS."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.tick_ms <= 0:
            raise ValueError("the tick must be longer than nothing")
        shortest, longest = self.session_timeouts_ms
        if not 0 < shortest <= longest:
            raise ValueError(f"no session timeout is between {shortest} and {longest} ms")
        for line in self.credentials:
            user, colon, password = line.partition(":")
            if not (user and colon and password):
                raise ValueError("credentials must be user:password")

    @property
    def session_timeouts_ms(self) -> tuple[int, int]:
        """The shortest and the longest timeout that a client is granted."""
        shortest, longest = self.min_session_timeout_ms, self.max_session_timeout_ms
        return (
            2 * self.tick_ms if shortest is None else shortest,
            20 * self.tick_ms if longest is None else longest,
        )
