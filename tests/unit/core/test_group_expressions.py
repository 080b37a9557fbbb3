"""Regular expressions of subscriptions: Python's own are the measure, as long as they end."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.core.groups.consumer.topic_pattern import compiled
from hightide.wire.errors import ErrorCode, KafkaError

ATOMS = st.sampled_from(
    ["a", "b", ".", "-", r"\.", r"\d", r"\W", "[ab]", "[^a]", "[a-c_]", r"[\d-]", "[]a]", "^", "$"]
)
SIGNS = st.sampled_from(["*", "+", "?", "{2}", "{0,1}", "{1,}", "*?"])


def repeated(atom: str, sign: str) -> str:
    return atom if atom in "^$" else f"(?:{atom}){sign}"


PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map("|".join).map("({})".format),
        st.builds(repeated, inner, SIGNS),
    ),
    max_leaves=6,
)
NAMES = st.text("abcA-_.1", max_size=6)


@settings(max_examples=400, deadline=None)
@given(PATTERNS, NAMES)
def test_what_matches_is_what_matches_in_python(pattern: str, name: str) -> None:
    assert compiled(pattern).matches(name) == bool(re.fullmatch(pattern, name))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("(?i)orders-.*", "ORDERS-eu"), ("", ""), (r"a\tb", "a\tb"), ("x|", ""), ("(a|)b", "b")],
)
def test_these_match(pattern: str, name: str) -> None:
    assert compiled(pattern).matches(name)


BROKEN = ["(", ")", "[", "[]", "a{", "a{x}", "a{2,1}", "*a", "[b-a]", "\\", "^*"]
UNKNOWN = ["(?=a)", "(?P<n>a)", r"\1", r"\b", r"\pL", "[[:alpha:]]", r"[\D]"]
LARGE = ["(" * 40, "a{9999}", "(a{99}){99}"]


@pytest.mark.parametrize("pattern", [*BROKEN, *UNKNOWN, *LARGE])
def test_what_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        compiled(pattern)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_no_expression_takes_long() -> None:
    assert not compiled("(a*)*(a|a)*(a+)+b").matches("a" * 249)
