"""The pages that `python -m reference` makes are as the code is."""

from __future__ import annotations

import pytest

from hightide.wire.errors import ErrorCode
from reference.errors import returned_codes
from reference.events import every_kind
from reference.pages import FOLDER, PAGES, page
from tests.support import event_examples


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_fresh(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text("utf-8")
    assert text == page(name), f"docs/reference/{name}.md is not fresh: run `make docs`"


def test_the_codes_that_a_broker_returns_are_found() -> None:
    found = returned_codes()
    assert {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CORRUPT_MESSAGE} <= found
    assert ErrorCode.SHARE_SESSION_NOT_FOUND not in found


def test_every_kind_of_event_is_found() -> None:
    assert every_kind() == event_examples.every_kind()
