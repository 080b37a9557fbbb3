"""Listeners: the addresses that a broker binds to, and those that it advertises to clients.

Both have the form ``NAME://host:port,…``. `listener.security.protocol.map` maps the name to the
security protocol. Port 0 means any free port. An empty host is Kafka's "default interface": here it
is loopback, because clients are not authenticated. A listener for other hosts names its address,
such as 0.0.0.0 for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hightide.settings.declaration import InvalidSetting

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LOOPBACK = "127.0.0.1"
DEFAULT_MAP = {protocol: protocol for protocol in PROTOCOLS}

_LISTENER = re.compile(
    r"(?P<name>[^:/]+)://(\[(?P<ipv6>[^\]]*)\]|(?P<host>[^:\[\]/]*)):(?P<port>-?[0-9]+)"
)


@dataclass(frozen=True, slots=True)
class Listener:
    """One named address. An empty host means the default interface, which is loopback."""

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    def bound(self) -> Listener:
        """Return the listener with the address to bind to."""
        return self if self.host else replace(self, host=LOOPBACK)


def parse_protocol_map(text: str) -> dict[str, str]:
    """Return the security protocols by listener name, from ``NAME:PROTOCOL,…``."""
    protocols = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = entry.rpartition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not name:
            raise InvalidSetting(f"a protocol must have the form NAME:PROTOCOL, not {entry!r}")
        if protocol not in PROTOCOLS:
            raise InvalidSetting(f"{entry!r}: the protocol must be one of {', '.join(PROTOCOLS)}")
        protocols[name] = protocol
    return protocols


def parse_listeners(
    text: str,
    protocols: Mapping[str, str] = DEFAULT_MAP,
    unknown: str = "listener.security.protocol.map has no protocol for",
) -> tuple[Listener, ...]:
    """Parse listeners such as ``PLAINTEXT://0.0.0.0:9092,SSL://:9093``.

    `unknown` begins the sentence about a name that is not among `protocols`.
    """
    listeners: list[Listener] = []
    for entry in (part.strip() for part in text.split(",")):
        listener = _parse(entry, protocols, unknown)
        if any(listener.name == other.name for other in listeners):
            raise InvalidSetting(f"two listeners have the name {listener.name}")
        listeners.append(listener)
    return tuple(listeners)


def _parse(entry: str, protocols: Mapping[str, str], unknown: str) -> Listener:
    found = _LISTENER.fullmatch(entry)
    if not found:
        raise InvalidSetting(f"a listener must have the form NAME://host:port, not {entry!r}")
    name = found["name"].upper()
    if name not in protocols:
        raise InvalidSetting(f"{entry!r}: {unknown} {name}; known names are {', '.join(protocols)}")
    port = int(found["port"])
    if not 0 <= port < 1 << 16:
        raise InvalidSetting(f"{entry!r}: the port must be from 0 to 65535")
    return Listener(name, protocols[name], found["ipv6"] or found["host"] or "", port)
