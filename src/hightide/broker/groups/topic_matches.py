"""Matches the regular expressions of subscriptions with all topics, in the pool.

    heartbeat ─▶ expressions that are new, or older than the topics? ── no ──▶ coordinator
                                         └── yes ─▶ the pool, some names at a time ──▶ coordinator

RE2 takes up to 6 ms for one expression and one long name, and a heartbeat resolves an expression
for every topic of the cluster.  The coordinator decides in one turn of the event loop, so the
matches are found before it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from hightide.broker.network.turn import Usage
from hightide.broker.work_pool import WorkPool
from hightide.core.groups.consumer.topic_pattern import TopicPattern
from hightide.wire.errors import KafkaError

_NAMES_AT_ONCE = 32  # at most 0.2 s in a thread


class Matches(NamedTuple):
    """An expression, the topics that it was matched with, and those that match."""

    pattern: TopicPattern
    topics: Mapping[str, object]
    matching: set[str]

    def matches(self, topic: str) -> bool:
        if topic in self.topics:
            return topic in self.matching
        return self.pattern.matches(topic)


class TopicMatches:
    """Compiles expressions; uses the matches that were found before."""

    def __init__(self) -> None:
        self._found: Mapping[str, Matches] = {}

    def __call__(self, pattern: str) -> TopicPattern:
        return self._found.get(pattern) or compile_pattern(pattern)

    @contextmanager
    def given(self, found: Mapping[str, Matches]) -> Iterator[None]:
        """Use these matches for the decision that is made now."""
        self._found = found
        try:
            yield
        finally:
            self._found = {}


async def find_matches(
    pool: WorkPool, usage: Usage, expressions: Iterable[str], topics: Mapping[str, object]
) -> dict[str, Matches]:
    """Match expressions with topics; those that RE2 refuses are left to the coordinator."""
    names = list(topics)
    found = {}
    for expression in expressions:
        matching: set[str] = set()
        try:
            pattern = await pool.run(usage, len(expression), compile_pattern, expression)
        except KafkaError:
            continue
        for at in range(0, len(names), _NAMES_AT_ONCE):
            some = names[at : at + _NAMES_AT_ONCE]
            matching |= await pool.run(usage, len(expression), _matching, pattern, some)
        found[expression] = Matches(pattern, topics, matching)
    return found


def _matching(pattern: TopicPattern, names: list[str]) -> set[str]:
    return set(filter(pattern.matches, names))


def compile_pattern(pattern: str) -> TopicPattern:
    """Compile a subscription's regular expression.

    RE2 takes 5 MB, and most clusters have no subscription by pattern, so it is loaded with the
    first one.
    """
    from hightide.broker.groups.re2_patterns import compile_pattern

    return compile_pattern(pattern)
