"""The options of the sink, with the names of Spark's Kafka sink.

Client properties have the prefix `kafka.`. Of a producer's properties, `acks`, `compression.type`
and `max.request.size` have an effect. Batches are made of the rows that are there, so `linger.ms`
and `batch.size` have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hightide.wire.compression import Codec

PREFIX = "kafka."
# The last two are for Spark, not for the sink.
NAMES = ("topic", "includeheaders", "checkpointlocation", "path")
ACKS = {"all": -1, "-1": -1, "1": 1}
CODECS = [codec.name.lower() for codec in Codec]
MAX_BYTES = 1 << 20
MIN_BYTES = 1024


class OptionError(ValueError):
    """An option with a wrong name or value; the text says which and what to write."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of one write, with their defaults."""

    # Properties of the client, without the prefix.
    client: Mapping[str, str]
    topic: str | None = None
    codec: str = "none"
    acks: int = -1
    max_bytes: int = MAX_BYTES


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write; raise `OptionError` if one is wrong."""
    options = {key.lower(): value for key, value in given.items()}
    for key in options:
        if not key.startswith(PREFIX) and key not in NAMES:
            raise OptionError(_unknown(key))
    client = {
        key.removeprefix(PREFIX): value for key, value in options.items() if key.startswith(PREFIX)
    }
    return of_client(client, options.get("topic"))


def of_client(client: Mapping[str, str], topic: str | None = None) -> SinkOptions:
    """Parse client properties without the prefix."""
    if not client.get("bootstrap.servers", "").strip():
        raise OptionError(
            "kafka.bootstrap.servers is missing; set it, for example to localhost:9092."
        )
    acks = client.get("acks", "all")
    if acks not in ACKS:
        raise OptionError(
            f"kafka.acks is {acks!r}; the sink waits for acknowledgements, so set all or 1."
        )
    return SinkOptions(
        client=client,
        topic=topic or None,
        codec=_codec(client.get("compression.type", "none")),
        acks=ACKS[acks],
        max_bytes=_max_bytes(client.get("max.request.size", str(MAX_BYTES))),
    )


def _codec(name: str) -> str:
    if name.lower() not in CODECS:
        raise OptionError(
            f"kafka.compression.type is {name!r}; expected one of {', '.join(CODECS)}."
        )
    return name.lower()


def _max_bytes(text: str) -> int:
    if not text.isdecimal() or int(text) < MIN_BYTES:
        raise OptionError(
            f"kafka.max.request.size is {text!r}; expected a number of bytes, at least {MIN_BYTES}."
        )
    return int(text)


def _unknown(key: str) -> str:
    if key.startswith(("bootstrap.", "security.", "sasl.", "ssl.", "acks", "compression.")):
        return f"Client properties need the prefix {PREFIX}: {PREFIX}{key}."
    if key.startswith(("subscribe", "assign")):
        return f"The option {key} is for reading; set topic to write."
    return f"There is no option {key!r} of the sink; it takes topic, and {PREFIX}* for clients."
