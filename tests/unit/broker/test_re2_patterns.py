"""Regular expressions of subscriptions: RE2's syntax, whole names, and a bounded cost."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.broker.groups.re2_patterns import MAX_PATTERN_LENGTH, compile_pattern
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
    assert compile_pattern(pattern).matches(name) == bool(re.fullmatch(pattern, name))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("(?i)orders-.*", "ORDERS-eu"), ("", ""), (r"a\tb", "a\tb"), ("x|", ""), ("(a|)b", "b")],
)
def test_these_match(pattern: str, name: str) -> None:
    assert compile_pattern(pattern).matches(name)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("[[:alpha:]]+", "orders", "orders1"),
        ("[[:^digit:]]+", "orders", "7"),
        (r"\p{L}+", "orders", "orders-1"),
        (r"\pN+", "42", "x"),
        (r"\P{Lu}+", "orders", "Orders"),
        ("(?i:abc)-x", "aBC-x", "abc-X"),
        ("a(?i)b", "aB", "AB"),
        (r"\bfoo\b.*", "foo.bar", "foobar"),
        ("(?P<kind>in|out)-.*", "in-1", "on-1"),
        (r"\Aorders\z", "orders", "orders2"),
        (r"\Qa.b\E", "a.b", "axb"),
        (r"[\D]+", "abc", "ab1"),
        (r"\x61\x{62}", "ab", "ba"),
    ],
)
def test_valid_expressions_of_re2_are_accepted(pattern: str, matching: str, other: str) -> None:
    compiled = compile_pattern(pattern)
    assert compiled.matches(matching)
    assert not compiled.matches(other)


def test_an_expression_must_match_the_whole_name() -> None:
    compiled = compile_pattern("orders")
    assert compiled.matches("orders")
    assert not compiled.matches("orders-eu")
    assert not compiled.matches("eu-orders")


BROKEN = ["(", ")", "[", "[]", "a{2,1}", "*a", "[b-a]", "\\", "a++", "a**", "[[:alfa:]]", r"\pX"]
NOT_REGULAR = ["(?=a)", "(?!a)", "(?<=a)b", r"(a)\1", "(?>a)"]
LARGE = ["(" * 40, "a{9999}", "(a{99}){99}", r"\p{L}{1000}", "a" * (MAX_PATTERN_LENGTH + 1)]


@pytest.mark.parametrize("pattern", [*BROKEN, *NOT_REGULAR, *LARGE])
def test_an_invalid_expression_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        compile_pattern(pattern)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a++", "bad repetition operator: ++"),
        ("(", "missing ): ("),
        ("a{1001}", "invalid repetition size: {1001}"),
        (r"\p{L}{1000}", "pattern too large - compile failed"),
        ("a" * 5000, "it has 5000 characters, 4096 are allowed"),
    ],
)
def test_a_refusal_says_why_in_the_words_of_re2(pattern: str, reason: str) -> None:
    with pytest.raises(KafkaError) as refused:
        compile_pattern(pattern)
    assert reason in refused.value.detail
    assert pattern[:100] in refused.value.detail.replace("\\\\", "\\")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*(a|a)*(a+)+b",
        "((a+)+)+b",
        "(a|aa)*b",
        "(?:a?){200}a{200}b",
        "(a|b)*a(a|b){900}",
        "(" * 900 + "a" + ")*" * 900 + "b",
    ],
)
def test_no_expression_takes_long(pattern: str) -> None:
    began = time.process_time()
    compiled = compile_pattern(pattern)
    for _ in range(10):
        assert not compiled.matches("a" * 249)
    assert time.process_time() - began < 1
