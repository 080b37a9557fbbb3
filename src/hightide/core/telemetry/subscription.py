"""Subscriptions: which clients push which metrics, and how often.

A subscription is an entity with three configs (`settings/telemetry.py`).  `match` has entries
SELECTOR=EXPRESSION; each expression must match the whole value of the client's attribute.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple, Protocol
from uuid import UUID

from hightide.core.groups.consumer.topic_pattern import PatternCompiler, TopicPattern
from hightide.settings.declaration import InvalidSetting
from hightide.settings.telemetry import ClientMetrics
from hightide.wire.crc import crc32c
from hightide.wire.errors import KafkaError

SELECTORS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
ALL = "*"
MOST_SUBSCRIPTIONS = 100
MOST_ATTRIBUTE_LENGTH = 256
"""Longer values of attributes are cut: expressions are matched against each."""


class Attributes(Protocol):
    """The attributes of a client, by selector; a client may lack some."""

    def get(self, selector: str, /) -> str | None: ...


class Subscription(NamedTuple):
    """One subscription, parsed."""

    metrics: frozenset[str]
    interval_ms: int
    patterns: Mapping[str, TopicPattern]

    def matches(self, attributes: Attributes) -> Generator[None, None, bool]:
        """Whether the subscription is for a client; an expression is one step."""
        for selector, pattern in self.patterns.items():
            value = attributes.get(selector)
            if value is None or not pattern.matches(value):
                return False
            yield
        return True


def parse(config: Mapping[str, str], compile_pattern: PatternCompiler) -> Subscription:
    """Parse a subscription; raise InvalidSetting in Kafka's words."""
    settings = ClientMetrics(**ClientMetrics.parse(config))
    patterns = dict(_parse_pattern(entry, compile_pattern) for entry in settings.match)
    return Subscription(frozenset(settings.metrics), settings.interval_ms, patterns)


def _parse_pattern(entry: str, compile_pattern: PatternCompiler) -> tuple[str, TopicPattern]:
    illegal = f"Illegal client matching pattern: {entry}"
    selector, equals, expression = entry.partition("=")
    selector = selector.strip()
    if not equals or not expression or "=" in expression:
        raise InvalidSetting(f"{illegal}; it should be SELECTOR=EXPRESSION")
    if selector not in SELECTORS:
        raise InvalidSetting(f"{illegal}; selectors are {', '.join(SELECTORS)}")
    try:
        return selector, compile_pattern(expression.strip())
    except KafkaError as refused:
        raise InvalidSetting(f"{illegal}; {refused.detail}") from None


def subscription_id(metrics: list[str], interval_ms: int, client_instance_id: UUID) -> int:
    """Return the id of what a client pushes: all brokers compute the same, as Kafka's do."""
    checksum = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    halves = client_instance_id.int >> 64 ^ client_instance_id.int
    number = (checksum ^ halves ^ halves >> 32) & 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number
