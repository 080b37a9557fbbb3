"""The regular expression of a subscription, as the core sees it (KIP-848, SubscribedTopicRegex).

Kafka uses RE2's syntax.  RE2 is a library outside the core, so the shell passes the coordinator a
`PatternCompiler`.
"""

from __future__ import annotations

from typing import Protocol


class TopicPattern(Protocol):
    """A compiled regular expression."""

    def matches(self, topic: str) -> bool:
        """Whether the expression matches the whole topic name."""
        ...


class PatternCompiler(Protocol):
    """Compiles regular expressions, in a time that the client cannot stretch."""

    def __call__(self, pattern: str) -> TopicPattern:
        """Raise KafkaError with INVALID_REGULAR_EXPRESSION if the pattern cannot be used."""
        ...
