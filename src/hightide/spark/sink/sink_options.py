"""The options of the sink, with the names of Spark's Kafka sink.

Properties of the client have the prefix `kafka.`.  Of a producer's those count that make a
difference here: `acks`, `compression.type` and `max.request.size`.  Batches are made of what is
there and not of what comes in a while, so `linger.ms` and `batch.size` have nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hightide.wire.compression import Codec

PREFIX = "kafka."
# The last two say something to Spark, and nothing to a sink.
NAMES = ("topic", "includeheaders", "checkpointlocation", "path")
ACKS = {"all": -1, "-1": -1, "1": 1}
CODECS = [codec.name.lower() for codec in Codec]
MAX_BYTES = 1 << 20
LEAST_BYTES = 1024


class OptionError(ValueError):
    """An option that cannot be meant; the text says which and what to write."""


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
    """The options of a write; one that is wrong raises."""
    options = {key.lower(): value for key, value in given.items()}
    for key in options:
        if not key.startswith(PREFIX) and key not in NAMES:
            raise OptionError(_unknown(key))
    client = {
        key.removeprefix(PREFIX): value for key, value in options.items() if key.startswith(PREFIX)
    }
    return of_client(client, options.get("topic"))


def of_client(client: Mapping[str, str], topic: str | None = None) -> SinkOptions:
    """The same of properties that have no prefix."""
    if not client.get("bootstrap.servers", "").strip():
        raise OptionError(
            "Where are the brokers? Give kafka.bootstrap.servers, for example localhost:9092."
        )
    acks = client.get("acks", "all")
    if acks not in ACKS:
        raise OptionError(f"kafka.acks is all or 1, not {acks!r}: who writes waits for an answer.")
    return SinkOptions(
        client=client,
        topic=topic or None,
        codec=_codec(client.get("compression.type", "none")),
        acks=ACKS[acks],
        max_bytes=_max_bytes(client.get("max.request.size", str(MAX_BYTES))),
    )


def _codec(name: str) -> str:
    if name.lower() not in CODECS:
        raise OptionError(f"kafka.compression.type is one of {', '.join(CODECS)}, not {name!r}.")
    return name.lower()


def _max_bytes(text: str) -> int:
    if not text.isdecimal() or int(text) < LEAST_BYTES:
        raise OptionError(
            f"kafka.max.request.size is a number of bytes, at least {LEAST_BYTES}, not {text!r}."
        )
    return int(text)


def _unknown(key: str) -> str:
    if key.startswith(("bootstrap.", "security.", "sasl.", "ssl.", "acks", "compression.")):
        return f"Properties of the client have a prefix: {PREFIX}{key}."
    if key.startswith(("subscribe", "assign")):
        return f"The option {key} is for reading; where to write is said by topic."
    return f"There is no option {key!r} of the sink. It takes topic, and {PREFIX}* for the client."
