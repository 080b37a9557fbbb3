"""/brokers/ids/N: how a broker makes itself known, and where it listens.

Apart from the other payloads because it went through five versions: 1 had one address, 2 has
endpoints named by security protocol, 3 added the rack, 4 named listeners, 5 features. All are
read; version 5 is written. The znode's czxid is the broker epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hightide.coordination.errors import MalformedZnode
from hightide.coordination.payload import Payload, to_json

_NONE: Mapping[str, tuple[int, int]] = MappingProxyType({})


class Endpoint(NamedTuple):
    """One listener of a broker, as others can reach it."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"

    @classmethod
    def parse(cls, address: str, protocols: Payload, path: str) -> Endpoint:
        listener, separator, rest = address.partition("://")
        host, colon, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        plausible = separator and colon and port.isascii() and port.isdigit() and len(port) <= 5
        if not plausible or int(port) > 65535:
            raise MalformedZnode(path, f"{address!r} is not an endpoint")
        return cls(listener, host, int(port), protocols.text(listener, default=listener))


class BrokerRegistration(NamedTuple):
    """What a live broker says about itself."""

    endpoints: tuple[Endpoint, ...]
    timestamp_ms: int
    rack: str | None = None
    jmx_port: int = -1
    features: Mapping[str, tuple[int, int]] = _NONE
    """Per feature the lowest and the highest version supported."""

    def encode(self) -> bytes:
        # Clients from before endpoints read host and port, which are those of a plain listener.
        plain = next((e for e in self.endpoints if e.security_protocol == "PLAINTEXT"), None)
        rack = {} if self.rack is None else {"rack": self.rack}
        return to_json(
            {
                "version": 5,
                "host": plain.host if plain else None,
                "port": plain.port if plain else -1,
                "endpoints": [endpoint.address for endpoint in self.endpoints],
                "listener_security_protocol_map": {
                    endpoint.listener: endpoint.security_protocol for endpoint in self.endpoints
                },
                "jmx_port": self.jmx_port,
                "timestamp": str(self.timestamp_ms),
                **rack,
                "features": {
                    name: {"min_version": lowest, "max_version": highest}
                    for name, (lowest, highest) in self.features.items()
                },
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> BrokerRegistration:
        payload = Payload.parse(data, path)
        protocols = payload.object("listener_security_protocol_map", required=False)
        addresses = payload.texts("endpoints", default=[])
        if payload.int32("version") == 1:
            addresses = [f"PLAINTEXT://{payload.text('host')}:{payload.int32('port')}"]
        features = payload.object("features", required=False)
        return cls(
            tuple(Endpoint.parse(address, protocols, path) for address in addresses),
            payload.number_text("timestamp", default=-1),
            payload.text("rack", default="") or None,
            payload.int32("jmx_port", default=-1),
            {name: _versions(features.object(name)) for name in features},
        )


def _versions(feature: Payload) -> tuple[int, int]:
    return feature.int32("min_version"), feature.int32("max_version")
