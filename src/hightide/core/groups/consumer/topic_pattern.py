"""Regular expressions of subscriptions, matched in a time that is known beforehand.

Kafka takes RE2's syntax.  Python's own expressions try one way after the other, and whoever may
subscribe could send one that takes years.  Here all ways are followed at once: a name of n
characters costs at most n times the number of steps of the expression.

    a(b|c)*d        ──▶  steps: character, choice of steps, begin, end, done

What is understood is what topics are named with: characters, `.`, classes in brackets, the classes
`\\d`, `\\w` and `\\s` and their opposites, groups, `|`, and `* + ? {n,m}`; `^` and `$`, though the
whole name must match anyway; and `(?i)` in front.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hightide.wire.errors import ErrorCode, KafkaError

MAX_STEPS = 500
MAX_DEPTH = 30

_CLASSES = {"d": (("0", "9"),), "w": (("0", "9"), ("A", "Z"), ("a", "z"), ("_", "_"))}
_CLASSES["s"] = tuple((each, each) for each in "\t\n\f\r ")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
Ranges = tuple[tuple[str, str], ...]


class Step(NamedTuple):
    """One of: take a character (`ranges` set), go on in one of several ways, be at an end."""

    ways: tuple[int, ...] = ()
    ranges: Ranges | None = None
    is_negated: bool = False
    anchor: str = ""

    def takes(self, character: str) -> bool:
        assert self.ranges is not None
        return any(low <= character <= high for low, high in self.ranges) != self.is_negated


DONE = 0


class Expression:
    """What a pattern became."""

    def __init__(self, steps: list[Step], begin: int, ignores_case: bool) -> None:
        self._steps = steps
        self._begin = begin
        self._ignores_case = ignores_case

    def matches(self, name: str) -> bool:
        """Whether it is the whole of the name."""
        at = self._reached([self._begin], is_begin=True, is_end=not name)
        for place, character in enumerate(name, 1):
            cases = {character}
            if self._ignores_case:
                cases = {character.lower(), character.upper()}
            on = [
                self._steps[each].ways[0]
                for each in at
                if self._steps[each].ranges is not None
                and any(self._steps[each].takes(case) for case in cases)
            ]
            at = self._reached(on, is_begin=False, is_end=place == len(name))
        return DONE in at

    def _reached(self, begin: list[int], *, is_begin: bool, is_end: bool) -> set[int]:
        """Where one can be without another character."""
        found: set[int] = set()
        ahead = begin
        while ahead:
            each = ahead.pop()
            if each in found:
                continue
            found.add(each)
            step = self._steps[each]
            is_open = {"": True, "^": is_begin, "$": is_end}[step.anchor]
            if step.ranges is None and is_open:
                ahead.extend(step.ways)
        return found


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Expression:
    """INVALID_REGULAR_EXPRESSION, saying why, if it is none that is understood."""
    ignores_case = pattern.startswith("(?i)")
    parser = _Parser(pattern, 4 if ignores_case else 0)
    tree = parser.choice(0)
    if not parser.is_at_end:
        raise parser.problem("a parenthesis is closed that was not opened")
    steps = [Step()]
    return Expression(steps, _build(tree, DONE, steps, pattern), ignores_case)


class _Characters(NamedTuple):
    ranges: Ranges
    is_negated: bool = False


class _Anchor(NamedTuple):
    sign: str


class _Row(NamedTuple):
    parts: tuple[_Node, ...]


class _Choice(NamedTuple):
    parts: tuple[_Node, ...]


class _Repeat(NamedTuple):
    part: _Node
    least: int
    most: int | None


_Node = _Characters | _Anchor | _Row | _Choice | _Repeat


def _build(node: _Node, to: int, steps: list[Step], pattern: str) -> int:
    """The step that the node begins with, which leads on to another."""

    def add(step: Step) -> int:
        if len(steps) >= MAX_STEPS:
            raise _invalid(pattern, f"it has more than {MAX_STEPS} steps")
        steps.append(step)
        return len(steps) - 1

    match node:
        case _Characters(ranges, is_negated):
            return add(Step((to,), ranges, is_negated))
        case _Anchor(sign):
            return add(Step((to,), anchor=sign))
        case _Row(parts):
            for part in reversed(parts):
                to = _build(part, to, steps, pattern)
            return to
        case _Choice(parts):
            return add(Step(tuple(_build(part, to, steps, pattern) for part in parts)))
        case _Repeat(part, least, most):
            if most is None:
                loop = add(Step())
                steps[loop] = Step((_build(part, loop, steps, pattern), to))
                to = loop
            else:
                end = to
                for _ in range(most - least):
                    to = add(Step((_build(part, to, steps, pattern), end)))
            for _ in range(least):
                to = _build(part, to, steps, pattern)
            return to


class _Parser:
    def __init__(self, pattern: str, at: int) -> None:
        self._pattern = pattern
        self._at = at

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._pattern)

    @property
    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def problem(self, what: str) -> KafkaError:
        return _invalid(self._pattern, what)

    def _take(self) -> str:
        taken = self._next
        if not taken:
            raise self.problem("it ends too early")
        self._at += 1
        return taken

    def _skip(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def choice(self, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            raise self.problem(f"groups are nested more than {MAX_DEPTH} deep")
        rows = [self._row(depth)]
        while self._skip("|"):
            rows.append(self._row(depth))
        return rows[0] if len(rows) == 1 else _Choice(tuple(rows))

    def _row(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while not self.is_at_end and self._next not in "|)":
            parts.append(self._repeated(self._atom(depth)))
        return _Row(tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        while self._next and self._next in "*+?{":
            sign = self._take()
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (0, 0))
            if sign == "{":
                least, most = self._bounds()
            self._skip("?")  # To take as little as can be makes no difference to a whole match.
            if isinstance(node, _Anchor):
                raise self.problem("a place cannot be repeated")
            node = _Repeat(node, least, most)
        return node

    def _bounds(self) -> tuple[int, int | None]:
        text = ""
        while (character := self._take()) != "}":
            text += character
        low, comma, high = text.partition(",")
        try:
            least = int(low)
            most = None if comma and not high else int(high) if comma else least
        except ValueError:
            raise self.problem(f"{{{text}}} is no number of times") from None
        if most is not None and not 0 <= least <= most <= MAX_STEPS:
            raise self.problem(f"{{{text}}} is no number of times")
        return min(least, MAX_STEPS), most

    def _atom(self, depth: int) -> _Node:
        character = self._take()
        match character:
            case "(":
                if self._skip("?") and not self._skip(":"):
                    raise self.problem("groups of this kind are not understood")
                inner = self.choice(depth + 1)
                if not self._skip(")"):
                    raise self.problem("a group is not closed")
                return inner
            case "[":
                return self._bracket()
            case ".":
                return _Characters((("\n", "\n"),), True)
            case "^" | "$":
                return _Anchor(character)
            case "\\":
                return self._escape()
            case "*" | "+" | "?" | "{":
                raise self.problem("there is nothing to repeat")
        return _Characters(((character, character),))

    def _escape(self) -> _Characters:
        character = self._take()
        if character.lower() in _CLASSES:
            return _Characters(_CLASSES[character.lower()], character.isupper())
        if character.isalnum() and character not in _CONTROLS:
            raise self.problem(f"\\{character} is not understood")
        meant = _CONTROLS.get(character, character)
        return _Characters(((meant, meant),))

    def _bracket(self) -> _Node:
        is_negated = self._skip("^")
        ranges: list[tuple[str, str]] = []
        is_first = True
        while is_first or self._next != "]":
            is_first = False
            if self._skip("[:"):
                raise self.problem("named classes are not understood")
            low = self._member(ranges)
            high = low
            if low and self._next == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                self._take()
                high = self._member(ranges)
                if not high or high < low:
                    raise self.problem("a range goes backwards")
            if low:
                ranges.append((low, high))
        self._take()
        return _Characters(tuple(ranges), is_negated)

    def _member(self, ranges: list[tuple[str, str]]) -> str:
        """A character of a class; a class inside it is added as a whole."""
        character = self._take()
        if character != "\\":
            return character
        found = self._escape()
        if found.is_negated:
            raise self.problem("the opposite of a class inside another is not understood")
        if len(found.ranges) > 1 or found.ranges[0][0] != found.ranges[0][1]:
            ranges.extend(found.ranges)
            return ""
        return found.ranges[0][0]


def _invalid(pattern: str, what: str) -> KafkaError:
    detail = f"the regular expression {pattern[:100]!r} cannot be used: {what}"
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail)
