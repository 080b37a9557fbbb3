"""Regular expressions of subscriptions, compiled by RE2.

Any client that may subscribe chooses the expression, so its cost must be bounded.  RE2 matches in
time linear in the length of the topic name.  The limits below bound the other factor, the size of
the compiled program: a name of 249 characters takes microseconds, and a few milliseconds in the
worst cases found.
"""

from __future__ import annotations

import re2

from hightide.wire.errors import ErrorCode, KafkaError

MAX_PATTERN_LENGTH = 4096
_MAX_MEMORY_BYTES = 256 * 1024
"""Per expression: its program and the states cached while matching.  re2 keeps 128 expressions."""


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = _MAX_MEMORY_BYTES
    options.log_errors = False
    # Only the whole match counts.  With captures, 2000 empty groups take 0.1 s for one name.
    options.never_capture = True
    return options


_OPTIONS = _options()


class Re2Pattern:
    """An expression that RE2 has compiled."""

    __slots__ = ("_pattern",)

    def __init__(self, pattern: str) -> None:
        self._pattern = re2.compile(pattern, _OPTIONS)

    def matches(self, topic: str) -> bool:
        """Whether the expression matches the whole topic name."""
        return self._pattern.fullmatch(topic) is not None


def compile_pattern(pattern: str) -> Re2Pattern:
    """Compile an expression; INVALID_REGULAR_EXPRESSION, in RE2's words, if RE2 refuses it."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise _invalid(
            pattern, f"it has {len(pattern)} characters, {MAX_PATTERN_LENGTH} are allowed"
        )
    try:
        return Re2Pattern(pattern)
    except re2.error as error:
        (detail,) = error.args
        raise _invalid(pattern, detail.decode(errors="replace")) from error


def _invalid(pattern: str, problem: str) -> KafkaError:
    detail = f"invalid regular expression {pattern[:100]!r}: {problem}"
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail)
