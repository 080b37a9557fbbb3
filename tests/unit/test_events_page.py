"""docs/guide/events.md has every kind of event, with its levels, a real sentence and its facts."""

from __future__ import annotations

import re
from dataclasses import fields

from hightide.core.events import SEVERITIES, Event
from tests.support.event_examples import EXAMPLES, OTHER_LEVELS, every_kind
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "guide" / "events.md").read_text("utf-8")


def levels(kind: str) -> str:
    found = {event.level for event in (*EXAMPLES, *OTHER_LEVELS) if event.kind == kind}
    return ", ".join(severity.value for severity in SEVERITIES if severity in found)


def row(event: Event) -> str:
    facts = ", ".join(f"`{part.name}`" for part in fields(event))
    return f"| `{event.kind}` | {levels(event.kind)} | {event} | {facts} |"


def test_the_page_has_every_kind_as_it_is() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| `\w+` \|.*\|.*\|", line)]
    expected = "\n".join(row(event) for event in EXAMPLES)
    assert "\n".join(rows) == expected, f"the rows of the page should be:\n{expected}"


def test_a_level_that_depends_on_the_facts_has_examples() -> None:
    for name, kind in every_kind().items():
        depends = "level" in kind.__dict__
        assert ("," in levels(name)) == depends, name
